"""The file of a recording: what is written is read again, at each moment, and no bytes of a file are trusted."""

import random
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from klamm.base import json_bytes
from klamm.recording import blocks, reader, writer
from klamm.recording.blocks import RecordingError, read_heads
from klamm.recording.difference import apply, difference, words
from klamm.recording.entries import Json
from klamm.recording.reader import Recording
from klamm.recording.state import PartitionMoment, State
from klamm.recording.writer import RecordingWriter
from klamm.znodes.requests import delete_topic_path
from klamm.znodes.topics import partition_state_path, topic_path
from support.recordings import BEGAN_MS, RandomCluster, record


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few hundred entries have many blocks and keyframes."""
    monkeypatch.setattr(writer, "BLOCK_ENTRIES", 23)
    monkeypatch.setattr(writer, "KEYFRAME_ENTRIES", 60)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(8))
def test_a_moment_by_keyframes_is_the_fold_from_the_start(tmp_path: Path, seed: int) -> None:
    cluster = RandomCluster(seed)
    entries = record(tmp_path / "r", cluster, 900)
    with Recording(tmp_path / "r") as recording:
        assert recording.count == len(entries) + 1
        assert sum(block.has_keyframe for block in recording._blocks) > 3
        states, state = [State()], State()
        for number, entry in enumerate(entries, 1):
            state.apply(entry, BEGAN_MS + number // 3)
            states.append(state.copy())
        for number in cluster.rng.choices(range(len(states)), k=60):
            assert recording.moment(number) == states[number]
        for _ in range(60):
            one, other = cluster.rng.choices(states, k=2)
            assert apply(difference(one, other), one) == other
            assert words(difference(one, other))


@pytest.mark.usefixtures("small_blocks")
def test_times_and_numbers_name_the_same_moment(tmp_path: Path) -> None:
    entries = record(tmp_path / "r", RandomCluster(1), 300)
    with Recording(tmp_path / "r") as recording:
        assert recording.number_at(0) == 0
        assert recording.number_at(BEGAN_MS + 10**9) == recording.count - 1
        for number in range(recording.count):
            found = recording.entry(number)
            assert found.at_ms == BEGAN_MS + number // 3
            if number:
                assert entries[number - 1].items() <= found.entry.items()
            last = recording.number_at(found.at_ms)
            assert recording.entry(last).at_ms == found.at_ms
            assert last == recording.count - 1 or recording.entry(last + 1).at_ms > found.at_ms
        assert sum(bar.entries for bar in recording.timeline(17)) == recording.count
        marked = [each.number for each in recording.entries(0, recording.count) if "mark" in each.entry]
        found_marks, at = [], 0
        while (following := recording.next_marked(at)) is not None:
            found_marks.append(at := following)
        assert found_marks == marked
        assert recording.next_marked(marked[5], back=True) == marked[4]
        assert recording.next_marked(0, back=True) is None


@pytest.mark.usefixtures("small_blocks")
def test_the_story_of_a_partition_has_its_entries_only(tmp_path: Path) -> None:
    record(tmp_path / "r", RandomCluster(3), 600)
    with Recording(tmp_path / "r") as recording:
        story = recording.story("t1", 0)
        paths = {entry.entry["path"] for entry in story}
        assert partition_state_path("t1", 0) in paths
        assert paths <= {partition_state_path("t1", 0), topic_path("t1"), delete_topic_path("t1")}
        numbers = [entry.number for entry in story]
        assert numbers == sorted(numbers)
        every = [
            entry.number
            for entry in recording.entries(0, recording.count)
            if entry.entry.get("path") == partition_state_path("t1", 0)
        ]
        assert set(every) <= set(numbers)


def test_the_lines_of_a_file_are_what_zstd_prints(tmp_path: Path) -> None:
    record(tmp_path / "r", RandomCluster(4), 50)
    with open(tmp_path / "r", "rb") as file:
        blocks, missing = read_heads(file, "r")
        assert missing is None
        text = b"".join(
            zstandard.ZstdDecompressor().decompress((tmp_path / "r").read_bytes()[each.position :][: each.size_bytes])
            for each in blocks
        )
    lines = [json_bytes.decode(line) for line in text.splitlines()]
    assert lines[0] == {"at_ms": BEGAN_MS, "kind": "recording", "source": "test", "text": "a test"}
    assert len(lines) == 51


# -- damaged and hostile files ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_lacks_its_end_is_read_up_to_its_last_whole_block(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    record(whole, RandomCluster(5), 200)
    content = whole.read_bytes()
    with Recording(whole) as recording:
        heads = recording._blocks
    ends = [block.position + block.size_bytes for block in heads]
    cut = tmp_path / "cut"
    for size in (*range(1, len(content), 97), len(content) - 1):
        cut.write_bytes(content[:size])
        if size < ends[0]:
            with pytest.raises(RecordingError, match="cut"):
                Recording(cut)
            continue
        with Recording(cut) as recording:
            whole_blocks = sum(end <= size for end in ends)
            assert recording.count == sum(block.count for block in heads[:whole_blocks])
            assert (recording.trouble is None) == (size in ends)
            recording.moment(recording.count - 1)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(4))
def test_hostile_bytes_give_a_clear_error_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    record(tmp_path / "r", RandomCluster(6), 200)
    content = (tmp_path / "r").read_bytes()
    hostile = tmp_path / "hostile"
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        hostile.write_bytes(damaged)
        try:
            with Recording(hostile) as recording:
                recording.timeline(20)
                for number in (0, recording.count // 2, recording.count - 1):
                    recording.moment(number)
                recording.story("t0", 0)
        except RecordingError as error:
            assert "hostile" in str(error)


def one_block(lines: bytes, count: int, **changed: object) -> bytes:
    body = zstandard.ZstdCompressor().compress(lines)
    head: dict[str, object] = {
        "format": blocks.FORMAT,
        "version": blocks.VERSION,
        "size_bytes": len(body),
        "raw_bytes": len(lines),
        "first": 0,
        "count": count,
        "first_ms": 0,
        "last_ms": 0,
        "has_keyframe": False,
        "marks": {},
    }
    text = json_bytes.encode(head | changed)
    return blocks._FRAME.pack(blocks._SKIPPABLE, len(text)) + text + body


FIRST = b'{"at_ms":0,"kind":"recording"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "is no recording of klamm"),
        (blocks._FRAME.pack(blocks._SKIPPABLE, 2**32 - 1) + bytes(50), "is no recording of klamm"),
        (one_block(FIRST, 1, version=2), "has version 2 of the format; this klamm reads version 1"),
        (one_block(FIRST, 1, format="another"), "is no recording of klamm"),
        (one_block(FIRST, 1, raw_bytes=2**40), "raw_bytes of a block is 1099511627776; allowed are 0 to"),
        (one_block(bytes(2**25), 1, raw_bytes=100), "has another size than its head says"),
        (one_block(b"\n" * 2**20, 1), "has another number of lines than its head says"),
        (one_block(FIRST, 10**6), "count of a block is 1000000; allowed are 1 to 100000"),
        (one_block(FIRST, 1, first=5), "begins with entry 5, which is not the next one"),
        (one_block(FIRST, 1, first_ms=5), "times of a block go back"),
        (one_block(b'{"at_ms":"x","kind":"recording"}\n', 1), "the time of entry 0 is x"),
        (one_block(b"[" * 10_000 + b"\n", 1), "entry 0 is no JSON"),
        (one_block(b"{}\n", 1), "entry 0 has no kind"),
    ],
)
def test_a_wrong_block_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        Recording(tmp_path / "r")


def test_a_block_that_holds_more_than_it_says_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(one_block(bytes(2**28), 1, raw_bytes=100))
    tracemalloc.start()
    with pytest.raises(RecordingError):
        Recording(tmp_path / "r")
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 2**20


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "znode", "path": 5},
        {"kind": "znode", "path": "/controller", "data": 5},
        {"kind": "znode", "path": "/controller", "data": "{}", "czxid": "x", "mzxid": 1, "version": 1},
        {"kind": "znode", "path": "/controller", "data": "{}", "czxid": 1, "mzxid": 1, "version": 1},
        {"kind": "znode", "path": "/brokers/topics/t", "data_base64": "x", "czxid": 1, "mzxid": 1, "version": 1},
        {"kind": "fault"},
        {"kind": "replica", "event": 5, "to": ["x"]},
        {"kind": "server_started", "server": {"x": 1}},
        {"kind": "of another version", "what": None},
    ],
)
def test_an_entry_that_is_not_understood_changes_nothing_and_is_kept(tmp_path: Path, entry: Json) -> None:
    with open(tmp_path / "r", "wb") as file:
        written = RecordingWriter(file, "test", "a test", 5)
        written.add(entry, 7)
        written.flush()
    with Recording(tmp_path / "r") as recording:
        assert entry.items() <= recording.entry(1).entry.items()
        assert not recording.moment(1).partitions


def test_a_moment_of_many_entries_is_near_a_keyframe(tmp_path: Path) -> None:
    # A moment costs the entries since a keyframe, however long the file is.
    record(tmp_path / "r", RandomCluster(8, topics=40), 45_000)
    with Recording(tmp_path / "r") as recording:
        keyframes = [block.first for block in recording._blocks if block.has_keyframe]
        assert max(b - a for a, b in zip([0, *keyframes], [*keyframes, recording.count], strict=True)) < 30_000
        assert len(recording._kept) <= reader.KEPT_BLOCKS
        assert recording.moment(44_000) == recording.moment(44_000)


def test_a_difference_is_told_in_words() -> None:
    before, after = State(), State()
    before.cluster |= {"controller": 1, "controller_epoch": 3}
    after.cluster |= {"controller": 2, "controller_epoch": 4}
    for number in range(7):
        before.partitions["t", number] = PartitionMoment((1, 2), leader=1, leader_epoch=0, isr=(1, 2))
        after.partitions["t", number] = PartitionMoment((1, 2), leader=2, leader_epoch=1, isr=(2,))
    after.partitions["t", 6] = PartitionMoment((1, 2), leader=None, leader_epoch=1, isr=(1,))
    assert words(difference(before, after)) == [
        "The controller is broker 2; it was broker 1.",
        "The controller epoch is 4; it was 3.",
        "1 partition lost its leader: t-6.",
        "6 partitions moved from leader 1 to 2: t-0, t-1, t-2, t-3, t-4 and 1 more.",
        "Broker 1 left the ISR of 6 partitions.",
        "Broker 2 left the ISR of 1 partition.",
    ]
    assert words(difference(after, after)) == ["Nothing differs."]
