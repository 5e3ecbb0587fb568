"""How `klamm groups` shows groups: as the lines of kafka-consumer-groups, or as plain values for JSON.

All functions are pure, and take the cluster's answers. Each line has a kind: results go to stdout, notes and errors to
stderr, and errors have the prefix of all commands. Kafka's tool prints its errors on stdout, with the prefix "Error: ",
and exits with 0; the texts are the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.base.visible import visible
from klamm.diagnosis.groups import PartitionRow
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.groups import GroupDescription, GroupListing

MISSING: Final = "-"
MIN_WIDTH: Final = 15
INSTANCE_ID_WIDTH: Final = len("GROUP-INSTANCE-ID")
COORDINATOR_WIDTH: Final = 25


class LineKind(Enum):
    ROW = "row"
    NOTE = "note"
    SILENT = "silent"
    """A broker has not answered, or something else is not known."""
    ERROR = "error"


class Line(NamedTuple):
    text: str
    kind: LineKind = LineKind.ROW


def error(text: str, kind: LineKind = LineKind.ERROR) -> Line:
    return Line(f"klamm: {text}", kind)


# -- lines ------------------------------------------------------------------------------------------------------------


def list_lines(listings: "Iterable[GroupListing]", *, with_state: bool) -> Iterator[Line]:
    """--list, and --list --state."""
    if not with_state:
        for listing in listings:
            yield Line(listing.group)
        return
    rows = [("GROUP", "STATE"), *((listing.group, listing.state or MISSING) for listing in listings)]
    yield from _table(rows, (MIN_WIDTH, None))


def offset_lines(group: "GroupDescription", rows: Sequence[PartitionRow]) -> Iterator[Line]:
    """--describe --offsets."""
    yield from _state_notes(group)
    if not rows:
        return
    titles = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST")
    table = [
        (
            group.group,
            row.topic,
            row.partition,
            _or_missing(row.current_offset),
            _or_missing(row.log_end_offset),
            _or_missing(row.lag),
            _or_missing(row.consumer_id),
            _or_missing(row.host),
            _or_missing(row.client_id),
        )
        for row in rows
    ]
    yield Line("")
    widths = (MIN_WIDTH, MIN_WIDTH, 10, MIN_WIDTH, MIN_WIDTH, MIN_WIDTH, MIN_WIDTH, MIN_WIDTH, None)
    yield from _table([(*titles, "CLIENT-ID"), *table], widths)


def member_lines(group: "GroupDescription", *, verbose: bool) -> Iterator[Line]:
    """--describe --members, and with --verbose."""
    yield from _state_notes(group)
    if not group.members:
        return
    titles = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    table: list[list[object]] = [
        [group.group, member.consumer_id, member.host, member.client_id, len(member.assignment)]
        for member in group.members
    ]
    widths: list[int | None] = [MIN_WIDTH] * 5
    if any(member.group_instance_id for member in group.members):
        titles.insert(2, "GROUP-INSTANCE-ID")
        widths.insert(2, INSTANCE_ID_WIDTH)
        for row, member in zip(table, group.members, strict=True):
            row.insert(2, member.group_instance_id or "")
    # Without --verbose the last column is empty, as in Kafka's lines, which end with a space.
    titles.append("ASSIGNMENT" if verbose else "")
    widths.append(None)
    for row, member in zip(table, group.members, strict=True):
        row.append(assignment_text(member.assignment) if verbose else "")
    yield Line("")
    yield from _table([titles, *table], widths)


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as "t(0,1), u(0)"; an empty list is "-"."""
    topics = groupby(sorted(partitions), key=lambda each: each.topic)
    texts = [f"{topic}({','.join(str(each.partition) for each in of_topic)})" for topic, of_topic in topics]
    return ", ".join(texts) or MISSING


def state_lines(group: "GroupDescription") -> Iterator[Line]:
    """--describe --state."""
    yield from _state_notes(group)
    if group.state == "Dead":
        return
    coordinator = visible(str(group.coordinator))
    titles = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
    row = (group.group, coordinator, group.assignor, group.state, len(group.members))
    # As in Kafka's tool, the first column is as wide as the second needs to be.
    widths = (max(COORDINATOR_WIDTH, len(coordinator)), COORDINATOR_WIDTH, 20, MIN_WIDTH, 0)
    yield Line("")
    for cells in (titles, row):
        yield Line(" ".join(f"{visible(str(cell)):<{width}}" for cell, width in zip(cells, widths, strict=True)))


