"""Transactions in a log: the last stable offset, aborted transactions and producers, through all that a log goes
through. A model holds two replicas that take turns as the leader."""

import asyncio
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import ControlRecordType, decode_end_transaction_marker, decode_records
from klamm.storage.log.log import AppendOrigin
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments import transaction_index
from support.logs import NOW_MS, DiskEnvironment, aborted_in, append, marker, open_log

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
SMALL = LogConfig(segment_bytes=700, index_interval_bytes=150)


def write(log, producer_id, *values, sequence=0, epoch=0):
    """Appends records of a transaction. Returns the offset of the first."""
    header = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence, "is_transactional": True}
    return append(log, *values, **header).first_offset


def end(log, producer_id, kind, epoch=0, **names):
    """Appends a marker. Returns its offset."""
    control = marker(kind, producer_id, epoch, **names)
    return log.append_as_leader(control, 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS).first_offset


def at_once(coroutine):
    """The result of a coroutine that waits for nothing, without the cost of a loop."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


async def committed(log, start=None):
    """(offset, value) of what a consumer with read_committed gets from `start` on, as Kafka's clients do it."""
    offset, found = log.log_start_offset if start is None else start, []
    while offset < log.last_stable_offset:
        fetched = await log.read(offset, 1, max_offset=log.last_stable_offset, minimum_one_batch=True)
        coming = sorted(aborted_in(log, offset, fetched.next_offset), key=lambda each: each[1])
        aborted = set()
        for position, header in iterate_batches(fetched.data):
            while coming and coming[0][1] <= header.last_offset:
                aborted.add(coming.pop(0)[0])
            if header.is_control:
                marker_found = decode_end_transaction_marker(fetched.data, position, header)
                if marker_found is not None and marker_found.type is ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                records = decode_records(fetched.data, position, header)
                found += [(record.offset, record.value) for record in records if record.offset >= offset]
        offset = fetched.next_offset
    return found


# -- the last stable offset --------------------------------------------------------------------------------------------


async def closed_and_opened(environment, log):
    await log.close()
    return open_log(environment, SMALL, is_clean=True, high_watermark=log.high_watermark)


async def killed_and_opened(environment, log):
    # The recovery point is the base of the last segment: what is before it was flushed as it was rolled.
    point = log.segment_base_offsets[-1]
    return open_log(environment, SMALL, recovery_point=point, high_watermark=log.high_watermark)


async def truncated(environment, log):
    log.truncate_to(log.log_end_offset - 1)
    return log


@pytest.mark.parametrize("change", [closed_and_opened, killed_and_opened, truncated])
@pytest.mark.parametrize("kind", [COMMIT, ABORT])
@pytest.mark.parametrize("expires", [False, True])
async def test_a_transaction_that_has_ended_above_the_high_watermark_is_not_stable(change, kind, expires):
    # A snapshot that is newer than the marker knows no open transaction, and perhaps not even the producer.
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    append(log, b"a")
    first = write(log, 5, b"b", b"c")
    log.update_high_watermark(2)  # within the transaction
    ended = end(log, 5, kind)
    if expires:
        await log.remove_expired_producers(NOW_MS + 1000, 1000)
    log.roll()
    append(log, b"d")
    append(log, b"e")
    assert (log.last_stable_offset, first, ended) == (1, 1, 3)
    log = await change(environment, log)
    assert (log.last_stable_offset, log.high_watermark) == (1, 2)
    log.update_high_watermark(ended)
    assert log.last_stable_offset == 1
    log.update_high_watermark(ended + 1)
    assert log.last_stable_offset == ended + 1


def flip(environment, position, bit):
    file = environment.file_system.open(f"/data/t-0/{0:020}.log")
    (byte,) = file.read(position, 1)
    file.write(position, bytes([byte ^ 1 << bit]))
    file.close()


