"""State-change logs merged by time: files of all forms, in blocks, with the entries that are wanted."""

import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base.system_environment import SystemFileSystem
from klamm.state_changes import files, merging
from klamm.state_changes.entries import names
from klamm.state_changes.files import StateChangeFile
from klamm.state_changes.merging import Wanted, entries_of

DAY = "2021-06-01"


def line(time: str, text: str) -> str:
    return f"[{DAY} {time}] INFO {text} (state.change.logger)\n"


def merged(paths: Sequence[Path], wanted: Wanted | None = None) -> tuple[list[str], list[str], list[str]]:
    """(the entries, warnings, notes)"""
    lost: list[str] = []
    notes: list[str] = []
    runs = merging.merge(
        SystemFileSystem(), [str(path) for path in paths], wanted or Wanted(), lost.append, notes.append
    )
    return [entry.decode(errors="replace") for run in runs for entry in run.entries], lost, notes


def write(directory: Path, **contents: str) -> list[Path]:
    paths = []
    for name, content in contents.items():
        path = directory / name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
        paths.append(path)
    return paths


def stripped(*lines: str) -> list[str]:
    return [each.rstrip("\n") for each in lines]


def test_files_are_merged_by_time_and_entries_of_one_time_by_file(tmp_path: Path) -> None:
    a, b, c, d = (
        line(*each)
        for each in (("10:00:00,001", "a"), ("10:00:00,002", "b"), ("10:00:00,002", "c"), ("11:00:00,000", "d"))
    )
    paths = write(tmp_path, one=a + c, two_gz=b + d)
    assert merged(paths) == (stripped(a, c, b, d), [], [])


def test_a_stack_trace_stays_with_its_line(tmp_path: Path) -> None:
    error = line("10:00:00,001", "[Broker id=1] Error") + "java.lang.Exception: at 2021\n\tat kafka.X\n[not a time\n"
    other, last = line("10:00:00,000", "first"), line("10:00:00,002", "last")
    paths = write(tmp_path, one=error + last, two=other)
    assert merged(paths)[0] == stripped(other, error, last)


def test_a_pipe_is_no_state_change_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        merged([tmp_path / "pipe"])


def test_times_may_stand_without_brackets(tmp_path: Path) -> None:
    old = "2021-06-01 10:00:00,005 INFO bare\n"
    new = line("10:00:00,004", "in brackets")
    assert merged(write(tmp_path, one=old, two=new))[0] == stripped(new, old)


def test_entries_that_are_a_little_late_are_put_where_their_times_belong(tmp_path: Path) -> None:
    late, early = line("10:00:00,500", "late"), line("10:00:00,100", "early")
    other = line("10:00:00,300", "other")
    assert merged(write(tmp_path, one=late + early, two=other)) == (stripped(early, other, late), [], [])


@pytest.mark.parametrize("block_bytes", [1, 100_000])
def test_entries_behind_a_clock_that_was_set_back_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(merging, "_MIN_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(merging, "_MAX_BLOCK_BYTES", block_bytes)
    before, back, after = line("10:00:00,000", "x"), line("09:00:00,000", "back"), line("10:00:05,000", "y")
    entries, lost, notes = merged(write(tmp_path, one=before + back + after))
    assert (entries, lost) == (stripped(before, back, after), [])
    assert notes == [
        f"{tmp_path}/one: 1 entries go back in time by more than 1000 ms; they stand behind the entry before them"
    ]


def test_entries_behind_a_clock_that_was_set_back_are_chosen_by_their_own_times(tmp_path: Path) -> None:
    before, back, after = line("10:00:00,000", "x"), line("09:00:00,000", "back"), line("10:00:05,000", "y")
    paths = write(tmp_path, one=before + back + after)
    wanted = Wanted(start=b"2021-06-01 08:00:00,000", end=b"2021-06-01 09:30:00,000")
    assert merged(paths, wanted)[0] == stripped(back)
    assert merged(paths, Wanted(start=b"2021-06-01 10:00:00,000"))[0] == stripped(before, after)


@pytest.mark.parametrize("absurd", ["2199-06-01 10:00:00,000", "9999-12-31 23:59:59,999", "9999-99-99 99:99:99,999"])
def test_what_follows_an_absurd_time_is_merged_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absurd: str
) -> None:
    monkeypatch.setattr(merging, "_MIN_BLOCK_BYTES", 100)
    monkeypatch.setattr(merging, "_MAX_BLOCK_BYTES", 100)
    monkeypatch.setattr(merging, "_HELD_BLOCKS", 4)
    lines = [f"[{absurd}] INFO wrong\n", *(line("10:00:00,000", str(number)) for number in range(200))]
    other = line("11:00:00,000", "other")
    paths = write(tmp_path, one="".join(lines), two=other)
    runs = list(merging.merge(SystemFileSystem(), list(map(str, paths)), Wanted(), print))
    assert [entry.decode() for run in runs for entry in run.entries] == stripped(other, *lines)
    assert max(sum(map(len, run.entries)) for run in runs) < 1000


