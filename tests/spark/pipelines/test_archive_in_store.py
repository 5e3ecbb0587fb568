"""Archives in an object store: programs that are killed at each request, two at once, answers that get lost."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.spark.files import ObjectFiles, files_at
from klamm.spark.pipelines.archive import Progress, archive, files, read
from klamm.spark.pipelines.commit_log import ArchiveError, CommitLog
from klamm.spark.pipelines.replay import replay
from klamm.testing.cluster import Cluster
from support.spark import object_store
from support.spark.archiving import as_rows, in_topic
from support.spark.object_store import (
    BUCKET,
    SECRET,
    Request,
    Store,
    apart,
    archive_here,
    archived_in,
    killed_at,
    killed_when,
)
from support.spark.producing import numbered, produce

MakeTopic = Callable[..., str]


def options(cluster: Cluster, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}


def data_files(store: Store, url: str) -> list[str]:
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    return [f"s3://{BUCKET}/{key}" for key in store.keys(f"{prefix}/data/") if "_delta_log" not in key]


def test_what_comes_later_and_nothing_twice(cluster: Cluster, topic: MakeTopic, store: Store, url: str) -> None:
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(25), *numbered(5, partition=1)])
    assert archive_here(url, store.options, options(cluster, name), 10).records == 30
    assert archived_in(url, store.options, name) == in_topic(cluster, name)
    assert archive_here(url, store.options, options(cluster, name), 10).records == 0
    produce(cluster.bootstrap, name, numbered(3))
    assert archive_here(url, store.options, options(cluster, name), 10).records == 3
    assert archived_in(url, store.options, name) == in_topic(cluster, name)
    assert sorted(files(url, name, storage_options=store.options)) == data_files(store, url)


def finish(cluster: Cluster, name: str, store: Store, url: str, expected: list[Any]) -> None:
    there = archived_in(url, store.options, name)
    assert there == [row for row in expected if row in there]
    archive_here(url, store.options, options(cluster, name), 5)
    assert archived_in(url, store.options, name) == expected
    assert sorted(files(url, name, storage_options=store.options)) == data_files(store, url)


# The archive's log has a snapshot, the ranges 0 to 10, and the ranges 10 to 15.
@pytest.mark.parametrize("record", [1, 2])
def test_killed_at_a_commit(cluster: Cluster, topic: MakeTopic, store: Store, url: str, record: int) -> None:
    """Before the store has it, and when the store has it."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(15))
    fault = object_store.KILL_BEFORE if record == 1 else object_store.KILL_BEHIND
    arguments = archive_here, url, store.options, options(cluster, name), 5
    assert killed_when(store, lambda request: request.puts(f"/commits/{record:020}"), fault, *arguments)
    assert len(archived_in(url, store.options, name)) == (0 if record == 1 else 15)
    finish(cluster, name, store, url, in_topic(cluster, name))


@pytest.mark.parametrize(
    "fault", [object_store.KILL_BEFORE, pytest.param(object_store.KILL_BEHIND, marks=pytest.mark.long)]
)
def test_killed_between_a_commit_and_its_delta_table(
    cluster: Cluster, topic: MakeTopic, store: Store, url: str, fault: str
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(15))
    again = partial(archive_here, delta=True), url, store.options, options(cluster, name), 5
    version = 0 if fault == object_store.KILL_BEFORE else 1
    assert killed_when(store, lambda request: request.puts(f"/_delta_log/{version:020}.json"), fault, *again)
    apart(*again)
    assert in_delta_table(url, store) == in_topic(cluster, name)


@pytest.mark.long
def test_killed_again_and_again(cluster: Cluster, topic: MakeTopic, store: Store, url: str) -> None:
    """Each program comes a little further than the one before it."""
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(20), *numbered(5, partition=1)])
    arguments = archive_here, url, store.options, options(cluster, name), 5
    deaths, number = 0, 3
    while killed_at(store, number, object_store.KILL_BEHIND if number % 2 else object_store.KILL_BEFORE, *arguments):
        deaths, number = deaths + 1, number + 7
    assert deaths >= 3
    finish(cluster, name, store, url, in_topic(cluster, name))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", [object_store.KILL_BEFORE, object_store.KILL_BEHIND])
