"""Truncates a follower's log to agree with its leader's: where their epochs diverge, and when the leader's log ends
before this log or begins after it.

What must stay true:
- A log is truncated only while its partition follows this leader in the epoch in which the request began.
- A request whose answer changed nothing is not repeated at once.
- An offset that no log can have is an error of the leader. It never makes this broker truncate a log.
"""

from collections.abc import Sequence

from klamm.base.slices import each
from klamm.net.client import ClientError
from klamm.protocol.apis.fetch import EpochEndOffset
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH, UNKNOWN_OFFSET, PartitionKey
from klamm.replication.fetcher.fetch_state import PartitionFetch, truncation_offset
from klamm.replication.fetcher.followed_partitions import Fetches, FollowedPartitions
from klamm.replication.fetcher.leader_endpoint import LeaderEndpoint, LeaderOffset

# Work on more partitions than this yields the loop in between.
PARTITIONS_PER_SLICE = 500
# No log can continue after this offset.
_LARGEST_OFFSET = 2**63 - 1
_NO_OFFSET = LeaderOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_OFFSET)

# A partition whose log diverges from the leader's, and the leader's epoch with its end offset.
Diverging = tuple[PartitionKey, PartitionFetch, EpochEndOffset]


class LogTruncation:
    """Truncates the logs of followed partitions according to the answers of `leader`."""

    def __init__(self, followed: FollowedPartitions, leader: LeaderEndpoint) -> None:
        self._followed = followed
        self._leader = leader

    async def truncate(self) -> None:
        """Truncates before the first fetch: to the high watermark, or to the ends of the leader's epochs."""
        truncating, self._followed.truncating = self._followed.truncating, {}
        asked: Fetches = {}
        async for topic_partition, fetch in each(truncating.items(), PARTITIONS_PER_SLICE):
            if self._followed.fetches.get(topic_partition) is not fetch:
                continue
            log = fetch.partition.log
            if self._leader.truncates_on_fetch or log.leader_epochs.latest_epoch == NO_EPOCH:
                await self._truncate_to(topic_partition, fetch, log.high_watermark)
            else:
                asked[topic_partition] = fetch
        if asked:
            await self._truncate_to_epoch_ends(asked)

    async def _truncate_to_epoch_ends(self, truncating: Fetches) -> None:
        """One OffsetForLeaderEpoch and its truncations, for inter.broker.protocol.version before 2.7-IV1 (KIP-279)."""
        try:
            answers = await self._leader.end_offsets(
                {
                    topic_partition: (fetch.leader_epoch, fetch.partition.log.leader_epochs.latest_epoch)
                    for topic_partition, fetch in truncating.items()
                }
            )
        except ClientError:
            for topic_partition, fetch in truncating.items():
                if self._followed.fetches.get(topic_partition) is fetch:
                    self._followed.resume(topic_partition, fetch)
            raise
        for topic_partition, fetch in truncating.items():
            if self._followed.fetches.get(topic_partition) is not fetch:
                continue
            answer = answers.get(topic_partition)
            if answer is None or answer.error_code != ErrorCode.NONE:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if answer is None else answer.error_code
                self._followed.leader_refused(topic_partition, fetch, code)
                continue
            before = _end(fetch)
            offset, is_final = truncation_offset(fetch.partition.log, answer.leader_epoch, answer.end_offset)
            if await self._truncate_to(topic_partition, fetch, offset, is_final=is_final):
                self._require_progress(topic_partition, fetch, before, is_final=is_final)

    async def truncate_diverging(self, diverging: Sequence[Diverging]) -> None:
        """Removes records that the leader does not have; the next fetch shows whether more must go (KIP-595)."""
        for topic_partition, fetch, leader in diverging:
            if self._followed.fetches.get(topic_partition) is not fetch:
                continue
            before = _end(fetch)
            offset, _ = truncation_offset(fetch.partition.log, leader.epoch, leader.end_offset)
            if await self._truncate_to(topic_partition, fetch, offset):
                self._require_progress(topic_partition, fetch, before, is_final=False)

    def _require_progress(
        self, topic_partition: PartitionKey, fetch: PartitionFetch, before: tuple[int, int], *, is_final: bool
    ) -> None:
        """Backs off when the leader's answer changed nothing here, instead of repeating the request at once."""
        if not is_final and _end(fetch) == before:
            self._followed.truncating.pop(topic_partition, None)
            self._followed.changed.pop(topic_partition, None)
            self._followed.delay(topic_partition, fetch, "its leader's epochs end nowhere within its log")

    async def _truncate_to(
        self, topic_partition: PartitionKey, fetch: PartitionFetch, offset: int, *, is_final: bool = True
    ) -> bool:
        """Truncates. Returns whether the truncation succeeded. Unless `is_final`, the partition stays in the truncating
        state.

        The preparation may take long; meanwhile the partition may be removed or get another leader.
        """
        refusal = None
        try:
            await self._shorten(topic_partition, fetch, offset)
            prepared = await fetch.partition.log.prepare_truncation(offset)
            if self._followed.is_valid(topic_partition, fetch):
                fetch.partition.truncate_to(offset, prepared)
        except KafkaError as error:
            refusal = error
        if self._followed.fetches.get(topic_partition) is not fetch:
            return False
        if refusal is not None:
            self._followed.log_refused(topic_partition, fetch, refusal)
            return False
        if not self._followed.is_valid(topic_partition, fetch):
            self._followed.delay(topic_partition, fetch, "it follows another leader or epoch now")
            return False
        fetch.is_truncating = not is_final
        fetch.asked = None
        self._followed.resume(topic_partition, fetch)
        return True

    async def _shorten(self, topic_partition: PartitionKey, fetch: PartitionFetch, offset: int) -> None:
        """Removes segments behind `offset` (-1: all), until a truncation there is a short step."""
        while self._followed.is_valid(topic_partition, fetch):
            step = fetch.partition.log.truncation_step(offset)
            if step is None:
                return
            prepared = await fetch.partition.log.prepare_truncation(step)
            if self._followed.is_valid(topic_partition, fetch):
                fetch.partition.truncate_to(step, prepared)

    async def reset_offsets(self, out_of_range: Fetches) -> None:
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
                self._followed.delay(topic_partition, fetch, "the leader's log has changed while it was asked about")
                continue
            try:
                await self._shorten(topic_partition, fetch, -1)
                if not self._followed.is_valid(topic_partition, fetch):
                    continue
                fetch.partition.truncate_fully_and_start_at(earliest)
            except KafkaError as error:
                self._followed.log_refused(topic_partition, fetch, error)
            else:
                fetch.asked = None
                self._followed.changed[topic_partition] = fetch

    async def _list_offsets(self, timestamp: int, fetches: Fetches) -> list[tuple[PartitionKey, PartitionFetch, int]]:
        """(partition, its fetch, the leader's offset) of each partition whose answer is valid."""
        answers = await self._leader.list_offsets(
            timestamp, {topic_partition: fetch.leader_epoch for topic_partition, fetch in fetches.items()}
        )
        found = []
        for topic_partition, fetch in fetches.items():
            if not self._followed.is_valid(topic_partition, fetch):
                continue
            error_code, offset = answers.get(topic_partition, _NO_OFFSET)
            if error_code != ErrorCode.NONE:
                self._followed.leader_refused(topic_partition, fetch, error_code)
            elif not 0 <= offset < _LARGEST_OFFSET:
                # A log that starts at such an offset could neither be written to nor loaded after a restart.
                self._followed.delay(topic_partition, fetch, f"the leader answers offset {offset}")
            else:
                found.append((topic_partition, fetch, offset))
        return found


def _end(fetch: PartitionFetch) -> tuple[int, int]:
    log = fetch.partition.log
    return log.log_end_offset, log.leader_epochs.latest_epoch
