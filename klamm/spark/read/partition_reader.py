"""Reads a range of one partition's offsets as Arrow record batches, through any change of the partition.

The next fetch runs while the caller decodes and uses the records of the previous one.

What must stay true:
- Every record of the range that the partition still has is returned once, in the order of the offsets. Offsets without
  a record (compaction, control records, aborted transactions) are skipped silently. Records that were removed, or that
  belong to another topic of the same name, are never skipped silently.
- A record counts as removed when a leader in the newest metadata reports a log that begins after its offset. A broker
  with old metadata may report an offset after its log's end, an unknown topic or another topic id; the reader accepts
  such an answer only if all answers agree for `GRACE_MS`, and a log that ends within the range only after
  `poll_timeout_ms`.
- A follower, from which a client with a rack reads (KIP-392), only supplies records. For missing records the reader
  asks the leader.
- At most two fetches are in memory, beside the record batches that the caller holds.

Source: org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer; KIP-320, KIP-516.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import pyarrow as pa

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.fetching import NOT_OF_THIS_ID, FetchFrom, fetch
from klamm.client.consumer.offsets import asked_at, list_offsets_of_leader
from klamm.client.metadata import PartitionMetadata
from klamm.client.read_replicas import NO_FOLLOWER, Source
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.client.threads import Work, start
from klamm.net.client import ClientError, Connection, Disconnected, NotSent
from klamm.protocol.apis.fetch import PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
)
from klamm.spark.read.decoding import Decoder
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange

logger = logging.getLogger(__name__)

# How long a broker's metadata may be out of date: the time until it learns of a deletion or of a new leader.
GRACE_MS = 10_000
# The size of a range's first fetch; later fetches have the estimated size of the remaining range.
FIRST_FETCH_BYTES = 1024 * 1024
# Well below the largest response that the client accepts, because a single batch may be larger than this.
LARGEST_FETCH_BYTES = 64 * 1024 * 1024
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.05, 1.0


class Loss(NamedTuple):
    """A range of offsets whose records were removed, from `start_offset` to before `end_offset`, and the reason."""

    start_offset: int
    end_offset: int
    reason: str


def log_loss(loss: Loss) -> None:
    logger.warning("%s; what is left is read (failOnDataLoss=false)", loss.reason)


def read_range(
    options: FetchOptions,
    records: PartitionRange,
    columns: Sequence[str],
    on_loss: Callable[[Loss], object] = log_loss,
    *,
    checks_end: bool = True,
    doubts: "Doubts | None" = None,
) -> Generator[pa.RecordBatch]:
    """The records of a range, in the order of their offsets, with these columns (`schema.schema(columns)`).

    With `checks_end=False` the caller calls `check_topics` after the last record of all its ranges. This is only for
    readers with `fail_on_data_loss`. Ranges that are read one after another may share `doubts`.

    Without `fail_on_data_loss`, `on_loss` gets each loss before the records after it are returned, and no record of a
    topic that has replaced this one is returned. If the topic was replaced at the end of the range, it is not known
    which records belong to which topic, and the whole range counts as lost.

    Raises DataLoss when records of the range were removed, or the topic was deleted (and perhaps created again). Raises
    KafkaError or ClientError when the cluster does not return records within `poll_timeout_ms`, or they are corrupt.
    """
    decoder = Decoder(records.topic, records.partition, columns, options.max_batch_bytes)
    fetcher = RangeFetcher(options, records, checks_end=checks_end, doubts=doubts)
    offset, most_bytes = records.start_offset, min(options.fetch_max_bytes, LARGEST_FETCH_BYTES)
    under_way = start(options.client, fetcher.fetch(offset, min(FIRST_FETCH_BYTES, most_bytes)))
    try:
        # Loading or even compiling the loops takes longer than a fetch.
        decoder.prepare()
        while True:
            fetched, losses = under_way.result()
            for loss in losses:
                on_loss(loss)
                # The batch at the loss's end may begin with removed records.
                offset = loss.end_offset
            if fetched is None:
                return
            batches = decoder.scan(fetched.records or b"")
            if batches.next_offset is None or batches.next_offset <= offset:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{fetcher} at offset {offset}: the leader returned no batch that reaches this offset",
                )
            first, offset = offset, min(batches.next_offset, records.end_offset)
            bytes_per_offset = len(batches.records) / (offset - first)
            rest_bytes = int(FIRST_FETCH_BYTES + bytes_per_offset * (records.end_offset - offset))
            under_way = start(options.client, fetcher.fetch(offset, min(rest_bytes, most_bytes)))
            aborted = [(one.producer_id, one.first_offset) for one in fetched.aborted_transactions or ()]
            yield from decoder.decode(batches, first, offset, aborted)
    finally:
        under_way.cancel()


async def check_topics(client: ClusterClient, options: FetchOptions, ranges: Sequence[PartitionRange]) -> None:
    """Raises DataLoss if a topic of ranges that were read is no longer the planned one. It may have been deleted.

    One request asks for all topics. Only topics in doubt are checked one by one.
    """
    fetchers = {records.topic: RangeFetcher(options, records) for records in ranges}
    try:
        await client.refresh_metadata_once(fetchers)
        doubted = [fetcher for fetcher in fetchers.values() if not fetcher.is_planned(client, at_end=True)]
    except (NotSent, Disconnected):
        doubted = list(fetchers.values())
    for fetcher in doubted:
        await fetcher.check_end(client)


class Doubts:
    """Since when brokers have reported that a topic is gone or was replaced. All ranges of the topic wait for
    `GRACE_MS` together."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, float]] = {}

    def tell(self, topic: str, now: float) -> float:
        """Notes the doubt, and returns when it began. A doubt that was not repeated for a while begins again."""
        since, last = self._told.get(topic, (now, now))
        since = since if now - last < GRACE_MS / 1000 else now
        self._told[topic] = since, now
        return since

    def dispel(self, topic: str) -> None:
        self._told.pop(topic, None)


