"""A consumer of records from partitions that its caller assigns to it.

A task fetches in the background, with one request to each leader for all its wanted partitions, and hands the records
to `poll`. `group_consumer.py` makes the consumer a member of a group. The position, the pending fetch and the waiting
records of a partition change together, so the module is long.

What must stay true:
- Every record from a position on is returned once, in the order of its partition's offsets. Offsets without a record
  (compaction, control records, aborted transactions with READ_COMMITTED) are skipped.
- A position moves only when its records are returned. If the log no longer has the position, or has other records
  before it (an unclean election, a topic that was deleted and created again), records are never skipped silently:
  `auto_offset_reset` decides where reading continues, and a log line says so, or it is an error.
- At most `fetch_max_bytes` of records wait, except for a single larger batch, and at most two answers of a partition.
  Paused partitions keep no other partition waiting for room.

Source: org.apache.kafka.clients.consumer.KafkaConsumer; internals.Fetcher, internals.SubscriptionState; KIP-320.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from klamm.base.tasks import start_task
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.fetching import FetchFrom, fetch_request, leader_epoch_ends, readable_batches
from klamm.client.consumer.offsets import OffsetAndMetadata, list_offsets
from klamm.client.metadata import PartitionMetadata
from klamm.client.options import ConsumerOptions, OffsetReset
from klamm.client.read_replicas import NO_FOLLOWER, Source
from klamm.client.retries import RETRIABLE_ERRORS, RetryPolicy
from klamm.net.client import Disconnected, NotSent
from klamm.protocol.apis.fetch import AbortedTransaction, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import decompress
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, BatchHeader, iterate_batches
from klamm.protocol.record.records import decode_in_parts
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH, TopicPartition

logger = logging.getLogger(__name__)

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0
# How long a topic or partition may be missing in the metadata: a broker that has just started knows no topics.
MISSING_TIMEOUT_S = 10.0
# The most answers held for one partition: the current one and the next.
MAX_ANSWERS = 2
_ONCE = RetryPolicy(deadline_ms=0)
_TIMESTAMPS = {OffsetReset.EARLIEST: EARLIEST_TIMESTAMP, OffsetReset.LATEST: LATEST_TIMESTAMP}


class ConsumerRecord(NamedTuple):
    """A record of a partition. Headers are (name, value) pairs in their order."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    is_log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


class NoOffset(KafkaError):
    """There is no offset to begin at, the log no longer has it, or it was truncated; and `auto_offset_reset` is
    none."""


@dataclass(slots=True)
class _Partition:
    """An assigned partition. `position` is the next offset to be returned, None until it is looked up.

    `fetch_offset` is ahead of the position by the waiting records. `position_epoch` is the leader epoch of the record
    before the position. A `seek` or a new leader replaces this object by a new one, and answers for the old object are
    dropped.
    """

    name: TopicPartition
    position: int | None
    reset: OffsetReset
    position_epoch: int = NO_EPOCH
    fetch_offset: int = 0
    # The lowest position so far.
    start: int | None = None
    # The leader epoch for which the log is known to have the records that were read.
    valid_epoch: int = NO_EPOCH
    # The id of the topic that the position belongs to; None until it is known.
    topic_id: UUID | None = None
    is_out_of_range: bool = False
    is_paused: bool = False
    # The leader has answered with an error, so the metadata is refreshed before the next fetch.
    is_doubtful: bool = False
    answers: int = 0
    error: KafkaError | None = None
    missing_since_s: float | None = None


@dataclass(slots=True)
class _Answer:
    """A leader's answer for a partition. `records` are decoded part by part; `rest` are the remaining records of the
    current part."""

    partition: _Partition
    records: Buffer
    aborted: Sequence[AbortedTransaction] | None
    rest: list[ConsumerRecord] = field(default_factory=list)
    parts: "Iterator[tuple[list[ConsumerRecord], int, int]] | None" = None
    # The position and its leader epoch after `rest`.
    after: tuple[int, int] = (0, NO_EPOCH)


