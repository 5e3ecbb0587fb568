"""Applies the controller's requests to the replicas of a broker: LeaderAndIsr, StopReplica, and UpdateMetadata.

The controller sends LeaderAndIsr and StopReplica only to replicas on live brokers. If a broker had no ZooKeeper session
when its partition got another leader, or was reassigned to other brokers, it may never get either request.
UpdateMetadata alone then tells it to stop leading or copying:

| UpdateMetadata says of a hosted partition                  | leading ends       | copying ends | the epoch is then |
|------------------------------------------------------------|--------------------|--------------|-------------------|
| a newer epoch, another leader, this broker is a replica    | yes                | no           | as before         |
| a newer epoch, another leader, this broker is no replica   | yes                | yes          | the newer one     |
| deletion, or another topic; this broker is no replica      | yes                | yes          | as before         |
| the same epoch or an older one                             | no                 | no           | as before         |

In the first row the epoch stays, so that a later LeaderAndIsr counts. The log stays in every row.

What must stay true:
- These requests are applied one after another. A request with an old controller epoch changes nothing.
- A partition changes only to a newer leader epoch, so a request that arrives late or twice changes nothing. StopReplica
  also counts in the current epoch: a controller that cancels a reassignment may not begin a new epoch (KAFKA-13972).
  Once this broker is no longer a replica, StopReplica counts in any epoch: the other replicas' epoch has moved on.
- Of two topics that had the same name, at most one has a log here. A topic-id mismatch never deletes a log that may be
  the only copy of a record.
- The fetcher of a partition is removed before the partition leads or is deleted, and it knows the new leader and epoch
  before it continues.
- A move to another log directory is interrupted before the partition is stopped or deleted, and continues with the next
  LeaderAndIsr.
- Work on many partitions yields the loop about every ten milliseconds. state-change.log records each partition's
  changes; correlation ids are used only in its lines.

Source: kafka.server.ReplicaManager.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

from klamm.base.slices import SLICE, Slices, Steps, each, in_slices
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.apis.stop_replica import StopReplicaRequest
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER, PartitionKey
from klamm.replication.fetcher.fetch_state import InitialFetchState
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.replication.partition.hosted_partitions import HostedPartitions, WantedLog
from klamm.replication.partition.partition import Partition
from klamm.replication.ports import FollowerFetchers, LiveBroker, TopicConfigSource
from klamm.replication.state_change_lines import LeaderAndIsrLines, Origin, StateChangeLines, StopReplicaLines
from klamm.storage.directories.log_manager import LogManager
from klamm.znodes.topics import is_legal_topic_name

T = TypeVar("T")

# The partitions of a response in a slice; each costs two microseconds.
ANSWERS_PER_SLICE = 2_000

_log = logging.getLogger(__name__)

# (partition, topic id, its state in LeaderAndIsr)
_Change = tuple[PartitionKey, UUID | None, LeaderAndIsrPartitionState]


class StateChanges:
    """Applies the controller's requests to the hosted partitions. `on_change` is called for each changed partition."""

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        hosted: HostedPartitions,
        topic_configs: TopicConfigSource,
        followers: FollowerFetchers,
        log_dir_moves: LogDirMoves,
        live_broker: LiveBroker,
        on_change: Callable[[PartitionKey], None],
        lines: StateChangeLines,
    ) -> None:
        self.controller_epoch = 0
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._hosted = hosted
        self._topic_configs = topic_configs
        self._followers = followers
        self._log_dir_moves = log_dir_moves
        self._live_broker = live_broker
        self._on_change = on_change
        self._lines = lines
        self._lock = asyncio.Lock()
        self._is_stopping = False

    def stop(self) -> None:
        """Starts no more fetchers."""
        self._is_stopping = True

    async def update_metadata(
        self, request: UpdateMetadataRequest, apply: Callable[[], Steps[T]], correlation_id: int = 0
    ) -> T:
        """Takes the steps of `apply` in the request's turn. Raises KafkaError STALE_CONTROLLER_EPOCH."""
        async with self._lock:
            lines = self._lines.update_metadata(correlation_id, request)
            try:
                self._check_controller_epoch(request.controller_epoch, lines.is_old)
                await in_slices(self._end_what_is_over(request))
                applied = await in_slices(apply())
                await in_slices(lines.cached(request))
                return applied
            finally:
                lines.flush()

    async def in_turn(self, apply: Callable[[], Steps[T]]) -> T:
        """Takes the steps of `apply` while no controller request is being applied."""
        async with self._lock:
            return await in_slices(apply())

    def _end_what_is_over(self, request: UpdateMetadataRequest) -> Steps[None]:
        hosted = self._hosted.all
        ended = 0
        slices = _slices()
        for topic in request.topic_states:
            name, topic_id = topic.topic_name, topic.topic_id
            for state in topic.partition_states:
                partition = hosted.get((name, state.partition_index))
                if partition is not None:
                    ended += self._end_if_over(partition, topic_id, state)
                    if slices.spend():
                        yield
        if ended:
            _log.info(
                "UpdateMetadata of controller %d, epoch %d: %d partitions are led by others",
                *(request.controller_id, self.controller_epoch, ended),
            )

    def _end_if_over(self, partition: Partition, topic_id: UUID | None, state: UpdateMetadataPartitionState) -> bool:
        """Stops leading or copying the partition as in the module's table. Returns whether the partition changed."""
        is_same = _may_be_same(partition.log.topic_id, topic_id)
        if is_same and state.leader != LEADER_DURING_DELETE and state.leader_epoch <= partition.leader_epoch:
            return False
        is_replica = self._broker_id in state.replicas
        if not is_same or state.leader == LEADER_DURING_DELETE:
            if not is_replica:
                self.leave(partition)
            return not is_replica
        if state.leader == self._broker_id:
            return False
        if not is_replica:
            self.leave(partition, state.leader, state.leader_epoch)
        elif partition.is_leader:
            partition.step_down(state.leader, NO_EPOCH)
            self._on_change(partition.topic_partition)
        else:
            return False
        return True

    def leave(self, partition: Partition, leader_id: int = NO_LEADER, leader_epoch: int = NO_EPOCH) -> None:
        """This broker is no longer a replica of a hosted partition. The log stays, in case it becomes a replica
        again."""
        self._followers.remove_fetchers([partition.topic_partition])
        partition.step_down(leader_id, leader_epoch)
        partition.replicas = ()
        self._on_change(partition.topic_partition)

    def _check_controller_epoch(self, epoch: int, is_old: Callable[[int], None]) -> None:
        if epoch < self.controller_epoch:
            is_old(self.controller_epoch)
            raise KafkaError(
                ErrorCode.STALE_CONTROLLER_EPOCH, f"controller epoch {epoch} is over, it is {self.controller_epoch} now"
            )
        self.controller_epoch = epoch

    # -- LeaderAndIsr ---------------------------------------------------------------------------------------------

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, correlation_id: int = 0
    ) -> LeaderAndIsrResponse:
        """Applies LeaderAndIsr. Errors are in the response. Raises ZooKeeperError when the configuration of a topic
        that is new here cannot be read. Then no partition has changed, and the controller should send the request
        again."""
        async with self._lock:
            lines = self._lines.leader_and_isr(correlation_id, request)
            try:
                return await self._become_leader_or_follower(request, lines)
            finally:
                lines.flush()

    async def _become_leader_or_follower(
        self, request: LeaderAndIsrRequest, lines: LeaderAndIsrLines
    ) -> LeaderAndIsrResponse:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        lines.received(request)
        try:
            self._check_controller_epoch(request.controller_epoch, lines.is_old)
        except KafkaError as error:
            return await in_slices(_response(request, error.code, {}))
        await self._load_topic_configs(request)
        leading: list[_Change] = []
        following: list[_Change] = []
        codes: dict[PartitionKey, ErrorCode] = {}
        slices = _slices()
        for topic in request.topic_states:
            async for state in each(topic.partition_states, slices):
                key = topic.topic_name, state.partition_index
                if lines.traces:
                    lines.received_state(topic.topic_name, state)
                codes[key] = self._check(key, topic.topic_id, state, lines)
                if codes[key] is ErrorCode.NONE:
                    changes = leading if state.leader == self._broker_id else following
                    changes.append((key, topic.topic_id, state))
        await self._make_leaders(leading, codes, lines)
        await self._make_followers(following, codes, request, lines)
        refused = sum(code is not ErrorCode.NONE for code in codes.values())
        _log.info(
            "LeaderAndIsr of controller %d, epoch %d: %d partitions to lead, %d to follow, %d of %d refused",
            *(request.controller_id, self.controller_epoch, len(leading), len(following), refused, len(codes)),
        )
        lines.finished(len(codes), round((loop.time() - began_at) * 1000))
        return await in_slices(_response(request, ErrorCode.NONE, codes))

    async def _load_topic_configs(self, request: LeaderAndIsrRequest) -> None:
        new = []
        slices = _slices()
        for topic in request.topic_states:
            async for state in each(topic.partition_states if is_legal_topic_name(topic.topic_name) else (), slices):
                if self._is_new_here((topic.topic_name, state.partition_index), topic.topic_id):
                    new.append(topic.topic_name)
                    break
        if new:
            await self._topic_configs.load(new)

    def _is_new_here(self, key: PartitionKey, topic_id: UUID | None) -> bool:
        """Whether the configuration of the partition's topic may be unknown. A partition that this broker has left may
        belong to an earlier topic of the same name."""
        partition = self._hosted.get(key)
        if partition is None or self._broker_id not in partition.replicas:
            return True
        return not _may_be_same(partition.log.topic_id, topic_id)

    def _check(
        self, key: PartitionKey, topic_id: UUID | None, state: LeaderAndIsrPartitionState, lines: LeaderAndIsrLines
    ) -> ErrorCode:
        if self._hosted.is_offline(key):
            lines.offline(key)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._is_of_former_topic(key, topic_id, state):
            _log.warning("The log of %s-%d is of a topic of that name which was deleted, and is deleted, too", *key)
            code = self._delete(key)
            if code is not ErrorCode.NONE:
                return code
        partition = self._hosted.get(key)
        if partition is None:
            if not is_legal_topic_name(key[0]) or state.partition_index < 0 or state.leader_epoch < 0:
                _log.error("LeaderAndIsr for %r: %s is nothing that a controller decides", key, state)
                return ErrorCode.INVALID_REQUEST
        else:
            if topic_id is not None:
                try:
                    partition.log.assign_topic_id(topic_id)
                except KafkaError as error:
                    return self._failed(key, error, WantedLog(topic_id, state.is_new))
            if state.leader_epoch <= partition.leader_epoch:
                lines.stale(key, state.leader_epoch, partition.leader_epoch)
                return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in state.replicas:
            lines.not_assigned(key, state.replicas)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _is_of_former_topic(self, key: PartitionKey, topic_id: UUID | None, state: LeaderAndIsrPartitionState) -> bool:
        """Whether the log belongs to an earlier topic of the same name, which was deleted while this broker was down
        (KAFKA-10548).

        The log of a replica in the ISR does not count as such, except in the topic's first epoch. It has records of
        this topic, and the id has changed, so an operator must check it.
        """
        log = self._log_manager.get(*key)
        has_other_id = log is not None and not _may_be_same(log.topic_id, topic_id)
        is_replica = self._broker_id in state.replicas
        is_first_epoch = state.is_new and state.leader_epoch == 0
        return has_other_id and is_replica and (is_first_epoch or self._broker_id not in state.isr)

    async def _make_leaders(
        self, changes: list[_Change], codes: dict[PartitionKey, ErrorCode], lines: LeaderAndIsrLines
    ) -> None:
        if not changes:
            return
        self._followers.remove_fetchers([key for key, _, _ in changes])
        lines.stopped_fetchers_of_leaders(len(changes))
        async for key, topic_id, state in each(changes, _slices()):
            if lines.traces:
                lines.becoming_leader(key)
            try:
                partition = self._hosted.open(*key, topic_id, is_new=state.is_new)
                before = partition.leader_epoch
                log = partition.log
                offset, high_watermark = log.log_end_offset, log.high_watermark
                is_new_leader = partition.make_leader(state)
            except KafkaError as error:
                codes[key] = self._failed(key, error, WantedLog(topic_id, state.is_new))
                lines.cannot_lead(key, state, error)
            else:
                self._log_dir_moves.resume(partition)
                self._on_change(key)
                lines.leader_starts(key, state, offset, high_watermark, before)
                if not is_new_leader:
                    lines.led_already(key, state)
            if lines.traces:
                lines.leads(key)

    async def _make_followers(
        self,
        changes: list[_Change],
        codes: dict[PartitionKey, ErrorCode],
        request: LeaderAndIsrRequest,
        lines: LeaderAndIsrLines,
    ) -> None:
        # The request has its leaders' addresses; the metadata cache may be older.
        leaders = {leader.broker_id: (leader.host_name, leader.port) for leader in request.live_leaders}
        to_fetch: dict[PartitionKey, InitialFetchState] = {}
        stopped = 0
        slices = _slices()
        for key, topic_id, state in changes:
            if lines.traces:
                lines.becoming_follower(key, state.leader)
            address = leaders.get(state.leader) or self._live_broker(state.leader)
            try:
                # Opened even without a live leader, because the high watermark must be in the checkpoint.
                partition = self._hosted.open(*key, topic_id, is_new=state.is_new)
            except KafkaError as error:
                codes[key] = self._failed(key, error, WantedLog(topic_id, state.is_new))
                lines.cannot_follow(key, state, error)
                continue
            self._log_dir_moves.resume(partition)
            if address is None:
                lines.leader_is_not_alive(key, state)
                continue
            before, log = partition.leader_epoch, partition.log
            partition.make_follower(state)
            self._followers.remove_fetchers([key])
            stopped += 1
            self._on_change(key)
            to_fetch[key] = InitialFetchState(state.leader, *address, state.leader_epoch)
            lines.follower_starts(key, state.leader_epoch, log.log_end_offset, log.high_watermark, before)
            if lines.traces:
                if self._is_stopping:
                    lines.does_not_fetch(key, state.leader)
                lines.follows(key, state.leader)
            if slices.spend():
                self._fetch(to_fetch)
                to_fetch = {}
                await asyncio.sleep(0)
        self._fetch(to_fetch)
        if stopped:
            lines.stopped_fetchers_of_followers(stopped)

    def _fetch(self, states: Mapping[PartitionKey, InitialFetchState]) -> None:
        if states and not self._is_stopping:
            self._followers.add_fetchers(states)

    def _failed(self, key: PartitionKey, error: KafkaError, wanted: WantedLog) -> ErrorCode:
        _log.error("LeaderAndIsr for %s-%d: %s", *key, error)
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._followers.remove_fetchers([key])
            self._log_dir_moves.remove([key])
            self._hosted.mark_offline(key, wanted)
        return error.code

    # -- StopReplica ----------------------------------------------------------------------------------------------

    async def stop_replicas(
        self, request: StopReplicaRequest, correlation_id: int = 0
    ) -> tuple[ErrorCode, dict[PartitionKey, ErrorCode]]:
        """Stops copying partitions, and deletes their logs where the request asks for it.

        Returns (STALE_CONTROLLER_EPOCH, {}) for an old controller; else (NONE, the error code of each partition).
        """
        async with self._lock:
            lines = self._lines.stop_replica(Origin(correlation_id, request.controller_id, request.controller_epoch))
            try:
                return await self._stop_replicas(request.controller_epoch, _stops(request), lines)
            finally:
                lines.flush()

    async def _stop_replicas(
        self, controller_epoch: int, stops: Mapping[PartitionKey, tuple[int, bool]], lines: StopReplicaLines
    ) -> tuple[ErrorCode, dict[PartitionKey, ErrorCode]]:
        lines.received(stops)
        try:
            self._check_controller_epoch(controller_epoch, lines.is_old)
        except KafkaError as error:
            return error.code, {}
        codes = {}
        async for key, (leader_epoch, delete) in each(stops.items(), _slices()):
            if lines.traces:
                lines.stopping(key, leader_epoch, delete)
            codes[key] = self._stop(key, leader_epoch, delete, lines)
        return ErrorCode.NONE, codes

    def _stop(self, key: PartitionKey, leader_epoch: int, delete: bool, lines: StopReplicaLines) -> ErrorCode:
        if self._hosted.is_offline(key):
            lines.offline(key, delete)
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._hosted.get(key)
        is_replica = partition is not None and self._broker_id in partition.replicas
        if partition is not None and is_replica and NO_EPOCH < leader_epoch < partition.leader_epoch:
            lines.stale(key, leader_epoch, partition.leader_epoch, delete)
            return ErrorCode.FENCED_LEADER_EPOCH
        if not delete:
            self._followers.remove_fetchers([key])
            self._log_dir_moves.remove([key])
            self._on_change(key)
            return ErrorCode.NONE
        code = self._delete(key)
        if code is not ErrorCode.NONE:
            lines.cannot_delete(key)
        return code

    def _delete(self, key: PartitionKey) -> ErrorCode:
        self._followers.remove_fetchers([key])
        self._log_dir_moves.remove([key])
        self._hosted.remove(key)
        try:
            # Even a log that was never hosted: the topic may have been deleted while this broker was down.
            self._log_manager.delete(*key)
        except KafkaError as error:
            _log.error("The log of %s-%d cannot be deleted: %s", *key, error)
            return error.code
        return ErrorCode.NONE

    # -- disks ----------------------------------------------------------------------------------------------------

    async def reopen_logs(self) -> bool:
        """Tries again to open the logs for which there was no space. Returns whether a log can be used now.

        The caller then tells the controller, which still regards the partition as offline.
        """
        async with self._lock:
            reopened = 0
            async for key in each(self._hosted.waiting_for_space, _slices()):
                reopened += self._hosted.reopen(key)
            if reopened:
                _log.info("%d partitions can be hosted now that there is space for them", reopened)
            return reopened > 0

    def directory_failed(self, directory: str) -> Steps[None]:
        """Takes every partition whose log is in `directory` offline, in steps. It does not wait for the lock, because
        the logs already refuse all operations."""
        self._log_dir_moves.directory_failed(directory)
        slices = Slices()
        for key, partition in list(self._hosted.all.items()):
            future = partition.future_log
            if future is not None and future.log_directory.path == directory:
                partition.future_log = None
            if partition.log.log_directory.path == directory and self._hosted.get(key) is partition:
                self._followers.remove_fetchers([key])
                self._log_dir_moves.remove([key])
                self._hosted.mark_offline(key)
            if slices.spend():
                yield


