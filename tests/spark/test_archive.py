"""Topics archived, by programs that are killed at every step."""

import os
import signal
import traceback
from contextlib import suppress
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from archiving import OneProcess, archived, in_topic
from confluent_kafka import Consumer, TopicPartition
from producing import numbered, produce

from klamm.spark.options import OptionError, read_options
from klamm.spark.options import TopicPartition as Partition
from klamm.spark.pipelines.archive import Archived, Progress, archive, files, plan
from klamm.spark.pipelines.commit_log import ArchivedRange, ArchiveError, CommitLog, locked
from klamm.spark.planning import Position
from klamm.spark.settings import DataLoss


def options(cluster, topic, **more):
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **more}


def run(cluster, topic, directory, *, per_file=10, spark=None, more=None, **arguments):
    given = options(cluster, topic, **(more or {}))
    spark = spark or OneProcess()
    return archive(spark, str(directory), given, offsets_per_file=per_file, ranges_per_commit=2, **arguments)


def test_every_column_and_what_comes_later(cluster, topic, tmp_path):
    name = topic(partitions=2)
    produce(
        cluster.bootstrap,
        name,
        [
            {"value": None, "key": b"", "partition": 0, "timestamp": 1},
            {"value": b"", "key": None, "partition": 0, "timestamp": 1, "headers": [("h", None), ("h", b"\x00")]},
            *numbered(25, partition=1),
        ],
    )
    told = []
    first = run(cluster, name, tmp_path, on_progress=told.append)
    assert (first.records, first.files, first.lost_offsets) == (27, 4, 0)
    assert told == [Progress(0, 27), Progress(12, 27), Progress(27, 27)]
    assert archived(tmp_path, name) == in_topic(cluster, name)
    assert run(cluster, name, tmp_path) == Archived(0, 0, 0, 0)
    produce(cluster.bootstrap, name, numbered(7, partition=0))
    assert run(cluster, name, tmp_path).records == 7
    assert archived(tmp_path, name) == in_topic(cluster, name)
    assert archived(tmp_path, "another") == []


def test_on_spark(spark, cluster, topic, tmp_path):
    name = topic(partitions=3, **{"message.timestamp.type": "LogAppendTime"})
    produce(cluster.bootstrap, name, [record for number in range(3) for record in numbered(500, partition=number)])
    assert run(cluster, name, tmp_path, per_file=200, spark=spark).records == 1500
    assert archived(tmp_path, name) == in_topic(cluster, name)
    assert spark.read.parquet(*files(str(tmp_path))).count() == 1500


# Before each of these calls the program is killed once.
STEPS = (
    (os, "link"),
    (os, "replace"),
    (os, "unlink"),
    (os, "fsync"),
    (os, "fdatasync"),
    (pq.ParquetWriter, "write_batch"),
)


def killed_at(step, work):
    """Does the work in a process of its own that is killed (-9) before its n-th step; False when it came to its end."""
    child = os.fork()
    if child == 0:
        left = [step]

        def counted(function):
            def call(*arguments, **named):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return function(*arguments, **named)

            return call

        try:
            for owner, name in STEPS:
                setattr(owner, name, counted(getattr(owner, name)))
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_before_every_step(cluster, topic, tmp_path):
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(15), *numbered(5, partition=1)])
    expected = in_topic(cluster, name)
    assert run(cluster, name, tmp_path / "whole").records == 20
    step = 0
    while killed_at(step, lambda: run(cluster, name, tmp_path / f"{step}")):  # noqa: B023  # it is called at once
        there = [] if not (tmp_path / f"{step}").exists() else archived(tmp_path / f"{step}", name)
        assert there == [row for row in expected if row in there]
        run(cluster, name, tmp_path / f"{step}")
        assert archived(tmp_path / f"{step}", name) == expected
        named = sorted(files(str(tmp_path / f"{step}")))
        assert sorted(map(str, (tmp_path / f"{step}" / "data").glob("*/*"))) == named
        step += 1
    assert step > 30


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_again_and_again(cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(60))
    run(cluster, name, tmp_path / "whole")
    deaths = 0
    while killed_at(50, lambda: run(cluster, name, tmp_path / "archive")):
        deaths += 1
    assert deaths >= 2
    assert archived(tmp_path / "archive", name) == in_topic(cluster, name)


