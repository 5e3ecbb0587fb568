"""What each request makes of a transactional id, in each state."""

import pytest

from klamm.coordinator.transactions.states import STATE_NAMES, VALID_PREVIOUS_STATES, TransactionState
from klamm.coordinator.transactions.transaction import (
    Decision,
    Needs,
    ProducerIdAndEpoch,
    TransactionMetadata,
    add_partitions,
    complete,
    end,
    fence,
    init_producer,
    producer_error,
)
from klamm.protocol.error_codes import ErrorCode

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
FENCED = ErrorCode.PRODUCER_FENCED

NOW_MS = 5_000
ME = ProducerIdAndEpoch(7, 3)
BEFORE = ProducerIdAndEpoch(7, 2)
OTHER = ProducerIdAndEpoch(8, 3)


def known(state: TransactionState, producer: ProducerIdAndEpoch = ME) -> TransactionMetadata:
    partitions = {("t", 0): None} if state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT) else {}
    return TransactionMetadata(producer, 100, state, partitions, 1_000, -1 if state is EMPTY else 900, BEFORE)


def state_of(decision: Decision | Needs) -> TransactionState | ErrorCode | Needs:
    return decision.state if isinstance(decision, TransactionMetadata) else decision


@pytest.mark.parametrize(
    ("state", "added", "committed", "aborted", "initialized"),
    [
        (EMPTY, ONGOING, INVALID, INVALID, EMPTY),
        (ONGOING, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_ABORT),
        (PREPARE_COMMIT, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
        (PREPARE_ABORT, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
        # What is carried out already is written again.
        (COMPLETE_COMMIT, ONGOING, COMPLETE_COMMIT, INVALID, EMPTY),
        (COMPLETE_ABORT, ONGOING, INVALID, COMPLETE_ABORT, EMPTY),
    ],
)
def test_the_state_decides(
    state: TransactionState, added: object, committed: object, aborted: object, initialized: object
) -> None:
    metadata = known(state)
    assert state_of(add_partitions(metadata, [("t", 1)], NOW_MS)) is added
    assert state_of(add_partitions(metadata, [("t", 0)], NOW_MS)) is added
    assert state_of(end(metadata, True, NOW_MS)) is committed
    assert state_of(end(metadata, False, NOW_MS)) is aborted
    assert state_of(init_producer(metadata, None, 100, NOW_MS, None)) is initialized


LEGAL = {
    (EMPTY, EMPTY),
    (EMPTY, ONGOING),
    (ONGOING, ONGOING),
    (ONGOING, PREPARE_COMMIT),
    (ONGOING, PREPARE_ABORT),
    (PREPARE_COMMIT, COMPLETE_COMMIT),
    (PREPARE_ABORT, COMPLETE_ABORT),
    (COMPLETE_COMMIT, EMPTY),
    (COMPLETE_COMMIT, ONGOING),
    (COMPLETE_ABORT, EMPTY),
    (COMPLETE_ABORT, ONGOING),
}


def test_states_follow_each_other_as_in_kafka() -> None:
    for before in TransactionState:
        for after in TransactionState:
            assert (before in VALID_PREVIOUS_STATES[after]) is ((before, after) in LEGAL)


def test_states_have_the_numbers_and_names_of_kafka() -> None:
    assert STATE_NAMES == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }
    assert [str(state) for state in TransactionState] == list(STATE_NAMES.values())[:6]
    assert [state.is_prepared for state in TransactionState] == [False, False, True, True, False, False]
    assert [state.is_over for state in TransactionState] == [True, False, False, False, True, True]


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_the_first_partitions_begin_the_transaction(state: TransactionState) -> None:
    assert add_partitions(known(state), [("t", 1), ("u", 0), ("t", 1)], NOW_MS) == TransactionMetadata(
        ME, 100, ONGOING, {("t", 1): None, ("u", 0): None}, NOW_MS, NOW_MS, BEFORE
    )


def test_more_partitions_leave_the_beginning_as_it_was() -> None:
    assert add_partitions(known(ONGOING), [("t", 1), ("t", 0)], NOW_MS) == TransactionMetadata(
        ME, 100, ONGOING, {("t", 0): None, ("t", 1): None}, NOW_MS, 900, BEFORE
    )


def test_a_transaction_that_is_ended_again_stays_as_it_is() -> None:
    for state, committed in ((COMPLETE_COMMIT, True), (COMPLETE_ABORT, False)):
        metadata = known(state)
        assert end(metadata, committed, NOW_MS) is metadata


def test_a_prepared_transaction_keeps_its_partitions_and_a_complete_one_has_none() -> None:
    prepared = end(known(ONGOING), True, NOW_MS)
    assert prepared == TransactionMetadata(ME, 100, PREPARE_COMMIT, {("t", 0): None}, NOW_MS, 900, BEFORE)
    assert isinstance(prepared, TransactionMetadata)
    done = complete(prepared, NOW_MS + 1)
    assert done == TransactionMetadata(ME, 100, COMPLETE_COMMIT, {}, NOW_MS + 1, 900, BEFORE)
    assert complete(known(PREPARE_ABORT), NOW_MS).state is COMPLETE_ABORT


def test_a_fenced_transaction_is_aborted_in_the_next_epoch_which_the_producer_does_not_have() -> None:
    fenced = TransactionMetadata(ProducerIdAndEpoch(7, 4), 100, PREPARE_ABORT, {("t", 0): None}, NOW_MS, 900, None)
    assert fence(known(ONGOING), NOW_MS) == fenced
    assert fence(known(ONGOING), NOW_MS, ME) == fenced._replace(last_producer=ME)


def test_the_last_epoch_of_all_is_not_exceeded() -> None:
    for epoch, fenced in ((32_765, 32_766), (32_766, 32_767), (32_767, 32_767)):
        assert fence(known(ONGOING, ProducerIdAndEpoch(7, epoch)), NOW_MS).producer == (7, fenced)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
@pytest.mark.parametrize(
    ("epoch", "last", "expected", "answer"),
    [
        # (what the coordinator knows), what the producer names, what it gets and what it may name again
        (3, None, None, ((7, 4), None)),
        (3, BEFORE, None, ((7, 4), None)),
        (3, None, ME, ((7, 4), ME)),
        (3, BEFORE, ME, ((7, 4), ME)),
        (3, BEFORE, BEFORE, ((7, 3), BEFORE)),
        (3, None, BEFORE, FENCED),
        (3, None, OTHER, FENCED),
        (3, None, ProducerIdAndEpoch(7, 4), FENCED),
        (32_765, None, None, ((7, 32_766), None)),
        (32_766, None, None, ((55, 0), None)),
        (32_766, None, ProducerIdAndEpoch(7, 32_766), ((55, 0), (7, 32_766))),
        (32_766, ProducerIdAndEpoch(7, 32_765), ProducerIdAndEpoch(7, 32_765), ((7, 32_766), (7, 32_765))),
        (32_766, None, ProducerIdAndEpoch(7, 32_765), FENCED),
        (32_767, None, None, ((55, 0), None)),
        # It asked for the next epoch within its transaction, and its last epoch was fenced.
        (32_767, ProducerIdAndEpoch(7, 32_766), ProducerIdAndEpoch(7, 32_766), ((55, 0), (7, 32_766))),
        (32_767, None, ProducerIdAndEpoch(7, 32_766), FENCED),
        (-1, None, None, ((7, 0), None)),
    ],
)
def test_the_epoch_that_a_producer_gets(
    state: TransactionState, epoch: int, last: ProducerIdAndEpoch, expected: ProducerIdAndEpoch, answer: object
) -> None:
    metadata = known(state, ProducerIdAndEpoch(7, epoch))._replace(last_producer=last)
    decision = init_producer(metadata, expected, 200, NOW_MS, None)
    if decision is Needs.PRODUCER_ID:
        decision = init_producer(metadata, expected, 200, NOW_MS, 55)
    if isinstance(decision, TransactionMetadata):
        assert (decision.producer, decision.last_producer) == answer
        assert decision[1:6] == (200, EMPTY, {}, NOW_MS, -1)
    else:
        assert decision is answer


@pytest.mark.parametrize(
    ("expected", "answer"),
    [(None, ((7, 4), None)), (ME, ((7, 4), ME)), (BEFORE, FENCED), (OTHER, FENCED)],
)
def test_only_the_producer_itself_or_a_new_one_aborts_an_open_transaction(
    expected: ProducerIdAndEpoch, answer: object
) -> None:
    decision = init_producer(known(ONGOING), expected, 200, NOW_MS, None)
    if isinstance(decision, TransactionMetadata):
        assert (decision.producer, decision.last_producer) == answer
        # The transaction that is aborted had its own timeout.
        assert decision[1:6] == (100, PREPARE_ABORT, {("t", 0): None}, NOW_MS, 900)
    else:
        assert decision is answer


def test_an_unknown_id_gets_a_new_producer_id() -> None:
    for expected in (None, ME):
        assert init_producer(None, expected, 200, NOW_MS, None) is Needs.PRODUCER_ID
        assert init_producer(None, expected, 200, NOW_MS, 55) == TransactionMetadata(
            ProducerIdAndEpoch(55, 0), 200, EMPTY, {}, NOW_MS, -1, None
        )


def test_requests_of_other_producers_are_refused() -> None:
    metadata = known(ONGOING)
    assert producer_error(metadata, ME) is None
    assert producer_error(metadata, BEFORE) is FENCED
    assert producer_error(metadata, ProducerIdAndEpoch(7, 4)) is FENCED
    assert producer_error(metadata, OTHER) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer_error(None, ME) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_time_passes() -> None:
    assert not known(ONGOING).has_timed_out(1_000)
    assert known(ONGOING).has_timed_out(1_001)
    for state in TransactionState:
        assert known(state).has_timed_out(10**15) is (state is ONGOING)
        assert known(state).has_expired(2_000, 1_000) is (state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))
        assert not known(state).has_expired(1_999, 1_000)
