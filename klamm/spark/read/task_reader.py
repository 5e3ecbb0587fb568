"""Reads the ranges of one Spark task: many partitions with one Fetch to each leader, round after round.

A topic may have thousands of partitions with a few new records each. If they were read separately, each would cost a
request and an Arrow batch.

What must stay true:
- The guarantees of `read_range`. A round uses only answers of leaders without an error. Other ranges are read by
  `read_range`, which decides what to wait for and what is a loss.
- The records of a partition are returned in the order of their offsets. Partitions may be mixed.
- No record of a topic that has replaced the planned one is accepted. Leaders that know topic ids ensure this
  (`fetching.py`). For other leaders the metadata is read after the last fetch of the task, when an error takes back all
  records of the task. With failOnDataLoss=false it is read after each round, before its records are returned.
- At most two rounds are in memory, beside the record batches that the caller holds. A round has the size of one fetch.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import pyarrow as pa

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.fetching import Answer, Fetched, FetchFrom, fetch
from klamm.client.threads import call, start
from klamm.net.client import Disconnected, NotSent
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from klamm.spark.read.decoding import Batches, Decoder
from klamm.spark.read.partition_reader import LARGEST_FETCH_BYTES, Doubts, RangeFetcher, check_topics, read_range
from klamm.spark.settings import FetchOptions, PartitionRange

# The most partitions of a round.
ROUND_PARTITIONS = 1_000
# The estimated size of an offset before the first answer.
FIRST_BYTES_PER_OFFSET = 256.0
# Further bytes for batches that begin before a range or end after it.
BATCH_BYTES = 64 * 1024


def read_ranges(
    options: FetchOptions, ranges: Sequence[PartitionRange], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of all ranges. Losses and errors are those of `read_range`, for each range."""
    if len(ranges) == 1:
        yield from read_range(options, ranges[0], columns)
        return
    most_bytes = min(options.max_batch_bytes, options.fetch_max_bytes)
    yield from _merged((batch for _, batch in read_apart(options, ranges, columns)), most_bytes)


def read_apart(
    options: FetchOptions, ranges: Sequence[PartitionRange], columns: Sequence[str]
) -> Iterator[tuple[PartitionRange, pa.RecordBatch]]:
    """Like `read_ranges`, with the range, or the rest of a range, of each record batch."""
    if len(ranges) == 1:
        for batch in read_range(options, ranges[0], columns):
            yield ranges[0], batch
        return
    fails, doubts = options.fail_on_data_loss, Doubts()
    if options.client.client_rack:
        # A leader may send a consumer with a rack to another broker for each partition.
        for records in ranges:
            for batch in read_range(options, records, columns, checks_end=not fails, doubts=doubts):
                yield records, batch
        if fails:
            call(options.client, lambda client: check_topics(client, options, ranges))
        return
    rounds = _Rounds(options, ranges, columns)
    try:
        rounds.begin()
        rounds.prepare()
        while rounds.is_under_way:
            answered, unanswered = rounds.end()
            if not unanswered:
                rounds.begin()
            yield from rounds.decode(answered)
            for records in unanswered:
                rounds.are_doubtful = True
                for batch in read_range(options, records, columns, checks_end=not fails, doubts=doubts):
                    yield records, batch
            if unanswered:
                # `read_range` has found new leaders, if leaders were missing.
                rounds.begin()
    finally:
        rounds.cancel()
    if fails and rounds.are_doubtful:
        call(options.client, lambda client: check_topics(client, options, ranges))


class _Wanted(NamedTuple):
    records: PartitionRange
    max_bytes: int


class _Round(NamedTuple):
    """The leaders' answers; None for a range without a leader, with an error, or perhaps of another topic. `by_id` is
    as in `fetching.Fetched`."""

    answers: list[Answer | None]
    by_id: bool


class _Answered(NamedTuple):
    """A range and its batches."""

    records: PartitionRange
    decoder: Decoder
    batches: Batches
    aborted: list[tuple[int, int]]