class Passing(Exception):
    """An error that may be transient. After `timeout_ms` (None means the whole time limit), `error` is final."""

    def __init__(self, error: Exception, timeout_ms: int | None = None, *, of_topic: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.timeout_ms = timeout_ms
        self.of_topic = of_topic


class _Fetched(NamedTuple):
    """The leader's records (None at the end of the range), and the losses found before them."""

    answer: PartitionData | None
    losses: Sequence[Loss]


class RangeFetcher:
    """The fetches of one range. They run on the network's loop, one at a time."""

    def __init__(
        self, options: FetchOptions, records: PartitionRange, *, checks_end: bool = True, doubts: Doubts | None = None
    ) -> None:
        self._options = options
        self._range = records
        self._partition = records.partition
        self._name = TopicPartition(records.topic, records.partition)
        self._checks_end = checks_end
        # Whether leaders were asked by topic id, and by topic name.
        self._by_id = self._by_name = False
        self._doubts = doubts or Doubts()

    def __str__(self) -> str:
        return f"{self._range.topic}-{self._partition}"

    def fetch(self, offset: int, max_bytes: int) -> Work[_Fetched]:
        """The leader's records from `offset` on.

        The metadata is read at the end of the range, to notice another topic of the same name. It is also read after
        every fetch if an error at the end would not take back the records returned before. Neither is necessary if
        leaders know the topic's id. At the start of the range this process's metadata is enough if it has the planned
        topic: the check at the end of the range finds out whether the metadata was too old.
        """
        return lambda client: self._fetch(client, offset, max_bytes)

    async def check_end(self, client: ClusterClient) -> None:
        """Reads the metadata after the last fetch of the range. Raises DataLoss as `read_range` does."""
        await self._fetch(client, self._range.end_offset, 0)

    @property
    def _is_doubtful(self) -> bool:
        """Whether records may belong to another topic of the same name: not if leaders were asked by topic id."""
        return self._by_name or not self._by_id

    def is_planned(self, client: ClusterClient, *, at_end: bool = False) -> bool:
        """Whether the topic in the client's metadata is the planned one. With `at_end` it may have been deleted."""
        try:
            self._check_topic(client, at_end=at_end)
        except (Passing, KafkaError):
            return False
        return True

    def leader(self, client: ClusterClient) -> PartitionMetadata | None:
        """The partition in the client's metadata; None if it has no leader, or the topic is not the planned one."""
        if not self.is_planned(client):
            return None
        state = client.metadata.topics[self._range.topic].partitions[self._partition]
        return state if state.leader >= 0 else None

    async def _fetch(self, client: ClusterClient, offset: int, max_bytes: int) -> _Fetched:
        loop = asyncio.get_running_loop()
        losses: list[Loss] = []
        began, backoff_s = loop.time(), MIN_BACKOFF_S
        # Since when brokers have reported only losses. Any other error resets it: a broker that was unreachable may not
        # know the partition yet.
        doubted: float | None = None
        refresh, again = offset == self._range.start_offset and self.leader(client) is None, False
        while True:
            timeout_ms, of_topic = self._options.poll_timeout_ms, False
            error: Exception
            try:
                if offset >= self._range.end_offset and not (self._checks_end and self._is_doubtful):
                    return _Fetched(None, losses)
                if refresh or offset >= self._range.end_offset:
                    await client.refresh_metadata([self._range.topic], elsewhere=again)
                    self._check_topic(client, at_end=offset >= self._range.end_offset)
                if offset >= self._range.end_offset:
                    return _Fetched(None, losses)
                found = await self._attempt(client, offset, max_bytes, is_fresh=refresh)
                if isinstance(found, PartitionData):
                    if not self._options.fail_on_data_loss and self._is_doubtful:
                        await client.refresh_metadata([self._range.topic])
                        self._check_topic(client, at_end=True)
                    return _Fetched(found, losses)
                if isinstance(found, Loss):
                    losses.append(self._accepted(found))
                # The offsets before this one have no records, or no longer have them.
                offset = found.end_offset if isinstance(found, Loss) else found
                refresh = False
                continue
            except Passing as passing:
                error, timeout_ms = passing.error, min(timeout_ms, passing.timeout_ms or timeout_ms)
                of_topic = passing.of_topic
            except (NotSent, Disconnected) as failure:
                error = failure
            now = loop.time()
            doubted = (now if doubted is None else doubted) if isinstance(error, DataLoss) else None
            if doubted is not None and of_topic:
                doubted = min(doubted, self._doubts.tell(self._range.topic, now))
            if now - (began if doubted is None else doubted) >= timeout_ms / 1000:
                if not isinstance(error, DataLoss):
                    raise error
                # At the end of the range it is not known which records belonged to another topic.
                first = offset if offset < self._range.end_offset else self._range.start_offset
                losses.append(self._accepted(Loss(first, self._range.end_offset, str(error))))
                return _Fetched(None, losses)
            refresh = again = True
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _check_topic(self, client: ClusterClient, *, at_end: bool) -> None:
        """Checks that the topic is the planned one. At the end of the range it may have been deleted."""
        name, planned = self._range.topic, self._range.topic_id
        topic = client.metadata.topics.get(name)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if not at_end:
                raise self._doubt(f"topic {name} no longer exists")
        elif topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise self._error(topic.error_code, "the cluster does not tell the topic's partitions")
        elif planned is not None and topic.topic_id is not None and topic.topic_id.hex != planned:
            raise self._doubt(
                f"topic {name} was deleted and created again: its id was {planned}, now {topic.topic_id.hex}"
            )
        elif self._partition not in topic.partitions:
            raise self._doubt(f"topic {name} no longer has partition {self._partition}")
        else:
            self._doubts.dispel(name)

    def _doubt(self, message: str) -> Passing:
        return Passing(DataLoss(message), GRACE_MS, of_topic=True)

    async def _attempt(
        self, client: ClusterClient, offset: int, max_bytes: int, *, is_fresh: bool
    ) -> PartitionData | Loss | int:
        """One fetch: records, or lost offsets, or the next offset that may have records."""
        state = self._state(client)
        source = client.read_replicas.source(self._name, state)
        if source.is_follower:
            records = await self._from_follower(client, state, source, offset, max_bytes)
            # Without records from the follower, the next attempt asks the leader.
            return offset if records is None else records
        connection = await self._connection(client, state)
        answer = await self._ask(
            connection, state, offset, max_bytes, rack_id=client.read_replicas.rack, max_version=source.max_version
        )
        if answer is None:
            # A broker that throttles this client leaves the partition out of the response.
            raise self._error(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the leader answers without records")
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if not is_fresh:
                raise Passing(self._out_of_range_error(offset))
            return await self._out_of_range(connection, state, offset)
        if answer.error_code in NOT_OF_THIS_ID:
            # The metadata shows whether the topic was deleted or replaced.
            raise Passing(
                KafkaError(ErrorCode(answer.error_code), f"{self}: broker {state.leader} knows no such topic")
            )
        if answer.error_code != ErrorCode.NONE:
            raise self._error(answer.error_code, f"broker {state.leader} refuses to fetch from offset {offset}")
        if answer.records:
            return answer
        if answer.preferred_read_replica != NO_FOLLOWER:
            client.read_replicas.redirect(self._name, state, answer.preferred_read_replica)
            return offset
        readable = answer.last_stable_offset if self._options.read_committed else answer.high_watermark
        if readable >= self._range.end_offset:
            # A leader returns at least one batch if there is one. So compaction has removed all.
            return self._range.end_offset
        # A new leader that does not know its high watermark yet refuses to report the end.
        end = await self._log_offset(connection, state, LATEST_TIMESTAMP)
        if end < self._range.end_offset:
            last = self._range.end_offset - 1
            raise Passing(DataLoss(f"{self}: the log ends at offset {end}, but {offset} to {last} were to be read"))
        what = "last stable offset" if self._options.read_committed else "high watermark"
        raise self._error(
            ErrorCode.REQUEST_TIMED_OUT,
            f"nothing to read at offset {offset} of a range that ends at {self._range.end_offset}:"
            f" the {what} is {readable}",
        )

    async def _from_follower(
        self, client: ClusterClient, state: PartitionMetadata, source: Source, offset: int, max_bytes: int
    ) -> PartitionData | None:
        """The records of a follower; None for any other answer. Then the reader leaves the follower and asks the
        leader."""
        try:
            connection = await client.connection_to(source.broker)
            answer = await self._ask(connection, state, offset, max_bytes)
        except (ClientError, KafkaError) as error:
            logger.debug("%s: follower %d: %s", self, source.broker, error)
            answer = None
        if answer is not None and answer.error_code == ErrorCode.NONE and answer.records:
            client.read_replicas.serves(self._name)
            return answer
        client.read_replicas.leave(self._name, state)
        return None

    async def _out_of_range(self, connection: Connection, state: PartitionMetadata, offset: int) -> Loss:
        """The loss if the leader does not have the offset."""
        first = await self._log_offset(connection, state, EARLIEST_TIMESTAMP)
        if offset < first:
            lost = min(first, self._range.end_offset)
            return Loss(
                offset,
                lost,
                f"{self}: the records from offset {offset} to {lost - 1} were removed, the log begins at {first}",
            )
        end = await self._log_offset(connection, state, LATEST_TIMESTAMP)
        if offset > end:
            message = f"{self}: the log ends at offset {end}, but {offset} to {self._range.end_offset - 1} were there"
            raise Passing(DataLoss(message), GRACE_MS)
        raise Passing(self._out_of_range_error(offset))

    async def _log_offset(self, connection: Connection, state: PartitionMetadata, which: int) -> int:
        asked = {self._name: asked_at(which, state)}
        (answer,) = (await list_offsets_of_leader(connection, asked)).values()
        if isinstance(answer, KafkaError):
            raise self._error(answer.code, f"broker {state.leader} does not tell where the log begins and ends")
        return answer.offset

    async def _ask(
        self,
        connection: Connection,
        state: PartitionMetadata,
        offset: int,
        max_bytes: int,
        *,
        rack_id: str = "",
        max_version: int | None = None,
    ) -> PartitionData | None:
        fetched = await fetch(
            connection,
            {self._name: FetchFrom(offset, state.leader_epoch, max_bytes)},
            {self._range.topic: self._range.topic_id},
            max_version=max_version,
            max_bytes=max_bytes,
            max_wait_ms=self._options.fetch_max_wait_ms,
            isolation_level=READ_COMMITTED if self._options.read_committed else READ_UNCOMMITTED,
            rack_id=rack_id,
        )
        self._by_id |= fetched.by_id
        self._by_name |= not fetched.by_id
        return fetched.partitions.get(self._name)

    def _state(self, client: ClusterClient) -> PartitionMetadata:
        topic = client.metadata.topics.get(self._range.topic)
        state = topic.partitions.get(self._partition) if topic is not None else None
        if state is None or state.leader < 0:
            raise Passing(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{self} has no leader"))
        return state

    async def _connection(self, client: ClusterClient, state: PartitionMetadata) -> Connection:
        try:
            return await client.connection_to(state.leader)
        except KafkaError as error:
            raise Passing(error) from None

    def _error(self, code: int, message: str) -> Exception:
        error = KafkaError(ErrorCode(code), f"{self}: {message}")
        return Passing(error) if code in RETRIABLE_ERRORS else error

    def _out_of_range_error(self, offset: int) -> KafkaError:
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self}: the leader has no offset {offset}")

    def _accepted(self, loss: Loss) -> Loss:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{loss.reason}; with failOnDataLoss=false what is left is read")
        return loss
