"""A group's partitions and members as rows and values, for commands and for the cockpit."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.groups import GroupDescription, Member


@dataclass(frozen=True)
class PartitionRow:
    """A partition that a group consumes. Unknown values are None."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    host: str | None
    client_id: str | None


def partition_rows(
    group: "GroupDescription", committed: Mapping[TopicPartition, int], log_end: Mapping[TopicPartition, int]
) -> list[PartitionRow]:
    """The partitions of each member, the members with most partitions first; then committed ones without a member."""
    members = sorted(group.members, key=lambda member: -len(member.assignment))
    rows = [
        _partition_row(each, committed.get(each), log_end.get(each), member)
        for member in members
        for each in member.assignment
    ]
    assigned = {each for member in members for each in member.assignment}
    rows += [
        _partition_row(each, offset, log_end.get(each), None)
        for each, offset in committed.items()
        if each not in assigned
    ]
    return rows


def _partition_row(key: TopicPartition, current: int | None, end: int | None, member: "Member | None") -> PartitionRow:
    lag = None if current is None or end is None else end - current
    if member is None:
        return PartitionRow(*key, current, end, lag, None, None, None)
    return PartitionRow(*key, current, end, lag, member.consumer_id, member.host, member.client_id)


def members_value(group: "GroupDescription") -> dict[str, Any]:
    members = [{**asdict(member), "assignment": _partitions_value(member.assignment)} for member in group.members]
    return {"group": group.group, "state": group.state, "members": members}


def state_value(group: "GroupDescription") -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "coordinator": asdict(group.coordinator),
        "assignment_strategy": group.assignor,
        "members": len(group.members),
    }


def _partitions_value(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [each._asdict() for each in partitions]
