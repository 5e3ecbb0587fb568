"""Topics archived, by programs that are killed at every step."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from unittest.mock import ANY, patch

import deltalake
import deltalake.transaction
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.base.system_environment import SystemFileSystem
from klamm.cli import main
from klamm.cli.pipeline import pipeline
from klamm.protocol.vocabulary import TopicPartition as Partition
from klamm.spark.files import FilesError, files_at
from klamm.spark.options import OptionError, read_options
from klamm.spark.pipelines import archive as archive_module
from klamm.spark.pipelines.archive import Archived, Progress, archive, files, plan, write_range
from klamm.spark.pipelines.commit_log import ArchivedRange, ArchiveError, CommitLog, adding_to, parse_range
from klamm.spark.read import partition_reader
from klamm.spark.read.planning import Position, initial_position
from klamm.spark.settings import DataLoss
from klamm.testing.cluster import Cluster
from support.present import present
from support.spark.archiving import archived, elsewhere, in_delta_table, in_topic, one_process
from support.spark.producing import numbered, produce, set_retention


def options(cluster, topic, **more):
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **more}


def run(cluster, topic, directory, *, per_file=10, spark=None, more=None, **arguments):
    given = options(cluster, topic, **(more or {}))
    spark = spark or one_process()
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


def test_a_row_group_is_not_larger_than_memory_should_hold(cluster, topic, tmp_path, monkeypatch):
    name = topic()
    produce(cluster.bootstrap, name, numbered(200), **{"batch.num.messages": 10})
    monkeypatch.setattr(archive_module, "ROW_GROUP_BYTES", 3000)
    assert (
        elsewhere(lambda: run(cluster, name, tmp_path, per_file=200, more={"kafka.fetch.max.bytes": "300"}, delta=True))
        == 0
    )
    (file,) = files(str(tmp_path))
    footer = pq.read_metadata(file)
    rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    assert (len(rows) > 2, max(rows) < 100, sum(rows)) == (True, True, 200)
    assert archived(tmp_path, name) == in_topic(cluster, name)
    # The statistics are those of all row groups.
    (entry,) = (json.loads(line) for line in delta_log(tmp_path) if "add" in json.loads(line))
    statistics = json.loads(entry["add"]["stats"])
    assert [statistics[bound]["offset"] for bound in ("minValues", "maxValues")] == [0, 199]


def delta_log(directory):
    return [line for path in directory.glob("data/_delta_log/*.json") for line in path.read_text().splitlines()]


def test_on_spark(spark, cluster, topic, tmp_path):
    name = topic(partitions=3, **{"message.timestamp.type": "LogAppendTime"})
    produce(cluster.bootstrap, name, [record for number in range(3) for record in numbered(500, partition=number)])
    assert run(cluster, name, tmp_path, per_file=200, spark=spark).records == 1500
    assert archived(tmp_path, name) == in_topic(cluster, name)
    archived_rows = spark.read.parquet(*files(str(tmp_path)))
    rows = spark.read.format("klamm").schema("leaderEpoch INT").options(**options(cluster, name)).load()
    for each in (archived_rows, rows):
        assert each.select("leaderEpoch").toArrow().to_pylist() == [{"leaderEpoch": 0}] * 1500


# Before each of these calls the program is killed once.
STEPS = (
    (os, "link"),
    (os, "replace"),
    (os, "unlink"),
    (os, "fsync"),
    (os, "fdatasync"),
    (pq.ParquetWriter, "write_table"),
)
# Before each of these and behind it.
COMMITS = (
    (deltalake.transaction, "create_table_with_add_actions"),
    (deltalake.DeltaTable, "create_write_transaction"),
)


def killed_at(step, work):
    """Does the work in a process of its own that is killed (-9) before its n-th step; False when it came to its end."""

    def wrapped():
        left = [step]

        def count():
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        def counted(function, *, behind):
            def call(*arguments, **named):
                count()
                result = function(*arguments, **named)
                if behind:
                    count()
                return result

            return call

        for owner, name in (*STEPS, *COMMITS):
            setattr(owner, name, counted(getattr(owner, name), behind=(owner, name) in COMMITS))
        work()

    return elsewhere(wrapped) != 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])
def test_killed_before_every_step(cluster, topic, tmp_path, stride):
    """Also the archive's Delta table has every record once then."""
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(15), *numbered(5, partition=1)])
    expected = in_topic(cluster, name)
    assert run(cluster, name, tmp_path / "whole").records == 20

    def finish(directory):
        assert all(row in expected for row in in_delta_table(directory))
        run(cluster, name, directory, delta=True)
        assert in_delta_table(directory) == expected

    step, directory = 0, tmp_path / "0"
    while killed_at(step, partial(run, cluster, name, directory, delta=True)):
        there = [] if not directory.exists() else archived(directory, name)
        assert there == [row for row in expected if row in there]
        assert elsewhere(partial(finish, directory)) == 0
        assert archived(directory, name) == expected
        named = sorted(files(str(directory)))
        assert sorted(map(str, directory.glob("data/*/*.parquet"))) == named
        step += stride
        directory = tmp_path / f"{step}"
    assert step > 34


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