def test_killed_at_each_request(cluster: Cluster, topic: MakeTopic, store: Store, url: str, fault: str) -> None:
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(10), *numbered(5, partition=1)])
    expected = in_topic(cluster, name)
    number = 0
    while killed_at(store, number, fault, archive_here, f"{url}{number}", store.options, options(cluster, name), 5):
        finish(cluster, name, store, f"{url}{number}", expected)
        number += 1
    assert number > 15


@pytest.mark.parametrize(
    "fault",
    [
        object_store.REFUSE,
        object_store.LOSE_ANSWER,
        object_store.CUT_ANSWER,
        object_store.SLOW_DOWN,
        object_store.INTERNAL_ERROR,
    ],
)
def test_every_request_fails_once(cluster: Cluster, topic: MakeTopic, store: Store, url: str, fault: str) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    seen: set[tuple[str, str]] = set()

    def once(request: Request) -> str | None:
        is_new = (request.method, request.path) not in seen
        seen.add((request.method, request.path))
        return fault if is_new else None

    store.rule = once
    assert archive_here(url, store.options, options(cluster, name), 5).records == 10
    assert len(seen) > 10
    assert archived_in(url, store.options, name) == in_topic(cluster, name)
    assert sorted(files(url, name, storage_options=store.options)) == data_files(store, url)


@pytest.mark.parametrize("stores", ["moto"], indirect=True)  # S3Mock may let both commit
def test_two_programs_at_once_and_a_reader(cluster: Cluster, topic: MakeTopic, store: Store, url: str) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(60))
    expected = in_topic(cluster, name)
    done: list[Any] = []
    begin = threading.Barrier(2)

    def run() -> None:
        begin.wait(120)
        done.append(archive_here(url, store.options, options(cluster, name), 5).records)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        there = archived_in(url, store.options, name)
        assert there == expected[: len(there)]
    assert len(done) == 2
    assert sum(done) == 60
    assert archived_in(url, store.options, name) == expected
    # What the one left that was overtaken last is gone behind the next run.
    archive_here(url, store.options, options(cluster, name), 5)
    assert sorted(files(url, name, storage_options=store.options)) == data_files(store, url)


