"""Actions that a test carries out once on its cluster: `c.expire_session`, `c.elect`, `c.corrupt`, ...

Each method returns when the action is done. Its consequences (a new session, a truncation, a rebalance) come later:
wait for them with `c.until`, or read them in the history.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

from klamm.base.system_environment import SystemFileSystem
from klamm.faults.commands.actions import (
    CorruptBatch,
    Elect,
    ExpireSession,
    ExpireTransaction,
    ForceRebalance,
    MoveController,
)
from klamm.faults.corruption import corrupt_batch
from klamm.faults.wire import FaultError
from klamm.storage.segments.log_directory import partition_directory_name
from klamm.testing.cluster_errors import ClusterError
from klamm.testing.faults.faults import Faults


class _Broker(Protocol):
    @property
    def running(self) -> bool: ...


class ServerFaults(ABC):
    """The methods of a Cluster."""

    @property
    @abstractmethod
    def faults(self) -> Faults: ...

    @abstractmethod
    def broker(self, broker: int) -> _Broker: ...

    @abstractmethod
    def data_directory(self, server: int) -> Path: ...

    def expire_session(self, broker: int) -> None:
        """Ends the broker's ZooKeeper session, in ZooKeeper: its leaderships move, and it registers again in a new
        session. Returns when the broker knows that its session has ended."""
        self.faults.perform(None, ExpireSession(broker=broker))

    def elect(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Makes `to`, which must be in sync, the leader. Without `to`, elects the preferred leader. Returns the leader.

        Raises ClusterError when the replica is offline or not in sync.
        """
        return _leader(self.faults.perform(None, Elect(topic=topic, partition=partition, to=to)))

    def unclean_election(self, topic: str, partition: int = 0, *, to: int) -> int:
        """Makes `to` the leader whatever records it lacks, whether the present leader lives or not. Returns the leader.

        Records that only other replicas have are lost: `to` alone is the ISR, the others truncate their logs and join.
        """
        return _leader(self.faults.perform(None, Elect(topic=topic, partition=partition, to=to, unclean=True)))

    def move_controller(self) -> int:
        """The controller resigns. Returns the id of the next one: another broker, if another one lives."""
        return int(self.faults.perform(None, MoveController())["controller"])

    def force_rebalance(self, group: str) -> None:
        """The group's coordinator begins a rebalance: all members must join again."""
        self.faults.perform(None, ForceRebalance(group=group))

    def expire_transaction(self, transactional_id: str) -> None:
        """Aborts the open transaction and fences its producer, as the coordinator does after the transaction's timeout.
        Returns when the abort is decided; the markers follow."""
        self.faults.perform(None, ExpireTransaction(transactional_id=transactional_id))

    def corrupt(self, topic: str, partition: int = 0, *, offset: int, broker: int | None = None) -> Path:
        """Damages the batch with this offset in the log of `broker`, which may be stopped, or of the leader, so that
        its CRC is wrong. Returns the file."""
        action = CorruptBatch(topic=topic, partition=partition, offset=offset, broker=broker)
        if broker is None or self.broker(broker).running:
            return Path(self.faults.perform(None, action)["path"])
        directory = self.data_directory(broker) / partition_directory_name(topic, partition)
        try:
            damage = {"broker": broker, **corrupt_batch(SystemFileSystem(), str(directory), offset)}
        except (FaultError, OSError) as error:
            raise ClusterError(str(error)) from error
        self.faults.performed(broker, action, damage)
        return Path(damage["path"])


def _leader(result: Any) -> int:
    return int(result["leader"])
