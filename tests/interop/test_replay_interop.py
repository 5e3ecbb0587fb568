"""A replay into Apache Kafka 4.3, whose topics have other configs than those of 2.8, and limits for timestamps."""

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from klamm.spark.options import OptionError
from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.replay import replay
from klamm.testing.cluster import Cluster
from support.oracles import RealKraft
from support.spark.archiving import in_topic, one_process
from support.spark.producing import numbered, produce

pytestmark = pytest.mark.long


def test_from_a_klamm_cluster_to_kafka_4(real_kraft: RealKraft, tmp_path: Path) -> None:
    """The youngest record is of tomorrow; Kafka 4 refuses that by default."""
    admin = AdminClient({"bootstrap.servers": real_kraft.bootstrap})
    tomorrow = [{"value": b"late", "partition": 0, "timestamp": int((time.time() + 86_400) * 1000)}]
    with Cluster(1, properties={"log.retention.ms": -1}) as cluster:
        cluster.create_topic("writable")
        produce(cluster.bootstrap, "writable", [*numbered(100), *tomorrow])
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "writable"}
        archive(one_process(), str(tmp_path / "archive"), options, offsets_per_file=30)
        expected = in_topic(cluster, "writable")
    target = {"kafka.bootstrap.servers": real_kraft.bootstrap}
    told: list[str] = []
    done = replay(
        one_process(),
        str(tmp_path / "archive"),
        str(tmp_path / "output"),
        target,
        topics={"writable": "from-2.8"},
        on_warning=told.append,
    )
    assert done.records == 101
    assert in_topic(real_kraft, "from-2.8") == expected
    assert any("is created with message.timestamp.after.max.ms=9223372036854775807" in line for line in told)
    for future in admin.create_topics([NewTopic("there", 1, 1)]).values():
        future.result()
    with pytest.raises(OptionError, match=r"message\.timestamp\.after\.max\.ms=3600000: the youngest record"):
        replay(
            one_process(),
            str(tmp_path / "archive"),
            str(tmp_path / "other"),
            target,
            topics={"writable": "there"},
        )


def test_configs_of_2_8_that_kafka_4_does_not_know(real_kraft: RealKraft) -> None:
    from functools import partial

    from klamm.client.threads import call
    from klamm.spark.options import write_options
    from klamm.spark.pipelines.commit_log import TopicSnapshot
    from klamm.spark.pipelines.replay_topics import expiration_of_producers, prepare_topic

    client = write_options({"kafka.bootstrap.servers": real_kraft.bootstrap}).producer.client
    told: list[str] = []
    configs: dict[str, Any] = {
        "message.format.version": "2.8-IV1",
        "message.timestamp.difference.max.ms": "1000",
        "min.insync.replicas": "5",
        "retention.ms": "-1",
    }
    wanted = partial(
        prepare_topic,
        target="configs-of-2.8",
        topic=TopicSnapshot("", 1, configs),
        span=lambda: None,
        now_ms=0,
        warn=told.append,
    )
    assert call(client, wanted) == 1
    assert [line.partition(": ")[0] for line in told] == [
        "topic configs-of-2.8 is created without message.format.version=2.8-IV1",
        "topic configs-of-2.8 is created without message.timestamp.difference.max.ms=1000",
        "topic configs-of-2.8 is created with min.insync.replicas=1 instead of 5",
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, "configs-of-2.8")
    admin = AdminClient({"bootstrap.servers": real_kraft.bootstrap})
    (future,) = admin.describe_configs([resource]).values()
    assert future.result()["retention.ms"].value == "-1"
    assert call(client, expiration_of_producers) == ("producer.id.expiration.ms", 86_400_000)
