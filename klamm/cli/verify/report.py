"""The output of `klamm verify replicas`: Kafka's lines while it runs, then a summary; or JSON. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from klamm.base.words import counted
from klamm.client.verification.compare import Difference, DifferenceKind
from klamm.client.verification.partition import PartitionCheck, SetAside

# The lines about a different checksum or last offset of a batch are Kafka's.
_LINES = {
    DifferenceKind.MISSING: "partition {partition}: replica {replica} has no batch for {offsets}, replica {other} has",
    DifferenceKind.BOUNDARIES: "partition {partition}: replica {other}'s offset {expected} doesn't match"
    " replica {replica}'s offset {value}",
    DifferenceKind.LEADER_EPOCH: "partition {partition} has unmatched leader epoch at offset {last}; replica {other}'s"
    " epoch {expected}; replica {replica}'s epoch {value}",
    DifferenceKind.CHECKSUM: "partition {partition} has unmatched checksum at offset {last}; replica {other}'s checksum"
    " {expected}; replica {replica}'s checksum {value}",
    DifferenceKind.RECORDS: "partition {partition}: replica {replica} has other records than replica {other} within"
    " {offsets}",
    DifferenceKind.CORRUPT: "partition {partition}: replica {replica} has a corrupt batch at {offsets}; its checksum is"
    " {value}, and says {expected}",
    DifferenceKind.LOST: "partition {partition}: replica {replica} has lost the value at {offsets}, which replica"
    " {other} has; no later record has its key",
}
_SHORT = {
    DifferenceKind.MISSING: "has no batch for",
    DifferenceKind.BOUNDARIES: "has other batches for",
    DifferenceKind.LEADER_EPOCH: "has another leader epoch at",
    DifferenceKind.CHECKSUM: "has another checksum at",
    DifferenceKind.RECORDS: "has other records within",
    DifferenceKind.CORRUPT: "has a corrupt batch at",
    DifferenceKind.LOST: "has lost the value at",
}
# A line of the summary names at most this many partitions.
_MOST_NAMED = 5
_UNREADABLE = "partition {partition}: replica {replica} has records that cannot be read at {offsets}"


class Outcome(StrEnum):
    """The outcome of a verification: all replicas are equal, some differ, or it is unknown."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"


@dataclass(slots=True)
class Report:
    """The result of a verification. `skipped` are (topic, reason) of topics that could not be verified."""

    checks: Sequence[PartitionCheck]
    skipped: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    different: list[PartitionCheck] = field(init=False)
    unverified: list[PartitionCheck] = field(init=False)
    partly: list[PartitionCheck] = field(init=False)

    def __post_init__(self) -> None:
        self.different = [check for check in self.checks if differs(check)]
        open_ = [check for check in self.checks if not (check.is_verified or differs(check))]
        self.unverified = [check for check in open_ if check.gone is not None or not check.is_compared]
        self.partly = [check for check in open_ if check not in self.unverified]

    @property
    def outcome(self) -> Outcome:
        """A difference takes precedence over what could not be verified."""
        if self.different:
            return Outcome.DIFFERENT
        is_open = self.unverified or self.partly or self.skipped or not self.checks
        return Outcome.UNVERIFIED if is_open else Outcome.EQUAL


def differs(check: PartitionCheck) -> bool:
    return bool(check.differences) or check.has_broken_replica


def difference_line(check: PartitionCheck, difference: Difference) -> str:
    """The line for a difference, without the time."""
    line = _LINES[difference.kind]
    if difference.kind is DifferenceKind.CORRUPT and difference.value is None:
        line = _UNREADABLE
    return line.format(
        partition=check.partition,
        replica=difference.replica,
        other=difference.other,
        value=difference.value,
        expected=difference.expected,
        last=difference.last_offset,
        offsets=offsets(difference.first_offset, difference.last_offset),
    )


def set_aside_line(check: PartitionCheck, replica: int) -> str:
    aside = check.set_aside[replica]
    what = "is not verified" if aside.offset == check.start_offset else f"is not verified from offset {aside.offset} on"
    return f"partition {check.partition}: replica {replica} {what}: {_why(check, replica, aside)}"


