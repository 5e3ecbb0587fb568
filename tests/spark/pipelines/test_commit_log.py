"""The log of an archive: what is in it, what is refused."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.pipelines.archive_files import files_at
from klamm.spark.pipelines.commit_log import (
    ArchivedRange,
    ArchiveError,
    CommitLog,
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
