"""The states of a transactional id, and from which state each may be entered. Pure.

| state          | may be entered from                  | what holds                                                  |
|----------------|--------------------------------------|-------------------------------------------------------------|
| Empty          | Empty, CompleteCommit, CompleteAbort | the producer has its epoch, and no transaction yet          |
| Ongoing        | Empty, Ongoing, CompleteCommit,      | a transaction is open in the partitions that were added     |
|                | CompleteAbort                        |                                                             |
| PrepareCommit  | Ongoing                              | the transaction is committed; its partitions get markers    |
| PrepareAbort   | Ongoing                              | the transaction is aborted; its partitions get markers      |
| CompleteCommit | PrepareCommit                        | every partition has its marker                              |
| CompleteAbort  | PrepareAbort                         | every partition has its marker                              |

The current state may be written again at any time (`TransactionStateManager.write`).

The names and numbers are Kafka's; the numbers stand in `__transaction_state`. Kafka has two more states, which only
exist in memory: Dead while an expired id is removed, and PrepareEpochFence while a producer is fenced. klamm removes
and fences in one step and needs neither state, but knows their names because clients may filter by them.

Source: kafka.coordinator.transaction.TransactionMetadata (`TransactionState`, `validPreviousStates`).
"""

from collections.abc import Mapping
from enum import IntEnum


class TransactionState(IntEnum):
    """The state of a transactional id. `str` gives the name that clients and tools see."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    def __str__(self) -> str:
        return STATE_NAMES[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are still to be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_over(self) -> bool:
        """Whether no transaction is open, so that the next one may begin and an unused id may expire."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


STATE_NAMES: Mapping[int, str] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}

VALID_PREVIOUS_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: frozenset(
        {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
    ),
    TransactionState.ONGOING: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        }
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.ONGOING}),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
