"""The groups that this broker coordinates, and their records in `__consumer_offsets` (Kafka's `GroupMetadataManager`).

A group belongs to one partition of the topic; the leader of that partition coordinates the group. A partition is

| is       | since            | `check` says                                                                        |
|----------|------------------|-------------------------------------------------------------------------------------|
| unknown  | `resign`         | NOT_COORDINATOR                                                                     |
| loading  | `become_leader`  | COORDINATOR_LOAD_IN_PROGRESS: its groups are being read from the log                |
| owned    | all is loaded    | nothing                                                                             |

What must stay true:
- Answers about a group reflect the whole log: a partition that could not be read to its end is never owned. It is read
  again while this broker leads it, and becomes unknown when the leadership ends.
- Partitions load one after another, in the order of the elections, since each takes a share of the one loop.
- A committed offset is in the log, on all in-sync replicas, before it is visible here. The commit with the later
  record counts, in whatever order commits complete. The client may disconnect meanwhile.
- An offset of a transaction is visible once the transaction's COMMIT marker is in the log, on all in-sync replicas.
  Until then it is pending, so a client with `require_stable` never reads the offset before.
- An append with an unknown outcome (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND) changes nothing here, as in
  Kafka. Its client got no acknowledgement and commits again, later in the log. If the client does not, the old offset
  stays visible until the next leader loads the partition, and then the offset in the log counts. The visible offset is
  never older than an acknowledged one.
- An append in a transaction with an unknown outcome stays pending if this broker's log has the records: the marker
  decides, here and at the next leader.
- No request waits for tombstones. A lost tombstone is written again when its offset or group expires again.

Differences from Kafka: a commit that is refused for the size of its metadata does not stay pending for ever; a
partition that was deleted and recreated has its own epochs; a load that a read error cut short never counts as
complete.
"""

import asyncio
import codecs
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import NamedTuple, Protocol

from klamm.base.slices import Slices, Steps, begin, each, in_slices
from klamm.base.tasks import OnFailure, start_task
from klamm.coordinator.election_epochs import ElectionEpochs
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState
from klamm.coordinator.groups.group_loader import load_groups
from klamm.coordinator.groups.group_records import (
    MAX_CACHED_CHARACTERS,
    group_metadata_key,
    group_metadata_steps,
    offset_commit_key,
    offset_commit_value,
)
from klamm.coordinator.groups.offset_expiration import OFFSETS_PER_SLICE, expire_every, pieces
from klamm.coordinator.ports import Appended, CoordinatorLog, KeyAndValue, TransactionalProducer
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.primitives import MAX_STRING_BYTES
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, UNKNOWN_OFFSET, PartitionKey

LOAD_RETRY_BACKOFF_MS = 500
MAX_LOAD_RETRY_BACKOFF_MS = 30_000
# `partition_for` returns this while the number of partitions is unknown.
UNKNOWN_PARTITION = -1
# How many groups a step loads or unloads.
GROUPS_PER_SLICE = 100

_log = logging.getLogger(__name__)

# Works in steps: a group may have thousands of members.
OnGroup = Callable[[Group], Steps[None]]

_STORE_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
# The errors that clients get for a failed append; all other errors are passed on unchanged.
GROUP_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    **_STORE_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
COMMIT_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    **_STORE_ERRORS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


class OffsetsConfig(Protocol):
    """The broker configs that offsets need."""

    @property
    def offset_metadata_max_bytes(self) -> int: ...

    @property
    def offsets_retention_minutes(self) -> int: ...

    @property
    def offsets_retention_check_interval_ms(self) -> int: ...


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that a group belongs to."""
    value = java_hash(group_id)
    # A Java int cannot be 2^31, so Kafka uses 0 as the absolute value of -2^31.
    return (0 if value == -(2**31) else abs(value)) % partition_count


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over the UTF-16 code units, as a signed int32."""
    return _cached_hash(text) if len(text) <= MAX_CACHED_CHARACTERS else _hash(text)


def _hash(text: str) -> int:
    value = 0
    for unit in memoryview(_utf_16(text, "surrogatepass")[0]).cast("H"):
        value = 31 * value + unit & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


