"""The states of partitions and replicas, and from which state each may be entered. Pure.

Kafka's `PartitionState` and `ReplicaState`, with Kafka's numbers. partition_state_machine.py and
replica_state_machine.py describe what each transition does.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from klamm.protocol.vocabulary import PartitionKey

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=IntEnum)

_NAMED = 10  # The most items that a message names.


class PartitionState(IntEnum):
    """The state of a partition in the controller's context. An unknown partition is NON_EXISTENT."""

    NEW = 0  # It has replicas, but no leader and ISR yet.
    ONLINE = 1  # It has a leader.
    OFFLINE = 2  # Its leader died.
    NON_EXISTENT = 3  # It was never created, or it is being deleted.


class ReplicaState(IntEnum):
    """The state of one replica of a partition. An unknown replica is NON_EXISTENT."""

    NEW = 1  # Just created: it can only become a follower.
    ONLINE = 2  # Assigned, on a live broker, on a disk that works.
    OFFLINE = 3  # Its broker or its disk died, or it is about to be deleted.
    DELETION_STARTED = 4  # Its broker was told to delete it.
    DELETION_SUCCESSFUL = 5  # Its broker has deleted it.
    DELETION_INELIGIBLE = 6  # It cannot be deleted now.
    NON_EXISTENT = 7


VALID_PREVIOUS_PARTITION_STATES: Mapping[PartitionState, Collection[PartitionState]] = {
    PartitionState.NEW: (PartitionState.NON_EXISTENT,),
    PartitionState.ONLINE: (PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE),
    PartitionState.OFFLINE: (PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE),
    PartitionState.NON_EXISTENT: (PartitionState.OFFLINE,),
}

VALID_PREVIOUS_REPLICA_STATES: Mapping[ReplicaState, Collection[ReplicaState]] = {
    ReplicaState.NEW: (ReplicaState.NON_EXISTENT,),
    ReplicaState.ONLINE: (
        ReplicaState.NEW,
        ReplicaState.ONLINE,
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_INELIGIBLE,
    ),
    ReplicaState.OFFLINE: (
        ReplicaState.NEW,
        ReplicaState.ONLINE,
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_INELIGIBLE,
    ),
    ReplicaState.DELETION_STARTED: (ReplicaState.OFFLINE,),
    ReplicaState.DELETION_SUCCESSFUL: (ReplicaState.DELETION_STARTED,),
    ReplicaState.DELETION_INELIGIBLE: (ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED),
    ReplicaState.NON_EXISTENT: (ReplicaState.DELETION_SUCCESSFUL,),
}


class StateChangeFailed(Exception):
    """A partition or replica could not change its state, and keeps its former state."""


OnIllegalTransition = Callable[[str], None]
"""Called with a message about transitions that are not in a table. They were not made."""


def log_illegal_transition(message: str) -> None:
    logger.error("%s", message)


def legal_transitions(
    partitions: Sequence[PartitionKey],
    states: Mapping[PartitionKey, S],
    target: S,
    valid_previous_states: Mapping[S, Collection[S]],
    on_illegal_transition: OnIllegalTransition,
    whose: str,
    refuse: Callable[[PartitionKey, S, str], None],
) -> list[PartitionKey]:
    """The items that may change to `target`. There is one message for each state from which others may not.

    Items that `states` lacks are NON_EXISTENT. `whose` names the items in the message. `refuse` is called for each item
    that may not change, with its state and the reason.
    """
    valid = valid_previous_states[target]
    unknown = type(target)["NON_EXISTENT"]
    legal = [partition for partition in partitions if states.get(partition, unknown) in valid]
    if len(legal) < len(partitions):
        illegal: dict[S, list[PartitionKey]] = {}
        for partition in partitions:
            state = states.get(partition, unknown)
            if state not in valid:
                illegal.setdefault(state, []).append(partition)
        allowed = " or ".join(previous.name for previous in valid)
        for state, refused in illegal.items():
            for partition in refused:
                refuse(partition, state, f"allowed is a change from {allowed}")
            names = ", ".join(f"{topic}-{number}" for topic, number in refused[:_NAMED])
            more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
            on_illegal_transition(
                f"{whose} {names}{more} cannot change from {type(target).__name__} {state.name} to {target.name};"
                f" allowed is a change from {allowed}"
            )
    return legal
