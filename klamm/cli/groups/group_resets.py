"""`klamm groups reset-offsets`: parses the requested reset and plans the new offset of each partition.

Nothing here speaks to a cluster: a plan is a function of what an `Offsets` returns. Exported and imported CSV files
have the form of Kafka's tool: "topic,partition,offset" for a single group, "group,topic,partition,offset" otherwise.

Source: kafka.admin.ConsumerGroupCommand (KIP-122), org.apache.kafka.common.utils.Utils.getDateTime.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Protocol

import typer

from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, UNKNOWN_OFFSET, TopicPartition

# Kafka's CSV library quotes every longer text, and shorter texts with a character whose code is at most the comma's.
MAX_UNQUOTED_LENGTH: Final = 24
MAX_OFFSET: Final = 2**63 - 1

_DATETIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}(Z|[+-]\d{2}(:\d{2})?)?", re.ASCII)
# The number of digits is limited, so that the time in milliseconds always fits into 64 bits.
_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d{1,10})D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?\d{1,10})H)?(?:(?P<minutes>[-+]?\d{1,10})M)?"
    r"(?:(?P<seconds>[-+]?\d{1,10})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


class Scenario(Enum):
    """The options that choose the new offset."""

    TO_OFFSET = "--to-offset"
    TO_EARLIEST = "--to-earliest"
    TO_LATEST = "--to-latest"
    TO_CURRENT = "--to-current"
    SHIFT_BY = "--shift-by"
    BY_DURATION = "--by-duration"
    TO_DATETIME = "--to-datetime"
    FROM_FILE = "--from-file"


Plans = Mapping[str, Mapping[TopicPartition, int]]


@dataclass(frozen=True)
class Reset:
    """A requested reset. `number`: the offset, the count to shift by, or the time in ms. `plans`: a file's contents."""

    scenario: Scenario
    number: int = 0
    plans: Plans = field(default_factory=dict)


class Offsets(Protocol):
    """The offsets that a plan needs. Both methods raise ToolError when an offset cannot be read."""

    def committed(self, group: str) -> Mapping[TopicPartition, int]: ...

    def at(self, partitions: Sequence[TopicPartition], timestamp: int) -> Mapping[TopicPartition, int]:
        """The first offset at or after this time of each partition, or UNKNOWN_OFFSET; or an end of its log."""


@dataclass(frozen=True)
class Plan:
    offsets: Mapping[TopicPartition, int]
    warnings: Sequence[str] = ()


# -- planning ---------------------------------------------------------------------------------------------------------


def plan(reset: Reset, group: str, partitions: Iterable[TopicPartition], offsets: Offsets) -> Plan:
    """The new offsets of a group, by topic and partition. Raises ToolError."""
    wanted = sorted(set(partitions))
    match reset.scenario:
        case Scenario.TO_EARLIEST:
            return Plan(offsets.at(wanted, EARLIEST_TIMESTAMP))
        case Scenario.TO_LATEST:
            return Plan(offsets.at(wanted, LATEST_TIMESTAMP))
        case Scenario.TO_DATETIME | Scenario.BY_DURATION:
            return Plan(_offsets_at_time(wanted, reset.number, offsets))
        case Scenario.TO_CURRENT:
            committed = offsets.committed(group)
            latest = offsets.at([each for each in wanted if each not in committed], LATEST_TIMESTAMP)
            return Plan({each: committed[each] if each in committed else latest[each] for each in wanted})
        case Scenario.TO_OFFSET:
            return _within_range(dict.fromkeys(wanted, reset.number), offsets)
        case Scenario.SHIFT_BY:
            committed = offsets.committed(group)
            for each in wanted:
                if each not in committed:
                    raise ToolError(
                        f"Cannot shift offset for partition {each} since there is no current committed offset"
                    )
            return _within_range({each: committed[each] + reset.number for each in wanted}, offsets)
        case Scenario.FROM_FILE:
            return _within_range(dict(sorted(reset.plans[group].items())), offsets)


def _offsets_at_time(
    partitions: Sequence[TopicPartition], timestamp: int, offsets: Offsets
) -> dict[TopicPartition, int]:
    # A negative timestamp has another meaning (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP); no record is from before 1970.
    found = dict(offsets.at(partitions, max(0, timestamp)))
    too_late = [each for each in partitions if found[each] == UNKNOWN_OFFSET]
    found.update(offsets.at(too_late, LATEST_TIMESTAMP))
    return found


