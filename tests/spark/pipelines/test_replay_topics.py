"""The topics that a replay writes to: created as far as the brokers can, and checked before the first record."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.processes.helper import Helper
from klamm.spark.files import files_at
from klamm.spark.options import OptionError, write_options
from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.commit_log import TopicSnapshot, adding_to
from klamm.spark.pipelines.replay import replay
from klamm.spark.pipelines.replay_topics import (
    Problem,
    Span,
    expiration_of_producers,
    expiration_warning,
    prepare_topic,
    problems,
    retention_warning,
)
from klamm.testing.cluster import Cluster
from support.spark.archiving import in_topic, one_process
from support.spark.producing import numbered, produce

NOW_MS = 1_000_000_000_000
HOUR_MS = 3_600_000
UNLIMITED = 9223372036854775807


@pytest.mark.parametrize(
    ("configs", "span", "found"),
    [
        ({}, None, []),
        ({"min.insync.replicas": "2"}, None, [("min.insync.replicas", "2", "1")]),
        ({"message.timestamp.before.max.ms": "3600000"}, Span(NOW_MS - HOUR_MS, NOW_MS), []),
        (
            {"message.timestamp.before.max.ms": "3600000"},
            Span(NOW_MS - HOUR_MS - 1, NOW_MS),
            [("message.timestamp.before.max.ms", "3600000", "9223372036854775807")],
        ),
        ({"message.timestamp.before.max.ms": "3600000"}, Span(NOW_MS, NOW_MS + 2 * HOUR_MS), []),
        # The default of Kafka 4.
        (
            {"message.timestamp.after.max.ms": "3600000"},
            Span(0, NOW_MS + HOUR_MS + 1),
            [("message.timestamp.after.max.ms", "3600000", "9223372036854775807")],
        ),
        ({"message.timestamp.after.max.ms": "3600000"}, Span(0, NOW_MS), []),
        (
            {"message.timestamp.difference.max.ms": "1"},
            Span(0, NOW_MS),
            [("message.timestamp.difference.max.ms", "1", "9223372036854775807")],
        ),
        (
            {"message.timestamp.difference.max.ms": "1"},
            Span(NOW_MS, NOW_MS + 2),
            [("message.timestamp.difference.max.ms", "1", "9223372036854775807")],
        ),
        ({"message.timestamp.difference.max.ms": "1", "message.timestamp.type": "LogAppendTime"}, Span(0, NOW_MS), []),
        ({"message.timestamp.difference.max.ms": str(UNLIMITED)}, Span(0, NOW_MS), []),
    ],
)
def test_what_keeps_records_out(configs: dict[str, str], span: Span | None, found: list[tuple[str, ...]]) -> None:
    assert [(each.key, each.value, each.needed) for each in problems(configs, 1, span, NOW_MS)] == found


def test_reasons_are_told() -> None:
    (found,) = problems({"message.timestamp.before.max.ms": "5"}, 1, Span(7, NOW_MS), NOW_MS)
    reason = "the oldest record has timestamp 7, so brokers would refuse it (INVALID_TIMESTAMP)"
    assert found == Problem("message.timestamp.before.max.ms", "5", "9223372036854775807", reason)


@pytest.mark.parametrize(
    ("configs", "oldest_ms", "warns"),
    [
        ({"retention.ms": "3600000"}, NOW_MS - HOUR_MS, False),
        ({"retention.ms": "3600000"}, NOW_MS - HOUR_MS - 1, True),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, 0, False),
        ({"retention.ms": "3600000", "cleanup.policy": "compact,delete"}, 0, True),
        ({"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}, 0, False),
        ({"retention.ms": "-1"}, 0, False),
        ({}, 0, False),
    ],
)
def test_records_that_brokers_will_soon_remove(configs: dict[str, str], oldest_ms: int, warns: bool) -> None:
    assert (retention_warning(configs, Span(oldest_ms, NOW_MS), NOW_MS) is not None) == warns


@pytest.mark.parametrize(
    ("idle_ms", "expiration", "told"),
    [
        (HOUR_MS, ("producer.id.expiration.ms", HOUR_MS), None),
        (HOUR_MS + 1, ("producer.id.expiration.ms", HOUR_MS), "producer.id.expiration.ms=3600000"),
        (25 * HOUR_MS, ("transactional.id.expiration.ms", 168 * HOUR_MS), None),
        # Brokers that do not tell are taken for new ones.
        (25 * HOUR_MS, None, "producer.id.expiration.ms=86400000"),
        (23 * HOUR_MS, None, None),
    ],
)
def test_how_long_brokers_know_the_producer(idle_ms: int, expiration: tuple[str, int] | None, told: str | None) -> None:
    warning = expiration_warning(idle_ms, expiration)
    assert warning is None if told is None else told in str(warning)


def prepare(bootstrap: str, name: str, configs: Mapping[str, str | None], span: Span | None = None) -> list[str]:
    """The warnings when a topic with these archived configs is prepared."""
    client = write_options({"kafka.bootstrap.servers": bootstrap}).producer.client
    told: list[str] = []
    wanted = partial(
        prepare_topic,
        target=name,
        topic=TopicSnapshot("", 2, configs),
        span=lambda: span,
        now_ms=NOW_MS,
        warn=told.append,
    )
    assert call(client, wanted) == 2
    return told


def configs_of(bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.describe_configs([resource]).values()
    return {entry.name: entry.value for entry in future.result().values()}


def test_configs_that_the_brokers_do_not_know(cluster: Cluster) -> None:
    """As of a topic of Kafka 4; the broker does not say which ones it knows, so each is asked for."""
    archived = {
        "message.timestamp.before.max.ms": "1",
        "retention.ms": "-1",
        "remote.storage.enable": "true",
        "min.compaction.lag.ms": "10",
        "max.compaction.lag.ms": "20",
    }
    told = prepare(cluster.bootstrap, "from-a-newer-cluster", archived)
    assert [line.partition(": ")[0] for line in told] == [
        "topic from-a-newer-cluster is created without message.timestamp.before.max.ms=1",
        "topic from-a-newer-cluster is created without remote.storage.enable=true",
    ]
    configs = configs_of(cluster.bootstrap, "from-a-newer-cluster")
    assert [configs[key] for key in ("retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms")] == [
        "-1",
        "10",
        "20",
    ]


def test_configs_that_need_each_other(cluster: Cluster) -> None:
    """max.compaction.lag.ms alone would be below the default of the other; an unknown one makes klamm ask for each."""
    archived = {"max.compaction.lag.ms": "5", "min.compaction.lag.ms": "9", "unknown": "1"}
    told = prepare(cluster.bootstrap, "excluding", archived)
    assert len(told) == 2


def test_a_topic_that_is_created_takes_the_records(cluster: Cluster) -> None:
    archived = {"min.insync.replicas": "2", "message.timestamp.difference.max.ms": "1000", "retention.ms": "1000"}
    told = prepare(cluster.bootstrap, "clamped", archived, Span(0, NOW_MS))
    configs = configs_of(cluster.bootstrap, "clamped")
    assert (configs["min.insync.replicas"], configs["message.timestamp.difference.max.ms"]) == ("1", str(UNLIMITED))
    assert [line.partition(":")[0] for line in told] == [
        "topic clamped is created with min.insync.replicas=1 instead of 2",
        f"topic clamped is created with message.timestamp.difference.max.ms={UNLIMITED} instead of 1000",
        "topic clamped",
    ]


def test_a_topic_that_was_there_is_left_alone(cluster: Cluster, topic: Any) -> None:
    name = topic(partitions=2, **{"message.timestamp.difference.max.ms": 1000, "min.insync.replicas": 2})
    with pytest.raises(
        OptionError,
        match=f"topic {name} takes no such records: min.insync.replicas=2: the topic has 1 replica, .*klamm configs"
        f" alter --topic {name} --add-config min.insync.replicas=1,message.timestamp.difference.max.ms={UNLIMITED}",
    ):
        prepare(cluster.bootstrap, name, {}, Span(0, NOW_MS))
    assert configs_of(cluster.bootstrap, name)["min.insync.replicas"] == "2"


def test_fewer_brokers_than_replicas(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper, properties={"default.replication.factor": 3}) as small:
        (told,) = prepare(small.bootstrap, "t", {"retention.ms": "-1"})
        assert told.startswith("topic t is created with replication factor 1: ")
        assert configs_of(small.bootstrap, "t")["retention.ms"] == "-1"


def test_old_records_are_refused_before_the_first_is_written(cluster: Cluster, topic: Any, tmp_path: Path) -> None:
    """The timestamps come from the archive's files; a record without a timestamp has none."""
    name, target = topic(), topic(**{"message.timestamp.difference.max.ms": 3_600_000})
    produce(cluster.bootstrap, name, numbered(30))
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    archive(one_process(), str(tmp_path / "archive"), {**options, "subscribe": name}, offsets_per_file=20)
    arguments: Any = (one_process(), str(tmp_path / "archive"), str(tmp_path / "output"), options)
    with pytest.raises(OptionError, match="the oldest record has timestamp 1000, so brokers would refuse it"):
        replay(*arguments, topics={name: target})
    assert in_topic(cluster, target) == []
    told: list[str] = []
    with adding_to(files_at(str(tmp_path / "archive"))) as log:
        assert log.snapshot is not None
        snapshot = log.snapshot.topics[name]
        changed = replace(snapshot, configs={"retention.ms": "3600000", "unknown": "1"})
        log.commit_snapshot(replace(log.snapshot, topics={name: changed}))
    replay(*arguments, topics={name: f"{target}-new"}, on_warning=told.append)
    assert in_topic(cluster, f"{target}-new") == in_topic(cluster, name)
    assert len(told) == 2
    assert "is created without unknown=1" in told[0]
    assert "records from timestamp 1000 on are older than retention.ms=3600000" in told[1]


def test_a_replay_that_rested_is_told_of(cluster: Cluster, topic: Any, tmp_path: Path) -> None:
    name, target = topic(), topic()
    produce(cluster.bootstrap, name, numbered(3))
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    archive(one_process(), str(tmp_path / "archive"), {**options, "subscribe": name})
    arguments: Any = (one_process(), str(tmp_path / "archive"), str(tmp_path / "output"), options)
    replay(*arguments, topics={name: target})
    told: list[str] = []
    replay(*arguments, topics={name: target}, on_warning=told.append)
    assert told == []
    with patch("klamm.base.system_environment.SystemEnvironment.now_ms", return_value=2**45):
        replay(*arguments, topics={name: target}, on_warning=told.append)
    assert len(told) == 1
    assert told[0].startswith("this replay has rested for ")
    # klamm's brokers are as those of 2.8: a week.
    assert "transactional.id.expiration.ms=604800000" in told[0]
    assert call(ClientOptions(write_options(options).producer.client.bootstrap), expiration_of_producers) == (
        "transactional.id.expiration.ms",
        604_800_000,
    )
