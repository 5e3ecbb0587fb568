"""A group's offsets under transactions: the log's order decides, in whatever order the group hears of it."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.coordinator.groups.committed_offsets import CommittedOffsets, OffsetAndMetadata
from klamm.coordinator.groups.group_loader import load_groups
from klamm.coordinator.groups.group_records import offset_commit_key, offset_commit_value
from klamm.coordinator.ports import LogBatch
from klamm.protocol.vocabulary import PartitionKey
from support.coordinator_logs import transaction_begins_at

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
PRODUCERS = [1, 2, 3]


class Commit(NamedTuple):
    """Offsets of a transaction, or of none. Those that fail do not get into the log."""

    producer_id: int | None
    partitions: list[PartitionKey]
    fails: bool


class Marker(NamedTuple):
    producer_id: int
    is_committed: bool


class Removal(NamedTuple):
    """The partition's offsets are deleted."""

    partition: PartitionKey


class Hear(NamedTuple):
    """The group hears of something that has happened before."""

    place: int


events = st.one_of(
    st.builds(
        Commit,
        st.none() | st.sampled_from(PRODUCERS),
        st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True),
        st.sampled_from([False, False, False, True]),
    ),
    st.builds(Marker, st.sampled_from(PRODUCERS), st.booleans()),
    st.builds(Removal, st.sampled_from(PARTITIONS)),
    st.builds(Hear, st.integers(0, 20)),
    st.builds(Hear, st.integers(0, 20)),
)


class History:
    """A group, the log, and what the group has not heard yet."""

    def __init__(self) -> None:
        self.offsets = CommittedOffsets()
        self.log: list[LogBatch] = []
        self.end_offset = 0
        # With the producer whose marker it is: the markers of one producer are reported in their order.
        self.unheard: list[tuple[int | None, Callable[[], None]]] = []
        self.number = 0

    def commit(self, commit: Commit) -> None:
        offsets: dict[PartitionKey, OffsetAndMetadata] = {}
        for partition in commit.partitions:
            self.number += 1
            offsets[partition] = OffsetAndMetadata(self.number, -1, "", 0)
        committed, base_offset = self.offsets, self.end_offset
        if not commit.fails:
            self._write(offsets, commit.producer_id)
        if commit.producer_id is None:
            committed.prepare_commit(offsets)

            def hear() -> None:
                for record_offset, (partition, offset) in enumerate(offsets.items(), base_offset):
                    if commit.fails:
                        committed.fail_commit(partition, offset)
                    else:
                        committed.complete_commit(partition, record_offset, offset)
        else:
            prepared = committed.prepare_transactional_commit(commit.producer_id, offsets)
            transaction_offset = transaction_begins_at(self.log, commit.producer_id)

            def hear() -> None:
                if commit.fails:
                    committed.fail_transactional_commit(prepared)
                else:
                    committed.transactional_commit_appended(prepared, base_offset, transaction_offset)

        self.unheard.append((None, hear))

    def marker(self, marker: Marker) -> None:
        offset = self.end_offset
        self.end_offset += 1
        self.log.append(LogBatch(offset, (), *marker))

        def hear() -> None:
            # What a marker ends becomes visible in steps.
            for commit in self.offsets.end_transaction(marker.producer_id, offset, marker.is_committed):
                step = partial(self.offsets.end_transactional_commit, commit, marker.is_committed)
                self.unheard.append((None, step))

        self.unheard.append((marker.producer_id, hear))

    def removal(self, removal: Removal) -> None:
        if self.offsets.remove([removal.partition]):
            self._write({removal.partition: None}, None)

    def hear(self, hear: Hear) -> None:
        if self.unheard:
            producer_id, _ = self.unheard[hear.place % len(self.unheard)]
            first = next(i for i, (one, _) in enumerate(self.unheard) if one == producer_id)
            # What is no marker may come in any order.
            self.unheard.pop(hear.place % len(self.unheard) if producer_id is None else first)[1]()

    def _write(self, offsets: Mapping[PartitionKey, OffsetAndMetadata | None], producer_id: int | None) -> None:
        records = [
            (
                self.end_offset + number,
                offset_commit_key("g", partition),
                None if offset is None else offset_commit_value(offset),
            )
            for number, (partition, offset) in enumerate(offsets.items())
        ]
        self.log.append(LogBatch(self.end_offset, records, -1 if producer_id is None else producer_id))
        self.end_offset += len(records)

    def expected(self) -> dict[PartitionKey, tuple[int | None, bool]]:
        """By the log alone: the offset of each partition, and whether another one is pending."""
        visible: dict[bytes, tuple[int, bytes | None]] = {}
        removed: dict[bytes, int] = {}
        pending: dict[bytes, bool] = {}
        for place, batch in enumerate(self.log):
            markers = [one for one in self.log[place:] if one.producer_id == batch.producer_id and not one.records]
            for record_offset, key, value in batch.records:
                assert key is not None
                if batch.producer_id == -1 or (markers and markers[0].is_committed):
                    visible[key] = max(visible.get(key, (-1, None)), (record_offset, value), key=lambda one: one[0])
                elif not markers:
                    pending[key] = True
                if value is None:
                    removed[key] = record_offset
                    pending.pop(key, None)
        found: dict[PartitionKey, tuple[int | None, bool]] = {}
        for partition in PARTITIONS:
            key = offset_commit_key("g", partition)
            value = visible.get(key, (-1, None))[1]
            # The offset follows the version in the value.
            found[partition] = (None if value is None else int.from_bytes(value[2:10]), key in pending)
        return found