def test_only_entries_between_start_and_end_are_merged(tmp_path: Path) -> None:
    lines = [line(f"10:00:0{second},000", str(second)) for second in range(5)]
    wanted = Wanted(start=b"2021-06-01 10:00:01,000", end=b"2021-06-01 10:00:03,000")
    assert merged(write(tmp_path, one="".join(lines[::2]), two="".join(lines[1::2])), wanted)[0] == stripped(
        *lines[1:4]
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("block_bytes", [7, 1 << 16])
def test_files_from_other_systems_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, block_bytes: int
) -> None:
    """Line ends of Windows, a mark before the first line, a last line without its end, NULs, and no UTF-8."""
    monkeypatch.setattr(merging, "_MIN_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(merging, "_MAX_BLOCK_BYTES", block_bytes)
    first = line("10:00:00,000", "first")
    trace = line("10:00:00,002", "trace\n\tat a\n\tat b")
    odd = line("10:00:00,004", "odd \0 ä")
    windows = b"\xef\xbb\xbf" + (first + trace + odd).replace("\n", "\r\n").removesuffix("\r\n").encode("latin-1")
    (tmp_path / "windows").write_bytes(gzip.compress(windows) if packed else windows)
    (tmp_path / "linux").write_text(line("10:00:00,001", "second") + line("10:00:00,003", "last").rstrip("\n"))
    lost: list[str] = []
    runs = merging.merge(
        SystemFileSystem(), [str(tmp_path / "windows"), str(tmp_path / "linux")], Wanted(), lost.append
    )
    entries = [entry.decode("latin-1") for run in runs for entry in run.entries]
    assert entries == stripped(first, line("10:00:00,001", "second"), trace, line("10:00:00,003", "last"), odd)
    assert lost == []


def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(line("10:00:00,000", "first"), encoding="utf-16")
    lost: list[str] = []
    assert list(merging.merge(SystemFileSystem(), [str(path)], Wanted(), lost.append)) == []
    assert lost == [f"{path}: it is UTF-16; convert it to UTF-8"]


def test_damaged_files_are_named_and_the_rest_is_merged(tmp_path: Path) -> None:
    good, other = line("10:00:00,000", "good"), line("10:00:00,001", "other")
    paths = write(tmp_path, one=good, two_gz=other, three="no time here\n", four="")
    cut = paths[1].read_bytes()[:-9]
    paths[1].write_bytes(cut)
    entries, lost, _ = merged(paths)
    assert entries == stripped(good, other)
    assert sorted(lost) == [
        f"{tmp_path}/three: no line begins with a time of the form yyyy-MM-dd HH:mm:ss,SSS",
        f"{tmp_path}/two_gz: the compressed data end early",
    ]


def test_what_follows_an_entry_of_absurd_size_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ENTRY_BYTES", 300_000)
    huge, last = line("10:00:00,000", "huge") + "\tat x\n" * 200_000, line("10:00:01,000", "last")
    entries, lost, _ = merged(write(tmp_path, one=huge + last))
    assert [entry[:37] for entry in entries] == [huge[:37], last[:37]]
    assert len(entries[0]) < len(huge) - 100_000
    assert lost == [f"{tmp_path}/one: an entry has more than 300000 bytes; the rest of it is left out"]


def test_a_thousand_files_are_merged_with_few_open_files(tmp_path: Path) -> None:
    class Counting(SystemFileSystem):
        open_now = most = 0

        def open_to_read(self, path: str):
            file = super().open_to_read(path)
            self.open_now += 1
            self.most = max(self.most, self.open_now)
            close = file.close

            def closed() -> None:
                self.open_now -= 1
                close()

            file.close = closed
            return file

    paths = write(
        tmp_path, **{f"log{number}": line(f"10:00:{number % 60:02},{number:03}", "x") for number in range(1000)}
    )
    disk = Counting()
    count = sum(len(run.entries) for run in merging.merge(disk, list(map(str, paths)), Wanted(), print))
    assert (count, disk.most, disk.open_now) == (1000, 1, 0)


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("Changed partition t-0 from A to B", True),
        ("for partition t-0.", True),
        ("partitions t-0, t-1", True),
        ("HashSet(t-0)", True),
        ("partition [t,0] state", True),
        ("partition [t, 0] state", True),
        ("for partition (t,0)", True),
        ("State(topicName='t', partitionIndex=0, x)", True),
        ("partition t-00", False),
        ("partition t-01", False),
        ("partition t-0-1", False),
        ("partition t-0.x-1", False),
        ("partition a.t-0", False),
        ("partition a-t-0", False),
        ("partition [at,0]", False),
        ("partition t-1", False),
        ("partition [t,1]", False),
        ("State(topicName='t', partitionIndex=01, x)", False),
    ],
)
def test_a_partition_is_found_in_the_forms_of_all_versions(text: str, is_named: bool) -> None:
    data = text.encode()
    assert names("t", [0])(data, 0, len(data)) is is_named


