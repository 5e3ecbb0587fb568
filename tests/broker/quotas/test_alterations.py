"""What AlterClientQuotas stores, and what it refuses."""

import pytest

from klamm.broker.quotas.alterations import altered, checked_entity
from klamm.protocol.error_codes import ErrorCode, KafkaError

ALICE, ADDRESS = {"user": "alice"}, {"ip": "1.2.3.4"}


@pytest.mark.parametrize(
    ("entity", "operations", "stored"),
    [
        (ALICE, [("producer_byte_rate", 1024.0)], {"kept": "x", "producer_byte_rate": "1024"}),
        (ALICE, [("producer_byte_rate", 1024.0000005)], {"kept": "x", "producer_byte_rate": "1024"}),
        (ALICE, [("producer_byte_rate", 1023.9999995)], {"kept": "x", "producer_byte_rate": "1024"}),
        (ALICE, [("consumer_byte_rate", 1e12)], {"kept": "x", "consumer_byte_rate": "1000000000000"}),
        (ALICE, [("request_percentage", 12.5)], {"kept": "x", "request_percentage": "12.5"}),
        (ALICE, [("controller_mutation_rate", 1e7)], {"kept": "x", "controller_mutation_rate": "1.0E7"}),
        (ALICE, [("kept", None), ("producer_byte_rate", None)], {}),
        (ADDRESS, [("connection_creation_rate", 10.0)], {"kept": "x", "connection_creation_rate": "10"}),
        (ALICE, [("request_percentage", 1.0), ("request_percentage", None)], {"kept": "x"}),
    ],
)
def test_quotas_are_stored_as_kafka_stores_them(
    entity: dict[str, str | None], operations: list[tuple[str, float | None]], stored: dict[str, str]
) -> None:
    assert altered(entity, {"kept": "x"}, operations) == stored


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (ALICE, "producer_rate", 1.0, "Invalid configuration key producer_rate; allowed are producer_byte_rate, "),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (ALICE, "SCRAM-SHA-256", 1.0, "Invalid configuration key SCRAM-SHA-256"),
        (ALICE, "producer_byte_rate", 10.5, "Configuration producer_byte_rate must be a LONG value, not 10.5"),
        (ADDRESS, "connection_creation_rate", 10.5, "connection_creation_rate must be a INT value, not 10.5"),
        (ADDRESS, "connection_creation_rate", 3e9, "connection_creation_rate=3000000000 is not an int"),
        (ALICE, "producer_byte_rate", -1.0, "producer_byte_rate=-1 is not allowed; allowed: at least 0"),
        (ALICE, "request_percentage", float("nan"), "request_percentage=nan is not a number"),
        (ALICE, "producer_byte_rate", float("inf"), "producer_byte_rate=inf is not a number"),
        (ALICE, "producer_byte_rate", 1e300, "is not a long"),
    ],
)
def test_what_is_no_quota_is_refused(entity: dict[str, str | None], key: str, value: float, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        altered(entity, {}, [(key, value)])
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("shoe", "x")], "Unhandled client quota entity type: shoe"),
        ([("user", "")], "Empty user not supported"),
        ([("client-id", "..")], "client-id '..' is not supported, because ZooKeeper has no znode of that name"),
        ([("ip", "1.2.3.4"), ("user", "alice")], "IP entity should not be used with user/client ID entity"),
    ],
)
def test_what_is_no_entity_is_refused(parts: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        checked_entity(parts)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert message in refused.value.message


def test_an_entity_has_names_and_defaults() -> None:
    assert checked_entity([("client-id", None), ("user", "alice")]) == {"client-id": None, "user": "alice"}
