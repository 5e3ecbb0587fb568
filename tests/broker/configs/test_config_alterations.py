"""What AlterConfigs and IncrementalAlterConfigs turn stored configurations into, and what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.configs.alterations import (
    change_broker_config,
    change_topic_config,
    replace_broker_config,
    replace_topic_config,
)
from klamm.broker.configs.broker import DynamicBrokerConfig
from klamm.config.broker import BROKER_CONFIG_DEF, BrokerConfig
from klamm.config.topic import TOPIC_CONFIG_DEF
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import AlterConfigOp
from klamm.znodes.fields import ZnodeError

SET, DELETE, APPEND, SUBTRACT = range(4)
BROKER = BrokerConfig.from_properties({"zookeeper.connect": "zk", "log.cleanup.policy": "compact"})

THROTTLED = "leader.replication.throttled.replicas"


def topic_after(stored: dict[str, str], *changes: tuple[str, int, str | None]) -> dict[str, str]:
    return change_topic_config(BROKER, stored, [AlterConfigOp(name, value, code) for name, code, value in changes])


def broker_after(
    stored: dict[str, str],
    *changes: tuple[str, int, str | None],
    per_broker: bool = True,
    config: BrokerConfig = BROKER,
) -> dict[str, str]:
    changed = [AlterConfigOp(name, value, code) for name, code, value in changes]
    return change_broker_config(config, stored, changed, per_broker=per_broker)


def test_single_configs_are_set_and_deleted() -> None:
    stored = {"retention.ms": "1", "segment.bytes": "100"}
    assert topic_after(
        stored, ("retention.ms", DELETE, None), ("flush.ms", SET, "5"), ("segment.ms", DELETE, "never there")
    ) == {"segment.bytes": "100", "flush.ms": "5"}
    assert stored == {"retention.ms": "1", "segment.bytes": "100"}


@pytest.mark.parametrize(
    ("stored", "operation", "value", "expected"),
    [
        ("compact", APPEND, "delete", "compact,delete"),
        # The key's default, not what the topic inherits from its broker (compact).
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "compact", "compact,compact"),
        ("compact, delete", SUBTRACT, "delete", "compact"),
        ("compact,delete,delete", SUBTRACT, "delete", "compact,delete"),
        ("compact", SUBTRACT, "compact", ""),
        (None, SUBTRACT, "compact", "delete"),
    ],
)
def test_lists_grow_and_shrink(stored: str | None, operation: int, value: str, expected: str) -> None:
    configs = {} if stored is None else {"cleanup.policy": stored}
    assert topic_after(configs, ("cleanup.policy", operation, value)) == {"cleanup.policy": expected}


def test_an_empty_list_grows_without_an_empty_element() -> None:
    assert topic_after({}, (THROTTLED, APPEND, "0:1,1:2")) == {THROTTLED: "0:1,1:2"}
    assert topic_after({THROTTLED: ""}, (THROTTLED, APPEND, "0:1")) == {THROTTLED: "0:1"}


REFUSED = [
    ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], "INVALID_REQUEST", "duplicate config keys"),
    ([("retention.ms", SET, None)], "INVALID_REQUEST", "Null value not supported for : SET:retention.ms"),
    ([("cleanup.policy", APPEND, None)], "INVALID_REQUEST", "Null value not supported for : APPEND:cleanup.policy"),
    ([("retention.ms", APPEND, "1")], "INVALID_REQUEST", "append is not allowed for config key: retention.ms"),
    ([("retention.ms", SUBTRACT, "1")], "INVALID_REQUEST", "subtract is not allowed for config key: retention.ms"),
    ([("retention.ms", 4, "1")], "INVALID_REQUEST", "operation 4 on retention.ms: allowed are 0 (SET), 1 (DELETE)"),
    ([("nobody.knows", APPEND, "1")], "INVALID_CONFIG", "nobody.knows is not a known config key"),
    ([("nobody.knows", SET, "1")], "INVALID_CONFIG", "Unknown topic config name: nobody.knows"),
    ([("retention.ms", SET, "-2")], "INVALID_REQUEST", "retention.ms=-2 is not allowed; allowed: at least -1"),
    ([("cleanup.policy", APPEND, "squeeze")], "INVALID_REQUEST", "allowed: a list of compact, delete"),
    (
        [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")],
        "INVALID_CONFIG",
        "min.compaction.lag.ms=9 is more than max.compaction.lag.ms=8",
    ),
]


@pytest.mark.parametrize(("changes", "code", "message"), REFUSED)
def test_what_is_refused_for_a_topic(changes: list[tuple[str, int, str | None]], code: str, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        topic_after({}, *changes)
    assert refused.value.code.name == code
    assert message in refused.value.message


def test_a_topics_configs_are_replaced() -> None:
    assert replace_topic_config(BROKER, [("retention.ms", "5"), ("flush.ms", "1"), ("flush.ms", "2")]) == {
        "retention.ms": "5",
        "flush.ms": "2",
    }
    with pytest.raises(KafkaError, match=r"INVALID_REQUEST \(42\): Null value not supported for : a,b"):
        replace_topic_config(BROKER, [("a", None), ("retention.ms", "1"), ("b", None)])
    with pytest.raises(KafkaError, match=r"INVALID_CONFIG \(40\): Unknown topic config name: a"):
        replace_topic_config(BROKER, [("a", "1"), ("retention.ms", "1")])


def test_a_brokers_configs() -> None:
    stored = {"min.insync.replicas": "2", "nobody.knows": "1"}
    assert broker_after(stored, ("min.insync.replicas", DELETE, None), ("log.flush.interval.messages", SET, "7")) == {
        "nobody.knows": "1",
        "log.flush.interval.messages": "7",
    }
    assert broker_after({}, ("log.cleanup.policy", APPEND, "compact"), per_broker=False) == {
        "log.cleanup.policy": "delete,compact"
    }
    assert replace_broker_config(BROKER, [("min.insync.replicas", "3")], per_broker=False) == {
        "min.insync.replicas": "3"
    }


@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("broker.id", "1", "broker.id cannot be changed while brokers run"),
        ("min.insync.replicas", "0", "allowed: at least 1"),
        ("num.io.threads", "17", "from half to double of 8"),
        ("log.cleaner.dedupe.buffer.size", "1000", "is less than 1 MB"),
        ("listener.name.a.ssl.keystore.password", "hunter2", "cannot"),
    ],
)
def test_what_is_refused_for_a_broker(name: str, value: str, message: str, per_broker: bool) -> None:
    for alter in (
        lambda: broker_after({}, (name, SET, value), per_broker=per_broker),
        lambda: replace_broker_config(BROKER, [(name, value)], per_broker=per_broker),
    ):
        with pytest.raises(KafkaError) as refused:
            alter()
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert message in refused.value.message
        assert "hunter2" not in refused.value.message


def test_a_listener_is_for_one_broker_only() -> None:
    with pytest.raises(KafkaError, match="may be set for one broker only"):
        broker_after({}, ("listeners", SET, "PLAINTEXT://:1"), per_broker=False)
    assert broker_after({}, ("listeners", SET, "PLAINTEXT://:9092")) == {"listeners": "PLAINTEXT://:9092"}


def test_both_levels_must_agree_with_each_other() -> None:
    """The default is checked under what this broker has of its own, and the other way round."""
    config = BROKER.with_dynamic(broker={"log.cleaner.threads": "2"}, default={})
    small = ("log.cleaner.dedupe.buffer.size", SET, str(3 << 19))
    assert broker_after({}, small, per_broker=False)
    with pytest.raises(KafkaError, match="is less than 1 MB"):
        broker_after({}, small, per_broker=False, config=config)


def test_what_is_right_with_the_brokers_own_configs_is_applied_with_them() -> None:
    """The file's two threads would need more than the cluster's buffer; this broker has one."""
    running = DynamicBrokerConfig(BrokerConfig.from_properties({"zookeeper.connect": "zk", "log.cleaner.threads": "2"}))
    buffer = {"log.cleaner.dedupe.buffer.size": str(3 << 19)}
    assert replace_broker_config(
        running.current.with_dynamic(broker={"log.cleaner.threads": "1"}), list(buffer.items()), per_broker=False
    )
    running.apply(buffer, {"log.cleaner.threads": "1"})
    assert (running.current.log_cleaner_dedupe_buffer_size, running.current.log_cleaner_threads) == (3 << 19, 1)
    # What contradicts goes by levels.
    running.apply(buffer, {"min.insync.replicas": "2"})
    assert (running.current.dynamic_default, running.current.min_insync_replicas) == ({}, 2)
    running.apply({"min.insync.replicas": "3"}, buffer)
    assert (running.current.min_insync_replicas, running.current.dynamic_broker) == (3, {})


def test_what_is_stored_and_not_valid_goes_but_passwords_stay() -> None:
    password = "listener.name.a.ssl.keystore.password"
    stored = {"broker.id": "3", "log.roll.ms": "none", password: "encoded by Kafka", "message.max.bytes": "9"}
    assert broker_after(stored, ("log.segment.bytes", SET, "99")) == {
        password: "encoded by Kafka",
        "message.max.bytes": "9",
        "log.segment.bytes": "99",
    }
    assert password not in broker_after(stored, (password, DELETE, None))
    with pytest.raises(KafkaError, match="is a password"):
        broker_after(stored, (password, SET, "new"))


def test_what_guards_records_and_cannot_be_read_goes_only_by_name() -> None:
    stored = {"unclean.leader.election.enable": "flase"}
    with pytest.raises(KafkaError, match=r"INVALID_CONFIG.*unclean.leader.election.enable=flase is not.*Set or delete"):
        broker_after(stored, ("log.segment.bytes", SET, "99"))
    assert broker_after(stored, ("unclean.leader.election.enable", DELETE, None)) == {}


def test_what_contradicts_the_rest_of_its_level_does_not_take_what_guards_records_with_it() -> None:
    running = DynamicBrokerConfig(
        BrokerConfig.from_properties({"zookeeper.connect": "zk", "unclean.leader.election.enable": "true"})
    )
    bad = {"log.cleaner.dedupe.buffer.size": "1"}
    running.apply({**bad, "unclean.leader.election.enable": "false"}, {**bad, "log.retention.ms": "-1"})
    assert running.current.dynamic_default == {"unclean.leader.election.enable": "false"}
    assert running.current.dynamic_broker == {"log.retention.ms": "-1"}


SAFEST = {
    "log.cleanup.policy": "",
    "log.flush.interval.messages": "1",
    "log.flush.interval.ms": "0",
    "min.insync.replicas": "2147483647",
    "log.retention.bytes": "-1",
    "log.retention.ms": "-1",
    "unclean.leader.election.enable": "false",
}


@pytest.mark.parametrize("per_broker", [False, True])
def test_a_level_that_cannot_be_read_is_what_it_was_or_else_the_safest_there_is(per_broker: bool) -> None:
    def apply(running: DynamicBrokerConfig, level: dict[str, str] | ZnodeError) -> dict[str, str]:
        running.apply(*(({}, level) if per_broker else (level, {})))
        return dict(running.current.dynamic_broker if per_broker else running.current.dynamic_default)

    file = BrokerConfig.from_properties({"zookeeper.connect": "zk", "unclean.leader.election.enable": "true"})
    unreadable = ZnodeError("/config/brokers/0", "not JSON")
    running = DynamicBrokerConfig(file)
    assert apply(running, unreadable) == SAFEST
    assert (running.current.unclean_leader_election_enable, running.current.log_cleanup_policy) == (False, ())
    stored = {"min.insync.replicas": "2", "log.segment.bytes": "99"}
    assert apply(running, stored) == stored
    assert apply(running, unreadable) == stored
    assert apply(running, {"min.insync.replicas": "two", "log.roll.ms": "8"}) == {
        "min.insync.replicas": "2",
        "log.roll.ms": "8",
    }
    # A single value that never could be read.
    bad = {"min.insync.replicas": "two", "log.segment.bytes": "many"}
    assert apply(DynamicBrokerConfig(file), bad) == {"min.insync.replicas": "2147483647"}


KEYS = st.sampled_from([*BROKER_CONFIG_DEF.keys, *TOPIC_CONFIG_DEF.keys]) | st.text()
CHANGES = st.lists(st.builds(AlterConfigOp, KEYS, st.none() | st.text(), st.integers(-1, 5)))


@given(st.dictionaries(KEYS, st.text()), CHANGES, st.booleans())
def test_garbage_is_refused_or_can_be_applied(
    stored: dict[str, str], changes: list[AlterConfigOp], per_broker: bool
) -> None:
    for alter in (
        lambda: change_topic_config(BROKER, stored, changes),
        lambda: change_broker_config(BROKER, stored, changes, per_broker=per_broker),
    ):
        try:
            wanted = alter()
        except KafkaError as error:
            assert error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
            continue
        assert all(isinstance(value, str) for value in wanted.values())
