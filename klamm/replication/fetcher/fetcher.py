"""Copies partitions from one leader broker with one task and one connection, one fetch after the other. A leader may
have several such fetchers, for different partitions.

    add -> (truncating) -> fetching -> ... -> removed
               ^  |            |
               |  v            v
              waiting after a failure, or failed until the controller names the partition again

A round: end the waits that are over, truncate the logs that must be truncated first, tell the session what has changed,
fetch, append. A follower that got records fetches again at once. A partition without news costs nothing.

What must stay true:
- A log changes only while its partition follows this leader in the epoch that the fetch began with. A partition that
  is removed, or added again in another epoch, gets a new `PartitionFetch`; answers to the old one are void.
- The leader takes a fetch offset as an acknowledgement of every record before it. So an offset is fetched only after
  all records before it are appended, and the fetch carries the epoch by which the leader checks that the logs agree.
- The high watermark does not move over records that may differ from the leader's: after a truncation it waits for a
  fetch that finds no more difference.
- A new partition does not wait for the end of a long poll that began without it: the long poll is given up, and a full
  fetch names every partition again.
- An offset that no log can have is an error of the leader. It never makes this broker cut or empty a log.
- A partition that is throttled and out of sync is fetched only while the quota allows it, all others always. Until the
  leader's first answer it is not known to be out of sync.
- A failure of one partition delays, or ends, the fetching of that partition only. The backoff grows from
  `FIRST_BACKOFF_MS` to replica.fetch.backoff.ms: usually the leader just has not heard of its leadership yet.

Source: kafka.server.AbstractFetcherThread, ReplicaFetcherThread.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from klamm.base.slices import Slices, each, slices
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.net.client import ClientError
from klamm.protocol.apis.fetch import EpochEndOffset, FetchPartition, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.primitives import Buffer
from klamm.protocol.vocabulary import (
    EARLIEST_TIMESTAMP,
    INITIAL_EPOCH,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    UNKNOWN_OFFSET,
    PartitionKey,
)
from klamm.replication.fetcher.fetch_session_client import FetchSessionClient
from klamm.replication.fetcher.fetch_state import FollowerPartition, PartitionFetch, truncation_offset
from klamm.replication.fetcher.leader_endpoint import Interrupted, LeaderEndpoint, LeaderOffset
from klamm.replication.quota import ReplicationQuota
from klamm.storage.log.follower_batches import first_batch
from klamm.storage.log.log import AppendInfo, AppendOrigin
from klamm.storage.log.written_ahead import PIECE_BYTES

FIRST_BACKOFF_MS = 20
# How often a follower looks whether a new log start offset is on disk.
SETTLE_MS = 20
# A throttled partition waits at most so long until the fetcher looks whether the quota or the throttle has changed.
LEAST_HOLD_MS = 20
LONGEST_HOLD_MS = 1_000
# A fetch asks for at least so much of a throttled partition, whatever the quota is.
LEAST_THROTTLED_BYTES = 64 * 1024
# Work on more partitions than this yields the loop in between.
PARTITIONS_PER_SLICE = 500
# The cost of an append, in units of a partition without records: this many, plus one for each BYTES_PER_PIECE.
APPEND_PIECES = 10
BYTES_PER_PIECE = 8 * 1024
# A fetch without an answer after LONG_POLL_MS is a long poll at the leader. A fetcher of more partitions than
# INTERRUPTIBLE_PARTITIONS waits for its end, because to name all of them again costs more.
LONG_POLL_MS = 5
INTERRUPTIBLE_PARTITIONS = 1_000

# Errors of an append or a truncation that another try may not meet. A full disk is a KAFKA_STORAGE_ERROR, too.
_PASSING_ERRORS = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)

# No log can continue after this offset.
_LARGEST_OFFSET = 2**63 - 1
_NO_OFFSET = LeaderOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_OFFSET)

_LOGGER = logging.getLogger(__name__)

Fetches = dict[PartitionKey, PartitionFetch]


class _Outdated(Exception):
    """The rest of a leader's records cannot be appended: the partition, or its log, has changed meanwhile."""