def test_dots_in_a_topic_are_no_wild_cards() -> None:
    assert not names("a.b", [])(b"partition axb-0", 0, 15)


PIECES = st.lists(
    st.tuples(st.integers(0, 3000), st.sampled_from(["t-0", "t-1", "[t,0]", "u-0", "none"]), st.booleans()), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(
    histories=st.lists(PIECES, min_size=1, max_size=4),
    block_bytes=st.sampled_from([1, 64, 300, 100_000]),
    chooses=st.booleans(),
    zipped=st.booleans(),
)
def test_blocks_of_any_size_give_the_same_history(
    tmp_path_factory: pytest.TempPathFactory,
    histories: list[list[tuple[int, str, bool]]],
    block_bytes: int,
    chooses: bool,
    zipped: bool,
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    expected, paths = [], []
    for number, pieces in enumerate(histories):
        content = ""
        for at_ms, name, has_trace in sorted(pieces, key=lambda piece: piece[0]):
            time = f"10:00:{at_ms // 1000:02},{at_ms % 1000:03}"
            entry = line(time, f"partition {name} of {number}") + ("\tat x\n" if has_trace else "")
            content += entry
            if not chooses or name in ("t-0", "[t,0]"):
                expected.append((time, entry))
        paths += write(directory, **{f"log{number}{'gz' if zipped else ''}": content})
    wanted = Wanted(names("t", [0]), b"t") if chooses else Wanted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_MIN_BLOCK_BYTES", block_bytes)
        patch.setattr(merging, "_MAX_BLOCK_BYTES", block_bytes)
        entries, lost, notes = merged(paths, wanted)
    assert entries == stripped(*(entry for _, entry in sorted(expected, key=lambda each: each[0])))
    assert (lost, notes) == ([], [])


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, part_bytes=st.integers(1, 500))
def test_each_entry_is_in_exactly_one_part_of_its_file(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, str, bool]], part_bytes: int
) -> None:
    content = "".join(
        line("10:00:00,000", f"{number} {name}") + ("\tat x\n" if has_trace else "")
        for number, (_, name, has_trace) in enumerate(pieces)
    )
    (path,) = write(tmp_path_factory.mktemp("logs"), log=content)
    found = []
    for begin in range(0, len(content), part_bytes):
        end = min(begin + part_bytes, len(content))
        file = StateChangeFile(SystemFileSystem(), str(path), print, block_bytes=97, begin=begin, end=end)
        found += [entry.decode() for entry in entries_of(file, Wanted())]
    assert "".join(f"{entry}\n" for entry in found) == content


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([b"\n", b"[2021-06-01 10:00:00,000] x\n", b"2021-99-99 99:99:99,999", b"[t,0]", b"[2021-"]),
        ),
        max_size=12,
    ),
    how=st.sampled_from(["plain", "gzip", "damaged gzip"]),
    block_bytes=st.sampled_from([1, 50, 100_000]),
)
def test_any_bytes_are_merged_without_a_fault(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], how: str, block_bytes: int
) -> None:
    content = b"".join(pieces)
    path = tmp_path_factory.mktemp("logs") / "log"
    packed = gzip.compress(content)
    path.write_bytes(
        {"plain": content, "gzip": packed, "damaged gzip": packed[: len(packed) // 2] + content + b"\0"}[how]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_MIN_BLOCK_BYTES", block_bytes)
        patch.setattr(merging, "_MAX_BLOCK_BYTES", block_bytes)
        for wanted in (Wanted(), Wanted(names("t", [0]), b"t")):
            merged([path], wanted)
    for part_bytes in (1, 7, 1000):
        for begin in range(0, len(content) if how == "plain" else 0, part_bytes):
            file = StateChangeFile(
                SystemFileSystem(), str(path), lambda text: None, block_bytes=13, begin=begin, end=begin + part_bytes
            )
            list(entries_of(file, Wanted()))