def test_a_finished_file_is_taken_over_and_never_replaced(cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    with patch.object(CommitLog, "commit", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        run(cluster, name, tmp_path)
    (left,) = tmp_path.glob("data/*/*")
    before = left.stat()
    assert archived(tmp_path, name) == []
    run(cluster, name, tmp_path)
    assert files(str(tmp_path)) == [str(left)]
    assert left.stat() == before or left.stat().st_ino == before.st_ino


def test_what_was_read_in_another_way_is_not_taken_over(cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    more = {"kafka.isolation.level": "read_uncommitted", "failOnDataLoss": "false"}
    with patch.object(CommitLog, "commit", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        run(cluster, name, tmp_path, more=more)
    (left,) = tmp_path.glob("data/*/*")
    assert run(cluster, name, tmp_path).records == 10
    assert not left.exists()
    assert len(files(str(tmp_path))) == 1


def test_records_that_are_gone(tmp_path):
    """What a run would archive of a partition that was archived to 20, and has the offsets from `begin` to `end`."""

    def planned(begin, end, **more):
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **more}
        first, last = (Position({Partition("t", 0): offset}, {"t": "id"}, {}) for offset in (begin, end))
        ranges = plan(CommitLog(str(tmp_path)), read_options(given, streaming=False), first, last, 10)
        return [(each.lost_from, each.start_offset, each.end_offset) for each in ranges]

    with locked(str(tmp_path)) as log:
        log.commit([ArchivedRange("t", "id", 0, 0, 20, 20, 1, "file")])
    assert planned(20, 40) == planned(5, 40) == [(None, 20, 30), (None, 30, 40)]
    assert planned(20, 20) == []
    with pytest.raises(DataLoss, match="t-0: the offsets from 20 to 24 were removed before they were archived"):
        planned(25, 40)
    assert planned(25, 40, failOnDataLoss="false") == [(20, 25, 30), (None, 30, 40)]
    with pytest.raises(DataLoss, match="t-0 ends at offset 15, but was archived to 20"):
        planned(0, 15)
    assert planned(0, 15, failOnDataLoss="false") == []


def test_a_topic_that_was_created_again_is_another(cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(5))
    run(cluster, name, tmp_path)
    cluster.delete_topic(name)
    cluster.create_topic(name)
    produce(cluster.bootstrap, name, numbered(3))
    assert run(cluster, name, tmp_path).records == 3
    log = CommitLog(str(tmp_path))
    assert [(each.start_offset, each.rows) for each in log.ranges] == [(0, 5), (0, 3)]
    assert len({each.topic_id for each in log.ranges}) == 2


def test_configs_and_groups_beside_the_data(cluster, topic, tmp_path):
    name = topic(partitions=2, **{"retention.bytes": 1_000_000})
    produce(cluster.bootstrap, name, numbered(10))
    group = f"group-of-{name}"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(name, 0, 7)], asynchronous=False)
    consumer.close()
    run(cluster, name, tmp_path)
    snapshot = CommitLog(str(tmp_path)).snapshot
    assert snapshot.topics[name].partitions == 2
    assert snapshot.topics[name].configs == {"retention.bytes": "1000000"}
    assert snapshot.groups[group] == {name: {0: 7}}


def test_what_is_refused(cluster, topic, tmp_path):
    name = topic()
    with pytest.raises(OptionError, match="offsets_per_file is 0"):
        run(cluster, name, tmp_path, per_file=0)
    with pytest.raises(OptionError, match="unknown option"):
        run(cluster, name, tmp_path, more={"subscribed": "x"})
    with locked(str(tmp_path)):
        child = os.fork()
        if child == 0:
            try:
                run(cluster, name, tmp_path)
            except ArchiveError as error:
                os._exit(7 if "another program adds to the archive" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
