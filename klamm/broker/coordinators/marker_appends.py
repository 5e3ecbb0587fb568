"""Appends transaction markers to the partitions that this broker leads (a part of Kafka's
`KafkaApis.handleWriteTxnMarkersRequest`).

What must stay true:
- A marker counts as written only when all in-sync replicas have it. Until then the coordinator repeats it, and a
  repeated marker changes nothing.
- A group sees the offsets of a transaction only after the marker in its partition of `__consumer_offsets` has been
  replicated, and before the marker counts as written.
- Every appended marker is followed to its end, even if the coordinator disconnects.
- Each marker is awaited separately, so that a slow partition delays no groups of other partitions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import CoroutineType

from klamm.base.environment import Environment
from klamm.base.slices import Slices, begin, each
from klamm.base.slices import slices as pieces
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.transactions.ports import TransactionMarker
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.records import ControlRecordType, EndTransactionMarker, build_end_transaction_marker
from klamm.protocol.vocabulary import ACKS_ALL, GROUP_METADATA_TOPIC_NAME, PartitionKey
from klamm.replication.replica_manager import ProduceResult, ReplicaManager
from klamm.storage.log.producer_state import AppendOrigin

# The result of each partition of a marker.
Codes = Mapping[PartitionKey, ErrorCode]
Appended = tuple[str, int, ProduceResult]

# How many partitions a slice appends to, in some milliseconds.
MARKERS_PER_SLICE = 100


class MarkerAppends:
    """See the module. Create it while the loop runs."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        replica_manager: ReplicaManager,
        group_coordinator: GroupCoordinator,
        on_failure: OnFailure,
    ) -> None:
        self._timeout_ms = config.request_timeout_ms
        self._environment = environment
        self._replica_manager = replica_manager
        self._group_coordinator = group_coordinator
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()

    async def append(self, markers: Sequence[TransactionMarker]) -> "list[asyncio.Future[Codes]]":
        """Appends the markers, in slices. Returns for each marker a future with the results of its partitions: NONE
        once the marker is on all in-sync replicas, REQUEST_TIMED_OUT if that takes too long, or why it was not
        appended."""
        slices = Slices(MARKERS_PER_SLICE, self._loop.time)
        return [await self._append(marker, slices) async for marker in each(markers, slices)]

    async def _append(self, marker: TransactionMarker, slices: Slices) -> "asyncio.Future[Codes]":
        following = _Following(marker, self._group_coordinator, self._on_failure)
        kind = ControlRecordType.COMMIT if marker.committed else ControlRecordType.ABORT
        batch = build_end_transaction_marker(
            EndTransactionMarker(kind, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=self._environment.now_ms(),
        )
        async for piece in pieces(marker.partitions, MARKERS_PER_SLICE):
            unprepared = self._replica_manager.unprepared_logs((*key, None) for key in piece)
            if unprepared:
                await asyncio.gather(*(log.prepare_append() for log in unprepared))
            async for topic, number in each(piece, slices):
                # The log writes the offset into the batch, which then belongs to the log.
                result = self._replica_manager.append_records(
                    topic, number, memoryview(bytearray(batch)), ACKS_ALL, AppendOrigin.COORDINATOR
                )
                following.add((topic, number, result), self._replica_manager, self._timeout_ms)
                if result.has_waited_for_disk:
                    await asyncio.sleep(0)
        return following.wait()


class _Following:
    """One marker in its partitions, until all of them are decided."""

    def __init__(self, marker: TransactionMarker, group_coordinator: GroupCoordinator, on_failure: OnFailure) -> None:
        self._marker = marker
        self._group_coordinator = group_coordinator
        self._on_failure = on_failure
        self._codes: dict[PartitionKey, ErrorCode] = {}
        self._undecided = 0
        self._finished: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        self._is_complete = False

    def add(self, appended: Appended, replica_manager: ReplicaManager, timeout_ms: int) -> None:
        self._undecided += 1
        marker_offset = appended[2].base_offset
        replica_manager.when_replicated([appended], timeout_ms, lambda: self._replicated(appended, marker_offset))

    def wait(self) -> "asyncio.Future[Codes]":
        """The future of the results. Call it after all partitions have been added."""
        self._is_complete = True
        self._finish_if_decided()
        return self._finished

    def _replicated(self, appended: Appended, marker_offset: int) -> None:
        topic, number, result = appended
        if topic != GROUP_METADATA_TOPIC_NAME or result.error_code is not ErrorCode.NONE:
            self._decided(appended)
            return
        telling = begin(
            self._group_coordinator.transaction_ended(
                number, self._marker.producer_id, marker_offset, is_committed=self._marker.committed
            )
        )
        if isinstance(telling, CoroutineType):
            start_task(self._when_told(telling, appended), self._on_failure)
        else:
            self._decided(appended)

    async def _when_told(self, telling: "CoroutineType[object, object, None]", appended: Appended) -> None:
        await telling
        self._decided(appended)

    def _decided(self, appended: Appended) -> None:
        topic, number, result = appended
        self._codes[topic, number] = result.error_code
        self._undecided -= 1
        self._finish_if_decided()

    def _finish_if_decided(self) -> None:
        # The waiting caller may have been cancelled.
        if self._is_complete and not self._undecided and not self._finished.done():
            self._finished.set_result(self._codes)
