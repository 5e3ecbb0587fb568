"""klamm log dump: files of all kinds, sound and damaged."""

import json
import random
import shutil
import struct
from pathlib import Path

import pytest

from klamm.cli import main
from klamm.coordinator import record_texts as decoders
from klamm.coordinator.groups.group_records import group_metadata_key, offset_commit_key
from klamm.storage.log.log_config import LogConfig
from support.log_directories import NOW_MS, fill_plainly, fill_with_all_kinds, make_log_directory

FIRST = "00000000000000000000"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The partition's directory."""
    make_log_directory(tmp_path, config=LogConfig(segment_bytes=4000, index_interval_bytes=1000), fill=fill_plainly)
    return tmp_path / "t-0"


def dump(*arguments: object) -> int:
    return main.run(["log", "dump", *map(str, arguments)])


def change(path: Path, position: int, value: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] = value
    path.write_bytes(data)


def test_batches_and_records(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / f"{FIRST}.log"
    assert dump("--files", path, "--print-data-log") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"Dumping {path}", "Starting offset: 0"]
    assert lines[2].startswith(
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1"
        f" partitionLeaderEpoch: 0 isTransactional: false isControl: false position: 0 CreateTime: {NOW_MS} size: "
    )
    assert lines[2].endswith(" isvalid: true")
    assert lines[3].startswith(
        f"| offset: 0 isValid: true crc: null keySize: -1 valueSize: 20 CreateTime: {NOW_MS} baseOffset: 0"
    )
    assert lines[3].endswith(" sequence: -1 headerKeys: [] payload: 00000000000000000000")


def test_json_has_one_object_for_each_batch_and_record(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / f"{FIRST}.log"
    assert dump("--files", path, "--deep-iteration", "--json") == 0
    batch, first, second, *_ = map(json.loads, capsys.readouterr().out.splitlines())
    assert (batch["type"], batch["file"], batch["baseOffset"], batch["isvalid"]) == ("batch", str(path), 0, True)
    assert [(each["type"], each["offset"], each["headerKeys"]) for each in (first, second)] == [
        ("record", 0, []),
        ("record", 1, []),
    ]


def test_files_that_kafkas_tool_ignores(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "other").write_text("x")
    checkpoint, meta = directory.parent / "recovery-point-offset-checkpoint", directory.parent / "meta.properties"
    names = [directory / "leader-epoch-checkpoint", directory / "partition.metadata", checkpoint, meta]
    assert dump("--files", ",".join(map(str, [*names, directory / "other"]))) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"Dumping {names[0]}",
        "epoch: 0 startOffset: 0",
        f"Dumping {names[1]}",
        "version: 0 topicId: AAAAAAABAAAAAAAAAAAAAA",
        f"Dumping {names[2]}",
        "topic: t partition: 0 offset: 200",
        f"Dumping {names[3]}",
        "broker.id: 1 cluster.id: cluster version: 0",
        f"Dumping {directory}/other",
    ]
    assert err == f"Ignoring unknown file {directory}/other\n"


def test_damage_is_named_and_the_rest_is_printed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = sorted(directory.glob("*.log"))[:3]
    change(first, 70, 255)
    second.write_bytes(second.read_bytes()[:-1])
    bad_name = directory / "x.log"
    bad_name.write_bytes(b"")
    paths = [first, second, directory / f"{99:020}.log", bad_name, third]
    assert dump("--files", ",".join(map(str, paths)), "--deep-iteration") == 1
    out, err = capsys.readouterr()
    assert out.count(" isvalid: false") == 1
    assert out.count(" isvalid: true") > 50
    lines = err.splitlines()
    assert lines[0] == f"klamm: {first}, position 0: the checksum of the batch at offset 0 does not match"
    assert any(line.startswith(f"klamm: {second}, position ") and "bytes are not printed" in line for line in lines)
    assert f"klamm: {directory}/{99:020}.log: no such file or directory" in lines
    assert f"klamm: {bad_name}: the file's name does not begin with an offset" in lines
    assert " invalid bytes at the end of " in out
    assert f"Dumping {third}" in out


