"""The producers of a log against a model of them: what the log's batches say, in plain Python.

After each step, whatever has been done to the log and its files: each batch is answered as the model answers it
(appended, the offsets of its first append, or the error), the log knows of each producer what the model knows, and the
last stable offset is that of the open and the unreplicated transactions.

A log may know less than all its batches say: what it has forgotten as expired, or what only lost snapshots had. A state
that was loaded may have this forgotten or not, because an older snapshot may be from before; but it is nothing else.
"""

import asyncio
import os
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import MAX_SEQUENCE, parse_header
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.log import producer_state
from klamm.storage.log.log import AppendOrigin, Oddity
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.producer_state import ProducerState, snapshot_entries
from support.logs import NOW_MS, DiskEnvironment, batch, marker, open_log

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
CONFIG = LogConfig(index_interval_bytes=150, retention_ms=-1)
EXPIRATION_MS = 1_000
STRANGER = 99
DIRECTORY = "/data/t-0"
RETAINED = 5
# More than `make test` has time for: KLAMM_MODEL_EXAMPLES=20000.
EXAMPLES = int(os.environ.get("KLAMM_MODEL_EXAMPLES", "150"))


class Batch(NamedTuple):
    """A batch in the log, below `end`. Only a marker has a kind."""

    offset: int
    records: int
    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    timestamp_ms: int
    kind: ControlRecordType | None = None
    coordinator_epoch: int = -1

    @property
    def end(self):
        return self.offset + self.records

    @property
    def last_sequence(self):
        return (self.sequence + self.records - 1) % 2**31


class Known(NamedTuple):
    """What is known of a producer. `batches`: the last five as (first sequence, last sequence, first offset, last)."""

    epoch: int
    batches: tuple = ()
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    opened: int = -1

    @property
    def next_sequence(self):
        return (self.batches[-1][1] + 1) % 2**31 if self.batches else 0


def after(known, each):
    """What is known of a producer after one more of its batches."""
    if known is None or known.epoch != each.epoch:
        known = (known or Known(-1))._replace(epoch=each.epoch, batches=())
    known = known._replace(timestamp_ms=each.timestamp_ms)
    if each.kind is not None:
        return known._replace(coordinator_epoch=each.coordinator_epoch, opened=-1)
    if each.is_transactional and known.opened < 0:
        known = known._replace(opened=each.offset)
    last = (each.sequence, each.last_sequence, each.offset, each.end - 1)
    return known._replace(batches=(*known.batches, last)[-RETAINED:])


def said_of(entry):
    """What the log knows of a producer, in the model's form."""
    batches = tuple((b.first_sequence, b.last_sequence, b.first_offset, b.last_offset) for b in entry.batches)
    return Known(
        entry.producer_epoch, batches, entry.last_timestamp_ms, entry.coordinator_epoch, entry.transaction_first_offset
    )


