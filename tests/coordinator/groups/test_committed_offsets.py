"""The committed offsets of a group alone, without transactions."""

import pytest

from klamm.coordinator.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from support.coordination import NOW_MS

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


def an_offset(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, -1, "", NOW_MS)


def test_a_commit_counts_when_it_stands_in_the_log() -> None:
    offsets = CommittedOffsets()
    offset = an_offset(3)
    offsets.prepare_commit({T0: offset})
    assert (offsets.get(T0), offsets.is_pending(T0), offsets.is_empty) == (None, True, False)
    offsets.complete_commit(T0, 10, offset)
    assert (offsets.get(T0), offsets.is_pending(T0), offsets.committed) == (offset, False, {T0: offset})


def test_a_commit_that_failed_leaves_the_former_one() -> None:
    offsets = CommittedOffsets()
    offsets.load(T0, 5, an_offset(1))
    offset = an_offset(3)
    offsets.prepare_commit({T0: offset})
    assert offsets.fail_commit(T0, offset)
    assert not offsets.fail_commit(T0, offset)
    assert (offsets.get(T0), offsets.is_pending(T0)) == (an_offset(1), False)


@pytest.mark.parametrize("second_ends_first", [True, False])
@pytest.mark.parametrize("second_fails", [True, False])
def test_of_two_commits_the_later_one_in_the_log_counts(second_ends_first: bool, second_fails: bool) -> None:
    """Equal values are two commits all the same; that one fails is not the other's fault."""
    offsets = CommittedOffsets()
    first, second = an_offset(1), an_offset(1 if second_fails else 2)
    offsets.prepare_commit({T0: first})
    offsets.prepare_commit({T0: second})

    def end_second() -> None:
        if second_fails:
            offsets.fail_commit(T0, second)
        else:
            offsets.complete_commit(T0, 11, second)

    if second_ends_first:
        end_second()
    offsets.complete_commit(T0, 10, first)
    if not second_ends_first:
        assert offsets.is_pending(T0)
        end_second()
    assert offsets.get(T0) == (first if second_fails else second)
    assert not offsets.is_pending(T0)


def test_what_is_removed_while_it_is_committed_stays_away() -> None:
    offsets = CommittedOffsets()
    offset = an_offset(3)
    offsets.prepare_commit({T0: offset})
    offsets.load(T1, 5, an_offset(1))
    assert offsets.partitions == [T1, T0]
    assert offsets.has(T0)
    assert offsets.has(T1)
    assert not offsets.has(U0)
    assert offsets.remove([T0, T1, U0]) == [T0, T1]
    offsets.complete_commit(T0, 10, offset)
    assert offsets.is_empty
    assert offsets.partitions == []