def test_indexes_that_do_not_fit_their_log(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, times = directory / f"{FIRST}.index", directory / f"{FIRST}.timeindex"
    assert dump("--files", f"{index},{times}") == 0
    sound = capsys.readouterr().out
    assert "offset: " in sound
    # Kafka preallocates the indexes of the active segment.
    index.write_bytes(index.read_bytes() + bytes(800))
    times.write_bytes(times.read_bytes() + bytes(1200))
    assert dump("--files", f"{index},{times}") == 0
    assert capsys.readouterr().out == sound
    change(index, 7, index.read_bytes()[7] ^ 1)
    change(times, 7, 1)
    assert dump("--files", f"{index},{times}", "--verify-index-only") == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"Dumping {index}", f"Dumping {times}"]
    assert "no batch begins at position" in err
    assert f"Found timestamp mismatch in :{times}" in err
    assert "  Index timestamp: " in err
    index.write_bytes(b"xyz")
    assert dump("--files", index) == 1
    assert f"klamm: {index}: has 3 bytes, not a multiple of 8\n" in capsys.readouterr().err


def test_snapshots_and_aborted_transactions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_log_directory(tmp_path, fill=fill_with_all_kinds)
    partition = tmp_path / "t-0"
    snapshot = max(partition.glob("*.snapshot"))
    assert dump("--files", f"{snapshot},{partition}/{FIRST}.txnindex", "--json") == 0
    items = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    producers = {item["producerId"]: item for item in items if item["type"] == "producer"}
    assert producers[4000]["producerEpoch"] == 2
    assert producers[5119]["currentTxnFirstOffset"] is not None
    assert {item["type"] for item in items} == {"producer", "txnindex"}
    change(snapshot, 20, 255)
    assert dump("--files", snapshot) == 1
    assert capsys.readouterr().err == f"klamm: {snapshot}: the checksum does not match\n"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logs") / "sound"
    config = LogConfig(segment_bytes=3000, index_interval_bytes=500)
    make_log_directory(directory, topics=("t", "__consumer_offsets"), fill=fill_with_all_kinds, config=config)
    return directory


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_ends_in_a_fault_of_the_program(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    chance = random.Random(seed)
    directory = Path(shutil.copytree(sound, tmp_path / "damaged"))
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock"]
    for path in chance.sample(files, 3):
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data) + 1)
        wounds = (data[:at], data + chance.randbytes(50), data[:at] + chance.randbytes(8) + data[at + 8 :])
        path.write_bytes(chance.choice(wounds))
    every = ",".join(map(str, files))
    for arguments in (
        ["log", "verify", str(directory)],
        ["log", "dump", "--files", every, "--print-data-log"],
        ["log", "dump", "--files", every, "--offsets-decoder", "--json"],
    ):
        assert main.run(arguments) in (0, 1)
        assert "fault of the program" not in capsys.readouterr().err


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


TRANSACTION = struct.pack(">hqhibi", 0, 7, 2, 60_000, 1, 1) + text("t") + struct.pack(">iiiqq", 2, 0, 3, 11, 10)
# With the tagged fields of a former producer id and of the client's transaction version.
TRANSACTION_OF_KAFKA_4 = (
    struct.pack(">hqhib", 1, 7, 2, 60_000, 1) + b"\x02\x02t\x03" + struct.pack(">ii", 0, 3) + b"\0"
    + struct.pack(">qq", 11, 10) + b"\x02\x00\x08" + struct.pack(">q", 6) + b"\x02\x02\x00\x02"
)  # fmt: skip
GROUP = (
    struct.pack(">h", 3) + text("connect") + struct.pack(">i", 4) + text("v0") + text("m") + struct.pack(">qi", 5, 1)
    + text("m") + struct.pack(">h", -1) + text("c") + text("/h") + struct.pack(">iii", 1, 2, 0) + struct.pack(">i", 3)
    + b"\x00\x0a\xbc"
)  # fmt: skip


