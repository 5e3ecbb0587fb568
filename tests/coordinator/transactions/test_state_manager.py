"""Records that cannot be written, or of which that is not known; elections; loads."""

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from klamm.coordinator.ports import Appended, LogBatch
from klamm.coordinator.transactions.loader import load_transactions
from klamm.coordinator.transactions.records import transaction_key
from klamm.protocol.error_codes import ErrorCode, KafkaError
from support.coordination import after, settle
from support.transactions import P0, P1, StateLog, T, Transactions

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS

# What the log says, and what the client hears.
REFUSALS = [
    (ErrorCode.NOT_ENOUGH_REPLICAS, NOT_AVAILABLE),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_AVAILABLE),
    (ErrorCode.KAFKA_STORAGE_ERROR, NOT_COORDINATOR),
    (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.INVALID_REQUIRED_ACKS),
]
UNKNOWN = [
    (ErrorCode.REQUEST_TIMED_OUT, NOT_AVAILABLE),
    (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_AVAILABLE),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR),
]


@pytest.mark.parametrize(("error", "answer"), REFUSALS)
async def test_what_the_log_refuses_has_not_happened(error: ErrorCode, answer: ErrorCode) -> None:
    c = await Transactions.elected()
    c.log.error = error
    assert await c.init() == (answer, -1, -1)
    assert c.coordinator.describe_transaction(T).error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    c.log.error = NONE
    producer = await c.ongoing()
    written = c.log.states()
    c.log.error = error
    assert await c.add(producer, P1) is answer
    assert await c.end(producer, True) is answer
    assert await c.end(producer, False) is answer
    assert await c.init() == (answer, -1, -1)
    assert c.state() == "Ongoing"
    c.log.error = NONE
    # The producer was not fenced, and may still do everything.
    assert await c.end(producer) is NONE
    await settle()
    assert c.log.states() == [*written, "PrepareCommit", "CompleteCommit"]
    assert c.leaders.markers == {P0: [(*producer, True, 5)]}
    await c.stop()


@pytest.mark.parametrize(("error", "answer"), UNKNOWN)
async def test_a_commit_with_an_unknown_outcome_stays_a_commit(error: ErrorCode, answer: ErrorCode) -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.error = error
    assert await c.end(producer) is answer
    # The next leader may have the record, so nothing else may be promised.
    assert await c.end(producer, committed=False) is CONCURRENT
    assert await c.add(producer, P0) is CONCURRENT
    assert (await c.init()).error_code is CONCURRENT
    assert c.leaders.requests == []
    c.log.error = NONE
    await after(0.2)
    assert await c.end(producer) is NONE
    assert c.leaders.markers == {P0: [(1000, 0, True, 5)]}
    assert c.log.states() == ["Empty", "Ongoing", "PrepareCommit", "PrepareCommit", "CompleteCommit", "CompleteCommit"]
    await c.stop()


@pytest.mark.parametrize(("error", "answer"), UNKNOWN)
async def test_a_fencing_with_an_unknown_outcome_is_completed(error: ErrorCode, answer: ErrorCode) -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.error = error
    assert (await c.init()).error_code is answer
    assert await c.end(producer) is CONCURRENT
    c.log.error = NONE
    await after(0.2)
    assert await c.end(producer) is ErrorCode.PRODUCER_FENCED
    assert c.leaders.markers == {P0: [(1000, 1, False, 5)]}
    await c.stop()


async def test_a_timeout_with_an_unknown_outcome_is_completed() -> None:
    c = await Transactions.elected()
    await c.ongoing(timeout_ms=5_000)
    c.log.error = ErrorCode.REQUEST_TIMED_OUT
    await after(60)
    assert c.leaders.requests == []
    c.log.error = NONE
    await after(6)
    # However often it was written, it is one epoch.
    assert {one.producer.epoch for one in c.log.history() if one is not None} == {0, 1}
    assert c.leaders.markers == {P0: [(1000, 1, False, 5)]}
    await c.stop()


