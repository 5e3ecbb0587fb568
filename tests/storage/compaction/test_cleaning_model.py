"""Random logs and random cleanings against a model: a list of all that was ever appended.

After each cleaning: every key's latest value is there, every record above the first dirty offset is there, what is
there is what was appended, tombstones and markers leave only after their time, aborted records are never seen, and the
producers' state is that of the whole log, also after a restart.
"""

import asyncio
import dataclasses
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.compaction.cleaner import clean, fastest_kernel, kernel_for
from klamm.storage.compaction.compiled_kernel import CompiledKernel
from klamm.storage.compaction.plain_kernel import PlainKernel
from klamm.storage.log.log import AppendOrigin
from klamm.storage.verification.log_verification import verify_log
from support.cleaning import COMPACTED, DELETE_RETENTION_MS, batches_of, put, records_of, values_of
from support.logs import DiskEnvironment, aborted_in, marker, open_log

CONFIG = dataclasses.replace(COMPACTED, segment_bytes=800)
KEYS = [b"a", b"b", b"c", b"d", b"\0\0\0\0", b"\0\0\0\1"]

keys = st.sampled_from(KEYS)
values = st.one_of(st.none(), st.binary(max_size=20), st.just(b"x" * 120))
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=5)
writes = st.tuples(
    st.just("write"), pairs, st.sampled_from(["plain", "idempotent", "transactional"]), st.integers(0, 2),
    st.sampled_from(list(CompressionType)),
)  # fmt: skip
steps = st.lists(
    st.one_of(
        writes,
        writes,
        writes,
        st.tuples(st.just("end"), st.integers(0, 2), st.sampled_from(list(ControlRecordType))),
        st.tuples(st.just("roll")),
        st.tuples(st.just("wait"), st.sampled_from([1, DELETE_RETENTION_MS // 2, 2 * DELETE_RETENTION_MS])),
        st.tuples(st.just("clean"), st.sampled_from([3, 4, 1112])),
        st.tuples(st.just("clean"), st.just(1112)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    min_size=5,
    max_size=50,
)


class Appended(NamedTuple):
    """A record that was appended at this time; the producer is -1 outside of transactions."""

    offset: int
    key: bytes
    value: bytes | None
    now_ms: int
    transaction: int


class History:
    """All that was appended, and how each transaction has ended."""

    def __init__(self) -> None:
        self.records: list[Appended] = []
        self.markers: dict[int, tuple[int, int]] = {}  # offset -> (transaction, time)
        self.open: dict[int, int] = {}  # producer -> transaction
        self.ended: dict[int, ControlRecordType] = {}
        self.transactions = 0

    def is_visible(self, record: Appended) -> bool:
        return record.transaction < 0 or self.ended.get(record.transaction) is ControlRecordType.COMMIT

    def is_aborted(self, record: Appended) -> bool:
        return self.ended.get(record.transaction) is ControlRecordType.ABORT


class Run:
    """One log and its history."""

    def __init__(self, kernel_type) -> None:
        self.kernel_type = kernel_type
        self.environment = DiskEnvironment()
        self.log = open_log(self.environment, CONFIG)
        self.history = History()
        self.sequences: dict[int, int] = {}
        self.first_dirty = 0

    def write(self, pairs, kind, producer, codec) -> None:
        history, environment = self.history, self.environment
        producer_id = {"plain": -1, "idempotent": 10 + producer, "transactional": 20 + producer}[kind]
        header = {"codec": codec}
        transaction = -1
        if producer_id >= 0:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(pairs)
            header |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        if kind == "transactional":
            header["is_transactional"] = True
            if producer_id not in history.open:
                history.open[producer_id] = history.transactions
                history.transactions += 1
            transaction = history.open[producer_id]
        now_ms = environment.now_ms()
        first = put(self.log, *pairs, timestamp_ms=now_ms, now_ms=now_ms, **header)
        history.records += [
            Appended(first + i, key, value, now_ms, transaction) for i, (key, value) in enumerate(pairs)
        ]

    def end(self, producer, kind) -> None:
        history, log = self.history, self.log
        transaction = history.open.pop(20 + producer, None)
        if transaction is None:
            return
        history.ended[transaction] = kind
        history.markers[log.log_end_offset] = (transaction, self.environment.now_ms())
        now_ms = self.environment.now_ms()
        log.append_as_leader(marker(kind, 20 + producer), 0, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
        log.update_high_watermark(log.log_end_offset)

    def roll(self) -> None:
        self.log.roll()

    def wait(self, duration_ms) -> None:
        self.environment.clock_ms += duration_ms

    async def reopen(self, is_clean) -> None:
        before = await self.state()
        await self.log.close()
        self.log = open_log(self.environment, CONFIG, is_clean=is_clean)
        assert await self.state() == before

    async def state(self):
        producers = {
            producer_id: (entry.producer_epoch, [batch[:3] for batch in entry.batches[-1:]])
            for producer_id, entry in self.log.producer_state.entries.items()
        }
        return await values_of(self.log), producers, self.log.last_stable_offset, self.log.log_end_offset

    async def clean(self, map_slots) -> None:
        log, history = self.log, self.history
        await log.flush()
        job = log.cleaning_job(
            self.first_dirty, 2**62, delete_retention_ms=DELETE_RETENTION_MS, map_bytes=24 * map_slots,
            map_load_factor=0.9,
        )  # fmt: skip
        if job is None:
            return
        batches = [header for header, _ in await batches_of(log)]
        open_before = {header.producer_id for header in batches if header.is_transactional and not header.is_control}
        markers_before = {stored.offset for stored in await records_of(log, control=True)}
        end_before, producers_before = log.log_end_offset, (await self.state())[1]
        result = in_one_go(clean(job, self.environment.file_system, self.kernel_type))
        for group in result.groups:
            assert log.swap_cleaned(job, group)
        assert result.new_first_dirty_offset > self.first_dirty
        self.first_dirty = result.new_first_dirty_offset

        assert log.log_end_offset == end_before
        assert (await self.state())[1] == producers_before
        found = {offset: (key, value) for offset, key, value in await values_of(log)}
        appended = {record.offset: record for record in history.records}
        assert all(found[offset] == appended[offset][1:3] for offset in found)
        latest: dict[bytes, Appended] = {}
        for record in history.records:
            if history.is_visible(record):
                latest[record.key] = record
        horizon = self.environment.now_ms() - DELETE_RETENTION_MS
        for record in latest.values():
            assert record.offset in found or (record.value is None and record.now_ms <= horizon), record
        for record in history.records:
            if record.offset >= self.first_dirty and not history.is_aborted(record):
                assert record.offset in found, record
            if record.offset in found and record.offset < job.first_uncleanable_offset:
                assert not history.is_aborted(record) or record.offset >= self.first_dirty, record
        markers = {stored.offset for stored in await records_of(log, control=True)}
        assert markers <= markers_before
        for offset in markers_before - markers:
            transaction, ended_ms = history.markers[offset]
            assert ended_ms <= horizon
            assert not any(r.transaction == transaction and r.offset in found for r in history.records)
        seen = self.committed(found)
        assert all(not history.is_aborted(appended[offset]) for offset in seen)
        assert open_before >= {
            h.producer_id for h, _ in await batches_of(log) if h.is_transactional and not h.is_control
        }
        assert verify_log(self.environment.file_system, "/data/t-0", compacted_to=math.inf).findings == []
        assert not [
            n for n in self.environment.file_system.list_directory("/data/t-0") if n.endswith((".cleaned", ".swap"))
        ]

    def committed(self, found) -> list[int]:
        """The offsets that a consumer sees that leaves out aborted transactions."""
        aborted = aborted_in(self.log, 0, self.log.last_stable_offset)
        appended = {record.offset: record for record in self.history.records}
        return [
            offset
            for offset in found
            if offset < self.log.last_stable_offset
            and not any(first <= offset and self.history.is_aborted(appended[offset]) for _, first in aborted)
        ]


def test_the_compiled_kernel_is_tested_and_not_replaced():
    assert fastest_kernel() is CompiledKernel


@pytest.mark.parametrize(("size_bytes", "expected"), [(2_097_151, PlainKernel), (2_097_152, CompiledKernel)])
def test_no_small_log_loads_numba(size_bytes, expected):
    job: Any = SimpleNamespace(segments=[SimpleNamespace(size_bytes=2_097_152), SimpleNamespace(size_bytes=size_bytes)])
    assert kernel_for(job) is expected


async def run_steps(kernel_type, steps) -> Run:
    run = Run(kernel_type)
    for name, *arguments in steps:
        outcome = getattr(run, name)(*arguments)
        if outcome is not None:
            await outcome
    return run


@pytest.mark.parametrize("kernel_type", [PlainKernel, CompiledKernel])
@settings(max_examples=60)
@given(steps=steps)
def test_a_cleaned_log_keeps_what_it_must(kernel_type, steps):
    asyncio.run(run_steps(kernel_type, [*steps, ("roll",), ("clean", 1112), ("reopen", False)]))


@settings(max_examples=40)
@given(steps=steps)
def test_both_kernels_write_the_same_files(steps):
    async def files_of(kernel_type) -> dict[str, bytes]:
        run = await run_steps(kernel_type, [*steps, ("roll",), ("clean", 1112)])
        await run.log.close()
        files = run.environment.file_system
        return {name: files.read_file(f"/data/t-0/{name}") for name in files.list_directory("/data/t-0")}

    assert asyncio.run(files_of(PlainKernel)) == asyncio.run(files_of(CompiledKernel))
