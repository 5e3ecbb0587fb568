"""`klamm.config.describe` tells of topics and brokers what Apache Kafka 2.8.2's DescribeConfigs does.

Compared: names, values, sources, read-only and sensitive flags, synonyms in their order, types. Not compared: the
documentation, which is in our own words, and the keys that only Kafka without ZooKeeper has.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kazoo.client import KazooClient

from klamm.broker.configs.broker import DynamicBrokerConfig
from klamm.config.broker import BrokerConfig
from klamm.config.describe import DescribedConfig, describe_broker, describe_topic
from klamm.config.topic import TopicConfig
from klamm.znodes.configs import encode_config
from support.oracles import RealKafka, RealZooKeeper

PROPERTIES: dict[str, str | int] = {
    "log.retention.minutes": 30,
    "log.roll.hours": 2,
    "log.flush.scheduler.interval.ms": 3000,
    "log.cleanup.policy": "compact, delete",
    "log.cleaner.io.max.bytes.per.second": "1.5e8",
    "message.max.bytes": 2000000,
    "inter.broker.protocol.version": "2.8",
    "listener.name.plaintext.max.connections": 77,
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": "secret",
    "ssl.keystore.password": "secret",
    "nobody.knows.this": "secret",
}
OVERRIDES = {
    "cleanup.policy": "delete",
    "retention.ms": "1234567",
    "min.cleanable.dirty.ratio": ".25",
    "message.format.version": "2.4",
    "follower.replication.throttled.replicas": "0:0, 1:0",
}
DYNAMIC_DEFAULT = {
    "log.roll.ms": "5000",
    "message.max.bytes": "3000000",
    "min.insync.replicas": " 2 ",
    "log.retention.ms": "77",
    "nobody.knows.that": "secret",
}
DYNAMIC_BROKER = {
    "message.max.bytes": "4000000",
    "log.cleanup.policy": "delete, compact",
    "listener.name.plaintext.max.connections": "66",
    "listener.name.plaintext.ssl.keystore.location": "/file",
    "follower.replication.throttled.rate": "1000",
    "nobody.knows.that.either": "secret",
}
# Kafka 2.8 cannot change these while it runs.
CHANGES_WHILE_KLAMM_RUNS = (
    "auto.leader.rebalance.enable",
    "leader.imbalance.per.broker.percentage",
    "leader.imbalance.check.interval.seconds",
)


def told(configs: Iterable[DescribedConfig]) -> dict[str, dict[str, Any]]:
    return {
        config.name: {
            "value": config.value,
            "read_only": config.read_only,
            "is_sensitive": config.sensitive,
            "config_source": config.source.name,
            "config_type": config.type.name,
            "synonyms": [
                {"name": synonym.name, "value": synonym.value, "source": synonym.source.name}
                for synonym in config.synonyms
            ],
        }
        for config in configs
    }


def compare(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> None:
    assert sorted(ours) == sorted(theirs)
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}


def described_by(kafka: RealKafka) -> dict[str, dict[str, dict[str, Any]]]:
    """What Kafka tells of a topic `plain`, a topic `tuned` with OVERRIDES, and its broker `0`."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        topics = {name: {"num_partitions": 1, "replication_factor": 1} for name in ("plain", "tuned")}
        admin.create_topics({**topics, "tuned": {**topics["tuned"], "configs": OVERRIDES}}, wait_for_metadata=True)
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, "plain"),
            ConfigResource(ConfigResourceType.TOPIC, "tuned"),
            ConfigResource(ConfigResourceType.BROKER, "0"),
        ]
        answers = admin.describe_configs(resources, include_synonyms=True, config_filter="all")
    finally:
        admin.close()
    return {
        name: {
            key: {field: config[field] for field in config if field != "documentation"}
            for key, config in configs.items()
        }
        for by_name in answers.values()
        for name, configs in by_name.items()
    }


def compare_all(broker: BrokerConfig, theirs: dict[str, dict[str, dict[str, Any]]]) -> None:
    compare(told(describe_topic(TopicConfig.from_overrides(broker, {}))), theirs["plain"])
    compare(told(describe_topic(TopicConfig.from_overrides(broker, OVERRIDES))), theirs["tuned"])
    for name in CHANGES_WHILE_KLAMM_RUNS:
        assert theirs["0"][name]["read_only"]
        theirs["0"][name]["read_only"] = False
    ours = told(describe_broker(broker))
    compare({name: config for name, config in ours.items() if not name.startswith("klamm.")}, theirs["0"])


@pytest.mark.long
def test_descriptions_are_kafkas(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> None:
    kafka = running(RealKafka(kafka_jars, tmp_path, f"{real_zookeeper.connect}/describe", properties=PROPERTIES))
    kafka.start()
    broker = BrokerConfig.from_properties({key: str(value) for key, value in kafka.properties.items()})
    compare_all(broker, described_by(kafka))


def test_descriptions_of_dynamic_configs_are_kafkas(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> None:
    connect = f"{real_zookeeper.connect}/describe-dynamic"
    zookeeper = KazooClient(connect)
    zookeeper.start()
    for entity_path, config in (("brokers/<default>", DYNAMIC_DEFAULT), ("brokers/0", DYNAMIC_BROKER)):
        zookeeper.create(f"/config/{entity_path}", encode_config(config), makepath=True)
    zookeeper.stop()
    kafka = running(RealKafka(kafka_jars, tmp_path, connect, properties=PROPERTIES))
    kafka.start()
    dynamic = DynamicBrokerConfig(
        BrokerConfig.from_properties({key: str(value) for key, value in kafka.properties.items()})
    )
    dynamic.apply(DYNAMIC_DEFAULT, DYNAMIC_BROKER)
    theirs = described_by(kafka)
    # Kafka hides its keys without ZooKeeper, but no longer when it has read dynamic configs.
    for name in set(theirs["0"]) - set(told(describe_broker(dynamic.current))):
        del theirs["0"][name]
    compare_all(dynamic.current, theirs)
