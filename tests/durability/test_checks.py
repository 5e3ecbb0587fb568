"""The durability harness can fail: each thing that may not happen to a record or a replica is found and named."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.protocol.record.records import Record as LogRecord
from klamm.protocol.record.records import build_batch
from support.durability.check import Stored, WriterReport, check_writer, code
from support.durability.load import IDEMPOTENT, PLAIN, Acknowledged, Record
from support.durability.replicas import ProducerEpochs, compare

WRITERS = [PLAIN, IDEMPOTENT]


def checked(
    writer: str,
    written: int,
    acknowledged: dict[int, int],
    log: list[tuple[str, int]],
    epochs: Sequence[ProducerEpochs] = (),
) -> WriterReport:
    """The report on one partition's `log`; `acknowledged`: sequence -> offset."""
    promised = Acknowledged()
    for sequence, offset in acknowledged.items():
        promised.sequences.append(sequence)
        promised.offsets.append(offset)
    stored = Stored()
    for offset, (name, sequence) in enumerate(log):
        stored.put(offset, code(WRITERS.index(name), sequence))
    told: Any = SimpleNamespace(
        name=writer,
        written=[written],
        acknowledged=[promised],
        acknowledged_count=len(acknowledged),
        failed=[],
        written_per_second={0: written},
        acknowledged_per_second={0: len(acknowledged)},
        seconds=1,
        longest_silence_s=0.0,
        errors={},
    )
    return check_writer(told, WRITERS.index(writer), [stored], epochs)


def test_a_record_says_where_it_belongs() -> None:
    value = Record(PLAIN, 3, 12).value(100)
    assert len(value) == 100
    assert Record.parse(value) == Record(PLAIN, 3, 12)


def test_what_is_as_promised_is_no_problem() -> None:
    log = [(PLAIN, 0), (IDEMPOTENT, 0), (IDEMPOTENT, 1), (PLAIN, 1), (PLAIN, 0)]
    plain = checked(PLAIN, 3, {0: 4, 1: 3}, log)
    assert plain.problems() == []  # written again and out of order: without idempotence nobody promised otherwise
    assert (plain.stored, plain.duplicates, plain.out_of_order) == (3, 1, 1)
    assert checked(IDEMPOTENT, 2, {0: 1, 1: -1}, log).problems() == []


@pytest.mark.parametrize(
    ("log", "acknowledged", "field"),
    [
        ([0, 1], {0: 0, 1: 1, 2: 2}, "missing"),
        ([0, 1], {0: 0, 1: 1, 2: -1}, "missing"),
        ([0, 2, 1], {0: 0, 1: 1, 2: 2}, "misplaced"),
        ([0, 1], {0: 0, 1: 7}, "misplaced"),
        ([0, 1, 1], {0: 0, 1: 1}, "duplicates"),
        ([1, 0], {}, "out_of_order"),
    ],
)
def test_a_broken_promise_is_found(log: list[int], acknowledged: dict[int, int], field: str) -> None:
    report = checked(IDEMPOTENT, 3, acknowledged, [(IDEMPOTENT, sequence) for sequence in log])
    assert getattr(report, field) >= 1
    assert any(field.replace("_", " ") in problem for problem in report.problems())


@pytest.mark.parametrize(
    ("log", "duplicates", "out_of_order", "repeated"),
    [
        ([0, 1, 2, 1, 2, 3], 0, 0, 2),
        ([0, 1, 1, 1, 2, 3], 1, 0, 1),
        ([0, 1, 2, 1, 1, 2], 1, 0, 2),
        ([0, 2, 1, 1, 3, 2], 0, 2, 2),
    ],
)
def test_a_new_epoch_may_repeat_what_the_former_one_wrote(
    log: list[int], duplicates: int, out_of_order: int, repeated: int
) -> None:
    epochs = [ProducerEpochs([0, 1, 3], [0, 0, 1])]
    report = checked(IDEMPOTENT, 4, {}, [(IDEMPOTENT, sequence) for sequence in log], epochs)
    assert (report.duplicates, report.out_of_order, report.repeated_in_a_new_epoch) == (
        duplicates,
        out_of_order,
        repeated,
    )


def test_an_older_epoch_never_comes_back() -> None:
    with pytest.raises(AssertionError, match="offset 2: epoch 0 after 1"):
        checked(IDEMPOTENT, 4, {}, [(IDEMPOTENT, 0)] * 3, [ProducerEpochs([0, 1, 2], [0, 1, 0])])


def batch(offset: int, *values: bytes) -> bytes:
    return bytes(build_batch([LogRecord(None, value) for value in values], base_offset=offset))


def replica(directory: Path, segments: dict[int, list[bytes]]) -> Path:
    place = directory / "t-0"
    place.mkdir(parents=True)
    for base_offset, batches in segments.items():
        (place / f"{base_offset:020}.log").write_bytes(b"".join(batches))
    return directory


A, B, C, D = batch(0, b"a"), batch(1, b"b", b"b"), batch(3, b"c"), batch(4, b"d")


def test_replicas_with_other_segments_and_starts_are_the_same(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", {0: [A, B], 3: [C, D]})
    two = replica(tmp_path / "2", {1: [B, C, D]})
    result = compare("t", 0, {1: one, 2: two})
    assert result.problems() == []
    assert (result.start_offset, result.ends, result.batches) == (1, {1: 5, 2: 5}, 3)
    assert result.size_bytes == len(B + C + D)


def test_empty_replicas_are_the_same(tmp_path: Path) -> None:
    one, two = replica(tmp_path / "1", {0: []}), replica(tmp_path / "2", {0: [], 5: []})
    assert compare("t", 0, {1: one, 2: two}).problems() == []


@pytest.mark.parametrize(
    ("other", "offset", "missing_at"),
    [
        ([A, batch(1, b"b", b"x"), C], 1, None),
        ([A, B], 3, 2),
        ([A, C], 1, 2),
        ([A, B, batch(3, b"c", b"c")], 3, None),
    ],
)
def test_a_difference_is_found(tmp_path: Path, other: list[bytes], offset: int, missing_at: int | None) -> None:
    one, two = replica(tmp_path / "1", {0: [A, B, C]}), replica(tmp_path / "2", {0: other})
    result = compare("t", 0, {1: one, 2: two})
    assert result.problems()
    difference = result.differences[0]
    assert difference.base_offset == offset
    assert [broker_id for broker_id, header in difference.headers.items() if header is None] == (
        [] if missing_at is None else [missing_at]
    )
