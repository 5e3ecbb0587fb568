"""What the controller decided, newest last: one record for every change of a partition's or replica's state.

A record is a tuple that is put away; it is made readable only for whoever asks. A controller that is elected in a large
cluster records hundreds of thousands, so nothing is formatted or written when a record is made.
"""

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from klamm.znodes.topics import LeaderAndIsr, TopicPartition

NO_REPLICA = -1


class StateChange(NamedTuple):
    """One change. `replica` is a broker id; NO_REPLICA when the state is the partition's own.

    `leadership` is what was decided with it. `why` is "" for a change that went well.
    """

    time_ms: int
    controller_epoch: int
    partition: TopicPartition
    replica: int
    from_state: IntEnum
    to_state: IntEnum
    leadership: LeaderAndIsr | None
    why: str

    def __str__(self) -> str:
        topic, number = self.partition
        whose = f"{topic}-{number}" if self.replica == NO_REPLICA else f"replica {self.replica} of {topic}-{number}"
        text = f"[epoch {self.controller_epoch}] {whose} {self.from_state.name} -> {self.to_state.name}"
        if self.leadership is not None:
            state = self.leadership
            text += f", leader {state.leader} epoch {state.leader_epoch} isr {','.join(map(str, state.isr))}"
        return f"{text}: {self.why}" if self.why else text


class StateChangeLog:
    """The newest `capacity` changes. `now_ms` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int], capacity: int = 10_000) -> None:
        self._now_ms = now_ms
        self._changes: deque[tuple[int, int, TopicPartition, int, IntEnum, IntEnum, LeaderAndIsr | None, str]] = deque(
            maxlen=capacity
        )

    def record(
        self,
        controller_epoch: int,
        partition: TopicPartition,
        replica: int,
        from_state: IntEnum,
        to_state: IntEnum,
        leadership: LeaderAndIsr | None = None,
        why: str = "",
    ) -> None:
        """See `StateChange`."""
        self._changes.append(
            (self._now_ms(), controller_epoch, partition, replica, from_state, to_state, leadership, why)
        )

    def changes(self) -> list[StateChange]:
        return [StateChange(*change) for change in self._changes]
