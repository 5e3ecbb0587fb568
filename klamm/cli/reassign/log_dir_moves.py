"""Moves replicas into the log directories that a plan has chosen.

What must stay true: a move counts as done when its replica is in the chosen directory and in no other. A move that
another client has cancelled, or that a broker has forgotten, is requested again.
"""

from collections.abc import Collection
from typing import Final

from klamm.access.clients import error_line
from klamm.cli.reassign.access import Access
from klamm.cli.reassign.planning.model import Move
from klamm.cli.reassign.setting_throttles import Report
from klamm.cli.reassign.state_file import Record
from klamm.cli.reassign.steps import ClusterMoment
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

# If the controller refuses a partition with one of these errors, it may accept the partition later.
MAY_PASS: Final = RETRIABLE_ERRORS | {
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    ErrorCode.BROKER_NOT_AVAILABLE,
}


class LogDirMoves:
    """The moves into chosen log directories. A broker remembers a request for a replica that it does not have yet. So
    the request is sent before the partition moves, and again afterwards until the broker accepts it."""

    def __init__(self, access: Access, record: Record, report: Report) -> None:
        self._access, self._report = access, report
        self._wanted = {
            TopicPartitionReplica(move.topic, move.partition, broker): path
            for move in record.moves
            for broker, path in move.after.chosen_log_dirs.items()
        }
        self._state: dict[TopicPartitionReplica, str] = {}
        self._accepted: set[TopicPartitionReplica] = set()
        self._done: set[TopicPartitionReplica] = set()
        self._failed: dict[TopicPartitionReplica, str] = {}
        # The sizes of the replicas that are copied between two directories of a broker, and below, of their copies.
        self._size_bytes = {
            TopicPartitionReplica(move.topic, move.partition, broker): move.size_bytes
            for move in record.moves
            for broker in move.log_dir_moves
        }
        self._copied_bytes: dict[TopicPartitionReplica, int] = {}

    @property
    def moved_bytes(self) -> int:
        """How much has been copied between directories."""
        return sum(
            size_bytes if each in self._done else min(size_bytes, self._copied_bytes.get(each, 0))
            for each, size_bytes in self._size_bytes.items()
            if each not in self._failed
        )

    def bytes_to_move(self, move: Move) -> int:
        """How much of a partition is copied between directories in all."""
        replicas = (TopicPartitionReplica(move.topic, move.partition, broker) for broker in move.log_dir_moves)
        return sum(self._size_bytes[each] for each in replicas if each not in self._failed)

    def pending(self, moved: Collection[TopicPartition]) -> dict[str, str]:
        """The pending moves of partitions that are on their brokers, and why each waits; "" during the copy."""
        return {_replica_text(each): self._state.get(each, "") for each in self._pending(moved)}

    def failures(self) -> dict[str, str]:
        """The moves that no broker will make, and why."""
        return {_replica_text(each): reason for each, reason in self._failed.items()}

    def _pending(self, moved: Collection[TopicPartition]) -> list[TopicPartitionReplica]:
        return [
            each
            for each in self._wanted
            if each not in self._done
            and each not in self._failed
            and TopicPartition(each.topic, each.partition) in moved
        ]

    async def announce(self, batch: Collection[Move]) -> None:
        """Tells the brokers the target directories of the replicas of these partitions."""
        moving = {move.topic_partition for move in batch}
        paths = {
            each: path for each, path in self._wanted.items() if TopicPartition(each.topic, each.partition) in moving
        }
        if paths:
            await self._access.move_log_dirs(paths)

    async def step(self, moved: Collection[TopicPartition], look: ClusterMoment) -> None:
        """Requests the moves of these partitions, and follows those that a broker has accepted."""
        pending = self._pending(moved)
        if not pending:
            return
        try:
            await self._ask([each for each in pending if each not in self._accepted])
            await self._follow([each for each in pending if each in self._accepted], look)
        except (KafkaError, ClientError) as error:
            self._report({"event": "trouble", "reason": str(error)})

    async def _ask(self, replicas: Collection[TopicPartitionReplica]) -> None:
        if not replicas:
            return
        started = []
        for replica, error in (
            await self._access.move_log_dirs({each: self._wanted[each] for each in replicas})
        ).items():
            if error is None:
                self._accepted.add(replica)
                self._state.pop(replica, None)
                started.append(_replica_text(replica))
            elif error.code in MAY_PASS:
                self._state[replica] = error_line(error)
            else:
                self._failed[replica] = error_line(error)
                self._report({"event": "refused", "replica": _replica_text(replica), "reason": error_line(error)})
        if started:
            self._report({"event": "log_dirs_started", "replicas": sorted(started)})

    async def _follow(self, replicas: Collection[TopicPartitionReplica], look: ClusterMoment) -> None:
        brokers = sorted({each.broker_id for each in replicas if each.broker_id in look.view.brokers})
        partitions = sorted({TopicPartition(each.topic, each.partition) for each in replicas})
        found = await self._access.log_dirs(brokers, partitions) if brokers else {}
        for each in replicas:
            key = TopicPartition(each.topic, each.partition)
            directories = found.get(each.broker_id)
            if directories is None:
                self._state[each] = f"broker {each.broker_id} does not answer"
                continue
            self._state.pop(each, None)
            replicas_by_path = {
                path: replica
                for path, directory in directories.items()
                if (replica := directory.replicas.get(key)) is not None
            }
            copies = [replica.size_bytes for replica in replicas_by_path.values() if replica.is_future]
            self._copied_bytes[each] = sum(copies)
            present = {path: replica.is_future for path, replica in replicas_by_path.items()}
            if present == {self._wanted[each]: False}:
                self._done.add(each)
                self._report({"event": "log_dir_completed", "replica": _replica_text(each)})
            elif not any(present.values()):
                # Another client has cancelled the move, or the broker has restarted: the move is requested again.
                self._accepted.discard(each)


def _replica_text(replica: TopicPartitionReplica) -> str:
    return f"{replica.topic}-{replica.partition}-{replica.broker_id}"