READERS = """
import sys
import deltalake
import duckdb
import polars
import pyarrow
table = deltalake.DeltaTable(sys.argv[1])
print([len(table.file_uris()), table.to_pyarrow_table().num_rows, polars.read_delta(sys.argv[1]).height])
chosen = polars.scan_delta(sys.argv[1]).filter(polars.col("partition") == 1, polars.col("offset") >= 15)
print(sorted(chosen.collect()["value"].to_list()))
print(duckdb.arrow(table.to_pyarrow_dataset()).aggregate("max(leaderEpoch), count(headers)").fetchall())
for file in pyarrow.table(table.get_add_actions(flatten=True)).to_pylist():
    print([file[name] for name in ("min.topic", "min.partition", "min.offset", "max.offset", "num_records")])
table.create_checkpoint()
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_delta_table_catches_up_and_can_be_read(cluster, topic, tmp_path):
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(5), *numbered(17, partition=1)])
    run(cluster, name, tmp_path)
    assert elsewhere(lambda: run(cluster, name, tmp_path, delta=True)) == 0

    def read():
        program = [sys.executable, "-c", READERS, tmp_path / "data"]
        return subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()

    assert read() == [
        "[3, 22, 22]",
        "[b'15', b'16']",
        "[(0, 0)]",
        f"['{name}', 0, 0, 4, 5]",
        f"['{name}', 1, 0, 9, 10]",
        f"['{name}', 1, 10, 16, 7]",
    ]
    # That a checkpoint was made, changes nothing; nor does a run without records.
    produce(cluster.bootstrap, name, numbered(3))
    for _ in range(2):
        assert elsewhere(lambda: run(cluster, name, tmp_path, delta=True)) == 0
        assert read()[0] == "[4, 25, 25]"
    assert len(list(tmp_path.glob("data/_delta_log/*.json"))) == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_delta_table_that_does_not_fit(cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(5))

    def another(directory):
        deltalake.write_deltalake(directory / "data", pa.table({"number": [1]}))

    def of_a_longer_log(directory):
        run(cluster, name, directory, delta=True)
        shutil.rmtree(directory / "commits")

    def broken(directory):
        run(cluster, name, directory, delta=True)
        (directory / "data" / "_delta_log" / f"{0:020}.json").write_text("{")

    def refused(make, reason):
        directory = tmp_path / make.__name__
        make(directory)
        with pytest.raises(ArchiveError, match=reason):
            run(cluster, name, directory, delta=True)
        shutil.rmtree(directory / "data" / "_delta_log")
        run(cluster, name, directory, delta=True)
        assert in_delta_table(directory) == in_topic(cluster, name)

    reasons = {
        another: "was not made by this archive",
        of_a_longer_log: "has record 1 of the archive, whose next one is 0; delete its _delta_log",
        broken: "the Delta table .*/broken/data: ",
    }
    for make, reason in reasons.items():
        assert elsewhere(partial(refused, make, reason)) == 0
    with (
        patch.dict(sys.modules, deltalake=None),
        pytest.raises(
            ArchiveError, match=r"Delta tables need deltalake \(.*\); install it with pip install 'klamm\[delta\]'"
        ),
    ):
        run(cluster, name, tmp_path / "none", delta=True)
    assert not (tmp_path / "none").exists()


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

    def planned(begin, end, starting=0, **more):
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **more}
        first, earliest, last = (
            Position({Partition("t", 0): offset}, {"t": "id"}, {}) for offset in (starting, begin, end)
        )
        ranges = plan(
            CommitLog(files_at(str(tmp_path))), read_options(given, streaming=False), first, earliest, last, 10
        )
        return [(each.start_offset, each.end_offset) for each in ranges]

    with adding_to(files_at(str(tmp_path))) as log:
        log.commit([ArchivedRange("t", "id", 0, 0, 20, 20, 1, "file")])
    assert planned(20, 40) == planned(5, 40) == [(20, 30), (30, 40)]
    # Where new partitions begin is nothing to one that has been archived.
    assert planned(20, 40, starting=35) == [(20, 30), (30, 40)]
    assert planned(20, 20) == []
    with pytest.raises(DataLoss, match="t-0: the offsets from 20 to 24 were removed before they were archived"):
        planned(25, 40)
    assert planned(25, 40, failOnDataLoss="false") == [(20, 30), (30, 40)]
    assert planned(75, 80, failOnDataLoss="false") == [(20, 80)]
    assert planned(80, 80, failOnDataLoss="false") == [(20, 80)]
    with pytest.raises(DataLoss, match="t-0 ends at offset 15, but the archive continues at 20"):
        planned(0, 15)
    assert planned(0, 15, failOnDataLoss="false") == []


def test_records_that_are_removed_during_a_run(klamm_helper, tmp_path, monkeypatch):
    # No range is read before the records of others have been removed.
    monkeypatch.setattr("klamm.spark.pipelines.distribution._ROUNDS_AT_A_TIME", 1)
    properties = {"log.retention.check.interval.ms": 100}
    with Cluster(1, helper=klamm_helper, properties=properties) as cluster:
        cluster.create_topic("t", configs={"segment.bytes": 1000, "retention.ms": -1})
        produce(cluster.bootstrap, "t", numbered(97), **{"batch.num.messages": 7})
        new = [{**record, "timestamp": int(time.time() * 1000)} for record in numbered(50, first=97)]
        produce(cluster.bootstrap, "t", new, **{"batch.num.messages": 7})
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})

        def log_begin():
            return consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=120)[0]

        def remove(progress):
            if progress.offsets_done == 40:
                set_retention(cluster, "t", 3_600_000)
                cluster.until(lambda: log_begin() > 60)

        tolerant = {"failOnDataLoss": "false"}
        done = run(cluster, "t", tmp_path, per_file=20, more=tolerant, on_progress=remove)
        begin = log_begin()
        consumer.close()
        ranges = CommitLog(files_at(str(tmp_path))).ranges
        lost = [offset for each in ranges for span in each.lost for offset in range(*span)]
        assert lost == list(range(40, begin))
        assert done == Archived(147 - len(lost), len([each for each in ranges if each.rows]), ANY, len(lost))
        assert [row[1] for row in archived(tmp_path, "t")] == [*range(40), *range(begin, 147)]
        # A file tells it also to a program that finds it.
        fetch = read_options({**options(cluster, "t"), **tolerant}, streaming=False).fetch
        fetch = replace(fetch, read_committed=True)
        (partly,) = (each for each in ranges if each.lost and each.rows)
        planned = replace(partly, file=None, rows=0, size_bytes=0, lost=())
        assert parse_range(json.loads(write_range(files_at(str(tmp_path)), fetch, planned))) == partly


def test_a_topic_that_is_replaced_while_it_is_archived(cluster, topic, tmp_path, monkeypatch):
    """No record is the other topic's."""
    monkeypatch.setattr(partition_reader, "GRACE_MS", 300)
    name, written = topic(), []
    produce(cluster.bootstrap, name, numbered(100), **{"batch.num.messages": 10})

    class Writer(pq.ParquetWriter):
        def write_table(self, table):
            super().write_table(table)
            if not written:
                cluster.delete_topic(name)
                cluster.create_topic(name)
                produce(cluster.bootstrap, name, numbered(100, first=500), **{"batch.num.messages": 10})
            written.append(table.num_rows)

    monkeypatch.setattr(pq, "ParquetWriter", Writer)
    monkeypatch.setattr(archive_module, "ROW_GROUP_BYTES", 1)
    more = {"failOnDataLoss": "false", "kafka.fetch.max.bytes": "300"}
    done = run(cluster, name, tmp_path, per_file=100, more=more)
    count = done.records
    assert 10 <= count < 100
    assert [row[3] for row in archived(tmp_path, name)] == [b"%d" % number for number in range(count)]
    assert done.lost_offsets == 100 - count
    (partly,) = CommitLog(files_at(str(tmp_path))).ranges
    assert partly.lost == ((count, 100),)