class Consumer:
    """Reads the assigned partitions, with its own connections to the cluster of `client`."""

    def __init__(self, client: ClusterClient, options: ConsumerOptions | None = None) -> None:
        self._client = client.another()
        self._options = options or ConsumerOptions()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._answers: deque[_Answer] = deque()
        # The bytes of waiting answers, and the most bytes of pending fetches.
        self._held_bytes = 0
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._stale = True
        self._is_failing = False
        self._failed_leaders: set[int] = set()
        self._backoff_s = MIN_BACKOFF_S
        self._failure: BaseException | None = None
        self._is_interrupted = self._is_closed = False
        # The first is set when the task has work, the second when `poll` may have records.
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._task = start_task(self._run(), self._fail)

    # -- fetched records ------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._partitions)

    def assign(self, positions: Mapping[TopicPartition, int | OffsetAndMetadata | None]) -> None:
        """Reads exactly these partitions from these offsets. For None `auto_offset_reset` decides.

        With the leader epoch of a committed offset, the leader is asked first whether its log still has the records
        before that offset (KIP-320).
        """
        self._partitions = {}
        self.add(positions)
        self._drop_answers()

    def add(self, positions: Mapping[TopicPartition, int | OffsetAndMetadata | None]) -> None:
        """Reads these partitions too; otherwise like `assign`."""
        for partition, position in positions.items():
            self.seek(partition, position)
        self._stale = True

    def seek(self, partition: TopicPartition, position: int | OffsetAndMetadata | OffsetReset | None) -> None:
        """Continues a partition at this offset, or where the reset points."""
        before = self._partitions.get(partition)
        reset = position if isinstance(position, OffsetReset) else self._options.auto_offset_reset
        if isinstance(position, OffsetAndMetadata):
            state = _Partition(partition, position.offset, reset, position.leader_epoch)
        else:
            state = _Partition(partition, None if isinstance(position, OffsetReset) else position, reset)
        self._partitions[partition] = state
        state.fetch_offset = state.position or 0
        state.start = state.position
        if before is not None:
            state.is_paused = before.is_paused
            state.topic_id = before.topic_id
            starts = [start for start in (before.start, state.start) if start is not None]
            state.start = min(starts, default=None)
            self._drop_answers()
        self._wake.set()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Returns no records of these partitions until `resume`."""
        for partition in partitions:
            self._partitions[partition].is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""
        for partition in partitions:
            self._partitions[partition].is_paused = False
        self._wake.set()
        self._arrived.set()

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that `poll` will return; None until it is looked up."""
        return self._partitions[partition].position

    def start(self, partition: TopicPartition) -> int | None:
        """The lowest position since the partition was assigned; None until its first position is looked up."""
        return self._partitions[partition].start

    def positions(self) -> dict[TopicPartition, int]:
        """The position of each assigned partition that has one."""
        return {
            partition: state.position for partition, state in self._partitions.items() if state.position is not None
        }

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Like `positions`, with the leader epochs of the records before them, for a commit."""
        return {
            partition: OffsetAndMetadata(state.position, leader_epoch=state.position_epoch)
            for partition, state in self._partitions.items()
            if state.position is not None
        }

    # -- reading --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; empty if no records come within `timeout_ms`.

        Raises KafkaError when a partition cannot be read (NoOffset, a topic that is deleted or may not be read, corrupt
        records), and ClientError when brokers do not trust this client. Records of other partitions come first. Raises
        RuntimeError when the consumer is closed, also while the call waits.
        """
        return await self.poll_until(asyncio.get_running_loop().time() + timeout_ms / 1000, max_records)

    async def poll_until(self, deadline: float, max_records: int | None = None) -> list[ConsumerRecord]:
        """Like `poll`, until a time of the loop's clock, or until `interrupt`."""
        limit = min(self._options.max_poll_records, max_records or self._options.max_poll_records)
        self._is_interrupted = False
        while True:
            self._arrived.clear()
            if self._is_closed:
                raise RuntimeError("the consumer is closed")
            if self._is_interrupted:
                return []
            if records := self._take(limit):
                return records
            self._check()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return []

    def interrupt(self) -> None:
        """Ends a poll that waits for records."""
        self._is_interrupted = True
        self._arrived.set()

    async def close(self) -> None:
        """Ends the fetches and closes the connections. Idempotent."""
        self._is_closed = True
        self._arrived.set()
        tasks = [self._task, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        for state in self._partitions.values():
            if state.error is not None:
                raise state.error

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._arrived.set()

    def _take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` records, in the order in which the answers came."""
        taken: list[ConsumerRecord] = []
        for answer in list(self._answers):
            state = answer.partition
            while len(taken) < limit and state.error is None and not state.is_paused:
                try:
                    has_more = self._next_part(answer)
                except KafkaError as error:
                    self._give_up(
                        state, KafkaError(error.code, f"{state.name} from offset {state.position} on: {error.message}")
                    )
                    break
                if not has_more:
                    self._forget(answer)
                    break
                room = limit - len(taken)
                taken += answer.rest[:room]
                del answer.rest[:room]
                state.position, state.position_epoch = answer.after
                if answer.rest:
                    state.position = answer.rest[0].offset
        return taken

    def _next_part(self, answer: _Answer) -> bool:
        """Fills `rest`; False at the end of the answer."""
        state = answer.partition
        if answer.parts is None:
            assert state.position is not None
            answer.parts = _parts(state.name, answer.records, answer.aborted, state.position)
        while not answer.rest:
            part = next(answer.parts, None)
            if part is None:
                return False
            answer.rest, *after = part
            answer.after = (after[0], after[1])
            if not answer.rest:
                state.position, state.position_epoch = answer.after
        return True

    def _forget(self, answer: _Answer) -> None:
        self._answers.remove(answer)
        self._held_bytes -= len(answer.records)
        answer.partition.answers -= 1
        if answer.partition.is_out_of_range:
            self._wake.set()
        self._start_fetches()

    def _drop_answers(self) -> None:
        """Drops the answers for partitions that are no longer read, or are read from another offset now."""
        for answer in [each for each in self._answers if not self._is_current(each.partition)]:
            self._forget(answer)

    def _is_current(self, state: _Partition) -> bool:
        return self._partitions.get(state.name) is state

    # -- in the background ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Prepares the next fetches, after each change and after failures."""
        while True:
            self._wake.clear()
            try:
                is_done = await self._prepare()
            except (NotSent, Disconnected):
                is_done = False
            self._start_fetches()
            if is_done:
                await self._wake.wait()
            if is_done and not self._is_failing:
                self._backoff_s = MIN_BACKOFF_S
                continue
            self._is_failing = False
            await asyncio.sleep(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    async def _prepare(self) -> bool:
        """Looks up leaders and positions, and checks that logs still have the records that were read. False if this
        must be repeated."""
        if not self._partitions:
            return True
        if self._stale:
            topics = dict.fromkeys(topic for topic, _ in self._partitions)
            await self._client.refresh_metadata_once(topics, elsewhere=self._backoff_s > MIN_BACKOFF_S)
            self._stale = False
            self._failed_leaders.clear()
            self._check_metadata()
        await self._reset([state for state in self._readable() if state.position is None or self._must_reset(state)])
        await self._validate([state for state in self._readable() if self._must_validate(state)])
        waiting = [state for state in self._partitions.values() if state.error is None]
        if any(self._metadata(state) is None for state in waiting):
            self._stale = True
        return not self._stale and not any(state.position is None or self._must_validate(state) for state in waiting)

    def _readable(self) -> list[_Partition]:
        """The partitions with leaders and without errors."""
        return [state for state in self._partitions.values() if state.error is None and self._metadata(state)]

    def _check_metadata(self) -> None:
        """Notes the partitions that cannot be read, according to the newest metadata."""
        now_s = asyncio.get_running_loop().time()
        for name in list(self._partitions):
            self._partitions[name].is_doubtful = False
            self._check_leader(self._partitions[name])
            topic = self._client.metadata.topics.get(name.topic)
            if topic is not None and topic.topic_id is not None:
                self._check_topic(name, topic.topic_id)
            state = self._partitions[name]
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else ErrorCode(topic.error_code)
            if code is ErrorCode.NONE and topic is not None and state.name.partition not in topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                state.missing_since_s = None
                if code is not ErrorCode.NONE and code not in RETRIABLE_ERRORS:
                    self._give_up(state, KafkaError(code, f"topic {state.name.topic}"))
            elif state.missing_since_s is None:
                state.missing_since_s = now_s
            elif now_s - state.missing_since_s >= MISSING_TIMEOUT_S:
                self._give_up(state, KafkaError(code, f"partition {state.name} does not exist"))

    def _check_leader(self, state: _Partition) -> None:
        """Drops waiting records if the leader is new, because its log may differ from the former leader's."""
        metadata = self._metadata(state)
        if metadata is not None and state.valid_epoch not in (NO_EPOCH, metadata.leader_epoch):
            self._partitions[state.name] = replace(state, answers=0, fetch_offset=state.position or 0)
            self._drop_answers()

    def _check_topic(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Resets the position if the topic was deleted and created again: its log has other records."""
        state = self._partitions[partition]
        if state.topic_id not in (None, topic_id) and state.position is not None:
            self._move(state, state.reset, f"the topic of {partition} was deleted and created again")
        self._partitions[partition].topic_id = topic_id

    def _metadata(self, state: _Partition) -> PartitionMetadata | None:
        """The partition's metadata if it has a leader."""
        topic = self._client.metadata.topics.get(state.name.topic)
        found = None if topic is None else topic.partitions.get(state.name.partition)
        return found if found is not None and found.leader in self._client.metadata.brokers else None

    def _must_reset(self, state: _Partition) -> bool:
        # The waiting records before the missing offset are returned first.
        return state.is_out_of_range and not state.answers

    async def _reset(self, states: Collection[_Partition]) -> None:
        """Sets the positions of partitions without a position, or whose log no longer has it."""
        for state in states:
            if state.reset is OffsetReset.NONE:
                await self._refuse(state)
        wanted = {state.name: _TIMESTAMPS[state.reset] for state in states if state.reset is not OffsetReset.NONE}
        found = await self._list_offsets(wanted)
        for state in states:
            listed = found.get(state.name)
            if listed is None or not self._is_current(state):
                continue
            if state.position is not None:
                logger.warning(
                    "%s: the log no longer has offset %d; reading continues at %d (auto.offset.reset=%s)",
                    *(state.name, state.position, listed, state.reset.value),
                )
            self.seek(state.name, listed)

    async def _refuse(self, state: _Partition) -> None:
        """Makes the missing position an error, instead of a reset."""
        if state.position is None:
            self._give_up(
                state, NoOffset(ErrorCode.OFFSET_OUT_OF_RANGE, f"{state.name} has no offset to begin at, and no reset")
            )
            return
        first = (await self._list_offsets({state.name: EARLIEST_TIMESTAMP})).get(state.name)
        end = (await self._list_offsets({state.name: LATEST_TIMESTAMP})).get(state.name)
        if first is not None and end is not None:
            self._give_up(
                state,
                NoOffset(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{state.name} does not have offset {state.position}, its log has {first} to {end}",
                ),
            )

    async def _list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets that are known now. The other offsets need a further attempt."""
        if not timestamps:
            return {}
        isolation_level = self._options.isolation_level
        results = await list_offsets(self._client, timestamps, isolation_level=isolation_level, retry=_ONCE)
        offsets = {}
        for partition, result in results.items():
            if isinstance(result, KafkaError):
                self._note_error(self._partitions.get(partition), result)
            else:
                offsets[partition] = result.offset
        return offsets

    def _must_validate(self, state: _Partition) -> bool:
        metadata = self._metadata(state)
        return (
            state.position is not None
            and state.position_epoch != NO_EPOCH
            and metadata is not None
            and metadata.leader_epoch != state.valid_epoch
        )

    async def _validate(self, states: Collection[_Partition]) -> None:
        """Asks new leaders whether their logs have the records before the positions (KIP-320)."""
        if not states:
            return
        epochs = {state.name: metadata.leader_epoch for state in states if (metadata := self._metadata(state))}
        results = await leader_epoch_ends(
            self._client, {state.name: state.position_epoch for state in states}, retry=_ONCE
        )
        for state in states:
            result = results[state.name]
            if not self._is_current(state):
                continue
            if isinstance(result, KafkaError):
                self._note_error(state, result)
            elif result.end_offset < (state.position or 0):
                self._truncated(state, result.end_offset)
            else:
                state.valid_epoch = epochs[state.name]

    def _truncated(self, state: _Partition, end_offset: int) -> None:
        """The log differs from `end_offset` on. If that is -1, the log may have no record that was read."""
        if end_offset < 0:
            what = f"{state.name} no longer has the records of leader epoch {state.position_epoch} that were read"
            self._move(state, state.reset, what)
        else:
            what = (
                f"{state.name} was truncated: the records from offset {end_offset} to {(state.position or 0) - 1} that"
                " were read are no longer in the log"
            )
            self._move(state, end_offset, what)

    def _move(self, state: _Partition, position: int | OffsetReset, why: str) -> None:
        """Continues reading at `position` and logs it. Without a reset, this is an error."""
        if state.reset is OffsetReset.NONE:
            self._give_up(state, NoOffset(ErrorCode.OFFSET_OUT_OF_RANGE, why))
        else:
            where = f"the {position.value} offset" if isinstance(position, OffsetReset) else position
            logger.warning("%s; reading continues at %s (auto.offset.reset=%s)", why, where, state.reset.value)
            self.seek(state.name, position)

    def _give_up(self, state: _Partition, error: KafkaError) -> None:
        if state.error is None:
            state.error = error
            self._arrived.set()

    def _note_error(self, state: _Partition | None, error: KafkaError) -> None:
        """Schedules another attempt after a metadata refresh, unless no attempt helps."""
        if state is not None and error.code not in RETRIABLE_ERRORS:
            self._give_up(state, KafkaError(error.code, f"{state.name}: {error.message}"))
        self._stale = self._is_failing = True

    # -- fetches --------------------------------------------------------------------------------------------------

    def _start_fetches(self) -> None:
        """Sends a fetch to every broker that has no pending fetch and whose partitions all have room for records.

        While one partition has no room, the broker's other partitions wait for it: if they are idle, their answer may
        take a while, and the full partition would have to wait for that answer.
        """
        wanted: dict[int, list[tuple[_Partition, PartitionMetadata]]] = {}
        full: set[int] = set()
        versions: dict[int, int] = {}
        for state in self._partitions.values():
            metadata = self._metadata(state)
            if metadata is None or not self._is_wanted(state):
                continue
            source = self._client.read_replicas.source(state.name, metadata)
            wanted.setdefault(source.broker, []).append((state, metadata))
            if source.max_version is not None:
                # A request has one version: if one partition must not be redirected, no partition of the request is.
                versions[source.broker] = source.max_version
            if state.answers >= MAX_ANSWERS:
                full.add(source.broker)
        if wanted and self._held_bytes >= self._options.fetch_max_bytes:
            self._drop_paused()
        for broker, partitions in wanted.items():
            room_bytes = self._options.fetch_max_bytes - self._held_bytes
            if room_bytes > 0 and broker not in full | self._failed_leaders | self._fetches.keys():
                max_bytes = min(room_bytes, len(partitions) * self._options.max_partition_fetch_bytes)
                self._held_bytes += max_bytes
                fetch = self._fetch(broker, partitions, max_bytes, versions.get(broker))
                self._fetches[broker] = start_task(fetch, self._fail)

    def _drop_paused(self) -> None:
        """Makes room by dropping waiting records of paused partitions, which are fetched again after `resume`."""
        for answer in [each for each in self._answers if each.partition.is_paused]:
            state = answer.partition
            if self._is_current(state):
                self._partitions[state.name] = replace(state, answers=0, fetch_offset=state.position or 0)
            self._answers.remove(answer)
            self._held_bytes -= len(answer.records)

    def _is_wanted(self, state: _Partition) -> bool:
        return (
            state.position is not None
            and state.error is None
            and not (state.is_out_of_range or state.is_paused or state.is_doubtful)
            and not self._must_validate(state)
        )

    async def _fetch(
        self,
        broker: int,
        partitions: Sequence[tuple[_Partition, PartitionMetadata]],
        max_bytes: int,
        max_version: int | None,
    ) -> None:
        """Sends one request to the leader of these partitions, or to a follower in this client's rack."""
        options = self._options
        # The offsets too: another broker may have answered in the meantime.
        asked = {state.name: (state, metadata, state.fetch_offset) for state, metadata in partitions}
        request = fetch_request(
            {
                state.name: FetchFrom(fetch_offset, metadata.leader_epoch, options.max_partition_fetch_bytes)
                for state, metadata, fetch_offset in asked.values()
            },
            max_bytes=max_bytes,
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            isolation_level=options.isolation_level,
            rack_id=self._client.read_replicas.rack,
        )
        try:
            connection = await self._client.connection_to(broker)
            timeout_ms = self._client.request_timeout_ms + options.fetch_max_wait_ms
            version = Source(broker, False, max_version).version_of(connection)
            response = await connection.send(ApiKey.FETCH, lambda _: request, version=version, timeout_ms=timeout_ms)
            if response.error_code != ErrorCode.NONE:
                raise KafkaError(ErrorCode(response.error_code), f"broker {broker} refuses to fetch")
            for topic in response.responses:
                for answer in topic.partitions:
                    state, metadata, fetch_offset = asked[TopicPartition(topic.topic, answer.partition_index)]
                    if self._is_current(state) and state.fetch_offset == fetch_offset:
                        self._received(state, metadata, broker, answer)
        except (NotSent, Disconnected, KafkaError):
            self._stale = self._is_failing = True
            self._failed_leaders.add(broker)
            for state, metadata in partitions:
                if metadata.leader != broker:
                    self._client.read_replicas.leave(state.name, metadata)
        finally:
            del self._fetches[broker]
            self._held_bytes -= max_bytes
        if self._stale:
            self._wake.set()
        self._start_fetches()

    def _received(self, state: _Partition, metadata: PartitionMetadata, broker: int, answer: PartitionData) -> None:
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE and broker != metadata.leader:
            # Only the leader's errors count.
            self._client.read_replicas.leave(state.name, metadata)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            state.is_out_of_range = True
            self._wake.set()
        elif code is not ErrorCode.NONE:
            state.is_doubtful = True
            self._note_error(
                state, KafkaError(code, f"the leader refuses to fetch from offset {state.fetch_offset} on")
            )
        else:
            state.valid_epoch = metadata.leader_epoch
            if answer.preferred_read_replica != NO_FOLLOWER and not answer.records:
                self._client.read_replicas.redirect(state.name, metadata, answer.preferred_read_replica)
            if answer.records:
                if broker != metadata.leader:
                    self._client.read_replicas.serves(state.name)
                self._keep(state, answer.records, answer.aborted_transactions)

    def _keep(self, state: _Partition, records: Buffer, aborted: Sequence[AbortedTransaction] | None) -> None:
        try:
            last = _last_batch(records)
            if last is None or last.next_offset <= state.fetch_offset:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the leader returned no batch that reaches this offset")
        except KafkaError as error:
            self._give_up(
                state, KafkaError(error.code, f"{state.name} from offset {state.fetch_offset} on: {error.message}")
            )
            return
        state.fetch_offset = last.next_offset
        state.answers += 1
        self._held_bytes += len(records)
        self._answers.append(_Answer(state, records, aborted))
        # The next request asks for this partition last, so that partitions take turns if an answer has no room for all.
        self._partitions[state.name] = self._partitions.pop(state.name)
        self._arrived.set()


def _last_batch(records: Buffer) -> BatchHeader | None:
    headers = [header for _, header in iterate_batches(records, allow_partial_end=True)]
    return headers[-1] if headers else None


def _parts(
    name: TopicPartition, records: Buffer, aborted: Sequence[AbortedTransaction] | None, position: int
) -> Iterator[tuple[list[ConsumerRecord], int, int]]:
    """The parts of the batches in an answer: (records, the position after them, its leader epoch)."""
    topic, partition = name
    for start, header, is_readable in readable_batches(records, aborted):
        epoch = header.partition_leader_epoch
        if is_readable and header.next_offset > position:
            body = decompress(header.codec, memoryview(records)[start + HEADER_SIZE_BYTES : start + header.size_bytes])
            at_append = header.is_log_append_time
            for part in decode_in_parts(body, header):
                yield (
                    [
                        ConsumerRecord(topic, partition, offset, timestamp_ms, at_append, key, value, headers, epoch)
                        for key, value, timestamp_ms, headers, offset in part
                        if offset >= position
                    ],
                    max(position, part[-1].offset + 1),
                    epoch,
                )
        if header.next_offset > position:
            yield [], header.next_offset, epoch
