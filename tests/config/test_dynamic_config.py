"""Which of a broker's configs may change while it runs, and to what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.broker import BROKER_CONFIG_DEF, DYNAMIC_ONLY_DEF, BrokerConfig
from klamm.config.dynamic import change_problems, entry_problems, is_password

BROKER = BrokerConfig.from_properties({"zookeeper.connect": "zk", "broker.id": "0", "num.io.threads": "8"})


LONG = "{} is not a long (a whole number from -9223372036854775808 to 9223372036854775807); allowed: at least 0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unclean.leader.election.enable", "true"),
        ("min.insync.replicas", "2"),
        ("auto.leader.rebalance.enable", "false"),
        ("leader.imbalance.per.broker.percentage", "5"),
        ("leader.imbalance.check.interval.seconds", "1"),
        ("log.retention.ms", "-1"),
        ("max.connections", "10"),
        ("listener.name.a.max.connections", "10"),
        ("leader.replication.throttled.rate", "1000"),
        ("nobody.knows.this", "anything"),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_what_may_change_for_one_broker_and_for_all(name: str, text: str, per_broker: bool) -> None:
    assert entry_problems({name: text}, per_broker=per_broker) == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [("listeners", "A://:1"), ("listener.name.a.ssl.keystore.location", "/file"), ("ssl.protocol", "x")],
)
def test_what_may_change_for_one_broker_only(name: str, text: str) -> None:
    assert entry_problems({name: text}, per_broker=True) == {}
    (problem,) = entry_problems({name: text}, per_broker=False).values()
    assert problem == f"{name} may be set for one broker only, not as the default of the cluster"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("broker.id", "1", "broker.id cannot be changed while brokers run"),
        ("log.retention.hours", "1", "log.retention.hours cannot be changed while brokers run"),
        ("log.message.format.version", "2.8", "log.message.format.version cannot be changed while brokers run"),
        (
            "ssl.key.password",
            "x",
            "ssl.key.password may be changed for one listener only: listener.name.NAME.ssl.key.password",
        ),
        ("min.insync.replicas", "0", "min.insync.replicas=0 is not allowed; allowed: at least 1"),
        ("log.cleaner.threads", "-1", "log.cleaner.threads=-1 is not allowed; allowed: at least 0"),
        ("leader.replication.throttled.rate", "x", LONG.format("leader.replication.throttled.rate=x")),
        ("listener.name.a.max.connections", "-1", "max.connections=-1 is not allowed; allowed: at least 0"),
    ],
)  # fmt: skip
def test_what_may_not_change(name: str, text: str, problem: str) -> None:
    good = {"log.segment.bytes": "1000"}
    assert entry_problems({**good, name: text}, per_broker=True) == {name: problem}


def test_no_key_is_both_in_files_and_dynamic_only() -> None:
    assert not set(DYNAMIC_ONLY_DEF.keys) & set(BROKER_CONFIG_DEF.keys)


def test_passwords() -> None:
    assert is_password("listener.name.a.ssl.key.password")
    assert is_password("listener.name.a.scram-sha-256.sasl.jaas.config")
    assert not is_password("listener.name.a.max.connections")
    assert not is_password("nobody.knows.password")


def test_a_pool_changes_by_a_factor_of_two_at_most() -> None:
    for size in (4, 8, 16):
        assert change_problems(BROKER, BROKER.with_dynamic(broker={"num.io.threads": str(size)})) == []
    for size in (3, 17):
        assert change_problems(BROKER, BROKER.with_dynamic(default={"num.io.threads": str(size)})) == [
            f"num.io.threads={size} is not allowed; allowed: at least 1, and from half to double of 8"
        ]


def test_a_listener_keeps_its_protocol_and_no_unsupported_one_comes() -> None:
    protocols = "PLAINTEXT:SSL,A:PLAINTEXT"
    changed = BROKER.with_dynamic(
        broker={
            "listener.security.protocol.map": protocols,
            "listeners": "PLAINTEXT://:9092,A://:9093",
            "advertised.listeners": "A://a:9093,PLAINTEXT://a:9092",
        }
    )
    problems = change_problems(BROKER, changed)
    assert problems[0] == "the security protocol of listener PLAINTEXT cannot be changed from PLAINTEXT"
    assert "SSL is not supported yet" in problems[1]


@given(st.dictionaries(st.sampled_from(list(BROKER_CONFIG_DEF.keys)) | st.text(), st.text()), st.booleans())
def test_garbage_is_accepted_or_refused(entries: dict[str, str], per_broker: bool) -> None:
    assert set(entry_problems(entries, per_broker=per_broker)) <= set(entries)
