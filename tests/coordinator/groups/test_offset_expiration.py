"""Offsets expire in steps, of one group with very many of them too."""

from collections.abc import Iterable

from klamm.coordinator.groups.group import Group, GroupState, OffsetAndMetadata
from klamm.coordinator.groups.offset_expiration import OFFSETS_PER_SLICE, Select, expire
from klamm.protocol.vocabulary import PartitionKey
from support.coordination import NOW_MS

RETENTION_MS = 1000


class OneGroup:
    """A coordinator's groups; counts how many offsets are removed in a step."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.removed = 0

    def groups(self) -> list[Group]:
        return [self._group]

    def cleanup(self, groups: Iterable[Group], select: Select) -> int:
        removed = sum(len(group.remove_offsets(select(group))) for group in groups)
        self.removed += removed
        return removed


def test_no_step_removes_all_offsets_of_a_large_group() -> None:
    group = Group("g", GroupState.EMPTY, NOW_MS)
    for number in range(5 * OFFSETS_PER_SLICE):
        group.load_offset(("t", number), number, OffsetAndMetadata(1, -1, "", NOW_MS))
    # One that is committed anew while the group is looked at stays.
    last: PartitionKey = ("t", 5 * OFFSETS_PER_SLICE - 1)
    one = OneGroup(group)
    steps = expire(one, NOW_MS + RETENTION_MS, RETENTION_MS)
    in_step = []
    while True:
        try:
            next(steps)
        except StopIteration as end:
            removed = end.value
            break
        finally:
            in_step.append(one.removed)
            one.removed = 0
        group.load_offset(last, 10**6, OffsetAndMetadata(2, -1, "", NOW_MS + 1))
    assert removed == 5 * OFFSETS_PER_SLICE - 1
    assert group.partitions == [last]
    assert max(in_step) <= OFFSETS_PER_SLICE
