"""DescribeConfigs' data. That all of it is Kafka's is shown against Kafka in tests/interop."""

from klamm.config.broker import BrokerConfig
from klamm.config.definition import ConfigSource, ConfigType, format_value
from klamm.config.describe import (
    ConfigSynonym,
    DescribedConfig,
    describe_broker,
    describe_default_broker,
    describe_topic,
)
from klamm.config.topic import TopicConfig

BROKER = BrokerConfig.from_properties(
    {
        "zookeeper.connect": "zk",
        "log.segment.bytes": "4096",
        "log.retention.ms": "7",
        "log.retention.hours": "1",
        "ssl.key.password": "hunter2",
        "not.a.key": "hunter2 too",
        "listener.name.a.ssl.key.password": "hunter2",
    }
)


def by_name(configs: list[DescribedConfig]) -> dict[str, DescribedConfig]:
    return {config.name: config for config in configs}


def test_only_the_wanted_keys_of_a_topic_are_described() -> None:
    config = TopicConfig.from_overrides(BROKER, {})
    wanted = describe_topic(config, ["segment.bytes", "retention.ms", "no.such.key"])
    assert wanted == [each for each in describe_topic(config) if each.name in ("segment.bytes", "retention.ms")]
    assert len(wanted) == 2


def test_a_topics_override_comes_before_the_brokers_file_and_the_default() -> None:
    topic = by_name(describe_topic(TopicConfig.from_overrides(BROKER, {"segment.bytes": "5000"})))["segment.bytes"]
    assert (topic.value, topic.source, topic.type) == ("5000", ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigType.INT)
    assert not topic.is_default and not topic.read_only
    assert topic.synonyms == (
        ConfigSynonym("segment.bytes", "5000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym("log.segment.bytes", "4096", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.segment.bytes", "1073741824", ConfigSource.DEFAULT_CONFIG),
    )


def test_a_setting_in_several_units_lists_them_all() -> None:
    retention = by_name(describe_topic(TopicConfig.from_overrides(BROKER, {})))["retention.ms"]
    assert (retention.value, retention.source) == ("7", ConfigSource.STATIC_BROKER_CONFIG)
    assert retention.synonyms == (
        ConfigSynonym("log.retention.ms", "7", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    )


def test_dynamic_configs_come_before_the_file() -> None:
    broker = BROKER.with_dynamic(
        default={"log.segment.bytes": "5000", "min.insync.replicas": "2", "nobody.knows": "hunter2"},
        broker={"log.segment.bytes": "6000", "leader.replication.throttled.rate": "7"},
    )
    own = ConfigSynonym("log.segment.bytes", "6000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    clusters = ConfigSynonym("log.segment.bytes", "5000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    rest = (
        ConfigSynonym("log.segment.bytes", "4096", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.segment.bytes", "1073741824", ConfigSource.DEFAULT_CONFIG),
    )

    described = by_name(describe_broker(broker))
    assert (described["log.segment.bytes"].value, described["log.segment.bytes"].synonyms) == (
        "6000",
        (own, clusters, *rest),
    )
    assert described["min.insync.replicas"].source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    rate = described["leader.replication.throttled.rate"]
    assert (rate.value, rate.source, rate.type) == ("7", ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigType.LONG)
    assert (described["nobody.knows"].value, described["nobody.knows"].sensitive) == (None, True)
    topic = by_name(describe_topic(TopicConfig.from_overrides(broker, {})))["segment.bytes"]
    assert (topic.value, topic.source, topic.synonyms) == (
        "6000",
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        (own, clusters, *rest),
    )

    default = by_name(describe_default_broker(broker))
    assert list(default) == ["log.segment.bytes", "min.insync.replicas", "nobody.knows"]
    assert (default["log.segment.bytes"].value, default["log.segment.bytes"].synonyms) == ("5000", (clusters,))


def test_no_secret_is_shown() -> None:
    broker = by_name(describe_broker(BROKER))
    for name in ("ssl.key.password", "not.a.key", "listener.name.a.ssl.key.password"):
        assert broker[name].sensitive
        assert broker[name].value is None
        assert {synonym.value for synonym in broker[name].synonyms} == {None}
    assert "hunter2" not in repr(broker)


def test_which_broker_keys_may_change() -> None:
    broker = by_name(describe_broker(BROKER))
    assert broker["broker.id"].read_only
    assert not broker["log.segment.bytes"].read_only
    assert not broker["listeners"].read_only
    assert broker["broker.id"].is_default


def test_values_have_javas_text_form() -> None:
    written = [
        format_value(ConfigType.DOUBLE, value)
        for value in (0.0, 0.5, 1e7, 9999999.5, -12345678.9, 1e-3, 1e-4, 5e-324, 1.7976931348623157e308)
    ]
    assert written == [
        "0.0", "0.5", "1.0E7", "9999999.5", "-1.23456789E7", "0.001", "1.0E-4", "5.0E-324", "1.7976931348623157E308",
    ]  # fmt: skip
    assert format_value(ConfigType.BOOLEAN, True) == "true"
    assert format_value(ConfigType.LIST, ("a", "b")) == "a,b"
    assert format_value(ConfigType.LONG, None) is None
