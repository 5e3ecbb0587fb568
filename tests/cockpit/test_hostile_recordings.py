"""A recording comes from anybody: what its entries and keyframes may say, and what a few kilobytes may grow to."""

import random
from pathlib import Path
from typing import Any

import pytest

from klamm.base import json_bytes
from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.recorded.cluster import RecordedCluster, partition_map
from klamm.recording.blocks import MAX_ENTRIES_BYTES, RecordingError, write_block
from klamm.recording.entries import EntryError, Json
from klamm.recording.reader import Recording
from klamm.recording.state import State
from klamm.recording.writer import MAX_ENTRY_CHARACTERS, RecordingWriter
from support.cockpit import Browser
from support.recordings import BEGAN_MS, RandomCluster

HOSTILE: list[Any] = [
    *("", "²", "9" * 5_000, "-1", "\u202e", "</script>", "\x00", "t0", "running", "a" * 3_000),
    *(None, True, -1, 0, 2**31 - 1, 2**53, 2**63 - 1, 2**64 - 1, 1e308),
    *([], {}, [[]], {"a": 1}, [None], ["x"], [2**64 - 1]),
    *("/brokers/topics/t0", "/brokers/topics/t0/partitions/0/state", "/brokers/ids/²", "/brokers/ids/1"),
]
RECORD = {"sequence": 5, "time_ms": 1, "controller": 2, "epoch": 1, "event": "TopicChange"}
OF_A_PARTITION = {
    **{"topic": "t0", "partition": 0, "from": "NewPartition", "to": "OnlinePartition", "leader": 1, "leader_epoch": 1},
    **{"isr": [1], "failed": False, "why": "because"},
}
RECORDS: list[Json] = [
    {"kind": "partition", **RECORD, **OF_A_PARTITION},
    {"kind": "replica", **RECORD, **OF_A_PARTITION, "replica": 1, "to": "ReplicaDeletionSuccessful"},
    {"kind": "request", **RECORD, "api": "LeaderAndIsr", "brokers": [1], "size": 3},
    {"kind": "event", **RECORD, "state": "Idle", "processing_time_ms": 1, "queue_time_ms": 2, "outcome": "processed"},
    {"kind": "server_started", "server": "1"},
    {"kind": "fault_installed", "fault": "1"},
]


def entries_of(rng: random.Random) -> list[Json]:
    cluster, made = RandomCluster(rng.randrange(2**30)), list(RECORDS)
    while len(made) < 25:
        made += cluster.step()
    rng.shuffle(made)
    return made


