"""Old offsets become new ones by runs, as they would by a table with a row for each record."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.spark.pipelines.offset_runs import (
    Runs,
    merged,
    offset_map,
    offsets_file,
    read_runs,
    runs_of,
    translate,
    write_runs,
)


def listed(runs: Runs) -> list[tuple[int, ...]]:
    return [tuple(map(int, run)) for run in zip(*runs, strict=True)]


def by_rows(rows: dict[int, int], offset: int) -> int:
    """The model: `rows` has the new offset of every record."""
    return next((rows[old] for old in sorted(rows) if old >= offset), max(rows.values()) + 1)


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    [
        ([], 0, []),
        ([7], 3, [(7, 3, 1)]),
        ([0, 1, 2], 5, [(0, 5, 3)]),
        # A control record at 2, and compaction from 5 to 7.
        ([0, 1, 3, 4, 8], 10, [(0, 10, 2), (3, 12, 2), (8, 14, 1)]),
    ],
)
def test_runs_of_records(old: list[int], new: int, runs: list[tuple[int, ...]]) -> None:
    assert listed(runs_of(np.array(old, np.int64), new)) == runs


@given(
    st.lists(st.sampled_from([1, 1, 1, 1, 2, 3, 50]), min_size=1, max_size=80),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.sets(st.integers(1, 79)),
)
def test_offsets_are_translated_as_by_rows(steps: list[int], first: int, begin: int, cuts: set[int]) -> None:
    """Whatever the gaps, and wherever the files of the archive are cut."""
    old = np.cumsum([first, *steps]).astype(np.int64)
    rows = {int(offset): begin + place for place, offset in enumerate(old)}
    edges = [0, *sorted(cut for cut in cuts if cut < len(old)), len(old)]
    files = [runs_of(old[low:high], begin + low) for low, high in pairwise(edges)]
    runs = merged(files)
    gaps = sum(step > 1 for step in steps)
    assert len(runs.old) == 1 + gaps
    for offset in range(max(0, first - 2), int(old[-1]) + 3):
        assert translate(runs, offset) == by_rows(rows, offset)


def test_runs_on_disk(tmp_path) -> None:
    parts = {
        ("b", 0, 0): Runs(*map(np.array, ([0, 7], [100, 103], [3, 3]))),
        ("b", 0, 10): Runs(*map(np.array, ([10], [106], [5]))),
        ("b", 10, 0): Runs(*map(np.array, ([2], [0], [1]))),
        ("a", 1, 40): Runs(*map(np.array, ([44], [9], [1]))),
    }
    for (topic, partition, start), runs in parts.items():
        write_runs(offsets_file(str(tmp_path), topic, partition, start), topic, partition, runs)
    assert [tuple(row.values()) for row in offset_map(str(tmp_path)).to_pylist()] == [
        ("a", 1, 44, 9, 1),
        ("b", 0, 0, 100, 3),
        ("b", 0, 7, 103, 8),
        ("b", 10, 2, 0, 1),
    ]
    assert listed(read_runs(str(tmp_path), "b", 0)) == [(0, 100, 3), (7, 103, 8)]
    assert listed(read_runs(str(tmp_path), "b", 1)) == listed(read_runs(str(tmp_path), "c", 0)) == []


def test_the_size_grows_with_the_gaps(tmp_path) -> None:
    """A million records are a line without gaps; with a gap behind every tenth record they are some bytes for each."""
    old = np.arange(1_000_000, dtype=np.int64)
    path = offsets_file(str(tmp_path), "t", 0, 0)
    write_runs(path, "t", 0, runs_of(old, 0))
    assert (tmp_path / "offsets" / "t").joinpath(path.rpartition("/")[2]).stat().st_size < 3_000
    write_runs(path, "t", 0, runs_of(old + old // 10, 0))
    assert (tmp_path / "offsets" / "t").joinpath(path.rpartition("/")[2]).stat().st_size < 20_000