def _slices() -> Slices:
    """Slices by time, because a log that is opened or deleted may need the disk."""
    return Slices(SLICE, asyncio.get_running_loop().time)


def _may_be_same(one: UUID | None, other: UUID | None) -> bool:
    """Whether both ids may be of the same topic. An unknown id may be of any topic."""
    # Compares numbers, because comparing UUIDs for each hosted partition takes long.
    return one is None or other is None or one.int == other.int


def _response(
    request: LeaderAndIsrRequest, code: ErrorCode, codes: Mapping[PartitionKey, ErrorCode]
) -> Steps[LeaderAndIsrResponse]:
    """The response. A partition that is not in `codes` gets `code`, the request's own error code."""
    answers: list[LeaderAndIsrTopicError] = []
    slices = Slices(ANSWERS_PER_SLICE)
    for topic in request.topic_states:
        errors = [
            LeaderAndIsrPartitionError(
                state.partition_index, codes.get((topic.topic_name, state.partition_index), code)
            )
            for state in topic.partition_states
        ]
        answers.append(LeaderAndIsrTopicError(topic.topic_name, topic.topic_id, errors))
        if slices.spend(1 + len(errors)):
            yield
    return LeaderAndIsrResponse(code, answers)


def _stops(request: StopReplicaRequest) -> dict[PartitionKey, tuple[int, bool]]:
    """Partition -> (leader epoch, whether to delete it)."""
    return {
        (topic.topic_name, state.partition_index): (
            state.leader_epoch,
            state.delete_partition or request.delete_partitions,
        )
        for topic in request.topic_states
        for state in topic.partition_states
    }
