"""Lets leaders write ISRs to ZooKeeper themselves, for inter.broker.protocol.version before 2.7-IV2.

What must stay true:
- A state is written only over the version that its leader knows, so a leader that was replaced, or that missed a
  decision of the controller, changes nothing.
- A follower that has bounced since the state was written leaves the ISR with the leader's write. This write is younger
  than the follower's registration, and would hide the bounce from the next controller (klamm/controller/bounces.py),
  perhaps while no controller is there. (Kafka 2.8.2 does not look.) A follower that joins is meant to be back.
- The controller is notified of every change that may have been written, including void changes and changes whose answer
  was lost. It reads the state itself, so superfluous notifications do no harm.
- A notification has many changes: it is sent when no change has come for `LINGER_MS`, or after `MAX_DELAY_MS`.

Source: kafka.server.ZkIsrManager, kafka.utils.ReplicationUtils.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from klamm.base.tasks import OnFailure, start_task
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.partition.isr_changes import BatchedIsrChanges
from klamm.replication.ports import IsrChange, WrittenIsr
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

CHECK_INTERVAL_MS = 2_500
LINGER_MS = 5_000
MAX_DELAY_MS = 60_000

_log = logging.getLogger(__name__)


class IsrStore(Protocol):
    """The part of `KafkaZooKeeper` that leaders need. Raises ZooKeeperError; some writes may have been done then."""

    async def without_bounced_members(
        self, states: Mapping[PartitionKey, LeaderAndIsr]
    ) -> dict[PartitionKey, LeaderAndIsr]:
        """The states without the members that have bounced since the stored ones were written."""

    async def update_leader_and_isr(self, states: Mapping[PartitionKey, LeaderAndIsr]) -> dict[PartitionKey, int]:
        """Writes each state over the version `zk_version`. Returns the new version of each written state."""

    async def propagate_isr_changes(self, partitions: Sequence[PartitionKey]) -> None:
        """Tells the controller that the ISRs of these partitions have changed."""


class ZkIsrManager(BatchedIsrChanges):
    """Implements the port `IsrChanges`. Made while the loop runs. `zookeeper` returns the current session's store."""

    def __init__(self, zookeeper: Callable[[], IsrStore], broker_id: int, on_failure: OnFailure) -> None:
        super().__init__(on_failure)
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._loop = asyncio.get_running_loop()
        self._unannounced: dict[PartitionKey, None] = {}
        self._announcer: asyncio.Task[None] | None = None
        self._last_change_s = self._last_announcement_s = self._loop.time()

    async def stop(self) -> None:
        """Also announces nothing more. Later leaders write over the version that they read."""
        await super().stop()
        if self._announcer is not None:
            self._announcer.cancel()
            await asyncio.gather(self._announcer, return_exceptions=True)

    async def _send(self, changes: Sequence[IsrChange]) -> bool:
        states = {
            change.topic_partition: LeaderAndIsr(
                self._broker_id, change.leader_epoch, change.isr, change.controller_epoch, change.zk_version
            )
            for change in changes
        }
        try:
            store = self._zookeeper()
            written = await store.without_bounced_members(states)
            versions = await store.update_leader_and_isr(written)
        except ZooKeeperError as error:
            _log.info("the ISRs of %d partitions are written again: %s", len(states), error)
            self._changed(states)
            return False
        self._changed(versions)
        for change in changes:
            if self._is_pending(change):
                version = versions.get(change.topic_partition)
                self._decide(
                    change,
                    ErrorCode.INVALID_UPDATE_VERSION
                    if version is None
                    else WrittenIsr(change.leader_epoch, written[change.topic_partition].isr, version),
                )
        return True

    # -- announcements ----------------------------------------------------------------------------------------------

    def _changed(self, partitions: Iterable[PartitionKey]) -> None:
        before = len(self._unannounced)
        self._unannounced.update(dict.fromkeys(partitions))
        self._last_change_s = self._loop.time()
        if self._announcer is None and len(self._unannounced) > before:
            self._announcer = start_task(self._announce_in_time(), self._on_failure)

    async def _announce_in_time(self) -> None:
        while self._unannounced:
            await asyncio.sleep(CHECK_INTERVAL_MS / 1000)
            now_s = self._loop.time()
            if (
                now_s >= self._last_change_s + LINGER_MS / 1000
                or now_s >= self._last_announcement_s + MAX_DELAY_MS / 1000
            ):
                await self._announce_changes()
        self._announcer = None

    async def _announce_changes(self) -> None:
        partitions = list(self._unannounced)
        # Later changes are announced again.
        self._unannounced.clear()
        try:
            await self._zookeeper().propagate_isr_changes(partitions)
        except ZooKeeperError as error:
            _log.info("the ISR changes of %d partitions are announced later: %s", len(partitions), error)
            self._unannounced.update(dict.fromkeys(partitions))
        else:
            self._last_announcement_s = self._loop.time()
