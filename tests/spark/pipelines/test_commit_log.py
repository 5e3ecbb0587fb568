"""The log of an archive: what is in it, what is refused."""

import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.files import Files, FileStatus, files_at
from klamm.spark.pipelines.commit_log import (
    ArchivedRange,
    ArchiveError,
    CommitLog,
    OvertakenError,
    Snapshot,
    TopicSnapshot,
    adding_to,
    parse_record,
)

ID = "0" * 31 + "a"
FIRST = ArchivedRange("t", ID, 0, 5, 10, 5, 100, f"data/{ID}/first")
NEXT = replace(FIRST, start_offset=10, end_offset=12, rows=0, size_bytes=0, file=None)
SNAPSHOT = Snapshot({"t": TopicSnapshot(ID, 2, {"retention.ms": "-1"})}, {"g": {"t": {0: 7, 11: 3}}})


def test_what_was_committed_is_there_again(tmp_path):
    with adding_to(files_at(str(tmp_path))) as log:
        log.commit_snapshot(SNAPSHOT)
        log.commit([FIRST, NEXT])
        log.commit([replace(FIRST, partition=1)])
    again = CommitLog(files_at(str(tmp_path)))
    assert again.ranges == [FIRST, NEXT, replace(FIRST, partition=1)]
    assert again.snapshot == SNAPSHOT
    assert again.ends_of({"t": ID}) == {TopicPartition("t", 0): 12, TopicPartition("t", 1): 10}
    assert again.ends_of({"t": "another"}) == {}


@pytest.mark.parametrize("start", [9, 11])
def test_neither_overlap_nor_gap(tmp_path, start):
    with adding_to(files_at(str(tmp_path))) as log:
        log.commit([FIRST])
        with pytest.raises(ArchiveError, match=f"t-0 continues at offset {start}, but was archived to 10"):
            log.commit([replace(NEXT, start_offset=start)])
    assert CommitLog(files_at(str(tmp_path))).ranges == [FIRST]


def test_what_was_lost(tmp_path):
    lossy = replace(NEXT, end_offset=20, lost=((10, 13), (15, 20)))
    with adding_to(files_at(str(tmp_path))) as log:
        log.commit([FIRST])
        log.commit([lossy])
    assert CommitLog(files_at(str(tmp_path))).ranges[1] == lossy
    assert (FIRST.lost_offsets, lossy.lost_offsets) == (0, 8)


@pytest.mark.parametrize("lost", [((4, 6),), ((5, 11),), ((7, 6),), ((8, 9), (6, 7)), (("5", 6),), ((5, 6, 7),), 5])
def test_what_cannot_have_been_lost(lost):
    record = {"version": 1, "ranges": [{**asdict(FIRST), "lost": lost}]}
    with pytest.raises(ArchiveError, match="the/path is not a record of an archive"):
        parse_record(json.dumps(record).encode(), "the/path")


def test_the_ranges_from_a_record_on(tmp_path):
    with adding_to(files_at(str(tmp_path))) as log:
        log.commit([FIRST])
        log.commit_snapshot(SNAPSHOT)
        log.commit([NEXT, replace(FIRST, partition=1)])
    for each in (log, CommitLog(files_at(str(tmp_path)))):
        assert each.next_number == 3
        assert [len(each.ranges_from(number)) for number in range(5)] == [3, 2, 2, 0, 0]


def test_another_program_with_the_same_archive(tmp_path):
    with adding_to(files_at(str(tmp_path))) as ours:
        (tmp_path / "commits" / f"{0:020}.json").write_text("theirs")
        with pytest.raises(ArchiveError, match="another program has added to the archive"):
            ours.commit([FIRST])


def test_leftovers(tmp_path):
    with adding_to(files_at(str(tmp_path))) as log:
        (tmp_path / "data" / ID).mkdir()
        (tmp_path / "data" / "_delta_log").mkdir()
        (tmp_path / "data" / "_delta_log" / "0.json").touch()
        for name in ("first", "second", "first.tmp"):
            (tmp_path / "data" / ID / name).touch()
        log.commit([FIRST])
        log.remove_leftovers()
    assert [path.name for path in sorted((tmp_path / "data").glob("*/*"))] == ["first", "0.json"]


def test_records_that_are_missing_or_broken(tmp_path):
    with adding_to(files_at(str(tmp_path))) as log:
        log.commit([FIRST])
        log.commit([NEXT])
    first = tmp_path / "commits" / f"{0:020}.json"
    (tmp_path / "commits" / f"{2:020}.json.tmp").write_text("{")  # of a program that was killed
    assert len(CommitLog(files_at(str(tmp_path))).ranges) == 2
    content = first.read_text()
    first.write_text(content[:-5])
    with pytest.raises(ArchiveError, match=r"00000\.json is not a record of an archive"):
        CommitLog(files_at(str(tmp_path)))
    first.write_text(content.replace('"version":1', '"version":2'))
    with pytest.raises(ArchiveError, match="has version 2; this program reads 1"):
        CommitLog(files_at(str(tmp_path)))
    first.unlink()
    with pytest.raises(ArchiveError, match="should be number 0"):
        CommitLog(files_at(str(tmp_path)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=40))