def _within_range(requested: Mapping[TopicPartition, int], offsets: Offsets) -> Plan:
    """The offsets, moved into the range of each log; each move adds a warning."""
    earliest = offsets.at(list(requested), EARLIEST_TIMESTAMP)
    latest = offsets.at(list(requested), LATEST_TIMESTAMP)
    new, warnings = {}, []
    for each, offset in requested.items():
        new[each] = max(earliest[each], min(offset, latest[each]))
        if new[each] != offset:
            beyond = "higher than latest" if offset > new[each] else "lower than earliest"
            warnings.append(
                f"New offset ({offset}) is {beyond} offset for topic partition {each}. Value will be set to {new[each]}"
            )
    return Plan(new, warnings)


# -- options ----------------------------------------------------------------------------------------------------------


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """A --topic: "t", or "t:0,1" for some partitions. Raises typer.BadParameter."""
    topic, colon, numbers = text.partition(":")
    if not colon and topic:
        return topic, None
    partitions = numbers.split(",")
    if not topic or not all(re.fullmatch("[0-9]{1,9}", number) for number in partitions):
        raise typer.BadParameter(
            f"{text!r} is not a topic or topic:partition,partition with numbers from 0", param_hint="--topic"
        )
    return topic, [int(number) for number in partitions]


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 for "2021-02-03T04:05:06.789", which is UTC, or with Z, +05 or +05:30 at the end.

    Raises typer.BadParameter.
    """
    match = _DATETIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        # Python parses "+05" and "Z" since 3.11.
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form YYYY-MM-DDTHH:mm:SS.sss, which may end with Z, +hh or +hh:mm",
            param_hint=Scenario.TO_DATETIME.value,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration, "PnDTnHnMnS", rounded up. Raises typer.BadParameter.

    Source: java.time.Duration.parse.
    """
    match = _DURATION.fullmatch(text)
    if match is None or match["time"] in ("T", "t") or not (match["days"] or match["time"]):
        raise typer.BadParameter(f"{text!r} is not of the form PnDTnHnMnS", param_hint=Scenario.BY_DURATION.value)
    hours = int(match["days"] or 0) * 24 + int(match["hours"] or 0)
    seconds = (hours * 60 + int(match["minutes"] or 0)) * 60 + int(match["seconds"] or 0)
    fraction_ns = int((match["fraction"] or "").ljust(9, "0"))
    if (match["seconds"] or "").startswith("-"):
        fraction_ns = -fraction_ns
    duration_ns = seconds * 1_000_000_000 + fraction_ns
    return -((duration_ns if match["sign"] == "-" else -duration_ns) // 1_000_000)


# -- files ------------------------------------------------------------------------------------------------------------


def export_csv(plans: Plans, *, with_group: bool) -> str:
    """The new offsets as rows, each with its newline."""
    return "".join(
        (f"{_quoted(group)}," if with_group else "") + f"{_quoted(topic)},{partition},{offset}\n"
        for group, offsets in plans.items()
        for (topic, partition), offset in offsets.items()
    )


def _quoted(text: str) -> str:
    if len(text) > MAX_UNQUOTED_LENGTH or any(character <= "," for character in text):
        return '"' + text.replace('"', '""') + '"'
    return text


def parse_csv(text: str, single_group: str | None, source: str) -> Plans:
    """The offsets of each group. Raises ToolError that names `source` and the line.

    Rows of three columns belong to `single_group`, the only group that the command names. None means the command names
    several groups; then every row names its group.
    """
    # Only newlines end a row, as in Kafka's tool; empty rows at the end are ignored.
    lines = text.rstrip("\r\n").split("\n")
    columns = ["topic", "partition", "offset"]
    with_group = single_group is None or len(_cells(lines[0])) != len(columns)
    if with_group:
        columns.insert(0, "group")
    plans: dict[str, dict[TopicPartition, int]] = {}
    for number, line in enumerate(lines, 1):
        cells = _cells(line)
        try:
            if len(cells) != len(columns):
                raise ValueError
            topic, partition, offset = cells[-3:]
            key, value = TopicPartition(topic, _number(partition, 2**31 - 1)), _number(offset, MAX_OFFSET)
        except ValueError:
            raise ToolError(f"{source}: line {number}: {line!r} is not {','.join(columns)}") from None
        plans.setdefault(cells[0] if with_group else str(single_group), {})[key] = value
    return plans


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r")], strict=True), [])
    except csv.Error:
        return []


def _number(text: str, largest: int) -> int:
    if not re.fullmatch(" *[0-9]{1,19} *", text) or int(text) > largest:
        raise ValueError
    return int(text)