@pytest.mark.parametrize(
    ("decode", "key", "value", "expected"),
    [
        (
            decoders.offsets,
            offset_commit_key("g", ("t", 3)),
            None,
            ("offset_commit::group=g,partition=t-3", "<DELETE>"),
        ),
        (
            decoders.offsets,
            offset_commit_key("g", ("t", 3)),
            struct.pack(">hqi", 3, 42, 1) + text("m") + struct.pack(">q", 5),
            ("offset_commit::group=g,partition=t-3", "offset=42,metadata=m"),
        ),
        (
            decoders.offsets,
            group_metadata_key("g"),
            GROUP,
            (
                "group_metadata::group=g",
                '{"protocolType":"connect","protocol":"v0","generationId":4,"assignment":"{m=ABC}"}',
            ),
        ),
        (
            decoders.transactions,
            struct.pack(">h", 0) + text("tx"),
            TRANSACTION,
            (
                "transaction_metadata::transactionalId=tx",
                "producerId:7,producerEpoch:2,state=Ongoing,partitions=[t-0,t-3],txnLastUpdateTimestamp=11,"
                "txnTimeoutMs=60000",
            ),
        ),
        (
            decoders.transactions,
            struct.pack(">h", 0) + text("tx"),
            TRANSACTION_OF_KAFKA_4,
            (
                "transaction_metadata::transactionalId=tx",
                "producerId:7,producerEpoch:2,state=Ongoing,partitions=[t-0,t-3],txnLastUpdateTimestamp=11,"
                "txnTimeoutMs=60000",
            ),
        ),
        (
            decoders.transactions,
            struct.pack(">h", 0) + text("tx"),
            struct.pack(
                ">hqhib",
                1,
                7,
                2,
                60_000,
                5,
            )
            + b"\0"
            + struct.pack(">qq", 11, 10)
            + b"\0",
            (
                "transaction_metadata::transactionalId=tx",
                "producerId:7,producerEpoch:2,state=CompleteAbort,partitions=[],txnLastUpdateTimestamp=11,"
                "txnTimeoutMs=60000",
            ),
        ),
        (  # a group of the new consumer protocol
            decoders.offsets,
            struct.pack(">h", 3) + text("g"),
            b"\x00\x07",
            ("unknown::version=3,key=000167", "0007"),
        ),
        (
            decoders.of_classes("kafka.serializer.LongDecoder", "kafka.serializer.DefaultDecoder"),
            bytes(7) + b"\x05",
            b"\xff\x00",
            ("5", "ff00"),
        ),
        (
            decoders.of_classes("kafka.serializer.StringDecoder", "kafka.serializer.IntegerDecoder"),
            b"a\xff",
            b"\xff\xff\xff\xfe",
            ("a\ufffd", "-2"),
        ),
    ],
)
def test_keys_and_values_are_decoded(decode, key, value, expected) -> None:
    assert decode(key, value) == expected


@pytest.mark.parametrize("decode", [decoders.offsets, decoders.transactions])
@pytest.mark.parametrize("data", [None, b"", b"\x00", b"\x00\x01abc", TRANSACTION[:20], b"\xff\xff\xff"])
def test_bytes_of_no_known_form_are_a_value_error(decode, data) -> None:
    with pytest.raises(ValueError):
        decode(data, data)
    with pytest.raises(ValueError):
        decode(struct.pack(">h", 0) + text("tx") + bytes(6), b"\x00" * 5)


def test_wrong_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert dump() == 2
    assert dump("--files", "x", "--offsets-decoder", "--transaction-log-decoder") == 2
    assert dump("--files", "x", "--value-decoder-class", "my.Decoder") == 2
    err = capsys.readouterr().err
    assert "Missing option '--files'" in err
    assert "give only one of --offsets-decoder and --transaction-log-decoder" in err
    assert "kafka.serializer.LongDecoder" in err
