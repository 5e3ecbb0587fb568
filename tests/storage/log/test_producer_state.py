import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.record.records import ControlRecordType, EndTransactionMarker
from klamm.storage.log import producer_state
from klamm.storage.log.producer_state import BATCHES_TO_RETAIN, AppendOrigin, ProducerState

MAX = 2**31 - 1
CLIENT, COORDINATOR, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION
TRANSACTIONAL, CONTROL = 0x10, 0x30


def data(offset, sequence, count=1, producer=1, epoch=0, attributes=0, timestamp=1000):
    return BatchHeader(offset, 49, 0, 2, 0, attributes, count - 1, 0, timestamp, producer, epoch, sequence, count)


def end(offset, producer=1, epoch=0):
    return BatchHeader(offset, 49, 0, 2, 0, CONTROL, 0, 0, 2000, producer, epoch, -1, 1)


COMMIT = EndTransactionMarker(ControlRecordType.COMMIT, 0)
ABORT = EndTransactionMarker(ControlRecordType.ABORT, 0)


def check(state, header, marker=None, origin=CLIENT, log_start_offset=0):
    state.check(header, marker, origin, log_start_offset)


def refused(state, header, marker=None, origin=CLIENT):
    with pytest.raises(KafkaError) as caught:
        check(state, header, marker, origin)
    return caught.value.code


def test_an_unknown_producer_begins_with_sequence_0():
    state = ProducerState()
    assert refused(state, data(0, 17)) == ErrorCode.UNKNOWN_PRODUCER_ID
    check(state, data(0, 0))
    state.update(data(0, 0, producer=2), None)
    assert refused(state, data(1, 17)) == ErrorCode.UNKNOWN_PRODUCER_ID


def expired():
    state = ProducerState()
    state.update(data(0, 16, timestamp=1000), None)
    in_one_go(state.remove_expired(2000, 1000))
    return state


@pytest.mark.parametrize(
    ("state", "origin", "log_start_offset"),
    [(ProducerState(), CLIENT, 1), (expired(), CLIENT, 0), (ProducerState(), REPLICATION, 0)],
    ids=["records were deleted", "a producer has expired", "a leader's batch"],
)
def test_a_producer_that_may_have_been_forgotten_continues_anywhere(state, origin, log_start_offset):
    check(state, data(1, 17), None, origin, log_start_offset)


def test_a_snapshot_tells_that_a_producer_has_been_forgotten():
    state = expired()
    again = ProducerState.from_snapshot(state.to_snapshot(), state.end_offset, "f")
    check(again, data(1, 17))
    assert (dict(again.entries), again.has_had_producers) == ({}, True)
    assert again.to_snapshot() == state.to_snapshot()
    # Kafka leaves this entry out: to Kafka its producer has expired, too.
    [entry] = producer_state.snapshot_entries(state.to_snapshot(), "f")
    assert (entry.producer_id, entry.batch.timestamp_ms, entry.transaction_first_offset) == (-1, -1, -1)


