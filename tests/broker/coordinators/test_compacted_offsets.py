"""Compaction of `__consumer_offsets` changes no answer of a coordinator that loads it, with open transactions too."""

import asyncio
import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.broker.coordinators.coordinator_log import _log_batches
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group_loader import load_groups
from klamm.coordinator.groups.group_records import offset_commit_key, offset_commit_value
from klamm.protocol.record.compression import decompress
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.log.log import AppendOrigin
from support.cleaning import COMPACTED, DELETE_RETENTION_MS, batches_of, clean_if_dirty, keyed_batch
from support.logs import DiskEnvironment, marker, open_log

PRODUCERS = [21, 22]
GROUPS = ["a", "b"]
PARTITIONS = [("t", 0), ("t", 1)]

places = st.tuples(st.sampled_from(GROUPS), st.sampled_from(PARTITIONS))
steps = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from([-1, *PRODUCERS]), st.lists(places, min_size=1, max_size=3)),
    st.tuples(st.just("commit"), st.sampled_from(PRODUCERS), st.lists(places, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), places),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.sampled_from(list(ControlRecordType))),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.sampled_from(list(ControlRecordType))),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.just(ControlRecordType.ABORT)),
    st.tuples(st.just("clean")),
    st.tuples(st.just("clean")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("clean")),
)

Answers = dict[tuple[str, tuple[str, int]], tuple[int | None, bool]]


class Run:
    """A log of __consumer_offsets, and what was read of it."""

    def __init__(self) -> None:
        self.environment = DiskEnvironment()
        self.log = open_log(self.environment, dataclasses.replace(COMPACTED, segment_bytes=800))
        self.number = 0
        self.cleaned_to = 0

    def commit(self, producer_id: int, offsets: list[tuple[str, tuple[str, int]]]) -> None:
        records = []
        for group, partition in dict.fromkeys(offsets or [("last", PARTITIONS[0])]):
            self.number += 1
            value = offset_commit_value(OffsetAndMetadata(self.number, -1, "", 0))
            records.append((offset_commit_key(group, partition), value))
        header: dict[str, Any] = {}
        if producer_id >= 0:
            header = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        self._append(*records, **header)

    def delete(self, place: tuple[str, tuple[str, int]]) -> None:
        self._append((offset_commit_key(*place), None))

    def _append(self, *records: tuple[bytes, bytes | None], **header: Any) -> None:
        now_ms = self.environment.now_ms()
        batch = keyed_batch(*records, timestamp_ms=now_ms, **header)
        self.log.append_as_leader(batch, 0, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
        self.log.update_high_watermark(self.log.log_end_offset)

    def end(self, producer_id: int, kind: ControlRecordType) -> None:
        now_ms = self.environment.now_ms()
        self.log.append_as_leader(marker(kind, producer_id), 0, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
        self.log.update_high_watermark(self.log.log_end_offset)

    def wait(self) -> None:
        self.environment.clock_ms += 2 * DELETE_RETENTION_MS

    async def clean(self) -> None:
        self.log.roll()
        before = await self.answers()
        result = await clean_if_dirty(self.log, self.cleaned_to)
        if result is not None:
            self.cleaned_to = result.new_first_dirty_offset
        assert await self.answers() == before

    async def answers(self) -> list[Answers]:
        """What is visible and pending now, and after each outcome of the open transactions."""
        found = []
        for is_committed in (None, True, False):
            groups = await load_groups(0, self._read(), 0)
            for group in groups.values():
                offsets = group.offsets
                for producer_id in [] if is_committed is None else PRODUCERS:
                    for commit in offsets.end_transaction(producer_id, self.log.log_end_offset, is_committed is True):
                        offsets.end_transactional_commit(commit, is_committed is True)
            answers: Answers = {}
            for name, group in groups.items():
                for partition in PARTITIONS:
                    offset = group.offsets.get(partition)
                    if group.offsets.has(partition):
                        is_pending = group.offsets.is_pending(partition)
                        answers[name, partition] = (None if offset is None else offset.offset, is_pending)
            found.append(answers)
        return found

    async def _read(self) -> Any:
        for header, data in await batches_of(self.log):
            body = decompress(header.codec, memoryview(data)[HEADER_SIZE_BYTES:])
            for batch in _log_batches(data, 0, header, body):
                yield batch


@settings(max_examples=60)
@given(st.lists(steps, min_size=10, max_size=50), st.sampled_from(list(ControlRecordType)))
def test_what_is_loaded_is_the_same_before_and_after_a_cleaning(
    history: list[tuple[Any, ...]], last: ControlRecordType
) -> None:
    async def scenario() -> None:
        run = Run()
        ends = [("end", producer_id, last) for producer_id in PRODUCERS]
        for name, *arguments in [*history, ("clean",), *ends, ("clean",), ("wait",), ("commit", -1, []), ("clean",)]:
            outcome = getattr(run, name)(*arguments)
            if outcome is not None:
                await outcome

    asyncio.run(scenario())
