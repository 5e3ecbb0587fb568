"""A topic's configuration: inheritance from the broker, overrides, and what is said about bad ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.broker import BROKER_CONFIG_DEF, BrokerConfig
from klamm.config.definition import ConfigError, attribute
from klamm.config.safest import ALL_REPLICAS
from klamm.config.topic import BROKER_KEY, TOPIC_CONFIG_DEF, TopicConfig

BROKER = BrokerConfig.from_properties({"zookeeper.connect": "zk:2181"})


def problems(overrides: dict[str, str | None]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        TopicConfig.from_overrides(BROKER, overrides)
    return refused.value.problems


def test_there_are_26_keys_and_a_plain_broker_changes_no_default() -> None:
    assert len(TOPIC_CONFIG_DEF.keys) == 26
    topic = TopicConfig.from_overrides(BROKER, {})
    assert {name: getattr(topic, attribute(name)) for name in TOPIC_CONFIG_DEF.keys} == {
        name: key.default for name, key in TOPIC_CONFIG_DEF.keys.items()
    }


def test_each_key_inherits_from_a_broker_key_of_its_type() -> None:
    assert set(TOPIC_CONFIG_DEF.keys) - set(BROKER_KEY) == {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
    for name, broker_name in BROKER_KEY.items():
        assert TOPIC_CONFIG_DEF.keys[name].type is BROKER_CONFIG_DEF.keys[broker_name].type


def test_inheritance_and_overrides() -> None:
    broker = BrokerConfig.from_properties(
        {"zookeeper.connect": "zk", "log.retention.minutes": "1", "log.cleanup.policy": "compact", "log.roll.ms": "9"}
    )
    topic = TopicConfig.from_overrides(broker, {"segment.ms": "10", "min.insync.replicas": "2"})
    assert (topic.retention_ms, topic.segment_ms, topic.min_insync_replicas) == (60000, 10, 2)
    assert (topic.compact, topic.delete) == (True, False)
    assert topic.overrides == {"segment.ms": "10", "min.insync.replicas": "2"}


@pytest.mark.parametrize("value", ["", "*", "0:1", "0:1,12:3"])
def test_throttled_replicas(value: str) -> None:
    topic = TopicConfig.from_overrides(BROKER, {"leader.replication.throttled.replicas": value})
    assert ",".join(topic.leader_replication_throttled_replicas) == value


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"retention.hours": "1"}, "retention.hours is not a topic config"),
        ({"retention.ms": None}, "retention.ms=null is not allowed; allowed: a value"),
        ({"retention.ms": "-2"}, "retention.ms=-2 is not allowed; allowed: at least -1"),
        (
            {"retention.ms": "1d"},
            "retention.ms=1d is not a long (a whole number from -9223372036854775808 to 9223372036854775807);"
            " allowed: at least -1",
        ),
        ({"min.cleanable.dirty.ratio": "1.5"}, "min.cleanable.dirty.ratio=1.5 is not allowed; allowed: 0 to 1"),
        (
            {"message.timestamp.type": "createtime"},
            "message.timestamp.type=createtime is not allowed; allowed: one of CreateTime, LogAppendTime",
        ),
        (
            {"leader.replication.throttled.replicas": "0-1"},
            "leader.replication.throttled.replicas=0-1 is not allowed; "
            "allowed: * or partition:broker,partition:broker,...",
        ),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms=5 is more than max.compaction.lag.ms=4",
        ),
    ],
)
def test_a_bad_override_is_named_with_what_is_allowed(overrides: dict[str, str | None], problem: str) -> None:
    assert problems(overrides) == (problem,)


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert len(problems({"a": "1", "retention.ms": None, "segment.bytes": "x"})) == 3


def test_what_is_stored_is_used_as_far_as_it_is_valid() -> None:
    """One bad value must not take away the others, such as how long records are kept."""
    stored = {"other.program.key": "1", "segment.bytes": "20", "retention.ms": "-1", "segment.ms": "soon"}
    topic, problems = TopicConfig.from_stored(BROKER, stored)
    assert (topic.segment_bytes, topic.retention_ms, topic.segment_ms) == (20, -1, BROKER.log_roll_ms)
    assert topic.overrides == {"segment.bytes": "20", "retention.ms": "-1"}
    assert [problem.partition(" ")[0] for problem in problems] == ["segment.ms=soon"]


@pytest.mark.parametrize(
    ("key", "bad", "safest"),
    [
        ("cleanup.policy", "cmpact", ()),
        ("flush.messages", "-1", 1),
        ("flush.ms", "soon", 0),
        ("min.insync.replicas", "0", ALL_REPLICAS),
        ("retention.bytes", "1GB", -1),
        ("retention.ms", "1 week", -1),
        ("unclean.leader.election.enable", "flase", False),
    ],
)
def test_a_bad_value_that_guards_records_is_what_it_was_or_else_the_safest_there_is(
    key: str, bad: str, safest: object
) -> None:
    broker = BrokerConfig.from_properties({"zookeeper.connect": "zk", "unclean.leader.election.enable": "true"})
    topic, problems = TopicConfig.from_stored(broker, {key: bad, "segment.ms": "5"})
    assert (getattr(topic, attribute(key)), topic.segment_ms, len(problems)) == (safest, 5, 1)
    before, _ = TopicConfig.from_stored(broker, {"retention.ms": "7", "min.insync.replicas": "2"})
    after, _ = TopicConfig.from_stored(broker, {key: bad}, before)
    assert getattr(after, attribute(key)) == getattr(before, attribute(key))


def test_a_topic_whose_configuration_cannot_be_read_keeps_what_it_had_or_is_as_safe_as_can_be() -> None:
    broker = BrokerConfig.from_properties({"zookeeper.connect": "zk", "unclean.leader.election.enable": "true"})
    topic = TopicConfig.unreadable(broker)
    assert (topic.unclean_leader_election_enable, topic.retention_ms, topic.retention_bytes) == (False, -1, -1)
    assert (topic.cleanup_policy, topic.flush_messages, topic.min_insync_replicas) == ((), 1, ALL_REPLICAS)
    assert topic.segment_bytes == broker.log_segment_bytes
    known, _ = TopicConfig.from_stored(broker, {"retention.ms": "7"})
    assert TopicConfig.unreadable(broker, known).overrides == {"retention.ms": "7"}


def test_contradictory_values_that_are_stored_are_used() -> None:
    topic, problems = TopicConfig.from_stored(BROKER, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})
    assert (topic.min_compaction_lag_ms, topic.max_compaction_lag_ms, problems) == (5, 4, [])


KEYS = st.one_of(st.sampled_from(list(TOPIC_CONFIG_DEF.keys)), st.text())
VALUES = st.one_of(st.none(), st.text(), st.integers().map(str))


@given(st.dictionaries(KEYS, VALUES))
def test_garbage_is_parsed_or_refused(overrides: dict[str, str | None]) -> None:
    try:
        topic = TopicConfig.from_overrides(BROKER, overrides)
    except ConfigError as error:
        assert error.problems
        return
    assert topic.overrides == overrides


@given(st.dictionaries(KEYS, st.text() | st.integers().map(str)))
def test_garbage_that_is_stored_is_passed_over(stored: dict[str, str]) -> None:
    topic, problems = TopicConfig.from_stored(BROKER, stored)
    known = [key for key in stored if key in TOPIC_CONFIG_DEF.keys]
    replaced = [key for key in topic.overrides if topic.overrides[key] != stored[key]]
    assert len(topic.overrides) - len(replaced) + len(problems) == len(known)