def back_line(check: PartitionCheck, replica: int, was: SetAside) -> str:
    missed = (
        f"; {offsets(was.offset, check.position - 1)} were verified without it" if check.position > was.offset else ""
    )
    return f"partition {check.partition}: replica {replica} is verified again{missed}"


def lag_line(checks: Iterable[PartitionCheck]) -> str:
    """The line that Kafka's tool prints at every report interval."""
    known = [check for check in checks if check.gone is None and check.high_watermarks]
    if not known:
        return "max lag is unknown: no replica has answered yet"
    most = max(known, key=lambda check: check.lag)
    return (
        f"max lag is {most.lag} for partition {most.partition} at offset {most.position} among {len(known)} partitions"
    )


def lag_json(checks: Iterable[PartitionCheck]) -> dict[str, Any]:
    known = [check for check in checks if check.gone is None and check.high_watermarks]
    most = max(known, key=lambda check: check.lag, default=None)
    if most is None:
        return {"max_lag": None, "partitions": 0}
    return {"max_lag": most.lag, **_place(most), "offset": most.position, "partitions": len(known)}


def offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


# -- the end ----------------------------------------------------------------------------------------------------------


def summary_lines(report: Report) -> Iterator[str]:
    """The lines at the end: the partitions that are not simply equal, and the totals."""
    # When a broker is away, many partitions have the same notes.
    alike: dict[str, list[PartitionCheck]] = {}
    for check in report.checks:
        notes = "; ".join(_notes(check))
        if notes:
            alike.setdefault(notes, []).append(check)
    for notes, checks in alike.items():
        named = ", ".join(str(check.partition) for check in checks[:_MOST_NAMED])
        more = f" and {len(checks) - _MOST_NAMED} more" if len(checks) > _MOST_NAMED else ""
        yield f"{named}{more}: {notes}"
    for _, reason in report.skipped:
        yield reason
    yield from report.notes
    checked = [check for check in report.checks if check.gone is None and check.is_compared]
    size_bytes, batches = sum(check.size_bytes for check in checked), sum(check.batches for check in checked)
    replicas = sum(len(check.replicas) - _failed(check) for check in checked)
    yield (
        f"Verified {counted(len(checked), 'partition')} on {counted(replicas, 'replica')}:"
        f" {counted(batches, 'batch', 'batches')}, {sized(size_bytes)} read."
    )
    if (greatest := _greatest_lag(report.checks)) is not None:
        lag, check, replica = greatest
        yield f"The greatest lag is {counted(lag, 'offset')}: replica {replica} of {check.partition}."
    if report.outcome is Outcome.EQUAL:
        yield "All replicas are equal."
        return
    verdict = f"{counted(len(report.different), 'partition differs', 'partitions differ')}"
    if report.unverified:
        verdict += f", {counted(len(report.unverified), 'partition')} could not be verified"
    if report.partly:
        verdict += f", {counted(len(report.partly), 'partition was', 'partitions were')} verified only in part"
    if report.skipped:
        verdict += f", {counted(len(report.skipped), 'topic')} could not be verified"
    yield f"{verdict}."


def _greatest_lag(checks: Iterable[PartitionCheck]) -> tuple[int, PartitionCheck, int] | None:
    """How far a high watermark is behind the highest one of its partition, and the replica, if one is behind."""
    lags = [
        (lag, check, replica)
        for check in checks
        if check.gone is None
        for replica in check.high_watermarks
        if (lag := check.lag_of(replica))
    ]
    return max(lags, key=lambda each: each[0], default=None)