# A partition whose log differs from the leader's, and the leader's epoch with its end offset.
_Diverging = tuple[PartitionKey, PartitionFetch, EpochEndOffset]


class ReplicaFetcher:
    """Fetches from `endpoint`. Partitions that are given up until they are added again go into `failed`."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        endpoint: LeaderEndpoint,
        quota: ReplicationQuota,
        failed: dict[PartitionKey, None],
        on_failure: OnFailure,
    ) -> None:
        self.endpoint = endpoint
        self._config = config
        self._broker_id = broker_id
        self._quota = quota
        self._failed = failed
        self._session = FetchSessionClient()
        self._fetches: Fetches = {}
        self._truncating: Fetches = {}
        # The partitions whose entry in the session may have to change before the next fetch.
        self._changed: Fetches = {}
        # A heap of the waits after failures: (when, sequence number, partition, its fetch). Some may be void.
        self._waits: list[tuple[float, int, PartitionKey, PartitionFetch]] = []
        self._sequence = count()
        # The leader's high watermarks and log start offsets that it does not repeat and that are not safe to adopt yet.
        self._unconfirmed: dict[PartitionKey, tuple[int, int]] = {}
        # The partitions with a log start offset that is not on disk yet, which the leader must not hear of before.
        self._settling: Fetches = {}
        # The partitions that are throttled and out of sync: those that are fetched, and those that wait for their turn.
        self._throttled: Fetches = {}
        self._held: Fetches = {}
        self._next_turn_s = math.inf
        self._quota_changes = quota.changes
        self._failures = 0
        self._news: asyncio.Future[None] | None = None
        self._in_flight: FetchRequest | None = None
        self._task = start_task(self._run(), on_failure)

    # -- what the manager does ------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to copy."""
        return not self._fetches

    def leader_epochs(self) -> dict[PartitionKey, int]:
        """The partitions copied here and the epoch of each."""
        return {topic_partition: fetch.leader_epoch for topic_partition, fetch in self._fetches.items()}

    def leader_epoch(self, topic_partition: PartitionKey) -> int | None:
        """The epoch in which the partition is copied here; None if it is not."""
        fetch = self._fetches.get(topic_partition)
        return None if fetch is None else fetch.leader_epoch

    def lags(self) -> Iterator[tuple[PartitionKey, int]]:
        """The partitions copied here, and how many offsets of the leader's high watermark each log lacks; -1 before
        the leader's first answer."""
        for topic_partition, fetch in list(self._fetches.items()):
            yield topic_partition, fetch.lag

    def add(self, topic_partition: PartitionKey, partition: FollowerPartition, leader_epoch: int) -> None:
        """Starts to copy the partition. Does nothing if it is already copied in this epoch."""
        current = self._fetches.get(topic_partition)
        if current is not None and current.leader_epoch == leader_epoch and current.partition is partition:
            return
        self._session.forget(topic_partition)
        # Without epochs only the records below the high watermark are known to be the leader's, too.
        has_epochs = partition.log.leader_epochs.latest_epoch != NO_EPOCH
        is_truncating = not (self.endpoint.truncates_on_fetch and has_epochs)
        fetch = self._fetches[topic_partition] = PartitionFetch(partition, leader_epoch, is_truncating=is_truncating)
        self._resume(topic_partition, fetch)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        if self._in_flight is not None and len(self._fetches) <= INTERRUPTIBLE_PARTITIONS:
            asyncio.get_running_loop().call_later(LONG_POLL_MS / 1000, self._end_long_poll, self._in_flight)

    def _end_long_poll(self, request: FetchRequest) -> None:
        if self._in_flight is request:
            self.endpoint.interrupt()

    def remove(self, topic_partitions: Iterable[PartitionKey]) -> bool:
        """Stops to copy these; a pending answer no longer changes them. Returns whether any was copied here."""
        count = len(self._fetches)
        for topic_partition in topic_partitions:
            if self._fetches.pop(topic_partition, None) is not None:
                self._session.forget(topic_partition)
                self._truncating.pop(topic_partition, None)
                self._changed.pop(topic_partition, None)
                self._unconfirmed.pop(topic_partition, None)
                self._settling.pop(topic_partition, None)
                self._throttled.pop(topic_partition, None)
                self._held.pop(topic_partition, None)
        return len(self._fetches) < count

    async def shutdown(self) -> None:
        """Ends at once and abandons pending requests."""
        self._fetches.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.endpoint.close()

    # -- rounds ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except Interrupted:
                continue
            except ClientError as error:
                await self._back_off(str(error))

    async def _round(self) -> None:
        self._end_waits()
        while self._truncating or self._changed:
            await self._truncate()
            await self._update_session()
        if self._held or self._throttled:
            self._take_turns()
        if self._session.is_empty:
            await self._wait_for_news()
        else:
            await self._fetch()

    async def _back_off(self, reason: str) -> None:
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        _LOGGER.log(level, "Fetching from %s fails: %s", self.endpoint, reason)
        await asyncio.sleep(self._backoff_ms(self._failures) / 1000)

    def _backoff_ms(self, failures: int) -> int:
        # The exponent is bounded only so that the number does not grow for ever.
        return min(self._config.replica_fetch_backoff_ms, FIRST_BACKOFF_MS << min(failures - 1, 30))

    async def _wait_for_news(self) -> None:
        """Waits until a partition is added or may be tried again."""
        loop = asyncio.get_running_loop()
        news = self._news = loop.create_future()
        wake_s = self._wake_s()
        timer = loop.call_at(wake_s, _resolve, news) if wake_s < math.inf else None
        try:
            await news
        finally:
            if timer is not None:
                timer.cancel()

    # -- the states of a partition --------------------------------------------------------------------------------

    def _resume(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        (self._truncating if fetch.is_truncating else self._changed)[topic_partition] = fetch

    def _delay(self, topic_partition: PartitionKey, fetch: PartitionFetch, reason: str) -> None:
        """Leaves the partition out of the fetches for a while."""
        fetch.failures += 1
        level = logging.INFO if fetch.failures == 1 else logging.DEBUG
        _LOGGER.log(level, "Copying %s-%d from %s waits: %s", *topic_partition, self.endpoint, reason)
        fetch.asked = None
        self._session.forget(topic_partition)
        when = asyncio.get_running_loop().time() + self._backoff_ms(fetch.failures) / 1000
        heappush(self._waits, (when, next(self._sequence), topic_partition, fetch))

    def _end_waits(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waits and self._waits[0][0] <= now:
            _, _, topic_partition, fetch = heappop(self._waits)
            if self._fetches.get(topic_partition) is fetch:
                self._resume(topic_partition, fetch)
        if self._settling:
            self._end_settling()

    def _end_settling(self) -> None:
        for topic_partition, fetch in list(self._settling.items()):
            log = fetch.partition.log
            if log.durable_log_start_offset == log.log_start_offset:
                del self._settling[topic_partition]
                if fetch.asked is not None:
                    self._changed[topic_partition] = fetch

    def _fail(self, topic_partition: PartitionKey, reason: str) -> None:
        """Gives the partition up until the controller names it again."""
        _LOGGER.error("Copying %s-%d from %s has ended: %s", *topic_partition, self.endpoint, reason)
        self.remove([topic_partition])
        self._failed[topic_partition] = None

    def _is_valid(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> bool:
        """Whether the partition still follows this leader, in the epoch of this fetch."""
        partition = fetch.partition
        return (
            self._fetches.get(topic_partition) is fetch
            and partition.leader_epoch == fetch.leader_epoch
            and partition.leader_id == self.endpoint.leader_id
        )

    def _leader_refused(self, topic_partition: PartitionKey, fetch: PartitionFetch, error_code: int) -> None:
        # No error of the leader is final. FENCED_LEADER_EPOCH usually means that this follower has yet to hear of an
        # election; but a leader that was not told of a topic's deletion answers so, too, until it hears of the new
        # topic of that name.
        self._delay(topic_partition, fetch, f"the leader answers {error_name(error_code)}")

    def _log_refused(self, topic_partition: PartitionKey, fetch: PartitionFetch, error: KafkaError) -> None:
        if error.code in _PASSING_ERRORS and fetch.partition.log.log_directory.failure is None:
            self._delay(topic_partition, fetch, str(error))
        else:
            self._fail(topic_partition, str(error))

    # -- fetching -------------------------------------------------------------------------------------------------

    async def _update_session(self) -> None:
        """Gives the session the new fetch offsets of the changed partitions."""
        changed, self._changed = self._changed, {}
        max_bytes = self._config.replica_fetch_max_bytes
        quota = self._quota if self._quota.has_throttled_replicas else None
        async for topic_partition, fetch in each(changed.items(), PARTITIONS_PER_SLICE):
            if self._fetches.get(topic_partition) is fetch:
                if self._throttled:
                    self._throttled.pop(topic_partition, None)
                if quota is None or not fetch.is_lagging or not quota.is_throttled(*topic_partition):
                    self._ask(topic_partition, fetch, max_bytes)
                elif fetch.leader_high_watermark is None:
                    # The first answer says whether the replica is in sync, and so does not wait for its turn.
                    self._ask(topic_partition, fetch, self._throttled_max_bytes())
                    self._throttled[topic_partition] = fetch
                else:
                    self._hold(topic_partition, fetch)

    def _ask(self, topic_partition: PartitionKey, fetch: PartitionFetch, max_bytes: int) -> None:
        """The next fetch asks for what follows the partition's log."""
        log = fetch.partition.log
        start_offset = log.durable_log_start_offset
        if start_offset < log.log_start_offset:
            self._settling[topic_partition] = fetch
        wanted = FetchPartition(
            partition=topic_partition[1],
            current_leader_epoch=fetch.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.leader_epochs.latest_epoch if self.endpoint.truncates_on_fetch else NO_EPOCH,
            log_start_offset=start_offset,
            partition_max_bytes=max_bytes,
        )
        if wanted != fetch.asked:
            fetch.asked = wanted
            self._session.want(topic_partition, wanted)

    # -- throttling -----------------------------------------------------------------------------------------------

    def _hold(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        """Leaves a throttled partition out of the fetches until its turn comes."""
        fetch.asked = None
        self._session.forget(topic_partition)
        self._held[topic_partition] = fetch

    def _take_turns(self) -> None:
        """The next fetch asks for as many throttled partitions as the quota has room for: first those that have waited
        longest, last those that were asked for in vain."""
        quota, now_s = self._quota, asyncio.get_running_loop().time()
        if quota.changes != self._quota_changes:
            self._quota_changes = quota.changes
            self._let_go()
        max_bytes = self._throttled_max_bytes()
        left_bytes = quota.allowance_bytes(now_s * 1000)
        asked, self._throttled = self._throttled, {}
        while self._held and left_bytes > 0:
            topic_partition = next(iter(self._held))
            fetch = self._held.pop(topic_partition)
            if self._fetches.get(topic_partition) is not fetch:
                continue
            self._ask(topic_partition, fetch, max_bytes)
            self._throttled[topic_partition] = fetch
            left_bytes -= max_bytes
        for topic_partition, fetch in asked.items():
            is_valid = self._fetches.get(topic_partition) is fetch and fetch.asked is not None
            if not is_valid or not quota.is_throttled(*topic_partition):
                continue
            if left_bytes > 0 or fetch.leader_high_watermark is None:
                self._throttled[topic_partition] = fetch
                left_bytes -= max_bytes
            else:
                self._hold(topic_partition, fetch)
        wait_ms = min(max(quota.wait_ms(now_s * 1000), LEAST_HOLD_MS), LONGEST_HOLD_MS)
        self._next_turn_s = now_s + wait_ms / 1000

    def _let_go(self) -> None:
        """Partitions that are throttled no more do not wait until the quota is paid for."""
        for topic_partition, fetch in list(self._held.items()):
            if not self._quota.is_throttled(*topic_partition):
                del self._held[topic_partition]
                if self._fetches.get(topic_partition) is fetch:
                    self._ask(topic_partition, fetch, self._config.replica_fetch_max_bytes)

    def _throttled_max_bytes(self) -> int:
        """The most bytes of one partition: what the quota allows in a second, so that it is not exceeded by far."""
        per_second = max(self._quota.bytes_per_second, LEAST_THROTTLED_BYTES)
        return min(self._config.replica_fetch_max_bytes, per_second)

    async def _fetch(self) -> None:
        config = self._config
        request = FetchRequest(
            replica_id=self._broker_id,
            max_wait_ms=self._max_wait_ms(),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
        )
        self._session.fill(request)
        self._in_flight = request
        try:
            response = await self.endpoint.fetch(request)
        except ClientError:
            self._session.request_failed()
            raise
        finally:
            self._in_flight = None
        if self._session.accept(response):
            if self._failures:
                _LOGGER.info("Fetching from %s continues", self.endpoint)
                self._failures = 0
            await self._process(response)
        elif request.session_epoch == INITIAL_EPOCH:
            await self._back_off(f"a full fetch is refused with {error_name(response.error_code)}")

    def _max_wait_ms(self) -> int:
        """Short enough that the fetch returns when a partition has waited long enough, or the disk may have a new log
        start offset."""
        max_wait_ms = self._config.replica_fetch_wait_max_ms
        if self._settling:
            max_wait_ms = min(max_wait_ms, SETTLE_MS)
        wake_s = self._wake_s()
        if wake_s == math.inf:
            return max_wait_ms
        left_ms = math.ceil((wake_s - asyncio.get_running_loop().time()) * 1000)
        return min(max_wait_ms, max(0, left_ms))

    def _wake_s(self) -> float:
        """When the next backoff of a partition ends, or the turn of a throttled partition comes."""
        next_turn_s = self._next_turn_s if self._held else math.inf
        return min(next_turn_s, self._waits[0][0]) if self._waits else next_turn_s

    async def _process(self, response: FetchResponse) -> None:
        """Appends the leader's records, truncates the logs that diverge, and handles the leader's errors."""
        unprepared: list[tuple[PartitionKey, PartitionData]] = []
        out_of_range: Fetches = {}
        diverging: list[_Diverging] = []
        processed = Slices(PARTITIONS_PER_SLICE, asyncio.get_running_loop().time)
        for topic in response.responses:
            async for result in each(topic.partitions, processed):
                topic_partition = (topic.topic, result.partition_index)
                fetch = self._fetches.get(topic_partition)
                if fetch is None:
                    continue
                if result.records and fetch.partition.log.must_prepare:
                    unprepared.append((topic_partition, result))
                    continue
                durability = fetch.partition.log.durability
                syncs = durability.syncs_on_loop
                await self._process_partition(topic_partition, fetch, result, out_of_range, diverging)
                if durability.syncs_on_loop > syncs:  # flush.messages: the append waited for the disk.
                    processed.count(PARTITIONS_PER_SLICE)
                elif result.records:
                    processed.count(APPEND_PIECES + len(result.records) // BYTES_PER_PIECE)
        if unprepared:
            await self._process_prepared(unprepared, out_of_range, diverging)
        await self._truncate_diverging(diverging)
        if self._unconfirmed:
            self._confirm_high_watermarks()
        if out_of_range:
            await self._reset_offsets(out_of_range)

    async def _process_prepared(
        self,
        results: list[tuple[PartitionKey, PartitionData]],
        out_of_range: Fetches,
        diverging: list[_Diverging],
    ) -> None:
        """Prepares the logs, then appends."""
        count = max(1, PARTITIONS_PER_SLICE // APPEND_PIECES)
        async for batch in slices(results, count):
            logs = [self._fetches[key].partition.log for key, _ in batch if key in self._fetches]
            await asyncio.gather(*(log.prepare_append() for log in logs))
            for topic_partition, result in batch:
                fetch = self._fetches.get(topic_partition)
                if fetch is not None:
                    await self._process_partition(topic_partition, fetch, result, out_of_range, diverging)
                    await asyncio.sleep(0)

    async def _process_partition(
        self,
        topic_partition: PartitionKey,
        fetch: PartitionFetch,
        result: PartitionData,
        out_of_range: Fetches,
        diverging: list[_Diverging],
    ) -> None:
        """Appends. Partitions that need an offset of the leader go to `out_of_range`; truncations, to `diverging`."""
        asked = fetch.asked
        log = fetch.partition.log
        if asked is None:
            # Added again since the request. The leader does not repeat its high watermark, so it is kept.
            if result.error_code == ErrorCode.NONE:
                self._unconfirmed[topic_partition] = result.high_watermark, result.log_start_offset
        elif not self._is_valid(topic_partition, fetch):
            self._delay(topic_partition, fetch, "it follows another leader or epoch now")
        elif result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            out_of_range[topic_partition] = fetch
        elif result.error_code != ErrorCode.NONE:
            self._leader_refused(topic_partition, fetch, result.error_code)
        elif result.diverging_epoch is not None:
            self._unconfirmed[topic_partition] = result.high_watermark, result.log_start_offset
            diverging.append((topic_partition, fetch, result.diverging_epoch))
        elif asked.fetch_offset != log.log_end_offset:
            self._changed[topic_partition] = fetch
        else:
            await self._append(topic_partition, fetch, result)

    async def _append(self, topic_partition: PartitionKey, fetch: PartitionFetch, result: PartitionData) -> None:
        """Appends the leader's records, with pauses if they are many or large, and adopts its offsets."""
        self._changed[topic_partition] = fetch
        fetch.leader_high_watermark = result.high_watermark
        records = result.records
        if topic_partition in self._throttled and records:
            self._quota.record(len(records), asyncio.get_running_loop().time() * 1000)
        try:
            while True:
                if records:
                    if len(records) <= PIECE_BYTES:
                        info = fetch.partition.append_records_as_follower(records)
                    else:
                        info = await self._append_ahead(topic_partition, fetch, records)
                    records = memoryview(records)[info.size_bytes :] if info.size_bytes else b""
                self._adopt(topic_partition, fetch, result.high_watermark, result.log_start_offset)
                if not records:
                    break
                await self._pause(topic_partition, fetch)
        except _Outdated:
            return
        except KafkaError as error:
            if self._fetches.get(topic_partition) is fetch:
                del self._changed[topic_partition]
                self._log_refused(topic_partition, fetch, error)
        else:
            fetch.failures = 0
            if self._unconfirmed:
                self._unconfirmed.pop(topic_partition, None)

    async def _append_ahead(self, topic_partition: PartitionKey, fetch: PartitionFetch, records: Buffer) -> AppendInfo:
        """Appends the first of many records. If that is a large batch, it is written ahead."""
        log, first = fetch.partition.log, first_batch(records)
        end_offset = log.log_end_offset
        async with log.writing_ahead(first, AppendOrigin.REPLICATION):
            self._require_same(topic_partition, fetch, end_offset)
            return fetch.partition.append_records_as_follower(first if len(first) > PIECE_BYTES else records)

    async def _pause(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        """Lets others have the loop between two appends to a log, and prepares it for the next. Raises _Outdated."""
        log = fetch.partition.log
        end_offset = log.log_end_offset
        await asyncio.sleep(0)
        if log.must_prepare:
            await log.prepare_append()
        self._require_same(topic_partition, fetch, end_offset)

    def _require_same(self, topic_partition: PartitionKey, fetch: PartitionFetch, end_offset: int) -> None:
        """Raises _Outdated unless the partition is still copied here, and its log ends at `end_offset`."""
        if self._fetches.get(topic_partition) is not fetch:
            raise _Outdated
        if not self._is_valid(topic_partition, fetch):
            del self._changed[topic_partition]
            self._delay(topic_partition, fetch, "it follows another leader or epoch now")
            raise _Outdated
        if fetch.partition.log.log_end_offset != end_offset:
            raise _Outdated

    def _confirm_high_watermarks(self) -> None:
        """Adopts the leader's offsets for partitions whose last fetch found no difference."""
        for topic_partition, (high_watermark, log_start_offset) in list(self._unconfirmed.items()):
            fetch = self._fetches[topic_partition]
            if fetch.asked is not None and self._is_valid(topic_partition, fetch):
                del self._unconfirmed[topic_partition]
                try:
                    self._adopt(topic_partition, fetch, high_watermark, log_start_offset)
                except KafkaError as error:
                    self._log_refused(topic_partition, fetch, error)

    def _adopt(
        self, topic_partition: PartitionKey, fetch: PartitionFetch, high_watermark: int, log_start_offset: int
    ) -> None:
        """Moves the high watermark and the log start offset to the leader's, as far as this log goes."""
        partition, log = fetch.partition, fetch.partition.log
        partition.update_follower_high_watermark(high_watermark)
        if log_start_offset > log.log_start_offset:
            partition.maybe_increment_log_start_offset(log_start_offset)
            self._changed[topic_partition] = fetch

    # -- truncating -----------------------------------------------------------------------------------------------

    async def _truncate(self) -> None:
        """Truncates before the first fetch: to the high watermark, or to where the leader's epochs end."""
        truncating, self._truncating = self._truncating, {}
        asked: Fetches = {}
        async for topic_partition, fetch in each(truncating.items(), PARTITIONS_PER_SLICE):
            if self._fetches.get(topic_partition) is not fetch:
                continue
            log = fetch.partition.log
            if self.endpoint.truncates_on_fetch or log.leader_epochs.latest_epoch == NO_EPOCH:
                await self._truncate_to(topic_partition, fetch, log.high_watermark)
            else:
                asked[topic_partition] = fetch
        if asked:
            await self._truncate_to_epoch_ends(asked)

    async def _truncate_to_epoch_ends(self, truncating: Fetches) -> None:
        """One OffsetForLeaderEpoch and its truncations, for inter.broker.protocol.version before 2.7-IV1 (KIP-279)."""
        try:
            answers = await self.endpoint.end_offsets(
                {
                    topic_partition: (fetch.leader_epoch, fetch.partition.log.leader_epochs.latest_epoch)
                    for topic_partition, fetch in truncating.items()
                }
            )
        except ClientError:
            for topic_partition, fetch in truncating.items():
                if self._fetches.get(topic_partition) is fetch:
                    self._resume(topic_partition, fetch)
            raise
        for topic_partition, fetch in truncating.items():
            if self._fetches.get(topic_partition) is not fetch:
                continue
            answer = answers.get(topic_partition)
            if answer is None or answer.error_code != ErrorCode.NONE:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if answer is None else answer.error_code
                self._leader_refused(topic_partition, fetch, code)
                continue
            before = _end(fetch)
            offset, is_final = truncation_offset(fetch.partition.log, answer.leader_epoch, answer.end_offset)
            if await self._truncate_to(topic_partition, fetch, offset, is_final=is_final):
                self._require_progress(topic_partition, fetch, before, is_final=is_final)

    async def _truncate_diverging(self, diverging: Sequence[_Diverging]) -> None:
        """Removes records that the leader does not have; the next fetch shows whether more must go (KIP-595)."""
        for topic_partition, fetch, leader in diverging:
            if self._fetches.get(topic_partition) is not fetch:
                continue
            before = _end(fetch)
            offset, _ = truncation_offset(fetch.partition.log, leader.epoch, leader.end_offset)
            if await self._truncate_to(topic_partition, fetch, offset):
                self._require_progress(topic_partition, fetch, before, is_final=False)

    def _require_progress(
        self, topic_partition: PartitionKey, fetch: PartitionFetch, before: tuple[int, int], *, is_final: bool
    ) -> None:
        """Backs off when the leader's answer changed nothing here, rather than ask the same again at once."""
        if not is_final and _end(fetch) == before:
            self._truncating.pop(topic_partition, None)
            self._changed.pop(topic_partition, None)
            self._delay(topic_partition, fetch, "its leader's epochs end nowhere within its log")

    async def _truncate_to(
        self, topic_partition: PartitionKey, fetch: PartitionFetch, offset: int, *, is_final: bool = True
    ) -> bool:
        """Truncates. Returns whether that succeeded. Unless `is_final`, the partition stays in the truncating state.

        The preparation may take long; meanwhile the partition may be removed or get another leader.
        """
        refusal = None
        try:
            await self._shorten(topic_partition, fetch, offset)
            prepared = await fetch.partition.log.prepare_truncation(offset)
            if self._is_valid(topic_partition, fetch):
                fetch.partition.truncate_to(offset, prepared)
        except KafkaError as error:
            refusal = error
        if self._fetches.get(topic_partition) is not fetch:
            return False
        if refusal is not None:
            self._log_refused(topic_partition, fetch, refusal)
            return False
        if not self._is_valid(topic_partition, fetch):
            self._delay(topic_partition, fetch, "it follows another leader or epoch now")
            return False
        fetch.is_truncating = not is_final
        fetch.asked = None
        self._resume(topic_partition, fetch)
        return True

    async def _shorten(self, topic_partition: PartitionKey, fetch: PartitionFetch, offset: int) -> None:
        """Removes segments behind `offset` (-1: all), until a truncation there is a short step."""
        while self._is_valid(topic_partition, fetch):
            step = fetch.partition.log.truncation_step(offset)
            if step is None:
                return
            prepared = await fetch.partition.log.prepare_truncation(step)
            if self._is_valid(topic_partition, fetch):
                fetch.partition.truncate_to(step, prepared)

    # -- offsets out of range -------------------------------------------------------------------------------------

    async def _reset_offsets(self, out_of_range: Fetches) -> None:
        """Finds the offset to copy from when the leader's log ends before this log's end, or begins after it.

        The first happens after an unclean election; the second, when this broker was away for so long that the leader
        has deleted the next records.
        """
        behind = {}
        for topic_partition, fetch, latest in await self._list_offsets(LATEST_TIMESTAMP, out_of_range):
            if latest < fetch.partition.log.log_end_offset:
                await self._truncate_to(topic_partition, fetch, latest)
            else:
                behind[topic_partition] = fetch
        if not behind:
            return
        for topic_partition, fetch, earliest in await self._list_offsets(EARLIEST_TIMESTAMP, behind):
            if earliest <= fetch.partition.log.log_end_offset:
                self._delay(topic_partition, fetch, "the leader's log has changed while it was asked about")
                continue
            try:
                await self._shorten(topic_partition, fetch, -1)
                if not self._is_valid(topic_partition, fetch):
                    continue
                fetch.partition.truncate_fully_and_start_at(earliest)
            except KafkaError as error:
                self._log_refused(topic_partition, fetch, error)
            else:
                fetch.asked = None
                self._changed[topic_partition] = fetch

    async def _list_offsets(self, timestamp: int, fetches: Fetches) -> list[tuple[PartitionKey, PartitionFetch, int]]:
        """(partition, its fetch, the leader's offset) of each partition whose answer is valid."""
        answers = await self.endpoint.list_offsets(
            timestamp, {topic_partition: fetch.leader_epoch for topic_partition, fetch in fetches.items()}
        )
        found = []
        for topic_partition, fetch in fetches.items():
            if not self._is_valid(topic_partition, fetch):
                continue
            error_code, offset = answers.get(topic_partition, _NO_OFFSET)
            if error_code != ErrorCode.NONE:
                self._leader_refused(topic_partition, fetch, error_code)
            elif not 0 <= offset < _LARGEST_OFFSET:
                # A log that starts there could neither be written to nor be loaded after a restart.
                self._delay(topic_partition, fetch, f"the leader answers offset {offset}")
            else:
                found.append((topic_partition, fetch, offset))
        return found


def _end(fetch: PartitionFetch) -> tuple[int, int]:
    log = fetch.partition.log
    return log.log_end_offset, log.leader_epochs.latest_epoch


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