# (offset of the batch, position in it, bit): whether it belongs to a transaction, whether it is a marker, the producer
# id; how the transaction has ended.
@pytest.mark.parametrize("damage", [(1, 22, 4), (3, 22, 5), (1, 50, 0), (3, 50, 0), (3, -1, 0), (3, 68, 0)])
@pytest.mark.parametrize("change", [closed_and_opened, killed_and_opened, truncated])
async def test_no_last_stable_offset_comes_from_a_damaged_batch(change, damage):
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    append(log, b"a")
    write(log, 5, b"b")
    write(log, 6, b"c")
    end(log, 5, ABORT)
    log.update_high_watermark(2)
    fetched = await log.read(0, 10_000, max_offset=4, minimum_one_batch=True)
    places = {header.base_offset: (position, header.size_bytes) for position, header in iterate_batches(fetched.data)}
    log.roll()
    append(log, b"d")
    append(log, b"e")
    start, size_bytes = places[damage[0]]
    position = start + (damage[1] if damage[1] >= 0 else size_bytes + damage[1])
    flip(environment, position, damage[2])
    with pytest.raises(
        KafkaError, match=f"damaged: at offset {damage[0]} .*remove the partition's directory"
    ) as raised:
        await change(environment, log)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    flip(environment, position, damage[2])
    log = await change(environment, log)
    assert log.last_stable_offset == 1
    log.update_high_watermark(4)
    assert (log.last_stable_offset, aborted_in(log, 0, 4)) == (2, [(5, 1)])


async def test_a_log_that_is_opened_reads_no_more_than_its_snapshot_and_what_is_above_the_high_watermark():
    environment = DiskEnvironment()
    log = open_log(environment, LogConfig(segment_bytes=100_000))
    for number in range(100):
        write(log, 5, b"x" * 500, sequence=number)
    end(log, 5, COMMIT)
    for _ in range(3):
        append(log, b"x" * 500)
    log.update_high_watermark(102)
    await log.close()
    environment.bytes_read_on_the_loop = 0
    again = open_log(environment, LogConfig(segment_bytes=100_000), is_clean=True, high_watermark=102)
    assert again.last_stable_offset == 102
    assert environment.bytes_read_on_the_loop < 20_000


async def test_deleted_records_of_an_open_transaction_move_the_last_stable_offset_to_the_log_start():
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    write(log, 5, b"a", b"b", b"c")
    log.update_high_watermark(3)
    assert log.last_stable_offset == 0
    log.update_log_start_offset(2)
    assert log.last_stable_offset == 2
    await log.close()
    log = open_log(environment, SMALL, is_clean=True, log_start_offset=2, high_watermark=3)
    assert log.last_stable_offset == 2
    end(log, 5, ABORT)
    log.update_high_watermark(4)
    assert (log.last_stable_offset, await committed(log)) == (4, [])


def test_a_truncation_opens_the_transaction_of_a_producer_that_has_been_forgotten_since():
    log = open_log(DiskEnvironment(), SMALL)
    append(log, b"a")
    first = write(log, 5, b"b")
    ended = end(log, 5, ABORT)
    log.update_high_watermark(ended + 1)
    asyncio.run(log.remove_expired_producers(NOW_MS + 1000, 1000))
    assert not log.producer_state.entries
    log.truncate_to(ended)  # after an unclean election
    log.update_high_watermark(ended)
    assert (log.last_stable_offset, log.high_watermark) == (first, ended)


def test_the_first_of_many_open_transactions_is_found_at_once():
    log = open_log(DiskEnvironment())
    for producer_id in range(300):
        write(log, producer_id, b"x")
    log.update_high_watermark(300)
    for producer_id in range(300):
        assert log.last_stable_offset == producer_id
        log.update_high_watermark(end(log, producer_id, COMMIT) + 1)
    assert log.last_stable_offset == 600


# -- aborted transactions ----------------------------------------------------------------------------------------------


def looked_at(log) -> list[int]:
    """The fields of the log's only transaction index that are read from now on."""
    index, found = next(iter(log.segments)).transaction_index, []

    class Looked(type(index._fields)):  # type: ignore[misc]  # an array, which cannot be patched
        def __getitem__(self, key):
            found.append(key)
            return super().__getitem__(key)

    index._fields = Looked("q", index._fields)
    return found


def test_a_fetch_looks_at_no_aborted_transactions_before_it():
    log = open_log(DiskEnvironment())
    for number in range(500):
        write(log, 5, b"x", sequence=number)
        end(log, 5, ABORT)
    log.update_high_watermark(1000)
    fields = looked_at(log)
    assert aborted_in(log, 990, 996) == [(5, 990), (5, 992), (5, 994)]
    assert len(fields) < 40