# Looked up at import: the first use of a codec imports its module, which reads files.
_utf_16 = codecs.getencoder(f"utf-16-{'le' if sys.byteorder == 'little' else 'be'}")
_cached_hash = lru_cache(maxsize=10_000)(_hash)


class PreparedOffsets(NamedTuple):
    """Offsets to be written to the log. `errors` has OFFSET_METADATA_TOO_LARGE for every offset of the request."""

    errors: dict[PartitionKey, ErrorCode]
    accepted: dict[PartitionKey, OffsetAndMetadata]
    records: list[KeyAndValue]


class EndedTransaction(NamedTuple):
    """A marker of a transaction, in a partition of the topic."""

    producer_id: int
    marker_offset: int
    is_committed: bool


class GroupMetadataManager:
    """Create it while the loop runs. `partition_for` gives a group's partition, or UNKNOWN_PARTITION; `clock_ms` is the
    wall clock. `on_partition_loaded` is called when the groups of a partition are owned."""

    def __init__(
        self,
        config: OffsetsConfig,
        log: CoordinatorLog,
        partition_for: Callable[[str], int],
        clock_ms: Callable[[], int],
        on_failure: OnFailure,
        on_partition_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_partition_loaded = on_partition_loaded
        self._config = config
        self._log = log
        self._partition_for = partition_for
        self._clock_ms = clock_ms
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._epochs = ElectionEpochs(GROUP_METADATA_TOPIC_NAME)
        self._loading: dict[int, asyncio.Task[None]] = {}
        # By loading partition: the topic partitions deleted meanwhile, whose loaded offsets are outdated.
        self._deleted: dict[int, dict[PartitionKey, None]] = {}
        # By loading partition: the markers that were appended meanwhile, which the reader may not have seen.
        self._ended: dict[int, list[EndedTransaction]] = {}
        self._one_at_a_time = asyncio.Lock()
        # By partition that is owned or has been read, then by group id.
        self._groups: dict[int, dict[str, Group]] = {}
        # By partition, then by producer id: the ids of the groups in which a transaction may have pending offsets.
        self._open_groups: dict[int, dict[int, dict[str, None]]] = {}
        self._expiring: asyncio.Task[None] | None = None
        self._unloading: dict[asyncio.Task[None], None] = {}

    # -- groups -----------------------------------------------------------------------------------------------------

    def check(self, group_id: str) -> ErrorCode | None:
        """Why this broker cannot answer for the group now; None if it can."""
        partition = self._partition_for(group_id)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return None if partition in self._groups else ErrorCode.NOT_COORDINATOR

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(self._partition_for(group_id), {}).get(group_id)

    def get_or_create(self, group_id: str) -> Group:
        """A new group is Empty. KeyError for a group for which `check` returns an error."""
        groups = self._groups[self._partition_for(group_id)]
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = Group(group_id, GroupState.EMPTY, self._clock_ms())
        return group

    def groups(self) -> list[Group]:
        """All loaded groups, by partition in the order of loading."""
        return [group for groups in self._groups.values() for group in groups.values()]

    # -- storing ----------------------------------------------------------------------------------------------------

    async def store_group(self, group: Group, assignments: Mapping[str, bytes]) -> ErrorCode:
        """Writes the group as it is now, with the assignment of each member (by id).

        REBALANCE_IN_PROGRESS if the group changes its state before the record is built.
        """
        generation_id, state = group.generation_id, group.state
        record = group_metadata_key(group.group_id), await in_slices(group_metadata_steps(group, assignments))
        if (group.generation_id, group.state) != (generation_id, state):
            return ErrorCode.REBALANCE_IN_PROGRESS

        def on_appended(appended: Appended) -> None:
            if appended.error_code is not ErrorCode.NONE:
                reason = error_name(appended.error_code)
                _log.warning("generation %d of group %s could not be stored: %s", generation_id, group.group_id, reason)

        error_code = await self._append(group, [record], on_appended)
        return GROUP_ERRORS.get(error_code, error_code)

    def prepare_offsets(
        self, group_id: str, offsets: Mapping[PartitionKey, OffsetAndMetadata]
    ) -> Steps["PreparedOffsets"]:
        """The offsets that can be committed, and their records."""
        prepared = PreparedOffsets(dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE), {}, [])
        slices = Slices(OFFSETS_PER_SLICE)
        for partition, offset in offsets.items():
            if self._has_legal_size(offset):
                prepared.accepted[partition] = offset
                prepared.records.append((offset_commit_key(group_id, partition), offset_commit_value(offset)))
            if slices.spend():
                yield
        return prepared

    async def store_offsets(self, group: Group, prepared: "PreparedOffsets") -> dict[PartitionKey, ErrorCode]:
        """Commits the offsets, except those with too much metadata."""
        result, accepted, records = prepared
        if not accepted:
            return result

        def on_appended(appended: Appended) -> None:
            if appended.error_code is ErrorCode.NONE:
                for record_offset, (partition, offset) in enumerate(accepted.items(), appended.base_offset):
                    group.offsets.complete_commit(partition, record_offset, offset)
            else:
                for partition, offset in accepted.items():
                    group.offsets.fail_commit(partition, offset)

        group.offsets.prepare_commit(accepted)
        error_code = await self._append(group, records, on_appended)
        result.update(dict.fromkeys(accepted, COMMIT_ERRORS.get(error_code, error_code)))
        return result

    async def store_transactional_offsets(
        self, group_id: str, producer: TransactionalProducer, prepared: "PreparedOffsets"
    ) -> dict[PartitionKey, ErrorCode]:
        """Commits the offsets in the producer's transaction, except those with too much metadata."""
        result, accepted, records = prepared
        if not accepted:
            return result
        group = self.get_or_create(group_id)
        commit = group.offsets.prepare_transactional_commit(producer.producer_id, accepted)
        partition = self._partition_for(group_id)
        self._note_transaction(partition, group, producer.producer_id)

        def on_appended(appended: Appended) -> None:
            if appended.base_offset == UNKNOWN_OFFSET:
                group.offsets.fail_transactional_commit(commit)
            else:
                group.offsets.transactional_commit_appended(commit, appended.base_offset, appended.transaction_offset)
            self._note_transaction(partition, group, producer.producer_id)

        error_code = await self._append(group, records, on_appended, producer)
        result.update(dict.fromkeys(accepted, COMMIT_ERRORS.get(error_code, error_code)))
        return result

    async def _append(
        self,
        group: Group,
        records: Sequence[KeyAndValue],
        on_appended: Callable[[Appended], None],
        producer: TransactionalProducer | None = None,
    ) -> ErrorCode:
        """Returns the append's result. `on_appended` gets it first, even if this caller was cancelled."""
        heard: asyncio.Future[ErrorCode] = self._loop.create_future()

        def ended(future: asyncio.Future[Appended]) -> None:
            if future.cancelled():
                heard.cancel()
            elif (error := future.exception()) is not None:
                self._on_failure(error)
                heard.cancel()
            else:
                on_appended(future.result())
                if not heard.done():
                    heard.set_result(future.result().error_code)

        appending = asyncio.ensure_future(self._log.append(self._partition_for(group.group_id), records, producer))
        appending.add_done_callback(ended)
        return await heard

    def _has_legal_size(self, offset: OffsetAndMetadata) -> bool:
        metadata = offset.metadata
        # Despite the setting's name Kafka counts UTF-16 code units. Whatever the setting, a record's text is limited to
        # the length that an int16 can count.
        size = len(_utf_16(metadata, "surrogatepass")[0]) // 2 if metadata else 0
        return size <= self._config.offset_metadata_max_bytes and len(metadata.encode()) <= MAX_STRING_BYTES

    # -- transactions -----------------------------------------------------------------------------------------------

    def transaction_ended(
        self, partition: int, producer_id: int, marker_offset: int, is_committed: bool
    ) -> Steps[None]:
        """Ends a transaction whose marker is in the log on all in-sync replicas, in steps."""
        ended = EndedTransaction(producer_id, marker_offset, is_committed)
        if partition in self._loading:
            self._ended.setdefault(partition, []).append(ended)
        else:
            yield from self._end_transactions(partition, [ended])

    def _end_transactions(self, partition: int, transactions: Iterable[EndedTransaction]) -> Steps[None]:
        slices = Slices(OFFSETS_PER_SLICE)
        for producer_id, marker_offset, is_committed in transactions:
            for group_id in self._open_groups.get(partition, {}).pop(producer_id, {}):
                group = self._groups.get(partition, {}).get(group_id)
                if group is None:
                    continue
                ended = group.offsets.end_transaction(producer_id, marker_offset, is_committed)
                self._note_transaction(partition, group, producer_id)
                for commit in ended:
                    group.offsets.end_transactional_commit(commit, is_committed)
                    if slices.spend(1 + len(commit.offsets)):
                        yield
            if slices.spend():
                yield

    def _note_transaction(self, partition: int, group: Group, producer_id: int) -> None:
        """The producer has, or no longer has, pending offsets in a group of the partition."""
        if self._groups.get(partition, {}).get(group.group_id) is not group:
            return
        open_groups = self._open_groups.setdefault(partition, {})
        if producer_id in group.offsets.open_producer_ids and group.state is not GroupState.DEAD:
            open_groups.setdefault(producer_id, {})[group.group_id] = None
        elif producer_id in open_groups:
            open_groups[producer_id].pop(group.group_id, None)
            if not open_groups[producer_id]:
                del open_groups[producer_id]

    # -- elections --------------------------------------------------------------------------------------------------

    def become_leader(self, partition: int, coordinator_epoch: int, on_loaded: OnGroup) -> None:
        """This broker leads the partition: its groups are loaded. `on_loaded` gets each group before any other code.

        Older epochs are ignored. A newer epoch changes nothing for an owned or loading partition: without `resign` in
        between no other broker has written to the log.
        """
        if not self._epochs.elected(partition, coordinator_epoch):
            return
        if partition not in self._loading and partition not in self._groups:
            self._loading[partition] = start_task(self._load(partition, on_loaded), self._on_failure)

    def resign(self, partition: int, coordinator_epoch: int | None, on_unloaded: OnGroup) -> None:
        """This broker no longer leads the partition: its groups are dropped at once. `on_unloaded` gets each group, in
        steps.

        Older epochs are ignored. None means that the replica was removed; its known epoch is forgotten.
        """
        if not self._epochs.resigned(partition, coordinator_epoch):
            return
        load = self._loading.pop(partition, None)
        self._deleted.pop(partition, None)
        self._ended.pop(partition, None)
        self._open_groups.pop(partition, None)
        if load is not None:
            load.cancel()
        groups = self._groups.pop(partition, {})
        unloading = begin(self._unload(partition, list(groups.values()), on_unloaded))
        if unloading is not None:
            task = start_task(unloading, self._on_failure)
            self._unloading[task] = None
            task.add_done_callback(self._unloading.pop)

    def _unload(self, partition: int, groups: Sequence[Group], on_unloaded: OnGroup) -> Steps[None]:
        slices = Slices(GROUPS_PER_SLICE)
        for group in groups:
            yield from on_unloaded(group)
            if slices.spend():
                yield
        if groups:
            _log.info("unloaded %d groups of %s", len(groups), _name(partition))

    async def _load(self, partition: int, on_loaded: OnGroup) -> None:
        began_s = self._loop.time()
        loaded = await self._read(partition)
        if loaded is not None:
            groups = self._groups[partition] = {}
            async for group_id, group in each(loaded.items(), GROUPS_PER_SLICE):
                if self._belongs_elsewhere(group_id, partition):
                    continue
                groups[group_id] = group
                for producer_id in group.offsets.open_producer_ids:
                    self._note_transaction(partition, group, producer_id)
                await in_slices(on_loaded(group))
            while partition in self._deleted or partition in self._ended:
                await in_slices(self._end_transactions(partition, self._ended.pop(partition, [])))
                if deleted := self._deleted.pop(partition, {}):
                    await in_slices(self._forget_deleted(list(groups.values()), deleted))
            took_ms = (self._loop.time() - began_s) * 1000
            _log.info("loaded %d groups of %s in %d ms", len(groups), _name(partition), took_ms)
        del self._loading[partition]
        self._on_partition_loaded()

    def _forget_deleted(self, groups: Sequence[Group], deleted: Mapping[PartitionKey, None]) -> Steps[None]:
        slices = Slices(OFFSETS_PER_SLICE)
        for group in groups:
            for piece in pieces(group.offsets.partitions):
                self.cleanup([group], lambda _: [one for one in piece if one in deleted])  # noqa: B023  # called at once
                if slices.spend(1 + len(piece)):
                    yield

    def _belongs_elsewhere(self, group_id: str, partition: int) -> bool:
        """Whether another partition holds the group's current state, because the topic had fewer partitions earlier."""
        now_in = self._partition_for(group_id)
        if now_in in (partition, UNKNOWN_PARTITION):
            return False
        _log.warning("%s holds group %s, which belongs to partition %d now", _name(partition), group_id, now_in)
        return True

    async def _read(self, partition: int) -> dict[str, Group] | None:
        """The partition's groups; None if reading failed and the partition has another leader now."""
        backoff_ms = LOAD_RETRY_BACKOFF_MS
        while True:
            try:
                async with self._one_at_a_time, aclosing(self._log.read(partition)) as batches:
                    return await load_groups(partition, batches, self._clock_ms())
            except (KafkaError, OSError) as error:
                if not self._log.is_leader(partition):
                    _log.warning("%s could not be loaded, and has another leader now: %s", _name(partition), error)
                    return None
                _log.error("%s could not be loaded; retrying in %d ms: %s", _name(partition), backoff_ms, error)
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, MAX_LOAD_RETRY_BACKOFF_MS)

    def partitions_deleted(self, partitions: Iterable[PartitionKey]) -> None:
        """Drops the offsets of these partitions from groups that are being loaded."""
        deleted = list(partitions)
        for partition in self._loading:
            self._deleted.setdefault(partition, {}).update(dict.fromkeys(deleted))

    # -- removing ---------------------------------------------------------------------------------------------------

    def cleanup(
        self, groups: Iterable[Group], select: Callable[[Group], Iterable[PartitionKey]], *, with_pending: bool = False
    ) -> int:
        """Removes the offsets that `select` names for each group. An Empty group without offsets then becomes Dead and
        is removed, `with_pending` also if ids of it are pending. Returns how many offsets were removed.

        Leaves groups alone that another broker coordinates, or is about to coordinate.
        """
        return sum(
            self._clean(group, select, with_pending=with_pending)
            for group in groups
            if self.get(group.group_id) is group and self._log.is_leader(self._partition_for(group.group_id))
        )

    def _clean(self, group: Group, select: Callable[[Group], Iterable[PartitionKey]], *, with_pending: bool) -> int:
        removed = group.offsets.remove(select(group))
        tombstones: list[KeyAndValue] = [(offset_commit_key(group.group_id, partition), None) for partition in removed]
        # A member that has been given an id comes back with it.
        may_go = with_pending or not group.pending_members
        if may_go and group.state is GroupState.EMPTY and group.offsets.is_empty:
            group.transition_to(GroupState.DEAD, self._clock_ms())
        partition = self._partition_for(group.group_id)
        if group.state is GroupState.DEAD:
            for producer_id in group.offsets.open_producer_ids:
                self._note_transaction(partition, group, producer_id)
            del self._groups[partition][group.group_id]
            # A group without a generation has only offsets and no group record.
            if group.generation_id > 0:
                tombstones.append((group_metadata_key(group.group_id), None))
        if tombstones:
            self._log.append_unacknowledged(partition, tombstones)
        return len(removed)

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the expiration of offsets."""
        interval_ms = self._config.offsets_retention_check_interval_ms
        retention_ms = self._config.offsets_retention_minutes * 60_000
        self._expiring = start_task(expire_every(interval_ms, retention_ms, self, self._clock_ms), self._on_failure)

    async def stop(self) -> None:
        """Ends loading and expiration, and completes unloading. Idempotent."""
        tasks = [*self._loading.values(), *filter(None, [self._expiring])]
        self._expiring = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._unloading, return_exceptions=True)


def _name(partition: int) -> str:
    return f"{GROUP_METADATA_TOPIC_NAME}-{partition}"
