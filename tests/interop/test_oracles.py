"""The oracles themselves: they start, serve, survive a kill, and stop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.clusters import forget_dead_broker
from support.oracles import RealKafka, RealZooKeeper, java_tool
from support.processes import ProcessFailed


def test_zookeeper_versions_answer(real_zookeeper: RealZooKeeper, real_zookeeper39: RealZooKeeper) -> None:
    assert "Zookeeper version: 3.5.9" in real_zookeeper.words("srvr")
    assert "Zookeeper version: 3.9." in real_zookeeper39.words("srvr")


@pytest.mark.long
def test_kafka_keeps_its_topics_across_a_kill(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> None:
    connect = f"{real_zookeeper.connect}/oracle"
    kafka = running(RealKafka(kafka_jars, tmp_path, connect))
    kafka.start()
    topics = ("kafka.admin.TopicCommand", "--bootstrap-server", kafka.bootstrap)
    assert b"Created topic kept." in java_tool(kafka_jars, *topics, "--create", "--topic", "kept")
    kafka.kill()
    assert not kafka.process.alive()
    forget_dead_broker(connect)
    kafka.start()
    assert b"kept" in java_tool(kafka_jars, *topics, "--list").split()


def test_a_tool_that_fails_says_why(kafka_jars: Path) -> None:
    with pytest.raises(ProcessFailed, match="no-such-option is not a recognized option"):
        java_tool(kafka_jars, "kafka.tools.DumpLogSegments", "--no-such-option")