class _Rounds:
    """Decides which ranges, or rests of ranges, are requested next."""

    def __init__(self, options: FetchOptions, ranges: Sequence[PartitionRange], columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._max_bytes = min(options.fetch_max_bytes, LARGEST_FETCH_BYTES)
        self._rest = deque(ranges)
        # Ranges that a round has requested without an answer.
        self._missed: set[PartitionRange] = set()
        self._bytes_per_offset = FIRST_BYTES_PER_OFFSET
        # A leader returns whole batches only, however few of their records are wanted.
        self._bytes_per_batch = 0.0
        self._wanted: list[_Wanted] = []
        self._under_way: Future[_Round] | None = None
        # Whether records may belong to another topic.
        self.are_doubtful = False

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def begin(self) -> None:
        """Requests the next ranges, if any are left."""
        self._wanted = self._next()
        wanted = self._wanted
        self._under_way = (
            start(self._options.client, lambda client: _ask(client, self._options, wanted)) if wanted else None
        )

    def end(self) -> tuple[list[_Answered], list[PartitionRange]]:
        """Waits for the round. Returns the answers, and the ranges to read alone. The others are requested again."""
        assert self._under_way is not None
        answers, by_id = self._under_way.result()
        self.are_doubtful |= not by_id
        answered: list[_Answered] = []
        alone: list[PartitionRange] = []
        again: list[PartitionRange] = []
        found = [
            None if answer is None else self._scan(records, answer)
            for (records, _), answer in zip(self._wanted, answers, strict=True)
        ]
        size_bytes = sum(len(each.batches.records) for each in found if each is not None)
        # A full response may have ended before these partitions. It has advanced others, so the rounds will end.
        is_full = 2 * size_bytes >= self._max_bytes
        offsets = batches = 0
        for (records, _), answer, each in zip(self._wanted, answers, found, strict=True):
            if each is not None:
                answered.append(each)
                next_offset = each.batches.next_offset or 0
                offsets += next_offset - records.start_offset
                batches += len(each.batches.table)
                if next_offset < records.end_offset:
                    again.append(_from(records, next_offset))
            elif answer is not None and is_full:
                again.append(records)
            elif records in self._missed or (answer is None and not alone):
                alone.append(records)
            else:
                again.append(records)
                self._missed.add(records)
        if offsets:
            self._bytes_per_offset, self._bytes_per_batch = size_bytes / offsets, size_bytes / batches
        self._rest.extendleft(reversed(again))
        return answered, alone

    def prepare(self) -> None:
        """Loads the compiled loops, which takes longer than a round."""
        Decoder("", 0, self._columns, self._options.max_batch_bytes).prepare()

    def decode(self, answered: list[_Answered]) -> Iterator[tuple[PartitionRange, pa.RecordBatch]]:
        """The records of the answers. Each answer is released once it is decoded."""
        answered.reverse()
        while answered:
            records, decoder, batches, aborted = answered.pop()
            for batch in decoder.decode(batches, records.start_offset, records.end_offset, aborted):
                yield records, batch

    def cancel(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()

    def _next(self) -> list[_Wanted]:
        """The ranges of a round: about as many as fit into one fetch, each partition once."""
        wanted: list[_Wanted] = []
        partitions: set[tuple[str, int]] = set()
        size_bytes = 0.0
        while self._rest and len(wanted) < ROUND_PARTITIONS and size_bytes < self._max_bytes:
            records = self._rest[0]
            if (records.topic, records.partition) in partitions:
                break
            self._rest.popleft()
            partitions.add((records.topic, records.partition))
            offsets = records.end_offset - records.start_offset
            expected_bytes = max(self._bytes_per_offset * offsets, self._bytes_per_batch)
            size_bytes += expected_bytes
            wanted.append(_Wanted(records, min(self._max_bytes, int(2 * expected_bytes) + BATCH_BYTES)))
        return wanted

    def _scan(self, records: PartitionRange, answer: Answer) -> _Answered | None:
        """The batches of an answer; None if they do not reach the range."""
        if not answer.records:
            return None
        decoder = Decoder(records.topic, records.partition, self._columns, self._options.max_batch_bytes)
        batches = decoder.scan(answer.records)
        if batches.next_offset is None or batches.next_offset <= records.start_offset:
            return None
        aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()]
        return _Answered(records, decoder, batches, aborted)


def _from(records: PartitionRange, offset: int) -> PartitionRange:
    """The rest of a range. (`dataclasses.replace` takes several times as long.)"""
    return PartitionRange(records.topic, records.partition, offset, records.end_offset, records.topic_id)


def _merged(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Merges record batches, because each costs Spark as much as thousands of rows."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if gathered and size_bytes + batch.nbytes > most_bytes:
            yield from _one(gathered)
            gathered, size_bytes = [], 0
        gathered.append(batch)
        size_bytes += batch.nbytes
    yield from _one(gathered)


def _one(batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()


# -- on the network's loop --------------------------------------------------------------------------------------------


async def _ask(client: ClusterClient, options: FetchOptions, wanted: Sequence[_Wanted]) -> _Round:
    fetchers = [RangeFetcher(options, records) for records, _ in wanted]
    unknown = {
        records.topic: None
        for (records, _), fetcher in zip(wanted, fetchers, strict=True)
        if fetcher.leader(client) is None
    }
    nothing = _Round([None] * len(wanted), by_id=True)
    try:
        if unknown:
            await client.refresh_metadata_once(unknown)
        found = await _ask_leaders(client, options, wanted, fetchers)
        if options.fail_on_data_loss or found.by_id:
            return found
        await client.refresh_metadata_once(dict.fromkeys(records.topic for records, _ in wanted))
    except (NotSent, Disconnected):
        return nothing
    accepted = [
        answer if fetcher.is_planned(client, at_end=True) else None
        for answer, fetcher in zip(found.answers, fetchers, strict=True)
    ]
    return _Round(accepted, by_id=False)


async def _ask_leaders(
    client: ClusterClient, options: FetchOptions, wanted: Sequence[_Wanted], fetchers: Sequence[RangeFetcher]
) -> _Round:
    """Sends one request to each leader, all at once. The responses together are at most as large as one fetch."""
    leaders: dict[int, dict[TopicPartition, FetchFrom]] = {}
    topic_ids: dict[str, str | None] = {}
    for (records, max_bytes), fetcher in zip(wanted, fetchers, strict=True):
        state = fetcher.leader(client)
        if state is not None:
            topic_ids[records.topic] = records.topic_id
            asked = leaders.setdefault(state.leader, {})
            partition = TopicPartition(records.topic, records.partition)
            asked[partition] = FetchFrom(records.start_offset, state.leader_epoch, max_bytes)
    max_bytes = max(1, min(options.fetch_max_bytes, LARGEST_FETCH_BYTES) // max(1, len(leaders)))

    async def ask(leader: int) -> Fetched:
        asked = leaders[leader]
        try:
            return await fetch(
                await client.connection_to(leader),
                asked,
                {topic: topic_ids[topic] for topic in dict.fromkeys(partition.topic for partition in asked)},
                max_bytes=max_bytes,
                max_wait_ms=options.fetch_max_wait_ms,
                isolation_level=READ_COMMITTED if options.read_committed else READ_UNCOMMITTED,
            )
        except (NotSent, Disconnected, KafkaError):
            return Fetched({}, by_id=True)

    found: dict[TopicPartition, Answer] = {}
    by_id = True
    for fetched in await asyncio.gather(*map(ask, leaders)):
        found.update(fetched.partitions)
        by_id &= fetched.by_id
    answers = [found.get(TopicPartition(records.topic, records.partition)) for records, _ in wanted]
    return _Round(
        [answer if answer is not None and answer.error_code == ErrorCode.NONE else None for answer in answers], by_id
    )