def test_a_file_that_is_taken_over_has_its_name_on_disk(cluster, topic, tmp_path):
    """Who gave it the name may have died before the directory was on disk."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    options = read_options({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}, streaming=False)
    topic_id = initial_position(options).topic_ids[name]
    wanted = ArchivedRange(name, topic_id, 0, 0, 3, 0, 0, None)
    sync, synced = SystemFileSystem.sync_directory, []

    def record(disk, path):
        synced.append(path)
        sync(disk, path)

    directory = str(tmp_path / "data" / topic_id)
    with patch.object(SystemFileSystem, "sync_directory", record):
        with patch.object(SystemFileSystem, "remove", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            write_range(files_at(str(tmp_path)), options.fetch, wanted)
        assert any(file.endswith(".parquet") for file in os.listdir(directory))
        synced.clear()
        write_range(files_at(str(tmp_path)), options.fetch, wanted)
    assert directory in synced


def test_a_topic_that_was_created_again_is_another(cluster, topic, tmp_path):
    name = topic()
    produce(cluster.bootstrap, name, numbered(5))
    run(cluster, name, tmp_path)
    cluster.delete_topic(name)
    cluster.create_topic(name)
    produce(cluster.bootstrap, name, numbered(3))
    assert run(cluster, name, tmp_path).records == 3
    log = CommitLog(files_at(str(tmp_path)))
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
    snapshot = present(CommitLog(files_at(str(tmp_path))).snapshot)
    assert snapshot.topics[name].partitions == 2
    assert snapshot.topics[name].configs == {"retention.bytes": "1000000"}
    assert snapshot.groups[group] == {name: {0: 7}}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_from_the_command_line(cluster, topic, tmp_path, monkeypatch):
    name = topic()
    produce(cluster.bootstrap, name, numbered(5))
    monkeypatch.setattr(pipeline, "session", lambda *_: nullcontext(one_process()))
    where = ["--bootstrap-server", cluster.bootstrap, "--topic", name, "--directory", str(tmp_path)]

    def called():
        assert main.run(["pipeline", "archive", *where, "--delta", "--json"]) == 0
        assert in_delta_table(tmp_path) == in_topic(cluster, name)

    assert elsewhere(called) == 0


def test_what_is_refused(cluster, topic, tmp_path):
    name = topic()
    with pytest.raises(OptionError, match="offsets_per_file is 0"):
        run(cluster, name, tmp_path, per_file=0)
    with pytest.raises(OptionError, match="unknown option"):
        run(cluster, name, tmp_path, more={"subscribed": "x"})
    with adding_to(files_at(str(tmp_path))):
        child = os.fork()
        if child == 0:
            try:
                run(cluster, name, tmp_path)
            except FilesError as error:
                os._exit(7 if "another program adds to" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