def test_a_fetch_looks_at_few_of_the_aborted_transactions_that_a_long_one_has_held_back():
    log = open_log(DiskEnvironment())
    write(log, 9, b"long")
    for number in range(2000):
        write(log, 5, b"x", sequence=number)
        end(log, 5, ABORT)
    end(log, 9, ABORT)
    log.update_high_watermark(log.log_end_offset)
    fields = looked_at(log)
    assert sorted(aborted_in(log, 1, 6)) == [(5, 1), (5, 3), (5, 5), (9, 0)]
    assert len(fields) < 600


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.integers(0, 70), st.integers(0, 70))
def test_a_fetch_gets_the_aborted_transactions_with_records_in_it(steps, start, upper):
    log, opened, sequences, aborted = open_log(DiskEnvironment(), SMALL), {}, dict.fromkeys(range(4), 0), []
    with patch.object(transaction_index, "BLOCK_FIELDS", 3 * transaction_index._FIELDS):
        for producer_id, writes in steps:
            if writes:
                offset = write(log, producer_id, b"x" * 100, sequence=sequences[producer_id])
                opened.setdefault(producer_id, offset)
                sequences[producer_id] += 1
            elif producer_id in opened:
                aborted.append((producer_id, opened.pop(producer_id), end(log, producer_id, ABORT)))
        for size in (log.log_end_offset, log.log_end_offset * 2 // 3):
            if size < log.log_end_offset:
                log.truncate_to(size)
            expected = [each[:2] for each in aborted if each[1] < upper and start <= each[2] < size]
            assert aborted_in(log, start, upper) == expected


# -- two replicas ------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """One batch of the leader's log. Only a marker has a kind."""

    offset: int
    values: list
    producer_id: int
    epoch: int
    sequence: int
    kind: ControlRecordType | None

    @property
    def end(self):
        return self.offset + (1 if self.kind is not None else len(self.values))


which = st.integers(0, 1)
writes = st.tuples(st.just("write"), st.lists(st.integers(-1, 2), min_size=1, max_size=4), st.integers(1, 3))
ends = st.tuples(
    st.just("end"), st.sets(st.integers(0, 2), min_size=1), st.sampled_from([COMMIT, ABORT]), st.booleans()
)
fetches = st.tuples(st.just("replicate"), st.sampled_from([100, 400, 5000]), st.booleans(), st.booleans())
steps = st.lists(
    st.one_of(
        writes,
        writes,
        ends,
        fetches,
        fetches,
        st.tuples(st.just("restart"), which, st.booleans()),
        st.tuples(st.just("roll"), which),
        st.tuples(st.just("elect_the_follower")),
        st.tuples(st.just("delete_records"), st.integers(0, 5)),
    ),
    min_size=10,
    max_size=40,
)


class Replicas:
    """`batches` is what the leader's log holds. A record is committed when both replicas have it."""

    def __init__(self):
        self.environments = [DiskEnvironment(seed=seed) for seed in range(2)]
        self.logs = [open_log(environment, SMALL) for environment in self.environments]
        self.checkpoints = [0, 0]
        self.leader = self.epoch = self.epoch_start = 0
        self.batches = []
        self.start_offset = self.committed_end = 0
        self.producer_epochs = dict.fromkeys(range(3), 0)
        self.told_stable = 0

    @property
    def log(self):
        return self.logs[self.leader]

    @property
    def follower(self):
        return self.logs[1 - self.leader]

    def transactions(self):
        """(first offset, marker's batch or None, producer id, records) of every transaction."""
        found, now_open = [], {}
        for each in self.batches:
            if each.kind is not None:
                one = now_open.pop(each.producer_id, None)
                if one is not None:
                    one[1] = each
            elif each.producer_id >= 0:
                one = now_open.get(each.producer_id)
                if one is None:
                    one = now_open[each.producer_id] = [each.offset, None, each.producer_id, []]
                    found.append(one)
                one[3] += [(each.offset + i, value) for i, value in enumerate(each.values)]
        return found

    def next_sequence(self, producer_id):
        epoch = self.producer_epochs[producer_id]
        mine = [each for each in self.batches if (each.producer_id, each.epoch) == (producer_id, epoch)]
        return sum(len(each.values) for each in mine)

    def add(self, values, producer_id=-1, kind=None):
        epoch = self.producer_epochs.get(producer_id, -1)
        at, sequence = self.log.log_end_offset, self.next_sequence(producer_id) if producer_id >= 0 else -1
        if kind is not None:
            data = marker(kind, producer_id, epoch)
            self.log.append_as_leader(data, self.epoch, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        else:
            header = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
            append(self.log, *values, leader_epoch=self.epoch, is_transactional=producer_id >= 0, **header)
        self.batches.append(Batch(at, values, producer_id, epoch, sequence, kind))

    def write(self, producer_ids, count):
        for producer_id in producer_ids:
            self.add([b"%d" % producer_id] * count, producer_id)

    def end(self, producer_ids, kind, bumps):
        """With a higher epoch, as a coordinator fences (KIP-360)."""
        for producer_id in producer_ids:
            self.producer_epochs[producer_id] += bumps
            self.add([], producer_id, kind)

    def replicate(self, most_bytes, is_acknowledged, checkpoints):
        """The follower fetches, and perhaps fetches again."""
        position, end = self.follower.log_end_offset, self.log.log_end_offset
        fetched = at_once(self.log.read(position, most_bytes, max_offset=end, minimum_one_batch=True))
        self.follower.append_as_follower(fetched.data)
        self.follower.update_high_watermark(self.log.high_watermark)
        if is_acknowledged:
            self.log.update_high_watermark(self.follower.log_end_offset)
            self.committed_end = max(self.committed_end, self.log.high_watermark)
        if checkpoints:
            self.checkpoints = [log.high_watermark for log in self.logs]

    def elect_the_follower(self):
        self.leader = 1 - self.leader
        self.epoch += 1
        self.epoch_start = self.log.log_end_offset
        if self.follower.log_end_offset > self.epoch_start:
            self.follower.truncate_to(self.epoch_start)
        self.batches = [each for each in self.batches if each.end <= self.epoch_start]

    def restart(self, which, is_clean):
        log = self.logs[which]
        if is_clean:
            self.checkpoints[which] = log.high_watermark
            at_once(log.close())
        self.logs[which] = open_log(
            self.environments[which],
            SMALL,
            is_clean=is_clean,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            high_watermark=self.checkpoints[which],
        )
        assert self.logs[which].log_end_offset == log.log_end_offset
        if which == self.leader:
            self.epoch_start = log.log_end_offset

    def roll(self, which):
        at_once(self.logs[which].flush())
        self.logs[which].roll()

    def delete_records(self, forward):
        offset = min(self.start_offset + forward, *(log.high_watermark for log in self.logs))
        for log in self.logs:
            log.update_log_start_offset(max(offset, log.log_start_offset))
            log.delete_old_segments(NOW_MS)
        self.start_offset = max(offset, self.start_offset)

    def a_reader_sees_whole_committed_transactions(self):
        transactions, log = self.transactions(), self.log

        def stable_if_replicated_to(offset):
            undecided = [first for first, ended, _, _ in transactions if ended is None or ended.offset >= offset]
            return max(min([log.high_watermark, *undecided]), log.log_start_offset)

        stable = log.last_stable_offset
        # The other replica might end nothing below it otherwise. A high watermark that has gone back with the leader's
        # leaves stable what it had passed.
        assert stable_if_replicated_to(log.high_watermark) <= stable <= stable_if_replicated_to(self.committed_end)
        if log.high_watermark >= self.epoch_start:  # Until then, clients are told to wait (KIP-207).
            assert stable >= self.told_stable
            self.told_stable = stable
        expected = [
            record
            for _, ended, _, records in transactions
            if ended is None or ended.kind is COMMIT
            for record in records
        ]
        expected += [
            (each.offset + i, value)
            for each in self.batches
            if each.producer_id < 0
            for i, value in enumerate(each.values)
        ]
        expected = [record for record in sorted(expected) if self.start_offset <= record[0] < stable]
        assert at_once(committed(log, self.start_offset)) == expected

    def the_producers_are_those_of_the_batches(self):
        expected = {}
        for each in self.batches:
            if each.producer_id < 0:
                continue
            last, epoch = expected.get(each.producer_id, (-1, each.epoch))
            if epoch != each.epoch:
                last = -1
            if each.kind is None:
                last = each.sequence + len(each.values) - 1
            expected[each.producer_id] = (last, each.epoch)
        entries = self.log.producer_state.entries
        known = {producer_id: (entry.last_sequence, entry.producer_epoch) for producer_id, entry in entries.items()}
        assert known == expected
        now_open = {producer_id: first for first, ended, producer_id, _ in self.transactions() if ended is None}
        assert now_open == {
            producer_id: entry.transaction_first_offset
            for producer_id, entry in entries.items()
            if entry.transaction_first_offset >= 0
        }


@settings(max_examples=250)
@given(steps=steps)
def test_random_steps(steps):
    replicas = Replicas()
    for name, *arguments in steps:
        getattr(replicas, name)(*arguments)
        replicas.a_reader_sees_whole_committed_transactions()
        replicas.the_producers_are_those_of_the_batches()