async def test_an_expiration_with_an_unknown_outcome_is_completed() -> None:
    c = await Transactions.elected(transactional_id_expiration_ms=1)
    producer = await c.producer()
    c.log.error = ErrorCode.REQUEST_TIMED_OUT
    await after(3_601)
    assert await c.add(producer, P0) is CONCURRENT
    assert (await c.init()).error_code is CONCURRENT
    c.log.error = NONE
    await after(6)
    assert await c.producer() == (1001, 0)
    await c.stop()


async def test_an_unknown_outcome_is_not_settled_by_a_refusal() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.error = ErrorCode.REQUEST_TIMED_OUT
    assert await c.end(producer) is NOT_AVAILABLE
    c.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    await after(30)
    assert await c.end(producer, committed=False) is CONCURRENT
    c.log.error = NONE
    await after(6)
    assert c.state() == "CompleteCommit"
    await c.stop()


async def test_the_end_of_a_transaction_is_written_until_the_log_takes_it() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.leaders.delay_s = 1
    assert await c.end(producer) is NONE
    for error, _ in REFUSALS:
        c.log.error = error
        await after(10)
        assert c.state() == "PrepareCommit"
        assert await c.add(producer, P0) is CONCURRENT
    c.log.error = NONE
    await after(6)
    assert c.state() == "CompleteCommit"
    assert len(c.leaders.requests) == 1
    await c.stop()


async def test_retries_become_rarer() -> None:
    c = await Transactions.elected()
    c.log.error = ErrorCode.REQUEST_TIMED_OUT
    await c.init()
    await after(3_600)
    assert 700 < c.log.append_count < 740
    await c.stop()


async def test_a_client_that_hangs_up_changes_nothing() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.delay_s = 5
    asked = c.spawn(c.end(producer))
    await after(1)
    asked.cancel()
    await after(10)
    assert c.state() == "CompleteCommit"
    assert c.leaders.markers == {P0: [(1000, 0, True, 5)]}
    await c.stop()


async def test_a_fault_of_the_log_is_reported_and_no_client_waits_for_ever() -> None:
    class Broken(StateLog):
        async def append(self, *_: object) -> Appended:
            raise RuntimeError("broken")

    c = await Transactions.elected(Broken())
    with pytest.raises(asyncio.CancelledError):
        await c.init()
    assert [str(error) for error in c.failures] == ["broken"]
    c.failures.clear()
    await c.stop()


# -- elections --------------------------------------------------------------------------------------------------------


async def test_a_client_that_waits_for_a_record_hears_of_the_lost_leadership_at_once() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.delay_s = 100
    asked = [c.spawn(c.end(producer)), c.spawn(c.init("other")), c.spawn(c.init("third"))]
    await after(1)
    c.resign(6)
    await settle()
    assert [task.done() for task in asked] == [True] * 3
    assert await asked[0] is NOT_COORDINATOR
    assert (await asked[1]).error_code is NOT_COORDINATOR
    await after(200)
    assert c.leaders.requests == []
    await c.stop()


@pytest.mark.parametrize("elected_again", [False, True])
async def test_a_commit_that_is_in_the_log_when_the_leadership_changes_is_completed_by_the_next_leader(
    elected_again: bool,
) -> None:
    c = await Transactions.elected()
    producer = await c.ongoing(P0, P1)
    c.log.delay_s = 100
    asked = c.spawn(c.end(producer))
    await after(1)
    c.resign(6)
    assert await asked is NOT_COORDINATOR
    c.log.delay_s = 0
    other = c if elected_again else Transactions(c.log, c.leaders)
    await other.elect(7)
    await settle()
    assert c.leaders.markers == {P0: [(1000, 0, True, 7)], P1: [(1000, 0, True, 7)]}
    # What the first leader appended ends now, and means nothing to it.
    await after(200)
    assert len(c.leaders.requests) == 1
    assert c.log.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    await other.stop()
    await c.stop()