def said(offsets: CommittedOffsets) -> dict[PartitionKey, tuple[int | None, bool]]:
    return {
        partition: (None if offset is None else offset.offset, offsets.is_pending(partition))
        for partition in PARTITIONS
        for offset in [offsets.get(partition)]
    }


def end(offsets: CommittedOffsets, producer_id: int, marker_offset: int, is_committed: bool) -> None:
    for commit in offsets.end_transaction(producer_id, marker_offset, is_committed):
        offsets.end_transactional_commit(commit, is_committed)


def visible(offsets: CommittedOffsets) -> list[OffsetAndMetadata | None]:
    return [offsets.get(partition) for partition in PARTITIONS]


@settings(max_examples=300, deadline=None)
@given(st.lists(events, min_size=5, max_size=40), st.booleans())
def test_the_group_ends_as_its_log_does(history: list[Commit | Marker | Removal | Hear], is_committed: bool) -> None:
    run = History()
    for event in history:
        getattr(run, type(event).__name__.lower())(event)
    while run.unheard:
        run.hear(Hear(0))
    assert said(run.offsets) == run.expected()
    # Nothing is kept of what has ended.
    transactional = run.offsets._transactional
    assert transactional._markers == {}
    open_producers = {one.producer_id for one in run.log if one.producer_id in transactional.producer_ids}
    assert set(transactional.producer_ids) == open_producers

    async def read():
        for batch in run.log:
            yield batch

    groups = asyncio.run(load_groups(0, read(), 0))
    loaded = groups["g"].offsets if groups else CommittedOffsets()
    assert visible(loaded) == visible(run.offsets)
    # Whatever commits later, the next leader says the same.
    for producer_id in PRODUCERS:
        for offsets in (run.offsets, loaded):
            end(offsets, producer_id, run.end_offset, is_committed)
        assert visible(loaded) == visible(run.offsets)
    assert said(loaded) == said(run.offsets)
    assert not any(map(loaded.is_pending, PARTITIONS))


def test_commits_that_are_repeated_in_a_transaction_are_kept_once() -> None:
    committed = CommittedOffsets()
    for number in range(1000):
        offsets = dict.fromkeys(PARTITIONS[: 1 + number % 2], OffsetAndMetadata(number, -1, "", 0))
        commit = committed.prepare_transactional_commit(1, offsets)
        committed.transactional_commit_appended(commit, 2 * number, 0)
    pending = committed.end_transaction(1, 2000, True)
    assert [commit.record_offset for commit in pending] == [1998]
    for commit in pending:
        committed.end_transactional_commit(commit, True)
    assert [offset and offset.offset for offset in map(committed.get, PARTITIONS)] == [999, 999, None]
    assert not committed.open_producer_ids