def test_a_producer_continues_where_it_ended():
    state = ProducerState()
    state.update(data(0, 17), None)
    assert refused(state, data(1, 19)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(state, data(1, 18), None, CLIENT)


@pytest.mark.parametrize(
    ("last", "first", "allowed"), [(4, 5, True), (4, 6, False), (4, 4, False), (MAX, 0, True), (MAX - 1, 0, False)]
)
def test_sequences_follow_each_other_and_wrap(last, first, allowed):
    state = ProducerState()
    state.update(data(0, last), None)
    if allowed:
        check(state, data(1, first), None, CLIENT)
    else:
        assert refused(state, data(1, first)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_across_the_wrap():
    state = ProducerState()
    state.update(data(0, MAX - 1, count=5), None)
    assert state.entries[1].last_sequence == 2
    duplicate = state.find_duplicate(data(0, MAX - 1, count=5))
    assert duplicate is not None and duplicate.first_sequence == MAX - 1
    check(state, data(5, 3), None, CLIENT)


def test_a_new_epoch_begins_at_zero_and_an_old_one_is_fenced():
    state = ProducerState()
    state.update(data(0, 5, epoch=3), None)
    assert refused(state, data(1, 6, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(state, data(1, 0, epoch=4), None, CLIENT)
    for origin in (CLIENT, COORDINATOR):
        assert refused(state, data(1, 0, epoch=2), origin=origin) == ErrorCode.INVALID_PRODUCER_EPOCH
    state.update(data(1, 0, epoch=4), None)
    assert state.find_duplicate(data(0, 5, epoch=3)) is None


def test_coordinators_need_no_sequence():
    state = ProducerState()
    state.update(data(0, 5), None)
    check(state, data(1, -1), None, COORDINATOR)


def test_five_batches_are_remembered():
    state = ProducerState()
    for i in range(7):
        state.update(data(10 * i, 10 * i, count=10), None)
    found = [state.find_duplicate(data(0, 10 * i, count=10)) for i in range(7)]
    assert [batch and batch.first_offset for batch in found] == [None, None, 20, 30, 40, 50, 60]
    # Only the very same range is a duplicate.
    assert state.find_duplicate(data(0, 60, count=9)) is None
    assert state.find_duplicate(data(0, 61, count=9)) is None
    assert state.find_duplicate(data(0, 60, count=10, epoch=1)) is None


def test_no_plain_batch_within_a_transaction():
    state = ProducerState()
    state.update(data(0, 0, attributes=TRANSACTIONAL), None)
    assert refused(state, data(1, 1)) == ErrorCode.INVALID_TXN_STATE
    check(state, data(1, 1, attributes=TRANSACTIONAL), None, CLIENT)
    state.update(end(1), COMMIT)
    check(state, data(2, 1), None, CLIENT)


def test_markers():
    state = ProducerState()
    state.update(data(0, 0, attributes=TRANSACTIONAL, producer=1), None)
    state.update(data(1, 0, attributes=TRANSACTIONAL, producer=2), None)
    assert state.first_unstable_offset == 0
    completed = state.update(end(2, producer=1), ABORT)
    assert completed == (1, 0, 2, True, 1)
    # Stable only when the high watermark has passed the marker.
    assert state.first_unstable_offset == 0
    state.high_watermark_updated(2)
    assert state.first_unstable_offset == 0
    state.high_watermark_updated(3)
    assert state.first_unstable_offset == 1
    assert state.update(end(3, producer=2), COMMIT) == (2, 1, 3, False, 4)
    state.high_watermark_updated(4)
    assert state.first_unstable_offset is None
    # Without data there is nothing to complete.
    assert state.update(end(4, producer=2), ABORT) is None
    assert state.end_offset == 5


def test_a_marker_of_a_higher_epoch_forgets_the_batches():
    state = ProducerState()
    state.update(data(0, 7, epoch=1), None)
    state.update(end(1, epoch=2), COMMIT)
    assert state.entries[1].last_sequence == -1
    assert refused(state, data(2, 8, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(state, data(2, 0, epoch=2), None, CLIENT)


def test_an_old_coordinator_is_fenced():
    state = ProducerState()
    state.update(end(0), EndTransactionMarker(ControlRecordType.COMMIT, 5))
    old = EndTransactionMarker(ControlRecordType.COMMIT, 4)
    assert refused(state, end(1), old, COORDINATOR) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_idle_producers_expire_unless_a_transaction_is_open():
    state = ProducerState()
    state.update(data(0, 0, producer=1, timestamp=1000), None)
    state.update(data(1, 0, producer=2, timestamp=1000, attributes=TRANSACTIONAL), None)
    state.update(data(2, 0, producer=3, timestamp=1500), None)
    in_one_go(state.remove_expired(1999, 1000))
    assert set(state.entries) == {1, 2, 3}
    in_one_go(state.remove_expired(2000, 1000))
    assert set(state.entries) == {2, 3}


def test_the_snapshot_is_kafkas():
    state = ProducerState(12)
    state.update(data(10, 3, count=2, producer=0x0102, epoch=5, attributes=TRANSACTIONAL, timestamp=99), None)
    content = state.to_snapshot()
    assert content[:2] == b"\0\1"
    assert content[6:10] == b"\0\0\0\1"
    assert content[10:].hex() == (
        "0000000000000102" "0005" "00000004" "000000000000000b" "00000001" "0000000000000063" "ffffffff"
        "000000000000000a"
    )  # fmt: skip
    again = ProducerState.from_snapshot(content, 12, "f")
    assert again.to_snapshot() == content
    assert again.first_unstable_offset == 10
    assert ProducerState(3).to_snapshot().hex() == "0001" + "48674bc7" + "00000000"


def test_the_last_batches_of_a_producer_survive_a_snapshot():
    state = ProducerState()
    for number in range(BATCHES_TO_RETAIN + 2):
        state.update(data(3 * number, 2 * number, count=2, producer=number % 2, timestamp=number), None)
    again = ProducerState.from_snapshot(state.to_snapshot(), state.end_offset, "f")
    assert [entry.batches for entry in again.entries.values()] == [entry.batches for entry in state.entries.values()]
    assert [len(entry.batches) for entry in again.entries.values()] == [4, 3]
    assert again.to_snapshot() == state.to_snapshot()


def test_no_earlier_batch_of_a_snapshot_expires_after_its_producers_last_one():
    """Kafka loads the entries that have not expired, and takes a producer's last one of these for its last batch."""
    state = ProducerState()
    for number, timestamp in enumerate((9000, 500, 3000, 1000)):
        state.update(data(number, number, timestamp=timestamp), None)
    batches = [entry.batch for entry in producer_state.snapshot_entries(state.to_snapshot(), "f")]
    assert [batch.last_sequence for batch in batches] == [0, 1, 2, 3]
    assert [batch.timestamp_ms for batch in batches] == [1000, 500, 1000, 1000]


def test_a_snapshot_of_many_producers_has_their_last_batches(monkeypatch):
    monkeypatch.setattr(producer_state, "PRODUCERS_WITH_ALL_BATCHES", 1)
    state = ProducerState()
    for number in range(4):
        state.update(data(number, number // 2, producer=number % 2), None)
    again = ProducerState.from_snapshot(state.to_snapshot(), 4, "f")
    assert [entry.batches for entry in again.entries.values()] == [
        entry.batches[-1:] for entry in state.entries.values()
    ]


@pytest.mark.parametrize(
    "break_order",
    [
        lambda batches: batches.reverse(),
        lambda batches: batches.append(batches[-1]),
        lambda batches: batches.extend(batches[-1]._replace(last_offset=100 + number) for number in range(9)),
    ],
)
def test_a_snapshot_whose_batches_do_not_follow_each_other_is_refused(break_order):
    state = ProducerState()
    for number in range(2):
        state.update(data(number, number), None)
    break_order(state.entries[1].batches)
    with pytest.raises(KafkaError, match="does not continue the one before"):
        ProducerState.from_snapshot(state.to_snapshot(), 200, "f")


def test_a_snapshot_with_a_batch_behind_its_offset_is_refused():
    state = ProducerState()
    for number in range(2):
        state.update(data(number, number), None)
    with pytest.raises(KafkaError, match="producer 1 has a batch behind the snapshot's offset"):
        ProducerState.from_snapshot(state.to_snapshot(), 1, "f")


@pytest.mark.parametrize(("first", "second"), [(10, 10), (10, 12), (13, 10), (2**63 - 1, -1)])
def test_a_snapshot_with_impossible_transactions_is_refused(first, second):
    state = ProducerState()
    for producer, first_offset in enumerate((first, second)):
        state.update(data(producer, 0, producer=producer), None)
        state.entries[producer].transaction_first_offset = first_offset
    with pytest.raises(KafkaError, match="can begin at offset"):
        ProducerState.from_snapshot(state.to_snapshot(), 12, "f")


@given(st.binary(max_size=80))
def test_garbage_snapshots_are_refused(content):
    with pytest.raises(KafkaError, match="f: "):
        ProducerState.from_snapshot(content, 0, "f")


@given(st.data())
def test_every_byte_of_a_snapshot_counts(picked):
    state = ProducerState()
    for i in range(3):
        state.update(data(i, 0, producer=i), None)
    content = bytearray(state.to_snapshot())
    position = picked.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << picked.draw(st.integers(0, 7))
    with pytest.raises(KafkaError):
        ProducerState.from_snapshot(bytes(content), 3, "f")
    with pytest.raises(KafkaError):
        ProducerState.from_snapshot(state.to_snapshot()[:position], 3, "f")