async def test_a_retry_ends_with_the_leadership() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.error = ErrorCode.REQUEST_TIMED_OUT
    await c.end(producer)
    c.resign(6)
    count = c.log.append_count
    await after(60)
    assert c.log.append_count == count
    await c.stop()


async def test_nothing_of_the_old_leadership_counts_after_the_next_election() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.error, c.log.delay_s = ErrorCode.NOT_ENOUGH_REPLICAS, 50
    asked = c.spawn(c.end(producer, committed=False))
    await after(1)
    c.log.error, c.log.delay_s = NONE, 0
    c.resign(6)
    assert await asked is NOT_COORDINATOR
    await c.elect(7)
    c.log.delay_s = 100
    again = c.spawn(c.end(producer))
    # The refusal of the first record comes while the second is written.
    await after(60)
    assert await c.add(producer, P1) is CONCURRENT
    await after(60)
    assert await again is NONE
    await after(200)
    assert c.state() == "CompleteCommit"
    await c.stop()


async def test_outdated_elections_and_resignations_are_ignored() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.resign(4)
    assert c.state() == "Ongoing"
    c.resign(6)
    await c.elect(5)
    assert await c.end(producer) is NOT_COORDINATOR
    # The replica was removed, and the topic may begin anew.
    c.resign(None)
    await c.elect(0)
    assert await c.end(producer) is NONE
    await c.stop()


async def test_a_newer_epoch_without_another_leader_is_that_of_the_next_markers() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    await c.elect(9)
    assert c.state() == "Ongoing"
    assert await c.end(producer) is NONE
    await settle()
    assert c.leaders.markers == {P0: [(1000, 0, True, 9)]}
    await c.stop()


async def test_a_load_ends_with_the_leadership_whatever_its_epoch_was() -> None:
    c = Transactions()
    c.log.readable.clear()
    await c.elect(5)
    c.resign(8)
    c.log.readable.set()
    await settle()
    assert c.coordinator.describe_transaction(T).error_code is NOT_COORDINATOR
    await c.stop()


async def test_nothing_is_answered_or_marked_before_the_end_of_the_log_is_on_all_replicas() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.leaders.dead.add(1)
    assert await c.end(producer) is NONE
    c.resign(6)
    c.leaders.dead.clear()
    c.log.committed.clear()
    await c.elect(7)
    await after(10)
    assert await c.end(producer) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert c.leaders.markers == {}
    c.log.committed.set()
    await settle()
    assert c.leaders.markers == {P0: [(1000, 0, True, 7)]}
    await c.stop()


async def test_the_end_of_the_log_is_waited_for_again_and_not_read_again(caplog: pytest.LogCaptureFixture) -> None:
    c = Transactions()
    c.log.wait_errors = [KafkaError(ErrorCode.REQUEST_TIMED_OUT, "slow")] * 3
    await c.elect(7)
    await after(10)
    assert await c.producer() == (1000, 0)
    assert c.log.waits == 4
    assert sum("could not be loaded; retrying" in record.message for record in caplog.records) == 3
    await c.stop()


async def test_a_log_that_cannot_be_read_to_its_end_is_read_again() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.resign(6)
    c.log.read_errors = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "bad"), OSError("worse")]
    await c.elect(7)
    assert await c.end(producer) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await after(5)
    assert await c.end(producer) is NONE
    await c.stop()


