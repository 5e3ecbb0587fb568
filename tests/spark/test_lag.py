"""How far streaming queries are behind, as klamm.spark.lag computes it from their progress."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress

from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.lag import Lag, LagListener, lags
from klamm.spark.lag_gauges import LagGauges
from klamm.testing.cluster import Cluster
from support.paths import TESTS
from support.spark.producing import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@5a324f9c"
IDS = {"$topicIds": {"t": "90e5dfd852d9489f93028f0e398c9065"}}
RUN, OTHER_RUN = "8c57e1ec-94b5-4c99-b100-f694162df0b9", "8c57e1ec-94b5-4c99-b100-f694162df0ba"

Offsets = dict[str, dict[str, Any]] | None


def source(end: object, latest: object, description: str = PYTHON) -> dict[str, Any]:
    return {
        "description": description,
        "startOffset": {},
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }


def progress(*sources: dict[str, Any], run: str = RUN, name: str | None = "q", batch: int = 7) -> dict[str, Any]:
    found: dict[str, Any] = StreamingQueryProgress.fromJson(
        {
            "id": "5a1f4f6e-3a52-4d4b-9f0e-2f2f6b3d1c11",
            "runId": run,
            "name": name,
            "timestamp": "2024-05-01T10:00:00.000Z",
            "batchId": batch,
            "batchDuration": 1,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": list(sources),
            "sink": {"description": "noop", "numOutputRows": -1},
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
            "observedMetrics": {},
        }
    )
    return found


def behind(end: object, latest: object, description: str = PYTHON) -> dict[str, int] | None:
    """By partition, or None where no lag is known."""
    found = lags(progress(source(end, latest, description)))
    return {str(partition): count for partition, count in found[0].offsets_behind_latest.items()} if found else None


@pytest.mark.parametrize(
    ("end", "latest", "expected"),
    [
        ({"t": {"0": 5, "1": 9}, **IDS}, {"t": {"0": 8, "1": 9}, **IDS}, {"t-0": 3, "t-1": 0}),
        # Brokers before 2.8 have no topic ids.
        ({"t": {"0": 5}, "u": {"0": 1}}, {"t": {"0": 8}, "u": {"0": 4}}, {"t-0": 3, "u-0": 3}),
        # A new partition is read from its first record; one that is gone has no records.
        ({"t": {"0": 5}}, {"t": {"0": 5, "1": 4}}, {"t-0": 0, "t-1": 4}),
        ({"t": {"0": 5, "1": 2}}, {"t": {"0": 6}}, {"t-0": 1}),
        # The log is shorter than what was read.
        ({"t": {"0": 5}}, {"t": {"0": 2}}, {"t-0": 0}),
        # The begin of a first batch is no topic.
        ({"t": {"0": 5}, "$begin": {"t": {"0": 1}}}, {"t": {"0": 8}}, {"t-0": 3}),
        # The latest offsets are not known, or there is no partition.
        ({"t": {"0": 5}}, None, None),
        ({"t": {"0": 5}}, "None", None),
        ({"t": {"0": 5}}, {}, None),
    ],
)
def test_how_far_each_partition_is_behind(end: Offsets, latest: Offsets, expected: dict[str, int] | None) -> None:
    assert behind(end, latest) == expected


@pytest.mark.parametrize(
    ("end", "latest", "description"),
    [
        ({"t": {"0": 5}}, {"t": {"0": 8}}, "KafkaV2[Subscribe[t]]"),
        (3, 5, PYTHON),
        ("3", "5", PYTHON),
        ([1], [2], PYTHON),
        ({"n": 3}, {"n": 5}, PYTHON),
        ({"files": {"a.csv": 3}}, {"files": {"b.csv": 3}}, PYTHON),
        ({"t": {"0": "5"}}, {"t": {"0": "8"}}, PYTHON),
        ("[" * 100_000, "[" * 100_000, PYTHON),
        ("", "{", PYTHON),
    ],
)
def test_other_sources_are_left_alone(end: object, latest: object, description: str) -> None:
    assert behind(end, latest, description) is None


def test_the_metrics_have_the_names_and_forms_of_the_connectors() -> None:
    other = source({"n": 1}, {"n": 2})
    (lag,) = lags(progress(other, source({"t": {"0": 5, "1": 9, "2": 0}}, {"t": {"0": 8, "1": 9, "2": 2}})))
    assert (lag.name, lag.source, lag.batch_id, lag.total) == ("q", 1, 7, 5)
    assert lag.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "3",
        "avgOffsetsBehindLatest": "1.7",
    }
    (lag,) = lags(progress(source({"t": {"0": 1}}, {"t": {"0": 1}}), name=None))
    assert lag.name == "5a1f4f6e-3a52-4d4b-9f0e-2f2f6b3d1c11"


def test_a_listener_keeps_the_latest_lags_of_queries_that_run_and_a_bounded_history(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(lag: Lag) -> None:
        if lag.run_id == OTHER_RUN:
            raise RuntimeError("the pager is broken")

    listener = LagListener(fail, history_rows=2)
    for batch, read in enumerate((2, 5, 8)):
        listener.onQueryProgress(QueryProgressEvent(progress(source({"t": {"0": read}}, {"t": {"0": 9}}), batch=batch)))  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR):
        listener.onQueryProgress(
            QueryProgressEvent(progress(source({"u": {"3": 0}}, {"u": {"3": 4}}), run=OTHER_RUN, name="r"))  # type: ignore[arg-type]
        )
    assert "the callback of the lag of query r failed" in caplog.text
    assert [lag.offsets_behind_latest for lag in listener.latest] == [
        {TopicPartition("t", 0): 1},
        {TopicPartition("u", 3): 4},
    ]
    assert [(row["name"], row["batchId"], row["maxOffsetsBehindLatest"]) for row in listener.history] == [
        ("q", 2, 1),
        ("r", 7, 4),
    ]

    registry = CollectorRegistry()
    registry.register(LagGauges(listener))
    text = generate_latest(registry).decode()
    assert 'klamm_spark_offsets_behind_latest{partition="3",query="r",source="0",topic="u"} 4.0' in text
    assert 'klamm_spark_avg_offsets_behind_latest{query="q",source="0"} 1.0' in text

    listener.onQueryTerminated(QueryTerminatedEvent(RUN, RUN, None, None))  # type: ignore[arg-type]
    assert [lag.name for lag in listener.latest] == ["r"]
    assert 'query="q"' not in generate_latest(registry).decode()
    assert len(listener.history) == 2


def test_the_lag_of_two_sources_of_a_query(
    spark: "SparkSession", cluster: Cluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    names = [topic(partitions=2), topic()]
    produce(cluster.bootstrap, names[0], [*numbered(30), *numbered(10, partition=1)])
    produce(cluster.bootstrap, names[1], numbered(5))
    frames = [
        spark.readStream.format("klamm")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=20)
        .load()
        for name in names
    ]
    found: list[Lag] = []
    listener = LagListener(found.append)
    spark.streams.addListener(listener)
    try:
        writer = frames[0].union(frames[1]).writeStream.format("noop").queryName("two")
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        cluster.until(lambda: len(found) >= 4, timeout=120)
        cluster.until(lambda: not listener.latest, timeout=120)
    finally:
        spark.streams.removeListener(listener)
    first, second = TopicPartition(names[0], 0), TopicPartition(names[0], 1)
    assert [(lag.source, lag.batch_id, lag.offsets_behind_latest) for lag in found[:4]] == [
        (0, 0, {first: 15, second: 5}),
        (1, 0, {TopicPartition(names[1], 0): 0}),
        (0, 1, {first: 0, second: 0}),
        (1, 1, {TopicPartition(names[1], 0): 0}),
    ]
    assert {row["name"] for row in listener.history} == {"two"}


def test_a_listener_of_spark_connect(
    spark_connect: str, cluster: Cluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(30))
    program = TESTS / "support" / "spark" / "lag_elsewhere.py"
    done = subprocess.run(
        [sys.executable, program, spark_connect, cluster.bootstrap, name, tmp_path],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, "10"], [1, "0"]]
