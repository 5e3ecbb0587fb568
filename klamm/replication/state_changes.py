"""What the controller tells a broker of its replicas: LeaderAndIsr, StopReplica, and what follows from UpdateMetadata.

LeaderAndIsr and StopReplica reach only the replicas that the controller takes for alive. A broker that had no session
with ZooKeeper when its partition got another leader, or was moved away, may never get either; UpdateMetadata is then
all that it hears, and ends its part:

| UpdateMetadata says of a hosted partition                  | leading ends       | copying ends | the epoch is then |
|------------------------------------------------------------|--------------------|--------------|-------------------|
| a newer epoch, another leader, this broker is a replica    | yes                | no           | as before         |
| a newer epoch, another leader, this broker is no replica   | yes                | yes          | the newer one     |
| it is being deleted, or of a new topic: this is no replica | yes                | yes          | as before         |
| the same epoch or an older one                             | no                 | no           | as before         |

The first line leaves the epoch to the LeaderAndIsr that is on its way. The log stays in each case.

What must stay true:
- These requests are worked off one after another. One of a controller older than the latest known changes nothing.
- A partition changes only to a newer leader epoch, so that what arrives late or twice changes nothing. It stops also in
  the epoch that it is in: a controller that cancels a reassignment need not have begun another (KAFKA-13972). Once this
  broker is no replica any more, StopReplica counts in any epoch: the newer one is that of the others.
- Of two topics that had the same name, at most one has a log here. Never does a log go because of its topic's id that
  may be all there is of a record.
- The fetcher of a partition is gone before the partition leads or is deleted, and knows the new leader and epoch before
  it goes on.
- Work on many partitions leaves the loop to others about every ten milliseconds. state-change.log tells what becomes
  of each partition; correlation ids serve nothing but its lines.

Source: kafka.server.ReplicaManager.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicErrors,
)
from klamm.protocol.primitives import Steps
from klamm.protocol.stop_replica import StopReplicaRequest
from klamm.protocol.update_metadata import LEADER_DURING_DELETE, UpdateMetadataPartitionState, UpdateMetadataRequest
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.replication.fetch_state import InitialFetchState
from klamm.replication.hosted_partitions import HostedPartitions, WantedLog
from klamm.replication.partition import Partition
from klamm.replication.ports import FollowerFetchers, LiveBroker, TopicConfigSource
from klamm.replication.state_change_lines import LeaderAndIsrLines, Origin, StateChangeLines, StopReplicaLines
from klamm.slices import SLICE, Slices, in_slices
from klamm.storage.log_manager import LogManager
from klamm.znodes.topics import NO_LEADER, TopicPartition, is_legal_topic_name

T = TypeVar("T")

# Of an answer; each partition costs two microseconds.
ANSWERS_PER_SLICE = 2_000

_log = logging.getLogger(__name__)

# (partition, id of its topic, what LeaderAndIsr says)
_Change = tuple[TopicPartition, UUID | None, LeaderAndIsrPartitionState]


class StateChanges:
    """Applies the controller's requests to the hosted partitions. `on_change` hears of each changed partition."""

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        hosted: HostedPartitions,
        topic_configs: TopicConfigSource,
        followers: FollowerFetchers,
        live_broker: LiveBroker,
        on_change: Callable[[TopicPartition], None],
        lines: StateChangeLines,
    ) -> None:
        self.controller_epoch = 0
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._hosted = hosted
        self._topic_configs = topic_configs
        self._followers = followers
        self._live_broker = live_broker
        self._on_change = on_change
        self._lines = lines
        self._lock = asyncio.Lock()
        self._is_stopping = False

    def stop(self) -> None:
        """No fetcher is started from now on."""
        self._is_stopping = True

    async def update_metadata(
        self, request: UpdateMetadataRequest, apply: Callable[[], Steps[T]], correlation_id: int = 0
    ) -> T:
        """Takes the steps that `apply` gives in its turn. Raises KafkaError STALE_CONTROLLER_EPOCH."""
        async with self._lock:
            lines = self._lines.update_metadata(correlation_id, request)
            try:
                self._check_controller_epoch(request.controller_epoch, lines.is_old)
                await self._end_what_is_over(request)
                applied = await in_slices(apply())
                await in_slices(lines.cached(request))
                return applied
            finally:
                lines.flush()

    async def in_turn(self, apply: Callable[[], Steps[T]]) -> T:
        """Takes the steps that `apply` gives when no request of a controller is being worked off."""
        async with self._lock:
            return await in_slices(apply())

    async def _end_what_is_over(self, request: UpdateMetadataRequest) -> None:
        hosted = self._hosted.all
        ended = 0
        slices = _slices()
        for topic in request.topics:
            name, topic_id = topic.topic, topic.topic_id
            for state in topic.partitions:
                partition = hosted.get((name, state.partition))
                if partition is not None:
                    ended += self._end_if_over(partition, topic_id, state)
                    if slices.is_over():
                        await asyncio.sleep(0)
        if ended:
            _log.info(
                "UpdateMetadata of controller %d, epoch %d: %d partitions are led by others",
                *(request.controller_id, self.controller_epoch, ended),
            )

    def _end_if_over(self, partition: Partition, topic_id: UUID | None, state: UpdateMetadataPartitionState) -> bool:
        """Whether this broker's part in the partition is over, as the module's table says."""
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
        """This broker is no replica of a hosted partition any more. Its log stays, and can serve if it is one again."""
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
        """Errors are in the response. ZooKeeperError when the configuration of a topic that is new here cannot be read;
        then no partition has changed, and the request should come again."""
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
        codes: dict[TopicPartition, ErrorCode] = {}
        slices = _slices()
        for topic in request.topics:
            for state in topic.partitions:
                key = topic.topic, state.partition
                if lines.traces:
                    lines.received_state(topic.topic, state)
                codes[key] = self._check(key, topic.topic_id, state, lines)
                if codes[key] is ErrorCode.NONE:
                    changes = leading if state.leader == self._broker_id else following
                    changes.append((key, topic.topic_id, state))
                if slices.is_over():
                    await asyncio.sleep(0)
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
        for topic in request.topics:
            for state in topic.partitions if is_legal_topic_name(topic.topic) else ():
                if self._is_new_here((topic.topic, state.partition), topic.topic_id):
                    new.append(topic.topic)
                    break
                if slices.is_over():
                    await asyncio.sleep(0)
        if new:
            await self._topic_configs.load(new)

    def _is_new_here(self, key: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether the configuration of the partition's topic may be unknown. A partition that this broker has left may
        be what is left of another topic of that name."""
        partition = self._hosted.get(key)
        if partition is None or self._broker_id not in partition.replicas:
            return True
        return not _may_be_same(partition.log.topic_id, topic_id)

    def _check(
        self, key: TopicPartition, topic_id: UUID | None, state: LeaderAndIsrPartitionState, lines: LeaderAndIsrLines
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
            if not is_legal_topic_name(key[0]) or state.partition < 0 or state.leader_epoch < 0:
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

    def _is_of_former_topic(
        self, key: TopicPartition, topic_id: UUID | None, state: LeaderAndIsrPartitionState
    ) -> bool:
        """Whether the log was left by another topic: this broker was down when that was moved away, and deleted
        (KAFKA-10548).

        Not so where the controller counts this replica among those in sync, but in the topic's first epoch. Then the
        log has records of the topic, and its id was changed: an operator must look.
        """
        log = self._log_manager.get(*key)
        has_other_id = log is not None and not _may_be_same(log.topic_id, topic_id)
        is_replica = self._broker_id in state.replicas
        is_first_epoch = state.is_new and state.leader_epoch == 0
        return has_other_id and is_replica and (is_first_epoch or self._broker_id not in state.isr)

    async def _make_leaders(
        self, changes: list[_Change], codes: dict[TopicPartition, ErrorCode], lines: LeaderAndIsrLines
    ) -> None:
        if not changes:
            return
        self._followers.remove_fetchers([key for key, _, _ in changes])
        lines.stopped_fetchers_of_leaders(len(changes))
        slices = _slices()
        for key, topic_id, state in changes:
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
                self._on_change(key)
                lines.leader_starts(key, state, offset, high_watermark, before)
                if not is_new_leader:
                    lines.led_already(key, state)
            if lines.traces:
                lines.leads(key)
            if slices.is_over():
                await asyncio.sleep(0)

    async def _make_followers(
        self,
        changes: list[_Change],
        codes: dict[TopicPartition, ErrorCode],
        request: LeaderAndIsrRequest,
        lines: LeaderAndIsrLines,
    ) -> None:
        # The request knows where its leaders are; metadata may be older.
        leaders = {leader.broker_id: (leader.host, leader.port) for leader in request.live_leaders}
        to_fetch: dict[TopicPartition, InitialFetchState] = {}
        stopped = 0
        slices = _slices()
        for key, topic_id, state in changes:
            if lines.traces:
                lines.becoming_follower(key, state.leader)
            address = leaders.get(state.leader) or self._live_broker(state.leader)
            try:
                # Also without a live leader: the high watermark must be in the checkpoint.
                partition = self._hosted.open(*key, topic_id, is_new=state.is_new)
            except KafkaError as error:
                codes[key] = self._failed(key, error, WantedLog(topic_id, state.is_new))
                lines.cannot_follow(key, state, error)
                continue
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
            if slices.is_over():
                self._fetch(to_fetch)
                to_fetch = {}
                await asyncio.sleep(0)
        self._fetch(to_fetch)
        if stopped:
            lines.stopped_fetchers_of_followers(stopped)

    def _fetch(self, states: Mapping[TopicPartition, InitialFetchState]) -> None:
        if states and not self._is_stopping:
            self._followers.add_fetchers(states)

    def _failed(self, key: TopicPartition, error: KafkaError, wanted: WantedLog) -> ErrorCode:
        _log.error("LeaderAndIsr for %s-%d: %s", *key, error)
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._followers.remove_fetchers([key])
            self._hosted.mark_offline(key, wanted)
        return error.code

    # -- StopReplica ----------------------------------------------------------------------------------------------

    async def stop_replicas(
        self, request: StopReplicaRequest, correlation_id: int = 0
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Ends this broker's part in partitions; with their logs where it says so.

        (STALE_CONTROLLER_EPOCH, {}) for an old controller; else (NONE, each partition's code).
        """
        async with self._lock:
            lines = self._lines.stop_replica(Origin(correlation_id, request.controller_id, request.controller_epoch))
            try:
                return await self._stop_replicas(request.controller_epoch, _stops(request), lines)
            finally:
                lines.flush()

    async def _stop_replicas(
        self, controller_epoch: int, stops: Mapping[TopicPartition, tuple[int, bool]], lines: StopReplicaLines
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        lines.received(stops)
        try:
            self._check_controller_epoch(controller_epoch, lines.is_old)
        except KafkaError as error:
            return error.code, {}
        codes = {}
        slices = _slices()
        for key, (leader_epoch, delete) in stops.items():
            if lines.traces:
                lines.stopping(key, leader_epoch, delete)
            codes[key] = self._stop(key, leader_epoch, delete, lines)
            if slices.is_over():
                await asyncio.sleep(0)
        return ErrorCode.NONE, codes

    def _stop(self, key: TopicPartition, leader_epoch: int, delete: bool, lines: StopReplicaLines) -> ErrorCode:
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
            self._on_change(key)
            return ErrorCode.NONE
        code = self._delete(key)
        if code is not ErrorCode.NONE:
            lines.cannot_delete(key)
        return code

    def _delete(self, key: TopicPartition) -> ErrorCode:
        self._followers.remove_fetchers([key])
        self._hosted.remove(key)
        try:
            # Also what was never hosted: the topic may have been deleted while this broker was down.
            self._log_manager.delete(*key)
        except KafkaError as error:
            _log.error("The log of %s-%d cannot be deleted: %s", *key, error)
            return error.code
        return ErrorCode.NONE

    # -- disks ----------------------------------------------------------------------------------------------------

    async def reopen_logs(self) -> bool:
        """Tries again to open the logs for which there was no space; whether one can be used now.

        If so, the controller has to ask for it: it takes the partition for offline.
        """
        async with self._lock:
            reopened = 0
            slices = _slices()
            for key in self._hosted.waiting_for_space:
                reopened += self._hosted.reopen(key)
                if slices.is_over():
                    await asyncio.sleep(0)
            if reopened:
                _log.info("%d partitions can be hosted now that there is space for them", reopened)
            return reopened > 0

    def directory_failed(self, directory: str) -> None:
        """Takes every partition whose log is in `directory` offline; at once, whatever else is under way."""
        failed = [key for key, partition in self._hosted.all.items() if partition.log.log_directory.path == directory]
        self._followers.remove_fetchers(failed)
        for key in failed:
            self._hosted.mark_offline(key)


def _slices() -> Slices:
    """A log that is opened or deleted may need the disk."""
    return Slices(SLICE, asyncio.get_running_loop().time)


def _may_be_same(one: UUID | None, other: UUID | None) -> bool:
    """Whether these are ids of one topic, as far as is known."""
    # As numbers, since UUIDs take long to compare and this is done for each hosted partition.
    return one is None or other is None or one.int == other.int


def _response(
    request: LeaderAndIsrRequest, code: ErrorCode, codes: Mapping[TopicPartition, ErrorCode]
) -> Steps[LeaderAndIsrResponse]:
    """The answer; a partition that is not in `codes` gets what the request as a whole gets."""
    answers: list[LeaderAndIsrTopicErrors] = []
    slices = Slices(ANSWERS_PER_SLICE)
    for topic in request.topics:
        errors: list[tuple[int, int]] = [
            (state.partition, codes.get((topic.topic, state.partition), code)) for state in topic.partitions
        ]
        answers.append(LeaderAndIsrTopicErrors(topic.topic, topic.topic_id, errors))
        if slices.is_over(1 + len(errors)):
            yield
    return LeaderAndIsrResponse(code, answers)


def _stops(request: StopReplicaRequest) -> dict[TopicPartition, tuple[int, bool]]:
    """Partition -> (leader epoch, whether to delete it)."""
    return {
        (topic.topic, state.partition): (state.leader_epoch, state.delete)
        for topic in request.topics
        for state in topic.partitions
    }