async def test_a_load_that_fails_because_the_leadership_was_lost_ends() -> None:
    c = Transactions()
    c.log.read_errors = [KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")]
    c.log.led.clear()
    await c.elect()
    assert (await c.init()).error_code is NOT_COORDINATOR
    await c.stop()


async def test_ids_that_belong_to_another_partition_now_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.resign(6)
    c.partition_of[T] = 3
    await c.elect(7)
    await after(24 * 3_600)
    assert c.log.states() == ["Empty", "Ongoing"]
    assert await c.end(producer) is NOT_COORDINATOR
    assert f"holds transactional id {T}, which belongs to partition 3 now" in caplog.text
    # While the number of partitions is unknown, no id belongs elsewhere.
    c.resign(8)
    c.partition_of[T] = -1
    await c.elect(9)
    assert await c.end(producer) is NOT_COORDINATOR
    c.partition_of[T] = 0
    assert await c.end(producer) is NONE
    await c.stop()


async def test_an_id_whose_record_is_broken_cannot_be_used_and_others_can(caplog: pytest.LogCaptureFixture) -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    other = await c.ongoing(transactional_id="other")
    c.resign(6)
    c.log.write(0, [(transaction_key(T), b"\x00\x09")])
    with caplog.at_level(logging.ERROR):
        await c.elect(7)
    assert caplog.messages == [
        "__transaction_state-0 has a broken record at offset 4; transactional id txn cannot be used:"
        " a value of version 9, known are 0 to 1 at byte 0"
    ]
    broken = ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await c.init()).error_code is broken
    assert c.coordinator.describe_transaction(T).error_code is broken
    assert await c.end(producer) is broken
    assert await c.add(producer, P0) is broken
    assert await c.end(other, transactional_id="other") is NONE
    await c.stop()


async def test_records_of_other_kinds_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    c = Transactions()
    c.log.write(0, [(b"\x00\x01kind", b""), (b"\x00\x02kind", b""), (b"", b""), (b"\x00\x00\x00\x09", b"")])
    with caplog.at_level(logging.WARNING):
        await c.elect()
    assert caplog.messages == [
        "__transaction_state-0 has a record with a broken key at offset 3; skipped: a length of 9, but 0 bytes are left"
        " at byte 4",
        "__transaction_state-0 has a record with a broken key at offset 2; skipped: the record ends too early at byte"
        " 0",
        "__transaction_state-0 has 2 records with keys of an unknown version; skipped",
    ]
    assert await c.producer() == (1000, 0)
    await c.stop()


async def test_everything_that_was_written_is_loaded_and_nothing_that_was_removed() -> None:
    c = await Transactions.elected(transactional_id_expiration_ms=2 * 3_600_000)
    gone = await c.producer("gone")
    await after(2.5 * 3_600)
    producer = await c.ongoing(P0, P1)
    await c.producer("idle")
    await after(3_600)
    described = [c.coordinator.describe_transaction(name) for name in (T, "idle", "gone")]
    c.resign(6)
    await c.elect(7)
    assert [c.coordinator.describe_transaction(name) for name in (T, "idle", "gone")] == described
    assert await c.add(gone, P0, transactional_id="gone") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    del producer
    await c.stop()


async def test_a_load_needs_no_memory_for_ids_that_were_removed() -> None:
    async def log() -> AsyncIterator[LogBatch]:
        for start in range(0, 10_000, 1_000):
            keys = [(offset, transaction_key(f"gone-{offset}")) for offset in range(start, start + 1_000)]
            yield LogBatch(start, [(offset, key, b"a state") for offset, key in keys])
            yield LogBatch(start, [(offset, key, None) for offset, key in keys])

    tracemalloc.start()
    try:
        loaded = await load_transactions(0, log(), lambda _: True)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert loaded == ({}, set())


async def test_after_a_move_a_producer_that_repeats_its_request_for_an_epoch_is_fenced_as_in_kafka() -> None:
    """The epoch before is not in the log."""
    c = await Transactions.elected()
    producer = await c.producer()
    assert await c.init(expected=producer) == (NONE, 1000, 1)
    c.resign(6)
    await c.elect(7)
    assert (await c.init(expected=producer)).error_code is ErrorCode.PRODUCER_FENCED
    await c.stop()


async def test_stopping_answers_everybody_and_may_be_repeated() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.log.delay_s = 10
    asked = c.spawn(c.end(producer))
    await settle()
    await c.stop()
    assert await asked is NOT_COORDINATOR
    await c.stop()
    c.coordinator.on_election(0, 9)
    c.coordinator.on_resignation(0, 9)
    assert await c.end(producer) is NOT_AVAILABLE
    await after(20)
