"""Copies partitions from one leader broker with one task and one connection, one fetch after the other. A leader may
have several such fetchers, for different partitions. `followed_partitions.py` has the partitions' states, and
`log_truncation.py` truncates diverging logs.

A round: end the waits that are over, truncate the logs that must be truncated first, update the session, fetch, append.
A follower that got records fetches again at once. A partition without news costs nothing.

What must stay true:
- A log changes only while its partition follows this leader in the epoch in which the fetch began. A partition that is
  removed, or added again in another epoch, gets a new `PartitionFetch`; answers to the old one are void.
- The leader takes a fetch offset as an acknowledgement of every record before it. So an offset is fetched only after
  all records before it are appended, and the fetch carries the last fetched epoch, with which the leader checks that
  the logs agree.
- The high watermark does not move past records that may differ from the leader's: after a truncation it waits for a
  fetch that finds no divergence.
- A new partition does not wait for the end of a long poll that began without it: the long poll is abandoned, and a full
  fetch names every partition again.
- A partition that is throttled and out of sync is fetched only while the quota allows it. All other partitions are
  always fetched. The leader's first answer shows whether a replica is in sync.

Source: kafka.server.AbstractFetcherThread, ReplicaFetcherThread.
"""

import asyncio
import logging
import math

from klamm.base.slices import Slices, each, slices
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.net.client import ClientError
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.primitives import Buffer
from klamm.protocol.vocabulary import (
    INITIAL_EPOCH,
    NO_EPOCH,
    PartitionKey,
)
from klamm.replication.fetcher.fetch_state import FollowerPartition, PartitionFetch
from klamm.replication.fetcher.followed_partitions import Fetches, FollowedPartitions
from klamm.replication.fetcher.leader_endpoint import Interrupted, LeaderEndpoint
from klamm.replication.fetcher.log_truncation import Diverging, LogTruncation
from klamm.replication.quota import ReplicationQuota
from klamm.storage.log.follower_batches import first_batch
from klamm.storage.log.log import AppendInfo, AppendOrigin
from klamm.storage.log.written_ahead import PIECE_BYTES

# How often a follower checks whether a new log start offset is on disk.
SETTLE_MS = 20
# The shortest and the longest wait of a throttled partition until the fetcher checks the quota and the throttle again.
LEAST_HOLD_MS = 20
LONGEST_HOLD_MS = 1_000
# A fetch asks for at least this many bytes of a throttled partition, whatever the quota is.
LEAST_THROTTLED_BYTES = 64 * 1024
# Work on more partitions than this yields the loop in between.
PARTITIONS_PER_SLICE = 500
# The cost of an append, in units of a partition without records: this many, plus one for each BYTES_PER_PIECE.
APPEND_PIECES = 10
BYTES_PER_PIECE = 8 * 1024
# A fetch without an answer after LONG_POLL_MS is a long poll at the leader. A fetcher of more partitions than
# INTERRUPTIBLE_PARTITIONS waits for its end, because naming all partitions again costs more.
LONG_POLL_MS = 5
INTERRUPTIBLE_PARTITIONS = 1_000

_LOGGER = logging.getLogger(__name__)


class _Outdated(Exception):
    """The rest of a leader's records cannot be appended: the partition, or its log, has changed meanwhile."""


