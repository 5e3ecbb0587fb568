"""Reads the records of a fetch, once its partitions and their upper bounds are known.

What must stay true:
- A read may wait for the disk. Records that another leader may have truncated and replaced meanwhile are not returned.
- The records and the aborted transactions among them stay within the fetch's share of memory, except for one batch, so
  that a large batch can still be consumed (KIP-74).
- Bytes of throttled partitions count for the leader's quota when they are read.
"""

import asyncio
from collections.abc import Sequence

from klamm.base.slices import Slices, each, in_slices
from klamm.protocol.apis.fetch import AbortedTransaction, FetchPartition, PartitionData
from klamm.protocol.error_codes import KafkaError
from klamm.replication.partition.delayed_operations import DelayedFetch, Readable, Wanted
from klamm.replication.quota import ReplicationQuota
from klamm.storage.log.log import FetchedRecords, Log

# After this many partitions, a fetch yields the loop to other requests.
PARTITIONS_PER_SLICE = 500
# The memory of an aborted transaction in a response, and how many bytes of aborted transactions a fetch may always
# return, however few bytes of records it asks for.
ABORTED_TRANSACTION_BYTES = 140
LEAST_ABORTED_BYTES = 64 * 1024


async def read_records(
    delayed: DelayedFetch, wanted: Sequence[Wanted], max_bytes: int, leader_quota: ReplicationQuota
) -> None:
    """Puts records into the results of a ready fetch: at most `max_bytes`, except for the first batch."""
    loop = asyncio.get_running_loop()
    results = delayed.results
    read_bytes = 0
    read = Slices(PARTITIONS_PER_SLICE, loop.time)
    async for index in each(sorted(delayed.readable), read):
        want = wanted[index][1]
        limit_bytes = min(want.partition_max_bytes, max(0, max_bytes - read_bytes))
        readable = delayed.readable[index]
        first = read_bytes == 0
        if readable.is_throttled:
            allowance_bytes = leader_quota.allowance_bytes(loop.time() * 1000)
            if allowance_bytes == 0:
                continue
            # One batch may exceed the quota: small allowances would never reach the size of a large batch.
            first |= limit_bytes > 0
            limit_bytes = min(limit_bytes, allowance_bytes)
        results[index] = await _read(readable, want, results[index], limit_bytes, first=first)
        size_bytes = _memory_bytes(results[index])
        if readable.is_throttled:
            leader_quota.record(size_bytes, loop.time() * 1000)
        read_bytes += size_bytes


def _memory_bytes(result: PartitionData) -> int:
    """The memory of the records and aborted transactions until they are encoded."""
    return len(result.records or b"") + ABORTED_TRANSACTION_BYTES * len(result.aborted_transactions or ())


async def _read(
    readable: Readable, want: FetchPartition, result: PartitionData, max_bytes: int, *, first: bool
) -> PartitionData:
    """`result` with records, or an error in its place."""
    log = readable.partition.log
    try:
        fetched, aborted = await _read_log(
            log,
            want.fetch_offset,
            max_bytes,
            readable.upper_bound,
            first=first,
            with_aborted=result.aborted_transactions is not None,
        )
        # If another broker became the leader during the read, the records may have been truncated and replaced.
        if readable.is_led_here:
            readable.partition.require_leader(readable.leader_epoch)
        else:
            readable.partition.require_leader_epoch(readable.leader_epoch)
            if log.high_watermark < readable.upper_bound:
                return result  # The follower has been truncated below its high watermark, after an unclean election.
    except KafkaError as error:
        if readable.partition.log is not log:  # The log has moved to another directory during the read.
            return await _read(readable, want, result, max_bytes, first=first)
        readable.partition.topic_counts.read_failed(error)
        return PartitionData(partition_index=want.partition, error_code=error.code)
    result.records = fetched.data
    if aborted is not None:
        result.aborted_transactions = aborted
    return result


async def _read_log(
    log: Log, offset: int, max_bytes: int, upper_bound: int, *, first: bool, with_aborted: bool
) -> tuple[FetchedRecords, list[AbortedTransaction] | None]:
    """Records, and the aborted transactions among them. If these are so many that they would fill the memory for
    responses, reads fewer records, but at least one batch if it is the `first`."""
    most: int | None = max(max_bytes, LEAST_ABORTED_BYTES) // ABORTED_TRANSACTION_BYTES
    while True:
        fetched = await log.read(offset, max_bytes, max_offset=upper_bound, minimum_one_batch=first)
        if not with_aborted or not fetched.data:
            return fetched, [] if with_aborted else None
        found = await in_slices(log.aborted_transactions(offset, fetched.next_offset, most))
        if found is not None:
            return fetched, [
                AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                async for producer_id, first_offset in each(found)
            ]
        if len(fetched.data) > max_bytes:
            most = None  # It is a single batch.
        else:
            max_bytes = len(fetched.data) // 2
