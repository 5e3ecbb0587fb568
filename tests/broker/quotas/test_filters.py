"""Which entities DescribeClientQuotas finds."""

import pytest

from klamm.broker.quotas.entities import entity_of, entity_path, stored_values
from klamm.broker.quotas.filters import QuotaFilter
from klamm.protocol.error_codes import ErrorCode, KafkaError

EXACT, DEFAULT, ANY = range(3)

ENTITIES = {
    "alice": {"user": "alice"},
    "bob": {"user": "bob"},
    "users": {"user": None},
    "alice/c": {"user": "alice", "client-id": "c"},
    "alice/clients": {"user": "alice", "client-id": None},
    "users/clients": {"user": None, "client-id": None},
    "c": {"client-id": "c"},
    "clients": {"client-id": None},
    "1.2.3.4": {"ip": "1.2.3.4"},
    "ips": {"ip": None},
}


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, set(ENTITIES)),
        ([], True, set()),
        ([("user", EXACT, "alice")], True, {"alice"}),
        ([("user", EXACT, "alice")], False, {"alice", "alice/c", "alice/clients"}),
        ([("user", DEFAULT, None)], True, {"users"}),
        ([("user", DEFAULT, None)], False, {"users", "users/clients"}),
        ([("user", ANY, None)], True, {"alice", "bob", "users"}),
        ([("user", ANY, None)], False, {"alice", "bob", "users", "alice/c", "alice/clients", "users/clients"}),
        ([("client-id", EXACT, "c")], True, {"c"}),
        ([("client-id", EXACT, "c")], False, {"c", "alice/c"}),
        ([("client-id", ANY, None)], True, {"c", "clients"}),
        ([("user", EXACT, "alice"), ("client-id", ANY, None)], True, {"alice/c", "alice/clients"}),
        ([("user", ANY, None), ("client-id", DEFAULT, None)], False, {"alice/clients", "users/clients"}),
        ([("user", EXACT, "nobody")], False, set()),
        ([("ip", EXACT, "1.2.3.4")], True, {"1.2.3.4"}),
        ([("ip", DEFAULT, None)], False, {"ips"}),
        ([("ip", ANY, None)], True, {"1.2.3.4", "ips"}),
    ],
)
def test_a_filter_finds_entities(components: list[tuple[str, int, str | None]], strict: bool, found: set[str]) -> None:
    wanted = QuotaFilter(components, strict=strict)
    assert {name for name, entity in ENTITIES.items() if wanted.matches(entity)} == found
    if wanted.only_entity is not None:
        assert [ENTITIES[name] for name in sorted(found)] in ([wanted.only_entity], [])


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("user", ANY, None), ("user", EXACT, "a")], ErrorCode.INVALID_REQUEST, "Duplicate user filter component"),
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST, "empty filter component"),
        ([("shoe", ANY, None)], ErrorCode.UNSUPPORTED_VERSION, "Custom entity type 'shoe' not supported"),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST, "IP filter component should not be used"),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, "match type 3 of user: allowed are 0 (EXACT), 1 (DEFAULT)"),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST, "the name of user is null"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    components: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    with pytest.raises(KafkaError) as refused:
        QuotaFilter(components, strict=False)
    assert (refused.value.code, message in refused.value.message) == (code, True), refused.value


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("users/alice", {"user": "alice"}),
        ("users/CN%3Da%20b", {"user": "CN=a b"}),
        ("users/<default>", {"user": None}),
        ("users/alice/clients/c%2F1", {"user": "alice", "client-id": "c/1"}),
        ("users/<default>/clients/<default>", {"user": None, "client-id": None}),
        ("clients/%3Cdefault%3E", {"client-id": "<default>"}),
        ("clients/<default>", {"client-id": None}),
        ("ips/10.0.0.1", {"ip": "10.0.0.1"}),
        ("ips/::1", {"ip": "::1"}),
        ("ips/<default>", {"ip": None}),
    ],
)
def test_entities_have_the_znodes_of_kafka(path: str, entity: dict[str, str | None]) -> None:
    assert entity_of(path) == entity
    assert entity_path(entity) == path


@pytest.mark.parametrize(
    "path", ["topics/t", "users", "users/a/clients", "users/a/b/c", "clients/a/users/b", "", "ips"]
)
def test_other_paths_are_of_no_entity(path: str) -> None:
    assert entity_of(path) is None


def test_quotas_that_cannot_be_read_are_named() -> None:
    stored = {"producer_byte_rate": "fast", "consumer_byte_rate": "7", "request_percentage": "-1", "SCRAM-SHA-256": "x"}
    values, problems = stored_values({"user": "alice"}, stored)
    assert values == {"consumer_byte_rate": 7}
    assert [problem.split(" ")[0] for problem in problems] == ["producer_byte_rate=fast", "request_percentage=-1"]