def test_garbage(content):
    with pytest.raises(ArchiveError, match="the/path"):
        parse_record(content, "the/path")


@given(st.sampled_from(sorted(asdict(FIRST))), JSON, st.sampled_from(["ranges", "snapshot"]), JSON)
def test_almost_a_record(name, value, kind, content):
    for record in ({kind: content}, {"ranges": [{**asdict(FIRST), name: value}]}):
        try:
            found, parsed = parse_record(json.dumps({"version": 1, **record}).encode(), "the/path")
        except ArchiveError as error:
            assert "the/path" in str(error)
        else:
            assert isinstance(parsed, Snapshot if found == "snapshot" else list)


class InMemory(Files):
    """The files of a store without a lock; `meanwhile` is called before each request."""

    place = "memory"
    is_locked = False

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.meanwhile: Callable[[], None] = lambda: None

    def adding(self, *directories: str) -> nullcontext[None]:
        return nullcontext()

    def paths(self, directory: str, after: str = "") -> list[str]:
        self.meanwhile()
        return sorted(path for path in self.contents if path.startswith(f"{directory}/") and path > after)

    def read(self, path: str) -> bytes:
        return self.contents[path]

    def create(self, path: str, content: bytes) -> bool:
        self.meanwhile()
        return self.contents.setdefault(path, content) == content

    def remove(self, path: str) -> None:
        self.meanwhile()
        self.contents.pop(path, None)

    def write(self, stem: str, fill: Callable[[Any], bool]) -> None:
        raise self._of_data()

    def find(self, stem: str) -> str | None:
        raise self._of_data()

    def open(self, path: str) -> Any:
        raise self._of_data()

    def status(self, path: str) -> FileStatus:
        raise self._of_data()

    def _of_data(self) -> AssertionError:
        return AssertionError("a commit log has no data files")


class Program:
    """Archives one partition: makes or takes over a file, commits it, and at some time removes what is left over."""

    def __init__(self, files: InMemory, chance: random.Random) -> None:
        self.files, self.chance, self.log = files, chance, CommitLog(files)
        self.written: ArchivedRange | None = None

    def step(self) -> None:
        self.chance.choice([self.write, self.commit, self.log.remove_leftovers])()

    def write(self) -> None:
        start = self.log.ends_of({"t": ID}).get(TopicPartition("t", 0), 0)
        end = start + self.chance.randint(1, 3)
        stem = f"data/{ID}/00000-{start:020}-{end:020}"
        file = next(iter(self.files.paths(stem)), f"{stem}/{self.chance.getrandbits(64):016x}.parquet")
        self.files.contents.setdefault(file, b"")
        self.written = ArchivedRange("t", ID, 0, start, end, 1, 1, file)

    def commit(self) -> None:
        written, self.written = self.written, None
        if written is not None:
            try:
                self.log.commit([written])
            except OvertakenError:
                self.log = CommitLog(self.files)


def check_programs(seed: int) -> None:
    """Programs whose requests come in any order: what the log names is there after each step of one of them."""
    chance, files = random.Random(seed), InMemory()
    programs = [Program(files, chance) for _ in range(3)]
    busy: list[Program] = []

    def others() -> None:
        idle = [program for program in programs if program not in busy]
        if idle and chance.random() < 0.5:
            act(chance.choice(idle))

    def act(program: Program) -> None:
        busy.append(program)
        program.step()
        busy.remove(program)

    files.meanwhile = others
    for _ in range(40):
        act(chance.choice(programs))
        named = [
            json.loads(content)["ranges"][0]
            for path, content in sorted(files.contents.items())
            if path.startswith("commits/")
        ]
        assert [each["start_offset"] for each in named] == [0, *(each["end_offset"] for each in named)][: len(named)]
        assert all(each["file"] in files.contents for each in named)
    files.meanwhile = lambda: None
    log = CommitLog(files)
    log.remove_leftovers()
    end = log.ends_of({"t": ID}).get(TopicPartition("t", 0), 0)
    left = {path for path in files.paths("data") if int(path.split("-")[1]) < end}
    assert left == {each.file for each in log.ranges}


def test_no_program_removes_a_file_that_another_one_commits() -> None:
    for seed in range(50):
        check_programs(seed)