def deletion_lines(results: Mapping[str, str | None]) -> Iterator[Line]:
    """--delete: `results` holds each group's error, or None."""
    deleted = ", ".join(f"'{group}'" for group, reason in results.items() if reason is None)
    failed = {group: reason for group, reason in results.items() if reason is not None}
    if not failed:
        yield Line(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return
    yield error("Deletion of some consumer groups failed:")
    for group, reason in failed.items():
        yield Line(f"* Group '{group}' could not be deleted due to: {reason}", LineKind.ERROR)
    if deleted:
        yield Line("")
        yield Line(f"These consumer groups were deleted successfully: {deleted}")


def offset_deletion_lines(
    group: str, topics: Sequence[str], whole: str | None, results: Mapping[tuple[str, int | None], str | None]
) -> Iterator[Line]:
    """--delete-offsets: `whole` is the request's error (Kafka's name); a partition None means an unknown topic."""
    match whole:
        case None if any(reason is not None for reason in results.values()):
            yield error("Encounter some partition level error, see the follow-up details:")
        case None:
            yield Line(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
        case "INVALID_GROUP_ID":
            yield error(f"'{group}' is not valid.")
        case "GROUP_ID_NOT_FOUND":
            yield error(f"'{group}' does not exist.")
        case "GROUP_AUTHORIZATION_FAILED":
            yield error(f"Access to '{group}' is not authorized.")
        case "NON_EMPTY_GROUP":
            yield error(f"Deleting offsets of a consumer group '{group}' is forbidden if the group is not empty.")
        case _:
            yield error(f"Encounter some unknown error: {whole}")
    rows = [
        (topic, "Not Provided" if partition is None else partition, f"Error: {reason}" if reason else "Successful")
        for (topic, partition), reason in results.items()
    ]
    yield Line("")
    for cells in [("TOPIC", "PARTITION", "STATUS"), *rows]:
        yield Line("{:<30} {:<15} {:<15}".format(*(visible(str(cell)) for cell in cells)))


def reset_lines(plans: Mapping[str, Mapping[TopicPartition, int]]) -> Iterator[Line]:
    """--reset-offsets: the new offsets of each group."""
    if plans:
        yield Line("")
        yield Line("{:<30} {:<30} {:<10} {:<15}".format("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"))
    for group, offsets in plans.items():
        for (topic, partition), offset in offsets.items():
            yield Line(f"{visible(group):<30} {visible(topic):<30} {partition:<10} {offset:<15}")


def _state_notes(group: "GroupDescription") -> Iterator[Line]:
    match group.state:
        case "Dead":
            yield error(f"Consumer group '{group.group}' does not exist.")
        case "Empty":
            yield Line("", LineKind.NOTE)
            yield Line(f"Consumer group '{group.group}' has no active members.", LineKind.NOTE)
        case "PreparingRebalance" | "CompletingRebalance":
            yield Line("", LineKind.NOTE)
            yield Line(f"Warning: Consumer group '{group.group}' is rebalancing.", LineKind.NOTE)


def _table(rows: Sequence[Sequence[object]], min_widths: Sequence[int | None]) -> Iterator[Line]:
    """Rows with columns as wide as their widest cell; a column whose width is None is not padded."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [
        0 if least is None else max(least, *(len(row[column]) for row in texts))
        for column, least in enumerate(min_widths)
    ]
    for row in texts:
        yield Line(" ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))


def _or_missing(value: object) -> object:
    return MISSING if value is None else value


# -- plain values -----------------------------------------------------------------------------------------------------


def list_value(listings: "Iterable[GroupListing]") -> list[dict[str, Any]]:
    return [asdict(listing) for listing in listings]


def offsets_value(group: "GroupDescription", rows: Iterable[PartitionRow]) -> dict[str, Any]:
    return {"group": group.group, "state": group.state, "partitions": [asdict(row) for row in rows]}


def reset_value(plans: Mapping[str, Mapping[TopicPartition, int]], *, executed: bool) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "executed": executed,
            "offsets": [{**key._asdict(), "new_offset": offset} for key, offset in offsets.items()],
        }
        for group, offsets in plans.items()
    ]


def offset_deletion_value(
    group: str, whole: str | None, results: Mapping[tuple[str, int | None], str | None]
) -> dict[str, Any]:
    partitions = [
        {"topic": topic, "partition": partition, "error": reason} for (topic, partition), reason in results.items()
    ]
    return {"group": group, "error": whole, "partitions": partitions}