def at_once(coroutine):
    """Runs a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


class World:
    """A log, and the model: `batches`, which the log has or has had before its start, and the `known` producers."""

    def __init__(self):
        self.environment = DiskEnvironment()
        self.log = open_log(self.environment, CONFIG)
        self.batches = []
        self.known = {}
        self.high_watermark = self.checkpoint = 0
        # Of each producer, the offsets before which its batches may be forgotten; 0: none.
        self.forgotten = {}
        # Before these offsets transactions may be forgotten, because snapshots were lost.
        self.lost = {0}
        self.lacks_snapshots = False
        # Whether a producer may have been forgotten, so that an unknown one may begin with any sequence number.
        self.may_forget = self.has_forgotten = False

    @property
    def end(self):
        return self.batches[-1].end if self.batches else self.start

    @property
    def start(self):
        return self.log.log_start_offset

    def of(self, producer_id, start=0):
        return [each for each in self.batches if each.producer_id == producer_id and each.offset >= start]

    def all_of(self, producer_id, start=0):
        """What the batches from `start` on say of a producer."""
        known = None
        for each in self.of(producer_id, start):
            known = after(known, each)
        return known

    # -- batches ------------------------------------------------------------------------------------------------------

    def answer(self, each):
        """What the log must say to a client's batch: an error, the offsets of a duplicate, or those of an append."""
        known, appended = self.known.get(each.producer_id), (None, each.offset, each.end - 1)
        if each.producer_id < 0:
            return appended
        if known is None:
            is_refused = each.sequence > 0 and self.start == 0 and not self.has_forgotten
            return ErrorCode.UNKNOWN_PRODUCER_ID if is_refused else appended
        if known.epoch == each.epoch:
            for first, last, *offsets in known.batches:
                if (first, last) == (each.sequence, each.last_sequence):
                    return (Oddity.DUPLICATE, *offsets)
        if each.epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if each.sequence != (known.next_sequence if each.epoch == known.epoch else 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known.opened >= 0 and not each.is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        return appended

    def send(self, producer_id, epoch, sequence, count, is_transactional, origin=AppendOrigin.CLIENT):
        each = Batch(self.end, count, producer_id, epoch, sequence, is_transactional, self.environment.clock_ms)
        data = batch(
            *[b"x"] * count,
            timestamp_ms=each.timestamp_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        expected = self.answer(each) if origin is AppendOrigin.CLIENT else (None, each.offset, each.end - 1)
        try:
            info = self.log.append_as_leader(data, 0, origin=origin, now_ms=each.timestamp_ms)
            answer: object = (info.oddity, info.first_offset, info.last_offset)
        except KafkaError as error:
            answer = error.code
        assert answer == expected
        if expected == (None, each.offset, each.end - 1):
            self.appended(each)

    def appended(self, each):
        self.batches.append(each)
        if each.producer_id >= 0:
            self.known[each.producer_id] = after(self.known.get(each.producer_id), each)

    def plain(self, count):
        self.send(-1, -1, -1, count, False)

    def write(self, producer_id, count, is_transactional, gap=0, bump=0):
        """The next batch of a client that knows what is in the log, perhaps after a gap or in another epoch."""
        known = self.all_of(producer_id) or Known(0)
        sequence = 0 if bump else (known.next_sequence + gap) % 2**31
        self.send(producer_id, max(known.epoch + bump, 0), sequence, count, is_transactional)

    def write_some(self, producer_id, batches, count, is_transactional):
        """Several batches, in the open transaction if there is one."""
        for _ in range(batches):
            known = self.all_of(producer_id)
            is_open = known is not None and known.opened >= 0
            self.write(producer_id, count, is_transactional or is_open)

    def again(self, producer_id, back):
        """One of the last batches of the producer, or one that fits none of them."""
        sent = [each for each in self.of(producer_id) if each.kind is None][-1 - back :]
        if sent:
            self.send(producer_id, sent[0].epoch, sent[0].sequence, sent[0].records, sent[0].is_transactional)

    def near_the_wrap(self, producer_id, count):
        """The batches before it are not in this log: a leader that had lost them accepted it."""
        known = self.all_of(producer_id) or Known(-1)
        is_transactional = known.opened >= 0
        self.send(producer_id, known.epoch + 1, MAX_SEQUENCE - 2, count, is_transactional, AppendOrigin.COORDINATOR)

    def mark(self, producer_id, kind, bump, coordinator_epoch):
        known = self.known.get(producer_id)
        epoch = max((self.all_of(producer_id) or Known(0)).epoch + bump, 0)
        expected = None
        if known is not None and epoch < known.epoch:
            expected = ErrorCode.INVALID_PRODUCER_EPOCH
        elif known is not None and coordinator_epoch < known.coordinator_epoch:
            expected = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        data = marker(kind, producer_id, epoch, coordinator_epoch)
        each = Batch(self.end, 1, producer_id, epoch, -1, True, NOW_MS, kind, coordinator_epoch)
        answer = None
        try:
            self.log.append_as_leader(data, 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        except KafkaError as error:
            answer = error.code
        assert answer == expected
        if answer is None:
            self.appended(each)

    def transaction(self, producer_id, kind, behind, checkpoints):
        """A whole one, of which the replicas perhaps do not have the marker."""
        self.write_some(producer_id, 1, 3, True)
        self.replicate(behind, checkpoints)
        self.mark(producer_id, kind, 0, 1)

    # -- what else happens to the log ---------------------------------------------------------------------------------

    def roll(self):
        self.log.roll()

    def flush(self):
        at_once(self.log.flush())

    def replicate(self, behind, checkpoints):
        self.high_watermark = self.log.update_high_watermark(max(self.high_watermark, self.end - behind))
        if checkpoints:
            self.checkpoint = self.high_watermark

    def wait(self, ms):
        self.environment.clock_ms += ms

    def expire(self, ms):
        self.wait(ms)
        now_ms = self.environment.clock_ms
        asyncio.run(self.log.remove_expired_producers(now_ms, EXPIRATION_MS))
        for producer_id, known in list(self.known.items()):
            if known.opened < 0 and now_ms - known.timestamp_ms >= EXPIRATION_MS:
                del self.known[producer_id]
                self.forgotten.setdefault(producer_id, set()).add(self.end)
                self.may_forget = self.has_forgotten = True

    def delete_records(self, forward):
        self.log.update_log_start_offset(min(self.start + forward, self.high_watermark))
        self.log.delete_old_segments(self.environment.clock_ms)

    def truncate(self, batches, into):
        """The last batches go, and with them the batch of which one record is behind the cut."""
        last = self.batches[-batches:]
        target = max(self.start, last[0].offset + into) if last else self.start
        self.log.truncate_to(target)
        self.batches = [each for each in self.batches if each.end <= target]
        if self.log.log_end_offset != self.end:
            # A batch that began below the log start offset has gone, or the records before the log's end were none.
            assert self.log.log_end_offset == self.start
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        self.checkpoint = min(self.checkpoint, self.high_watermark)
        end = self.log.log_end_offset
        self.lost = {min(offset, end) for offset in self.lost}
        self.forgotten = {
            producer_id: {min(offset, end) for offset in offsets} for producer_id, offsets in self.forgotten.items()
        }
        self.adopt()

    def restart(self, is_clean, damage):
        if is_clean:
            at_once(self.log.close())
            self.check_snapshots()
            self.checkpoint = self.high_watermark
        self.damage(*damage)
        if self.snapshots() == [] and is_clean and self.end > 0:
            # As Kafka does: without any snapshot there were no producers.
            self.forget(self.end)
        self.log = open_log(
            self.environment,
            CONFIG,
            is_clean=is_clean,
            recovery_point=self.log.recovery_point,
            log_start_offset=self.start,
            high_watermark=self.checkpoint,
        )
        self.high_watermark = self.log.high_watermark
        assert self.log.log_end_offset == self.end
        self.adopt()

    def snapshots(self):
        names = self.environment.file_system.list_directory(DIRECTORY)
        return [f"{DIRECTORY}/{name}" for name in sorted(names) if name.endswith(".snapshot")]

    def damage(self, how, which):
        files = self.environment.file_system
        for path in self.snapshots()[which]:
            content = files.read_file(path)
            if how == "remove":
                files.remove(path)
            elif how == "tear":
                files.replace_file(path, content[: len(content) // 2])
            self.lacks_snapshots = True

    def forget(self, offset):
        for producer_id in {each.producer_id for each in self.batches}:
            self.forgotten.setdefault(producer_id, set()).add(offset)
        self.lost.add(offset)
        self.may_forget = self.may_forget or offset > 0

    # -- what must hold -----------------------------------------------------------------------------------------------

    def adopt(self):
        """The log has loaded its producers: each has what some of its batches say, and the model goes on with that."""
        if self.lacks_snapshots:
            self.forget(self.log.segment_base_offsets[0])
        entries = {producer_id: said_of(entry) for producer_id, entry in self.log.producer_state.entries.items()}
        everybody = {each.producer_id for each in self.batches} - {-1}
        assert entries.keys() <= everybody
        for producer_id in everybody:
            offsets = {0, *self.forgotten.get(producer_id, ())}
            assert entries.get(producer_id) in [self.all_of(producer_id, offset) for offset in offsets]
        self.known = entries
        try:
            header = parse_header(batch(b"x", producer_id=STRANGER, producer_epoch=0, base_sequence=5))
            self.log.producer_state.check(header, None, AppendOrigin.CLIENT, 0)
            self.has_forgotten = True
        except KafkaError:
            self.has_forgotten = False
        # A batch of a producer that the log has forgotten is not refused as one of a producer that it never had.
        assert self.has_forgotten or entries.keys() == everybody or self.start > 0
        assert self.may_forget or not self.has_forgotten

    def stable(self, start):
        """The last stable offset, if of the finished transactions those are known that are above `start`."""
        unstable = [known.opened for known in self.known.values() if known.opened >= 0]
        opened = {}
        for each in self.batches:
            if each.kind is not None:
                first = opened.pop(each.producer_id, None)
                if first is not None and each.offset >= self.high_watermark:
                    unstable.append(first)
            elif each.is_transactional and each.offset >= start:
                opened.setdefault(each.producer_id, each.offset)
        return max(self.start, min([self.high_watermark, *unstable]))

    def check(self):
        assert self.log.high_watermark == self.high_watermark
        entries = self.log.producer_state.entries
        assert {producer_id: said_of(entry) for producer_id, entry in entries.items()} == self.known
        assert self.log.last_stable_offset in [self.stable(start) for start in self.lost]

    def check_snapshots(self):
        """To Kafka, of a producer's entries the last one counts that has not expired."""
        for path in self.snapshots():
            newest = {}
            for entry in reversed(list(snapshot_entries(self.environment.file_system.read_file(path), path))):
                assert entry.batch.timestamp_ms <= newest.setdefault(entry.producer_id, entry.batch.timestamp_ms)


def play(steps):
    world = World()
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
        world.check()


producers = st.integers(0, 2)
counts = st.integers(1, 3)
flags = st.booleans()
kinds = st.sampled_from([COMMIT, ABORT])
waits = st.sampled_from([1, EXPIRATION_MS // 2, EXPIRATION_MS, EXPIRATION_MS])
nothing, newest, every = slice(0), slice(-1, None), slice(None)
damages = st.tuples(st.sampled_from(["remove", "tear"]), st.sampled_from([*[nothing] * 6, newest, every]))
writes = st.tuples(st.just("write_some"), producers, st.integers(1, 6), counts, st.sampled_from([False, False, True]))
repeats = st.tuples(st.just("again"), producers, st.integers(0, 6))
restarts = st.tuples(st.just("restart"), flags, damages)
# Each with the same chance, also where it is named twice.
steps = st.one_of(
    *[writes] * 5,
    *[repeats] * 2,
    *[restarts] * 4,
    st.tuples(st.just("plain"), counts),
    st.tuples(st.just("write"), producers, counts, flags, st.integers(0, 2)),
    st.tuples(st.just("write"), producers, counts, flags, st.just(0), st.sampled_from([1, -1])),
    st.tuples(st.just("near_the_wrap"), producers, counts),
    st.tuples(st.just("mark"), producers, kinds, st.just(0), st.just(1)),
    st.tuples(st.just("mark"), producers, kinds, st.integers(-1, 1), st.integers(0, 2)),
    *[st.tuples(st.just("transaction"), producers, kinds, st.integers(0, 4), flags)] * 2,
    *[st.tuples(st.just("roll"))] * 2,
    st.tuples(st.just("flush")),
    st.tuples(st.just("replicate"), st.integers(0, 4), flags),
    st.tuples(st.just("expire"), waits),
    st.tuples(st.just("delete_records"), st.integers(1, 8)),
    st.tuples(st.just("truncate"), st.integers(1, 5), st.integers(0, 1)),
)


@settings(max_examples=EXAMPLES)
@given(history=st.lists(steps, min_size=15, max_size=50))
def test_whatever_happens(history):
    play(history)


# -- faults that this model has found, which it must find again -------------------------------------------------------


def only_last_batches(patch):
    patch.setattr(producer_state, "PRODUCERS_WITH_ALL_BATCHES", 0)


def batches_that_outlive_the_last_one(patch):
    patch.setattr(producer_state, "min", lambda batch_ms, timestamp_ms: batch_ms, raising=False)


def expired_ones_forgotten(patch):
    to_snapshot = ProducerState.to_snapshot

    def without(state):
        with patch.context() as during:
            during.setattr(state, "_has_expired", False)
            return to_snapshot(state)

    patch.setattr(ProducerState, "to_snapshot", without)


def expired_ones_have_no_markers(patch):
    def has_markers(state):
        return any(entry.coordinator_epoch >= 0 for entry in state.entries.values())

    patch.setattr(ProducerState, "has_markers", property(has_markers))


KILL, STOP = ("restart", False, ("tear", nothing)), ("restart", True, ("tear", nothing))
TWO_BATCHES = [("write", 0, 1, False), ("write", 0, 1, False)]


@pytest.mark.parametrize(
    ("fault", "history"),
    [
        (only_last_batches, [*TWO_BATCHES, STOP]),
        (only_last_batches, [*TWO_BATCHES, ("roll",), ("flush",), KILL]),
        (batches_that_outlive_the_last_one, [("wait", 1), *TWO_BATCHES, ("mark", 0, COMMIT, 0, 1), STOP]),
        (expired_ones_have_no_markers, [("transaction", 0, ABORT, 1, True), ("expire", EXPIRATION_MS), STOP]),
        (expired_ones_forgotten, [*TWO_BATCHES, ("expire", EXPIRATION_MS), STOP]),
    ],
)
def test_the_model_finds_a_fault_again(monkeypatch, fault, history):
    play(history)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        play(history)