def _notes(check: PartitionCheck) -> Iterator[str]:
    if check.gone is not None:
        yield check.gone
        return
    if check.differences:
        yield f"{counted(check.differences.batches, 'batch differs', 'batches differ')}"
        more = len(check.differences.found) - 3
        texts = [_short(each) for each in check.differences.found[:3]]
        yield ", ".join(texts) + (f" and {more} more" if more > 0 else "")
    for replica, aside in check.set_aside.items():
        is_in_part = aside.offset > check.start_offset
        how = f"was verified only to offset {aside.offset}" if is_in_part else "was not verified"
        yield f"replica {replica} {how}: {_why(check, replica, aside)}"
    for replica, log_start_offset in check.begins_later.items():
        why = f", and {check.unexplained[replica]}" if replica in check.unexplained else ""
        yield f"replica {replica} begins at offset {log_start_offset}; others have older records{why}"
    if not check.is_compared:
        yield "nothing to compare with" if len(check.active) == 1 else "no replica answers"
    if check.is_undecided:
        yield "replicas lack records of each other, and whether compaction has removed them was not decided"
    if check.removed_offsets:
        yield f"{counted(check.removed_offsets, 'offset')} removed by retention meanwhile"


def _why(check: PartitionCheck, replica: int, aside: SetAside) -> str:
    lag = check.lag_of(replica)
    return f"it is {counted(lag, 'offset')} behind" if aside.is_lag and lag else aside.reason


def _short(difference: Difference) -> str:
    where = offsets(difference.first_offset, difference.last_offset)
    return f"replica {difference.replica} {_SHORT[difference.kind]} {where}"


def _failed(check: PartitionCheck) -> int:
    return sum(not aside.is_lag for aside in check.set_aside.values())


def sized(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


# -- JSON -------------------------------------------------------------------------------------------------------------


def report_json(report: Report) -> dict[str, Any]:
    greatest = _greatest_lag(report.checks)
    return {
        "outcome": report.outcome.value,
        "is_fine": report.outcome is Outcome.EQUAL,
        "greatest_lag": None
        if greatest is None
        else {**_place(greatest[1]), "replica": greatest[2], "lag": greatest[0]},
        "partitions": [check_json(check) for check in report.checks],
        "skipped_topics": [{"topic": topic, "reason": reason} for topic, reason in report.skipped],
        "notes": list(report.notes),
    }


def check_json(check: PartitionCheck) -> dict[str, Any]:
    return {
        **_place(check),
        "verdict": _verdict(check),
        "reason": check.gone,
        "replicas": list(check.replicas),
        "from_offset": check.start_offset,
        "to_offset": check.position,
        "target_offset": check.target,
        "high_watermarks": {str(replica): offset for replica, offset in check.high_watermarks.items()},
        "lag": check.lag,
        "batches": check.batches,
        "size_bytes": check.size_bytes,
        "begins_later": {str(replica): offset for replica, offset in check.begins_later.items()},
        "unexplained": {str(replica): reason for replica, reason in check.unexplained.items()},
        "is_undecided": check.is_undecided,
        "removed_offsets": check.removed_offsets,
        "is_compacted": check.is_compacted,
        "different_batches": check.differences.batches,
        "differences": [difference_json(difference) for difference in check.differences.found],
        "not_verified": [set_aside_json(check, replica) for replica in check.set_aside],
    }


def _verdict(check: PartitionCheck) -> str:
    if check.gone is not None:
        return "gone"
    if differs(check):
        return "different"
    if not check.is_compared:
        return "unverified"
    return "equal" if check.is_verified else "partly-equal"


def difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "kind": difference.kind.value,
        "first_offset": difference.first_offset,
        "last_offset": difference.last_offset,
        "replica": difference.replica,
        "other_replica": difference.other,
        "value": difference.value,
        "expected": difference.expected,
        "batches": difference.count,
    }


def set_aside_json(check: PartitionCheck, replica: int) -> dict[str, Any]:
    aside = check.set_aside[replica]
    return {
        "replica": replica,
        "from_offset": aside.offset,
        "reason": aside.reason,
        "is_lag": aside.is_lag,
        "lag": check.lag_of(replica),
    }


def event_json(event: str, check: PartitionCheck, values: Mapping[str, Any]) -> dict[str, Any]:
    """One event of a continuous verification."""
    return {"event": event, **_place(check), **values}


def _place(check: PartitionCheck) -> dict[str, Any]:
    return {"topic": check.partition.topic, "partition": check.partition.partition}