def damaged(rng: random.Random, value: Any) -> Any:
    """The value with something wrong in one place."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        rest = {name: each for name, each in value.items() if name != key}
        if rng.random() < 0.15:
            return rest
        if rng.random() < 0.15:
            return rest | {str(rng.choice(HOSTILE)): value[key]}
        if key == "data" and value[key].startswith("{"):
            return rest | {key: json_bytes.encode(damaged(rng, json_bytes.decode(value[key]))).decode()}
        return value | {key: damaged(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], damaged(rng, value[at]), *value[at + 1 :]]
    return rng.choice(HOSTILE)


def keyframe_of(rng: random.Random) -> bytes:
    state = State()
    for entry in entries_of(rng):
        state.apply(entry, BEGAN_MS)
    form = json_bytes.decode(json_bytes.encode(state.to_json()))
    if rng.random() < 0.7:
        section = rng.choice(list(form))
        form[section] = damaged(rng, form[section])
    return json_bytes.encode({"kind": "keyframe", "state": form})


def write(path: Path, *blocks: tuple[list[bytes], list[Json]], marks: dict[str, int] | None = None) -> None:
    """Each block is a list of keyframes, none or one, and its entries."""
    first = 0
    with open(path, "wb") as file:
        for keyframes, entries in blocks:
            lines = [*keyframes, *(json_bytes.encode({"at_ms": BEGAN_MS} | each) for each in entries)]
            write_block(
                file,
                b"\n".join(lines) + b"\n",
                first=first,
                count=len(entries),
                first_ms=BEGAN_MS,
                last_ms=BEGAN_MS,
                has_keyframe=bool(keyframes),
                marks=marks or {},
            )
            first += len(entries)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_recording_says_has_an_answer(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    blocks = []
    for number in range(3):
        entries = [damaged(rng, each) if rng.random() < 0.3 else each for each in entries_of(rng)]
        whole = [
            {"mark": rng.choice(HOSTILE)} | each | ({} if isinstance(each.get("kind"), str) else {"kind": "fault"})
            for each in entries
            if isinstance(each, dict)
        ]
        about: list[Json] = [{"kind": "recording", "text": "x", "source": "s"}] if number == 0 else []
        blocks.append(([keyframe_of(rng)] if rng.random() < 0.6 else [], [*about, *whole]))
    write(tmp_path / "r", *blocks, marks={"</script>": 2**64 - 1})
    with Recording(tmp_path / "r") as recording:
        browser = Browser(Cockpit(RecordedCluster(recording)))
        a, b, c = (rng.randrange(recording.count) for _ in range(3))
        for path in (
            f"/?token={browser.server.guard.token}",
            "/api/recording",
            "/api/recording/entries?limit=1000",
            f"/api/recording/difference?a={a}&b={b}",
            f"/api/recording/next?entry={c}",
            *(f"{api}?entry={entry}" for api in ("/api/now", "/api/partitions") for entry in (a, b, c)),
            *(f"/api/why?topic=t{number}&partition=0&entry={c}" for number in range(4)),
        ):
            answer = browser.get(path)
            assert answer.status in (200, 404) or "is damaged" in answer.json()["error"]


def test_partitions_and_brokers_of_any_number_cost_no_memory(tmp_path: Path) -> None:
    state = [[["t", 2**62], [[1], [], [], 1, 0, [1], 1, 0]], [["u", 0], [list(range(50_000)), [], [], 1, 0, [1], 1, 0]]]
    form: dict[str, Any] = {name: [] for name in State().sections} | {"partitions": state}
    keyframe = json_bytes.encode({"kind": "keyframe", "state": form})
    write(tmp_path / "r", ([keyframe], [{"kind": "recording"}]))
    with Recording(tmp_path / "r") as recording:
        head = partition_map(recording, 0).head()
    assert head["topics"] == [["t", 0, 0], ["u", 0, 1]]
    assert head["left_out"] == {"partitions": 1, "brokers": 48_000}


def test_a_block_with_more_than_any_writer_writes_is_not_taken_apart(tmp_path: Path) -> None:
    write(tmp_path / "r", ([], [{"kind": "recording"}]), ([], [{"kind": "fault", "text": "x" * MAX_ENTRIES_BYTES}]))
    with Recording(tmp_path / "r") as recording, pytest.raises(RecordingError, match="allowed are 8388608"):
        recording.timeline(10)
    write(tmp_path / "r", ([], []))
    with pytest.raises(RecordingError, match="count of a block is 0; allowed are 1 to 100000"):
        Recording(tmp_path / "r")


def test_of_long_blocks_few_are_kept(tmp_path: Path) -> None:
    # As values of Python, lists in lists take twenty times as much memory as in the file.
    long = {"kind": "fault", "text": "x" * 3_000_000}
    write(tmp_path / "r", ([], [{"kind": "recording"}]), *[([], [long])] * 8)
    with Recording(tmp_path / "r") as recording:
        recording.timeline(10)
        assert len(recording._kept) == 5
        assert recording.entry(2).entry["text"] == long["text"]


def test_an_entry_that_is_too_long_is_left_out_and_the_file_says_so(tmp_path: Path) -> None:
    path = "/brokers/topics/t"
    znode = {"kind": "znode", "path": path, "version": 0, "czxid": 1, "mzxid": 1}
    with open(tmp_path / "r", "wb") as file:
        writer = RecordingWriter(file, "test", "a test", BEGAN_MS)
        for size in (MAX_ENTRY_CHARACTERS - len(path) - len("znode"), MAX_ENTRY_CHARACTERS):
            writer.add(znode | {"data": "\x00" * size}, BEGAN_MS)
        writer.flush()
    with Recording(tmp_path / "r") as recording:
        assert [each.entry["kind"] for each in recording.entries(0, 10)] == ["recording", "znode", "missed"]
        assert "An entry of kind znode was too long" in recording.entry(2).entry["text"]
        assert recording.moment(2) == writer.state


def test_a_record_of_any_topic_changes_nothing() -> None:
    state = State()
    state.deletions["t"] = 0
    for topic in ({}, [], None, 5):
        with pytest.raises(EntryError):
            state.apply({"kind": "znode", "path": topic}, 0)
        state.apply({"kind": "replica", "to": "ReplicaDeletionSuccessful", "topic": topic}, 0)
    assert state.deletions == {"t": 0}
