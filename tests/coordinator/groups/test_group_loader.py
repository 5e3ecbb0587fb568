"""What a log of __consumer_offsets says at its end."""

import asyncio
import logging

from hypothesis import given
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, Member
from klamm.coordinator.groups.group_loader import load_groups
from klamm.coordinator.groups.group_records import (
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
)
from klamm.coordinator.ports import LogBatch

NOW_MS = 5_000
T0, T1 = ("t", 0), ("t", 1)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, 3, "", 1)


def commit(group_id: str, partition: tuple[str, int], offset: int | None) -> tuple[bytes, bytes | None]:
    return offset_commit_key(group_id, partition), None if offset is None else offset_commit_value(at(offset))


def group_record(group_id: str, generation_id: int, *member_ids: str) -> tuple[bytes, bytes]:
    members = [Member(one, None, "c", "/h", 1, 1, "consumer", [("range", b"")]) for one in member_ids]
    group = in_one_go(
        Group.load_steps(group_id, generation_id, "consumer", "range" if members else None, None, 77, members)
    )
    return group_metadata_key(group_id), group_metadata_value(group, dict.fromkeys(member_ids, b"all"))


def in_order(*records) -> list[LogBatch]:
    """One batch of each record."""
    return [LogBatch(offset, [(offset, *record)]) for offset, record in enumerate(records)]


def load(*batches: LogBatch) -> dict[str, Group]:
    async def read():
        for batch in batches:
            yield batch

    return asyncio.run(load_groups(8, read(), NOW_MS))


def offsets(group: Group) -> dict[tuple[str, int], int]:
    return {partition: offset.offset for partition, offset in group.offsets.committed.items()}


def test_an_empty_log_has_no_groups():
    assert load() == {}


def test_the_last_record_of_each_key_counts():
    groups = load(
        *in_order(
            commit("a", T0, 1),
            commit("b", T0, 7),
            group_record("a", 1, "m"),
            commit("a", T1, 2),
            commit("a", T0, 3),
            group_record("a", 2, "m", "n"),
            commit("a", T1, None),
        )
    )
    assert sorted(groups) == ["a", "b"]
    assert offsets(groups["a"]) == {T0: 3}
    assert (groups["a"].state, groups["a"].generation_id, groups["a"].state_timestamp_ms) == ("Stable", 2, 77)
    assert {one.member_id: one.assignment for one in groups["a"].members.values()} == {"m": b"all", "n": b"all"}
    # Who only commits has no record of the group.
    assert offsets(groups["b"]) == {T0: 7}
    assert (groups["b"].state, groups["b"].protocol_type, groups["b"].state_timestamp_ms) == ("Empty", None, NOW_MS)


def test_a_deleted_group_is_gone_and_may_come_back():
    deleted = group_metadata_key("a"), None
    assert load(*in_order(group_record("a", 1, "m"), commit("a", T0, 1), commit("a", T0, None), deleted)) == {}
    assert offsets(load(*in_order(group_record("a", 1), commit("a", T0, 1), deleted))["a"]) == {T0: 1}
    assert load(*in_order(group_record("a", 4), deleted, group_record("a", 1)))["a"].generation_id == 1


def test_both_versions_of_a_key_are_one():
    old = b"\x00\x00" + offset_commit_key("a", T0)[2:]
    assert offsets(load(*in_order((old, offset_commit_value(at(1))), commit("a", T0, 2)))["a"]) == {T0: 2}
    assert offsets(load(*in_order(commit("a", T0, 2), (old, offset_commit_value(at(1)))))["a"]) == {T0: 1}
    assert load(*in_order(commit("a", T0, 2), (old, None))) == {}


def written_in(producer_id: int, offset: int, *records) -> LogBatch:
    """A batch of a transaction."""
    return LogBatch(offset, [(offset + number, *record) for number, record in enumerate(records)], producer_id)


def marker(producer_id: int, offset: int, is_committed: bool) -> LogBatch:
    return LogBatch(offset, (), producer_id, is_committed)


def end(group: Group, producer_id: int, marker_offset: int, *, is_committed: bool) -> None:
    for ended in group.offsets.end_transaction(producer_id, marker_offset, is_committed):
        group.offsets.end_transactional_commit(ended, is_committed)


def pending(group: Group, *partitions: tuple[str, int]) -> list[bool]:
    return [group.offsets.is_pending(partition) for partition in partitions]


def test_a_transaction_counts_when_it_commits():
    groups = load(
        written_in(1, 0, commit("a", T0, 1), commit("a", T1, 2), commit("b", T0, 3)),
        written_in(2, 3, commit("a", T1, 4)),
        marker(2, 4, is_committed=False),
        marker(1, 5, is_committed=True),
        written_in(1, 6, commit("b", T1, 5)),
        written_in(2, 7, commit("b", T1, 6), commit("c", T0, 7)),
    )
    assert {name: offsets(group) for name, group in groups.items()} == {"a": {T0: 1, T1: 2}, "b": {T0: 3}, "c": {}}
    assert pending(groups["a"], T0, T1) == [False, False]
    assert pending(groups["b"], T0, T1) == [False, True]
    assert pending(groups["c"], T0) == [True]
    assert [list(groups[name].offsets.open_producer_ids) for name in "abc"] == [[], [1, 2], [2]]
    assert groups["c"].state == "Empty"
    end(groups["b"], 1, 8, is_committed=True)
    end(groups["b"], 2, 9, is_committed=False)
    assert offsets(groups["b"]) == {T0: 3, T1: 5}
    assert pending(groups["b"], T1) == [False]


