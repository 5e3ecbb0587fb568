"""The transaction coordinator: what each request does, and what time does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from klamm.base.slices import in_slices
from klamm.coordinator.transactions.coordinator import ListedTransaction, TransactionDescription, TransactionListing
from klamm.coordinator.transactions.records import transaction_key, transaction_value
from klamm.coordinator.transactions.states import TransactionState
from klamm.coordinator.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from klamm.protocol.error_codes import ErrorCode, KafkaError
from support.coordination import NOW_MS, after, settle
from support.opcodes import counted_steps
from support.transactions import MINUTE_MS, P0, P1, StateLog, T, Transactions

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
Request = Callable[[Transactions], Awaitable[ErrorCode]]


async def test_a_transaction_is_committed_in_all_its_partitions() -> None:
    c = await Transactions.elected()
    producer = await c.producer()
    assert producer == (1000, 0)
    assert await c.add(producer, P0) is NONE
    assert await c.add(producer, P0, P1) is NONE
    assert await c.end(producer) is NONE
    await settle()
    assert c.leaders.markers == {P0: [(1000, 0, True, 5)], P1: [(1000, 0, True, 5)]}
    assert c.log.states() == ["Empty", "Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert c.state() == "CompleteCommit"
    await c.stop()


async def test_a_transaction_is_aborted_and_the_next_one_of_the_same_producer_is_committed() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    assert await c.end(producer, committed=False) is NONE
    await settle()
    assert await c.add(producer, P1) is NONE
    assert await c.end(producer) is NONE
    await settle()
    assert c.leaders.markers == {P0: [(1000, 0, False, 5)], P1: [(1000, 0, True, 5)]}
    await c.stop()


async def test_partitions_may_be_added_again() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing(P0, P1)
    assert await c.add(producer, P1) is NONE
    assert c.coordinator.describe_transaction(T).partitions == {P0: None, P1: None}
    await c.stop()


async def test_a_coordinator_that_was_replaced_without_noticing_confirms_nothing() -> None:
    """The producer has begun its next transaction at the next coordinator, in the same epoch."""
    c = await Transactions.elected()
    producer = await c.ongoing()
    assert await c.end(producer) is NONE
    open_here = await c.ongoing(transactional_id="other")
    await settle()
    c.log.error = ErrorCode.REQUEST_TIMED_OUT
    assert await c.end(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await c.add(open_here, P0, transactional_id="other") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await c.stop()


async def test_a_transaction_without_partitions_ends_without_markers() -> None:
    c = await Transactions.elected()
    producer = await c.producer()
    assert await c.add(producer) is NONE
    assert c.state() == "Ongoing"
    assert await c.end(producer) is NONE
    await settle()
    assert c.leaders.requests == []
    assert c.state() == "CompleteCommit"
    await c.stop()


@pytest.mark.parametrize(
    ("was_committed", "committed", "answer"),
    [
        (True, True, NONE),
        (True, False, ErrorCode.INVALID_TXN_STATE),
        (False, False, NONE),
        (False, True, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_an_end_that_is_repeated_has_the_same_answer_and_no_effect(
    was_committed: bool, committed: bool, answer: ErrorCode
) -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    assert await c.end(producer, was_committed) is NONE
    await settle()
    assert await c.end(producer, committed) is answer
    await settle()
    assert len(c.leaders.requests) == 1
    assert c.log.states()[3:] == [c.state()] * (2 if answer is NONE else 1)
    await c.stop()


async def test_nothing_can_be_ended_before_it_has_begun() -> None:
    c = await Transactions.elected()
    producer = await c.producer()
    for committed in (True, False):
        assert await c.end(producer, committed) is ErrorCode.INVALID_TXN_STATE
    await c.stop()


async def test_requests_wait_for_the_markers_of_the_last_transaction() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.leaders.delay_s = 10
    assert await c.end(producer) is NONE
    assert c.state() == "PrepareCommit"
    assert await c.add(producer, P1) is CONCURRENT
    assert await c.end(producer, True) is CONCURRENT
    assert await c.end(producer, False) is CONCURRENT
    assert (await c.init()).error_code is CONCURRENT
    await after(11)
    assert await c.add(producer, P1) is NONE
    await c.stop()


async def test_the_next_transaction_begins_as_soon_as_the_last_one_has_ended() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.leaders.delay_s = 0.05
    assert await c.end(producer) is NONE
    adding = [c.spawn(c.add(producer, P1)), c.spawn(c.add((producer[0], 7), P1))]
    await settle()
    # A producer with another epoch waits for nothing.
    assert [task.done() for task in adding] == [False, True]
    await after(0.04)
    assert not adding[0].done()
    await after(0.02)
    assert [task.result() for task in adding] == [NONE, FENCED]
    assert c.log.states()[-3:] == ["PrepareCommit", "CompleteCommit", "Ongoing"]
    await c.stop()


async def test_a_request_that_waits_for_the_end_of_a_transaction_is_answered_when_the_coordinator_moves() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    c.leaders.delay_s = 0.05
    assert await c.end(producer) is NONE
    adding = c.spawn(c.add(producer, P1))
    await settle()
    c.resign()
    await settle()
    assert adding.result() is ErrorCode.NOT_COORDINATOR
    await c.stop()


# -- InitProducerId ---------------------------------------------------------------------------------------------------


async def test_a_producer_without_a_transactional_id_gets_an_id_of_its_own() -> None:
    c = Transactions()  # It needs no partition of the topic.
    assert await c.coordinator.init_producer_id(None, 0) == (NONE, 1000, 0)
    assert await c.coordinator.init_producer_id(None, -1) == (NONE, 1001, 0)
    await c.stop()


@pytest.mark.parametrize(
    ("timeout_ms", "answer"),
    [
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (-(2**31), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (1, NONE),
        (15 * MINUTE_MS, NONE),
        (15 * MINUTE_MS + 1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (2**31 - 1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
async def test_a_timeout_is_within_the_maximum(timeout_ms: int, answer: ErrorCode) -> None:
    c = await Transactions.elected()
    assert (await c.init(timeout_ms=timeout_ms)).error_code is answer
    await c.stop()


async def test_the_next_producer_with_the_same_id_fences_the_one_before() -> None:
    c = await Transactions.elected()
    first = await c.producer()
    second = await c.producer()
    assert (first, second) == ((1000, 0), (1000, 1))
    assert await c.add(first, P0) is FENCED
    assert await c.end(first) is FENCED
    assert await c.add(second, P0) is NONE
    await c.stop()


async def test_the_next_producer_aborts_the_transaction_of_the_one_before() -> None:
    c = await Transactions.elected()
    first = await c.ongoing(P0, P1)
    assert await c.init() == (CONCURRENT, -1, -1)
    await settle()
    # The partitions refuse the first producer from its fencing on.
    assert c.leaders.markers == {P0: [(1000, 1, False, 5)], P1: [(1000, 1, False, 5)]}
    assert await c.producer() == (1000, 2)
    assert await c.end(first) is FENCED
    assert c.log.states() == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]
    await c.stop()


async def test_a_producer_that_names_its_epoch_gets_the_next_one_and_again_the_same() -> None:
    c = await Transactions.elected()
    producer = await c.producer()
    assert await c.init(expected=producer) == (NONE, 1000, 1)
    assert await c.init(expected=producer) == (NONE, 1000, 1)
    assert await c.init(expected=(1000, 1)) == (NONE, 1000, 2)
    # That is two epochs ago.
    assert (await c.init(expected=producer)).error_code is FENCED
    assert (await c.init(expected=(999, 2))).error_code is FENCED
    await c.stop()


async def test_a_producer_that_names_its_epoch_is_fenced_if_another_one_has_begun() -> None:
    c = await Transactions.elected()
    first = await c.producer()
    second = await c.producer()
    assert (await c.init(expected=first)).error_code is FENCED
    assert await c.init(expected=second) == (NONE, 1000, 2)
    await c.stop()


async def test_a_fenced_producer_does_not_abort_the_transaction_of_its_successor() -> None:
    c = await Transactions.elected()
    first = await c.producer()
    second = await c.ongoing()
    assert (await c.init(expected=first)).error_code is FENCED
    assert c.state() == "Ongoing"
    assert await c.end(second) is NONE
    await c.stop()


async def test_a_repeated_request_for_an_epoch_that_comes_late_does_not_abort_the_transaction() -> None:
    c = await Transactions.elected()
    before = await c.producer()
    assert await c.init(expected=before) == (NONE, 1000, 1)
    assert await c.add((1000, 1), P0) is NONE
    assert (await c.init(expected=before)).error_code is FENCED
    assert await c.end((1000, 1)) is NONE
    await c.stop()


async def test_a_producer_that_asks_for_an_epoch_in_its_own_transaction_is_not_fenced_by_the_abort() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing()
    assert (await c.init(expected=producer)).error_code is CONCURRENT
    await settle()
    assert c.leaders.markers == {P0: [(1000, 1, False, 5)]}
    assert await c.init(expected=producer) == (NONE, 1000, 1)
    assert await c.add((1000, 1), P0) is NONE
    await c.stop()


async def test_a_producer_with_an_id_that_is_not_known_any_longer_gets_a_new_one() -> None:
    c = await Transactions.elected()
    assert await c.init(expected=(7, 3)) == (NONE, 1000, 0)
    await c.stop()


def with_epoch(epoch: int, state_log: StateLog, state: str = "Empty") -> None:
    """A log in which the producer 1000 has this epoch."""
    number = {"Empty": 0, "Ongoing": 1, "CompleteAbort": 5}[state]
    partitions = {P0: None} if state == "Ongoing" else {}
    metadata = TransactionMetadata(
        ProducerIdAndEpoch(1000, epoch), MINUTE_MS, TransactionState(number), partitions, NOW_MS, NOW_MS
    )
    state_log.write(0, [(transaction_key(T), transaction_value(metadata))])


async def test_when_the_epochs_are_used_up_the_producer_gets_a_new_id() -> None:
    log = StateLog()
    with_epoch(32_765, log)
    c = await Transactions.elected(log)
    c.ids.given = 2000
    assert await c.init() == (NONE, 1000, 32_766)
    assert await c.init() == (NONE, 2000, 0)
    assert await c.add((1000, 32_766), P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    await c.stop()


async def test_a_producer_that_names_the_last_epoch_gets_a_new_id_and_again_the_same() -> None:
    log = StateLog()
    with_epoch(32_766, log)
    c = await Transactions.elected(log)
    c.ids.given = 2000
    assert (await c.init(expected=(1000, 32_765))).error_code is FENCED
    assert await c.init(expected=(1000, 32_766)) == (NONE, 2000, 0)
    assert await c.init(expected=(1000, 32_766)) == (NONE, 2000, 0)
    assert await c.init(expected=(2000, 0)) == (NONE, 2000, 1)
    await c.stop()


async def test_the_last_epoch_can_still_be_fenced_and_is_given_to_no_producer() -> None:
    for expected in (None, (1000, 32_766)):
        log = StateLog()
        with_epoch(32_766, log, "Ongoing")
        c = await Transactions.elected(log)
        c.ids.given = 2000
        assert (await c.init(expected=expected)).error_code is CONCURRENT
        await settle()
        assert c.leaders.markers == {P0: [(1000, 32_767, False, 5)]}
        assert await c.init(expected=expected) == (NONE, 2000, 0)
        await c.stop()


async def test_when_there_is_no_producer_id_the_client_hears_why_and_may_try_again() -> None:
    c = await Transactions.elected()
    c.ids.failure = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "ZooKeeper does not answer")
    assert await c.init() == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    assert await c.coordinator.init_producer_id(None, 1) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    c.ids.failure = None
    assert await c.init() == (NONE, 1000, 0)
    await c.stop()


async def test_two_producers_that_begin_together_do_not_get_the_same_epoch() -> None:
    c = await Transactions.elected()
    c.ids.delay_s = c.log.delay_s = 1
    results = await asyncio.gather(c.init(), c.init(), c.init())
    assert [result.error_code for result in results].count(NONE) == 1
    assert {result.error_code for result in results} == {NONE, CONCURRENT}
    await c.stop()


async def test_leadership_that_is_lost_while_a_producer_id_is_fetched() -> None:
    c = await Transactions.elected()
    c.ids.delay_s = 1
    asked = c.spawn(c.init())
    await settle()
    c.resign(6)
    assert (await asked).error_code is ErrorCode.NOT_COORDINATOR
    assert c.log.append_count == 0
    await c.stop()


# -- errors of every request ------------------------------------------------------------------------------------------


REQUESTS: dict[str, Request] = {
    "add": lambda c: c.add((1000, 0), P0),
    "commit": lambda c: c.end((1000, 0)),
    "abort": lambda c: c.end((1000, 0), committed=False),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_broker_that_cannot_answer_for_an_id_says_why(name: str) -> None:
    request = REQUESTS[name]
    c = Transactions()
    assert await request(c) is ErrorCode.NOT_COORDINATOR
    c.log.readable.clear()
    await c.elect()
    assert await request(c) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    c.log.readable.set()
    await settle()
    assert await request(c) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    await c.stop()
    assert await request(c) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_an_empty_transactional_id_is_invalid() -> None:
    c = await Transactions.elected()
    assert (await c.init("")).error_code is ErrorCode.INVALID_REQUEST
    assert await c.add((1, 0), P0, transactional_id="") is ErrorCode.INVALID_REQUEST
    assert await c.end((1, 0), transactional_id="") is ErrorCode.INVALID_REQUEST
    assert c.coordinator.describe_transaction("").error_code is ErrorCode.INVALID_REQUEST
    await c.stop()


@pytest.mark.parametrize(
    ("producer", "answer"),
    [
        ((1001, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((-1, -1), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((2**63 - 1, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((1000, -1), FENCED),
        ((1000, 1), FENCED),
        ((1000, 32_767), FENCED),
    ],
)
async def test_the_producer_is_the_one_that_was_given(producer: tuple[int, int], answer: ErrorCode) -> None:
    c = await Transactions.elected()
    await c.ongoing()
    assert await c.add(producer, P1) is answer
    assert await c.end(producer) is answer
    assert c.state() == "Ongoing"
    await c.stop()


# -- time -------------------------------------------------------------------------------------------------------------


async def test_an_overdue_transaction_is_aborted_and_its_producer_fenced() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing(timeout_ms=25_000)
    await after(24)
    assert c.state() == "Ongoing"
    await after(7)
    assert c.leaders.markers == {P0: [(1000, 1, False, 5)]}
    assert await c.add(producer, P0) is FENCED
    assert await c.end(producer, False) is FENCED
    assert (await c.init(expected=producer)).error_code is FENCED
    assert await c.producer() == (1000, 2)
    await c.stop()


@pytest.mark.parametrize("are_open", [True, False])
async def test_transactions_that_time_out_and_ids_that_expire_together_are_written_in_short_steps(
    are_open: bool,
) -> None:
    c = await Transactions.elected(
        transactional_id_expiration_ms=1, transaction_remove_expired_transaction_cleanup_interval_ms=10_000
    )
    for number in range(600):
        await (c.ongoing if are_open else c.producer)(transactional_id=f"txn{number}", timeout_ms=1)
    with counted_steps() as steps:
        await after(11)
    assert {c.state(f"txn{number}") for number in range(600)} == {"CompleteAbort" if are_open else ""}
    assert steps.opcodes < 250_000, f"{steps.opcodes} opcodes, most in {steps.function}"
    await c.stop()


async def test_the_timeout_counts_from_the_first_partition_not_from_the_last() -> None:
    c = await Transactions.elected()
    producer = await c.producer(timeout_ms=25_000)
    await after(20)
    assert await c.add(producer, P0) is NONE
    await after(20)
    assert await c.add(producer, P1) is NONE
    await after(11)
    assert c.state() == "CompleteAbort"
    await c.stop()


async def test_the_timeout_of_a_transaction_passes_on_to_the_next_coordinator() -> None:
    c = await Transactions.elected()
    await c.ongoing(timeout_ms=25_000)
    c.resign(6)
    await after(40)
    assert c.log.states()[-1] == "Ongoing"
    await c.elect(7)
    await after(11)
    assert c.leaders.markers == {P0: [(1000, 1, False, 7)]}
    await c.stop()


async def test_only_an_open_transaction_times_out() -> None:
    c = await Transactions.elected()
    producer = await c.ongoing(timeout_ms=1)
    c.leaders.dead.add(1)
    assert await c.end(producer) is NONE
    await after(60)
    assert c.state() == "PrepareCommit"
    c.leaders.dead.clear()
    await after(60)
    assert c.log.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    await c.stop()


async def test_an_unused_id_expires_and_begins_anew() -> None:
    c = await Transactions.elected(transactional_id_expiration_ms=2 * 3_600_000)
    producer = await c.producer()
    await after(3_600)
    assert await c.add(producer, P0) is NONE
    assert await c.end(producer) is NONE
    await after(7_100)
    assert c.state() == "CompleteCommit"
    await after(3_600)
    assert c.coordinator.describe_transaction(T).error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert c.log.states()[-1] == "-"
    assert await c.add(producer, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await c.producer() == (1001, 0)
    await c.stop()


async def test_an_open_transaction_never_expires() -> None:
    c = await Transactions.elected(transactional_id_expiration_ms=1, transaction_max_timeout_ms=2**31 - 1)
    await c.ongoing(timeout_ms=2**31 - 1)
    await after(24 * 3_600)
    assert c.state() == "Ongoing"
    await c.stop()


async def test_an_id_that_cannot_be_removed_is_there_until_the_next_time() -> None:
    c = await Transactions.elected(transactional_id_expiration_ms=1)
    producer = await c.producer()
    c.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    await after(3_601)
    assert c.state() == "Empty"
    c.log.error = NONE
    assert await c.add(producer, P0) is NONE
    assert await c.end(producer) is NONE
    await after(3_600)
    assert c.log.states()[-1] == "-"
    await c.stop()


# -- admin clients ----------------------------------------------------------------------------------------------------


async def test_a_transaction_is_described() -> None:
    c = await Transactions.elected()
    producer = await c.producer()
    assert c.coordinator.describe_transaction(T) == TransactionDescription(NONE, "Empty", MINUTE_MS, -1, 1000, 0, {})
    await after(3)
    await c.add(producer, P0, P1)
    both = {P0: None, P1: None}
    begun = c.machine.now_ms()
    description = TransactionDescription(NONE, "Ongoing", MINUTE_MS, begun, 1000, 0, both)
    assert c.coordinator.describe_transaction(T) == description
    c.leaders.errors[P1] = ErrorCode.NOT_ENOUGH_REPLICAS
    await c.end(producer)
    await settle()
    # Only the partitions without a marker are named.
    left = description._replace(state="PrepareCommit", partitions={P1: None})
    assert c.coordinator.describe_transaction(T) == left
    c.leaders.errors.clear()
    await after(1)
    over = description._replace(state="CompleteCommit", partitions={})
    assert c.coordinator.describe_transaction(T) == over
    await c.stop()


async def test_an_id_that_cannot_be_described_has_an_error_that_says_why() -> None:
    c = Transactions()
    assert c.coordinator.describe_transaction(T).error_code is ErrorCode.NOT_COORDINATOR
    c.log.readable.clear()
    await c.elect()
    assert c.coordinator.describe_transaction(T).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    c.log.readable.set()
    await settle()
    assert c.coordinator.describe_transaction(T).error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    await c.stop()
    assert c.coordinator.describe_transaction(T).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    c = await Transactions.elected()
    await c.ongoing(transactional_id="old")
    await after(5)
    await c.ongoing(transactional_id="new")
    await c.producer("idle")
    old = ListedTransaction("old", 1000, "Ongoing")
    new = ListedTransaction("new", 1001, "Ongoing")
    idle = ListedTransaction("idle", 1002, "Empty")

    async def listed(**filters: object) -> TransactionListing:
        return await in_slices(c.coordinator.list_transactions(**filters))  # type: ignore[arg-type]

    assert await listed() == (NONE, [], [old, new, idle])
    assert await listed(states=["Ongoing"]) == (NONE, [], [old, new])
    assert await listed(states=["Dead", "PrepareEpochFence"]) == (NONE, [], [])
    assert await listed(states=["ongoing", "Empty"]) == (NONE, ["ongoing"], [idle])
    assert await listed(states=["What"]) == (NONE, ["What"], [])
    assert await listed(producer_ids=[1001, 7]) == (NONE, [], [new])
    assert await listed(states=["Ongoing"], duration_ms=4_999) == (NONE, [], [old])
    assert await listed(states=["Ongoing"], duration_ms=5_000) == (NONE, [], [])
    # As in Kafka, an id without a transaction is not left out by its duration.
    assert await listed(duration_ms=5_000) == (NONE, [], [idle])
    await c.stop()
    assert await listed() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [], [])


async def test_no_list_is_given_while_a_part_is_being_loaded() -> None:
    c = await Transactions.elected()
    c.log.readable.clear()
    c.coordinator.on_election(1, 0)
    await settle()
    listing = await in_slices(c.coordinator.list_transactions())
    assert listing == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [], [])
    await c.stop()