def test_a_program_that_is_overtaken(cluster: Cluster, topic: MakeTopic, store: Store, url: str) -> None:
    """Another one archives everything between two of its commits."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(30))
    others: list[int] = []
    told: list[Progress] = []

    def overtake(progress: Progress) -> None:
        told.append(progress)
        if progress.offsets_done == 10:
            others.append(archive_here(url, store.options, options(cluster, name), 5).records)

    done = archive_here(url, store.options, options(cluster, name), 5, on_progress=overtake)
    assert (done.records, others) == (10, [20])
    assert told == [Progress(0, 30), Progress(10, 30), Progress(0, 0)]
    assert archived_in(url, store.options, name) == in_topic(cluster, name)
    assert sorted(files(url, name, storage_options=store.options)) == data_files(store, url)


def test_files_of_a_program_that_is_overtaken_are_removed_while_it_looks_at_them(
    cluster: Cluster, topic: MakeTopic, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(20))
    original, others = ObjectFiles.find, list[int]()

    def overtaken(place: ObjectFiles, stem: str) -> str | None:
        found = original(place, stem)
        if found is not None and not others:
            others.append(0)
            # Its files are others, so those of the first one can no longer be committed.
            others[0] = archive_here(url, store.options, options(cluster, name), 20).records
        return found

    monkeypatch.setattr(ObjectFiles, "find", overtaken)
    assert archive_here(url, store.options, options(cluster, name), 10).records == 0
    assert others == [20]
    assert archived_in(url, store.options, name) == in_topic(cluster, name)
    assert sorted(files(url, name, storage_options=store.options)) == data_files(store, url)


def test_a_file_that_is_removed_by_hand_is_no_empty_range(
    cluster: Cluster, topic: MakeTopic, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(5))
    with monkeypatch.context() as patched:
        patched.setattr(ObjectFiles, "find", lambda place, stem: None)
        with pytest.raises(ArchiveError, match="a file was removed before the log could name it"):
            archive_here(url, store.options, options(cluster, name), 10)
    assert archive_here(url, store.options, options(cluster, name), 10).records == 5
    assert archived_in(url, store.options, name) == in_topic(cluster, name)


def test_files_that_another_program_may_be_about_to_commit_stay(
    cluster: Cluster, topic: MakeTopic, store: Store, url: str
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    archive_here(url, store.options, options(cluster, name), 5)
    place = files_at(url, store.options)
    (first, _) = CommitLog(place).ranges
    for start in (5, 10):
        place.write(f"data/{first.topic_id}/00000-{start:020}-{start + 5:020}", lambda sink: sink.write(b"x") > 0)
    archive_here(url, store.options, options(cluster, name), 5)
    left = [path.split("/")[2] for path in place.paths("data")]
    assert left == [f"00000-{start:020}-{start + 5:020}" for start in (0, 5, 10)]


def test_on_spark(spark: Any, cluster: Cluster, topic: MakeTopic, store: Store, url: str, tmp_path: Path) -> None:
    """Executors write to the store, read from it into a DataFrame, and replay from it."""
    name, target = topic(partitions=2), topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(200), *numbered(100, partition=1)])
    assert (
        archive(spark, url, options(cluster, name), offsets_per_file=50, storage_options=store.options).records == 300
    )
    rows = read(spark, url, name, storage_options=store.options)
    assert SECRET not in rows._jdf.queryExecution().toString()
    assert as_rows(rows.toArrow().to_pylist()) == in_topic(cluster, name)
    chosen = read(spark, url, columns=["offset", "partition"], storage_options=store.options)
    assert chosen.where("partition = 1").count() == 100
    assert read(spark, url, "another", storage_options=store.options).count() == 0
    where = {"kafka.bootstrap.servers": cluster.bootstrap}
    replay(spark, url, str(tmp_path / "output"), where, topics={name: target}, storage_options=store.options)
    assert in_topic(cluster, target) == in_topic(cluster, name)


def in_delta_table(url: str, store: Store) -> list[tuple[Any, ...]]:
    return apart(object_store.in_delta_table, url, store.options)


def test_a_delta_table_in_the_store(cluster: Cluster, topic: MakeTopic, store: Store, url: str) -> None:
    """Two programs add to it: the files of each commit are in it once."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(30))
    store.requests.clear()
    apart(object_store.overtaken_archive, url, store.options, options(cluster, name))
    assert in_delta_table(url, store) == in_topic(cluster, name)
    # What deltalake promises: its log is made by conditional puts.
    log = [each for each in store.requests if each.puts("/_delta_log/")]
    assert len(log) == 3
    assert {each.headers.get("if-none-match") for each in log} == {"*"}


@pytest.mark.parametrize("fault", [object_store.LOSE_ANSWER, object_store.REFUSE])
def test_a_delta_table_whose_answers_get_lost(
    cluster: Cluster, topic: MakeTopic, store: Store, url: str, fault: str
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(20))
    seen: set[str] = set()

    def once(request: Request) -> str | None:
        is_new = request.path not in seen and request.puts("/_delta_log/")
        seen.add(request.path)
        return fault if is_new else None

    store.rule = once
    apart(partial(archive_here, delta=True), url, store.options, options(cluster, name), 5)
    assert in_delta_table(url, store) == in_topic(cluster, name)


def test_a_delta_table_that_two_programs_make(cluster: Cluster, topic: MakeTopic, store: Store, url: str) -> None:
    name = topic()
    # First without a table, then with one.
    for count in (20, 5):
        produce(cluster.bootstrap, name, numbered(count))
        archive_here(url, store.options, options(cluster, name), 5)
        assert apart(object_store.overtaken_publish, url, store.options)
        assert in_delta_table(url, store) == in_topic(cluster, name)