def test_the_order_of_the_records_decides_and_not_that_of_the_markers():
    before, after = written_in(1, 0, commit("a", T0, 1)), written_in(2, 2, commit("a", T0, 3))
    plain = LogBatch(1, [(1, *commit("a", T0, 2))])
    assert offsets(load(before, plain, marker(1, 3, is_committed=True))["a"]) == {T0: 2}
    ends = marker(2, 3, is_committed=True), marker(1, 4, is_committed=True)
    assert offsets(load(before, plain, after, *ends)["a"]) == {T0: 3}
    # What is deleted after a transaction's record does not come back with the marker.
    deleted = LogBatch(1, [(1, *commit("a", T0, None))])
    assert load(before, deleted, marker(1, 3, is_committed=True)) == {}
    assert offsets(load(before, deleted, after, marker(2, 4, is_committed=True))["a"]) == {T0: 3}


def test_the_last_record_of_a_transaction_counts():
    twice = written_in(1, 0, commit("a", T0, 5)), written_in(1, 1, commit("a", T0, 3))
    assert offsets(load(*twice, marker(1, 2, is_committed=True))["a"]) == {T0: 3}
    group = load(*twice)["a"]
    end(group, 1, 2, is_committed=True)
    assert offsets(group) == {T0: 3}


def test_a_second_marker_ends_nothing():
    groups = load(
        written_in(1, 0, commit("a", T0, 1)),
        marker(1, 1, is_committed=True),
        marker(1, 2, is_committed=True),
        marker(7, 3, is_committed=True),
    )
    assert offsets(groups["a"]) == {T0: 1}


def test_what_is_broken_in_a_transaction_hurts_nothing_else(caplog):
    broken = offset_commit_key("a", T1), b"\x00\x03\x00"
    groups = load(written_in(1, 0, commit("a", T0, 1), broken), written_in(2, 2, broken, commit("a", T0, 2)))
    assert pending(groups["a"], T0, T1) == [True, False]
    assert list(groups["a"].offsets.open_producer_ids) == [1, 2]
    assert caplog.text.count("broken record") == 2


def test_the_next_commit_is_later_than_what_was_loaded():
    group = load(*in_order(commit("b", T0, 1), commit("a", T0, 9)))["a"]
    old, new = at(3), at(4)
    group.offsets.prepare_commit({T0: old})
    group.offsets.complete_commit(T0, 0, old)
    assert offsets(group) == {T0: 9}
    group.offsets.prepare_commit({T0: new})
    group.offsets.complete_commit(T0, 2, new)
    assert offsets(group) == {T0: 4}


def test_what_is_broken_hurts_nobody_else(caplog):
    whole = commit("a", T0, 1), group_record("a", 3, "m"), commit("b", T1, 2)
    broken = [
        (offset_commit_key("a", T1), b"\x00\x03\x00"),
        (offset_commit_key("c", T0), b"\x00\x09" + bytes(30)),
        (group_metadata_key("b"), b"\x00\x03\x00\x08consu"),
        (b"\x00\x01\x00\x09a", b""),
        (b"\x00", b""),
        (None, b"value"),
    ]
    with caplog.at_level(logging.WARNING):
        groups = load(*in_order(*broken, *whole))
    assert {name: offsets(group) for name, group in groups.items()} == {"a": {T0: 1}, "b": {T1: 2}}
    assert groups["a"].generation_id == 3
    messages = sorted(record.getMessage() for record in caplog.records)
    assert [message.partition("; skipped")[0] for message in messages] == [
        f"__consumer_offsets-8 has a broken record at offset {offset}" for offset in range(6)
    ]


def test_keys_of_unknown_kinds_are_skipped_with_one_warning(caplog):
    newer = [(b"\x00\x07" + bytes([i]), b"value") for i in range(5)] + [(b"\x00\x03x", b"y"), (b"\x00\x04z", None)]
    with caplog.at_level(logging.WARNING):
        groups = load(*in_order(commit("a", T0, 1), *newer, commit("a", T1, 2)))
    assert offsets(groups["a"]) == {T0: 1, T1: 2}
    (record,) = caplog.records
    assert record.getMessage() == "__consumer_offsets-8 has records with keys of version 3, 7; skipped"


def test_one_bad_value_replaces_no_other_group(caplog):
    groups = load(*in_order(group_record("a", 1, "m"), (group_metadata_key("a"), b"\x00\x08"), group_record("b", 2)))
    assert list(groups) == ["b"]
    assert "value of version 8" in caplog.text


def test_many_records_leave_the_loop_to_others():
    async def run() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def read():
            yield LogBatch(0, [(i, *commit(f"group-{i}", T0, i)) for i in range(5_000)])

        task = asyncio.ensure_future(others())
        groups = await load_groups(0, read(), NOW_MS)
        task.cancel()
        assert len(groups) == 5_000
        return turns

    assert asyncio.run(run()) >= 5


COMMITS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]), st.sampled_from([T0, T1, ("u", 0)]), st.none() | st.integers(0, 2**63 - 1)
    ),
    max_size=40,
)


@given(COMMITS, st.lists(st.integers(1, 5), min_size=40, max_size=40))
def test_it_is_what_applying_each_record_would_give(commits, sizes):
    expected: dict[str, dict[tuple[str, int], int]] = {}
    for group_id, partition, offset in commits:
        held = expected.setdefault(group_id, {})
        held.pop(partition, None)
        if offset is not None:
            held[partition] = offset
    batches, numbered = [], [(i, *commit(*one)) for i, one in enumerate(commits)]
    while numbered:
        size = sizes.pop()
        batches.append(LogBatch(numbered[0][0], numbered[:size]))
        del numbered[:size]
    assert {name: offsets(group) for name, group in load(*batches).items()} == {
        name: held for name, held in expected.items() if held
    }