class ReplicaFetcher:
    """Fetches from `endpoint`. Partitions that have failed go into `failed` until they are added again."""

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
        self.followed = FollowedPartitions(config, endpoint, failed)
        self._truncation = LogTruncation(self.followed, endpoint)
        self._next_turn_s = math.inf
        self._quota_changes = quota.changes
        self._failures = 0
        self._news: asyncio.Future[None] | None = None
        self._in_flight: FetchRequest | None = None
        self._task = start_task(self._run(), on_failure)

    # -- for the manager ------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is no partition to copy."""
        return not self.followed.fetches

    def add(self, topic_partition: PartitionKey, partition: FollowerPartition, leader_epoch: int) -> None:
        """Starts to copy the partition. Does nothing if it is already copied in this epoch."""
        current = self.followed.fetches.get(topic_partition)
        if current is not None and current.leader_epoch == leader_epoch and current.partition is partition:
            return
        # Without epochs, only the records below the high watermark are known to be in the leader's log.
        has_epochs = partition.log.leader_epochs.latest_epoch != NO_EPOCH
        is_truncating = not (self.endpoint.truncates_on_fetch and has_epochs)
        self.followed.add(topic_partition, PartitionFetch(partition, leader_epoch, is_truncating=is_truncating))
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        if self._in_flight is not None and len(self.followed.fetches) <= INTERRUPTIBLE_PARTITIONS:
            asyncio.get_running_loop().call_later(LONG_POLL_MS / 1000, self._end_long_poll, self._in_flight)

    def _end_long_poll(self, request: FetchRequest) -> None:
        if self._in_flight is request:
            self.endpoint.interrupt()

    async def shutdown(self) -> None:
        """Ends at once and abandons pending requests."""
        self.followed.fetches.clear()
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
        self.followed.end_waits()
        while self.followed.truncating or self.followed.changed:
            await self._truncation.truncate()
            await self._update_session()
        if self.followed.held or self.followed.throttled:
            self._take_turns()
        if self.followed.session.is_empty:
            await self._wait_for_news()
        else:
            await self._fetch()

    async def _back_off(self, reason: str) -> None:
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        _LOGGER.log(level, "Fetching from %s fails: %s", self.endpoint, reason)
        await asyncio.sleep(self.followed.backoff_ms(self._failures) / 1000)

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

    # -- fetching -------------------------------------------------------------------------------------------------

    async def _update_session(self) -> None:
        """Writes the new fetch offsets of the changed partitions into the session."""
        changed, self.followed.changed = self.followed.changed, {}
        max_bytes = self._config.replica_fetch_max_bytes
        quota = self._quota if self._quota.has_throttled_replicas else None
        async for topic_partition, fetch in each(changed.items(), PARTITIONS_PER_SLICE):
            if self.followed.fetches.get(topic_partition) is fetch:
                if self.followed.throttled:
                    self.followed.throttled.pop(topic_partition, None)
                if quota is None or not fetch.is_lagging or not quota.is_throttled(*topic_partition):
                    self._ask(topic_partition, fetch, max_bytes)
                elif fetch.leader_high_watermark is None:
                    # The first answer shows whether the replica is in sync, so it does not wait for a turn.
                    self._ask(topic_partition, fetch, self._throttled_max_bytes())
                    self.followed.throttled[topic_partition] = fetch
                else:
                    self._hold(topic_partition, fetch)

    def _ask(self, topic_partition: PartitionKey, fetch: PartitionFetch, max_bytes: int) -> None:
        """Lets the next fetch ask for the records after the partition's log end offset."""
        log = fetch.partition.log
        start_offset = log.durable_log_start_offset
        if start_offset < log.log_start_offset:
            self.followed.settling[topic_partition] = fetch
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
            self.followed.session.want(topic_partition, wanted)

    # -- throttling -----------------------------------------------------------------------------------------------

    def _hold(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        """Leaves a throttled partition out of the fetches until its turn comes."""
        fetch.asked = None
        self.followed.session.forget(topic_partition)
        self.followed.held[topic_partition] = fetch

    def _take_turns(self) -> None:
        """Lets the next fetch ask for as many throttled partitions as the quota has room for. The longest-waiting
        partitions come first, and partitions of the last fetch come last."""
        quota, now_s = self._quota, asyncio.get_running_loop().time()
        if quota.changes != self._quota_changes:
            self._quota_changes = quota.changes
            self._let_go()
        max_bytes = self._throttled_max_bytes()
        left_bytes = quota.allowance_bytes(now_s * 1000)
        asked, self.followed.throttled = self.followed.throttled, {}
        while self.followed.held and left_bytes > 0:
            topic_partition = next(iter(self.followed.held))
            fetch = self.followed.held.pop(topic_partition)
            if self.followed.fetches.get(topic_partition) is not fetch:
                continue
            self._ask(topic_partition, fetch, max_bytes)
            self.followed.throttled[topic_partition] = fetch
            left_bytes -= max_bytes
        for topic_partition, fetch in asked.items():
            is_valid = self.followed.fetches.get(topic_partition) is fetch and fetch.asked is not None
            if not is_valid or not quota.is_throttled(*topic_partition):
                continue
            if left_bytes > 0 or fetch.leader_high_watermark is None:
                self.followed.throttled[topic_partition] = fetch
                left_bytes -= max_bytes
            else:
                self._hold(topic_partition, fetch)
        wait_ms = min(max(quota.wait_ms(now_s * 1000), LEAST_HOLD_MS), LONGEST_HOLD_MS)
        self._next_turn_s = now_s + wait_ms / 1000

    def _let_go(self) -> None:
        """Ends the waits of partitions that are no longer throttled."""
        for topic_partition, fetch in list(self.followed.held.items()):
            if not self._quota.is_throttled(*topic_partition):
                del self.followed.held[topic_partition]
                if self.followed.fetches.get(topic_partition) is fetch:
                    self._ask(topic_partition, fetch, self._config.replica_fetch_max_bytes)

    def _throttled_max_bytes(self) -> int:
        """The most bytes to fetch of one partition: the quota of a second, so that the excess stays small."""
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
        self.followed.session.fill(request)
        self._in_flight = request
        try:
            response = await self.endpoint.fetch(request)
        except ClientError:
            self.followed.session.request_failed()
            raise
        finally:
            self._in_flight = None
        if self.followed.session.accept(response):
            if self._failures:
                _LOGGER.info("Fetching from %s continues", self.endpoint)
                self._failures = 0
            await self._process(response)
        elif request.session_epoch == INITIAL_EPOCH:
            await self._back_off(f"a full fetch is refused with {error_name(response.error_code)}")

    def _max_wait_ms(self) -> int:
        """A wait short enough that the fetch returns when a partition's wait ends, or a new log start offset may be on
        disk."""
        max_wait_ms = self._config.replica_fetch_wait_max_ms
        if self.followed.settling:
            max_wait_ms = min(max_wait_ms, SETTLE_MS)
        wake_s = self._wake_s()
        if wake_s == math.inf:
            return max_wait_ms
        left_ms = math.ceil((wake_s - asyncio.get_running_loop().time()) * 1000)
        return min(max_wait_ms, max(0, left_ms))

    def _wake_s(self) -> float:
        """When the next backoff of a partition ends, or a throttled partition's next turn comes."""
        next_turn_s = self._next_turn_s if self.followed.held else math.inf
        return min(next_turn_s, self.followed.first_wait_ends_s)

    async def _process(self, response: FetchResponse) -> None:
        """Appends the leader's records, truncates the logs that diverge, and handles the leader's errors."""
        unprepared: list[tuple[PartitionKey, PartitionData]] = []
        out_of_range: Fetches = {}
        diverging: list[Diverging] = []
        processed = Slices(PARTITIONS_PER_SLICE, asyncio.get_running_loop().time)
        for topic in response.responses:
            async for result in each(topic.partitions, processed):
                topic_partition = (topic.topic, result.partition_index)
                fetch = self.followed.fetches.get(topic_partition)
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
        await self._truncation.truncate_diverging(diverging)
        if self.followed.unconfirmed:
            self._confirm_high_watermarks()
        if out_of_range:
            await self._truncation.reset_offsets(out_of_range)

    async def _process_prepared(
        self,
        results: list[tuple[PartitionKey, PartitionData]],
        out_of_range: Fetches,
        diverging: list[Diverging],
    ) -> None:
        """Prepares the logs, then appends."""
        count = max(1, PARTITIONS_PER_SLICE // APPEND_PIECES)
        async for batch in slices(results, count):
            logs = [self.followed.fetches[key].partition.log for key, _ in batch if key in self.followed.fetches]
            await asyncio.gather(*(log.prepare_append() for log in logs))
            for topic_partition, result in batch:
                fetch = self.followed.fetches.get(topic_partition)
                if fetch is not None:
                    await self._process_partition(topic_partition, fetch, result, out_of_range, diverging)
                    await asyncio.sleep(0)

    async def _process_partition(
        self,
        topic_partition: PartitionKey,
        fetch: PartitionFetch,
        result: PartitionData,
        out_of_range: Fetches,
        diverging: list[Diverging],
    ) -> None:
        """Appends. Partitions that need an offset of the leader go to `out_of_range`; truncations, to `diverging`."""
        asked = fetch.asked
        log = fetch.partition.log
        if asked is None:
            # The partition was added again since the request. The leader does not repeat its offsets: keep them.
            if result.error_code == ErrorCode.NONE:
                self.followed.unconfirmed[topic_partition] = result.high_watermark, result.log_start_offset
        elif not self.followed.is_valid(topic_partition, fetch):
            self.followed.delay(topic_partition, fetch, "it follows another leader or epoch now")
        elif result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            out_of_range[topic_partition] = fetch
        elif result.error_code != ErrorCode.NONE:
            self.followed.leader_refused(topic_partition, fetch, result.error_code)
        elif result.diverging_epoch is not None:
            self.followed.unconfirmed[topic_partition] = result.high_watermark, result.log_start_offset
            diverging.append((topic_partition, fetch, result.diverging_epoch))
        elif asked.fetch_offset != log.log_end_offset:
            self.followed.changed[topic_partition] = fetch
        else:
            await self._append(topic_partition, fetch, result)

    async def _append(self, topic_partition: PartitionKey, fetch: PartitionFetch, result: PartitionData) -> None:
        """Appends the leader's records, with pauses if they are many or large, and adopts its offsets."""
        self.followed.changed[topic_partition] = fetch
        fetch.leader_high_watermark = result.high_watermark
        records = result.records
        if topic_partition in self.followed.throttled and records:
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
            if self.followed.fetches.get(topic_partition) is fetch:
                del self.followed.changed[topic_partition]
                self.followed.log_refused(topic_partition, fetch, error)
        else:
            fetch.failures = 0
            if self.followed.unconfirmed:
                self.followed.unconfirmed.pop(topic_partition, None)

    async def _append_ahead(self, topic_partition: PartitionKey, fetch: PartitionFetch, records: Buffer) -> AppendInfo:
        """Appends the first of many records. If that is a large batch, it is written ahead."""
        log, first = fetch.partition.log, first_batch(records)
        end_offset = log.log_end_offset
        async with log.writing_ahead(first, AppendOrigin.REPLICATION):
            self._require_same(topic_partition, fetch, end_offset)
            return fetch.partition.append_records_as_follower(first if len(first) > PIECE_BYTES else records)

    async def _pause(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        """Yields the loop between two appends to a log, and prepares the log for the next. Raises _Outdated."""
        log = fetch.partition.log
        end_offset = log.log_end_offset
        await asyncio.sleep(0)
        if log.must_prepare:
            await log.prepare_append()
        self._require_same(topic_partition, fetch, end_offset)

    def _require_same(self, topic_partition: PartitionKey, fetch: PartitionFetch, end_offset: int) -> None:
        """Raises _Outdated unless the partition is still copied here, and its log ends at `end_offset`."""
        if self.followed.fetches.get(topic_partition) is not fetch:
            raise _Outdated
        if not self.followed.is_valid(topic_partition, fetch):
            del self.followed.changed[topic_partition]
            self.followed.delay(topic_partition, fetch, "it follows another leader or epoch now")
            raise _Outdated
        if fetch.partition.log.log_end_offset != end_offset:
            raise _Outdated

    def _confirm_high_watermarks(self) -> None:
        """Adopts the leader's offsets for partitions whose last fetch found no divergence."""
        for topic_partition, (high_watermark, log_start_offset) in list(self.followed.unconfirmed.items()):
            fetch = self.followed.fetches[topic_partition]
            if fetch.asked is not None and self.followed.is_valid(topic_partition, fetch):
                del self.followed.unconfirmed[topic_partition]
                try:
                    self._adopt(topic_partition, fetch, high_watermark, log_start_offset)
                except KafkaError as error:
                    self.followed.log_refused(topic_partition, fetch, error)

    def _adopt(
        self, topic_partition: PartitionKey, fetch: PartitionFetch, high_watermark: int, log_start_offset: int
    ) -> None:
        """Moves the high watermark and the log start offset to the leader's, but not past the log end offset."""
        partition, log = fetch.partition, fetch.partition.log
        partition.update_follower_high_watermark(high_watermark)
        if log_start_offset > log.log_start_offset:
            partition.maybe_increment_log_start_offset(log_start_offset)
            self.followed.changed[topic_partition] = fetch


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
