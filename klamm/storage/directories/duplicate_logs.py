"""Partitions that have logs in two or more log directories when the broker starts.

This happens when a log directory fails. While it is offline, the partition's topic is deleted and created again, or the
replica leaves the broker and comes back. The controller calls the replica new, so it gets a log in another directory.
When the failed directory works again, the next start finds both logs. Each log has a topic id on the disk
(`partition.metadata`), and ZooKeeper has the topic's id. The ids show which logs may be the partition's:

| the topic in ZooKeeper    | the topic ids of the logs                      | the partition's log may be              |
|---------------------------|------------------------------------------------|-----------------------------------------|
| has an id                 | the topic's, or unknown, of one log or more    | one of these logs                       |
| has an id, or no znode    | of one former topic                            | any of the logs                         |
| has an id, or no znode    | of different former topics                     | the first log, in the order of log.dirs |
| has an id, or no znode    | of former topics, some of the same             | the start is refused                    |
| no znode                  | some are unknown                               | the start is refused                    |
| has no id                 | one id                                         | any of the logs                         |
| has no id                 | unknown, or different ones                     | the start is refused                    |

If several logs remain, all with the same known topic id, the log with the latest leader epoch, and then with the latest
end offset, is the partition's. It must supersede the others (`supersedes`), and have the same last batch before the
logs diverge (`last_common_offset`). Otherwise the start is refused. Compaction may have removed records of that batch:
in logs of a compacted topic the last whole batches must not contradict each other (`contradict`).

What must stay true:
- A log that is set aside is not deleted: its directory gets a name that ends with `-stray`, until an operator removes
  it. An operator may have changed a topic's id in ZooKeeper by mistake; the log may then have the only copy of a
  record.
- A log that may belong to the topic is set aside only for a log that supersedes it. Two logs of one topic may each hold
  records that the other lacks, if an operator took a directory out of `log.dirs` and put it back. Their leader epochs
  may be the same: if a controller of Kafka 2.8 and a leader restart together, the leader continues in its epoch.
- The log that stays does not end before a log without records: new records would get the offsets of deleted records,
  which consumers have already passed.
- If no log belongs to the topic, one log stays where it is, so that no new log is created in its place before
  LeaderAndIsr names the topic's id (`klamm.replication.state_changes`).
- A refused start only finishes promotions that a killed process began (`future_logs.py`), and changes nothing else.
- A start without such partitions does not ask ZooKeeper, and reads no topic id.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias
from uuid import UUID

from klamm.base.slices import slices
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.directories.directory_loader import NAMES_PER_SLICE, DirectoryLoader, LogHistory
from klamm.storage.log.log_config import LogConfig

# Returns the present ids of the topics that exist; None for a topic without an id.
TopicIds: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, UUID | None]]]

# An error names at most this many partitions with two directories.
DUPLICATES_TOLD = 5


class LiveTopic(NamedTuple):
    """A topic in ZooKeeper. `topic_id` is None if the topic does not exist or has no id."""

    exists: bool
    topic_id: UUID | None


def possible_logs(found: Sequence[UUID | None], topic: LiveTopic) -> list[int]:
    """Which logs may be the partition's (see the module). If empty, the start is refused.

    `found` has the topic id of each log, None if it is unknown.
    """
    if topic.topic_id is not None:
        of_topic = [number for number, topic_id in enumerate(found) if topic_id in (None, topic.topic_id)]
        if of_topic:
            return of_topic
    different = set(found)
    if None in different:
        return []
    if len(different) == 1:
        return list(range(len(found)))
    has_no_id = topic.exists and topic.topic_id is None
    return [] if has_no_id or len(different) < len(found) else [0]


def supersedes(newer: LogHistory, older: LogHistory) -> bool:
    """Whether the cluster does not need the older of two logs with one topic id.

    Logs that have the same leader epoch have the same records up to the end of the shorter log. If the newer log
    continues with a later epoch, the leader of that epoch lacked the older log's further records, and a follower would
    truncate them.
    """
    if older.start_offset == older.end_offset:
        # If both end at the same offset, the log without records may be the newer one: its records were deleted.
        is_further = newer.end_offset > older.end_offset
        return is_further or (newer.end_offset == older.end_offset and newer.start_offset >= older.start_offset)
    last = [entry for entry in older.epochs if entry[1] < older.end_offset][-1:]
    if not last:
        return False
    ((epoch, older_start),) = last
    newer_start = dict(newer.epochs).get(epoch)
    if newer_start is None:
        return False
    # Once older records are deleted, the first epoch of a log begins at the log start offset, later than it once did.
    first_of_newer = newer_start == newer.start_offset > older_start
    is_same = older_start in (newer_start, older.start_offset) or first_of_newer
    return is_same and (newer.epochs[-1][0] > epoch or newer.end_offset >= older.end_offset)


def newest(histories: Sequence[LogHistory | None]) -> int | None:
    """Which log supersedes all others; None if no log does. The history of a log that cannot be loaded is None."""
    known = [history for history in histories if history is not None]
    if not known or len(known) < len(histories):
        return None
    # Among equals, the log with the higher start offset stays: it has seen more deletions.
    number = max(
        range(len(known)),
        key=lambda each: (known[each].latest_epoch, known[each].end_offset, known[each].start_offset, -each),
    )
    others = (history for each, history in enumerate(known) if each != number)
    return number if all(supersedes(known[number], older) for older in others) else None


def last_common_offset(newer: LogHistory, older: LogHistory) -> int | None:
    """The last offset before a log ends, or before the newer log begins an epoch that the older log lacks. None if the
    older log has no record."""
    if older.start_offset == older.end_offset:
        return None
    later = (start for epoch, start in newer.epochs if epoch > older.latest_epoch)
    return min(older.end_offset, newer.end_offset, *later) - 1


def contradict(some: Iterable[BatchHeader], others: Iterable[BatchHeader]) -> bool:
    """Whether two logs with these whole batches have had different records at an offset."""
    batches = sorted({*some, *others})
    return any(before.last_offset >= batch.base_offset for before, batch in pairwise(batches))


async def settle_duplicates(
    loaders: Sequence[DirectoryLoader],
    topic_ids: TopicIds | None,
    config_of: Callable[[str], LogConfig],
    new_unique: Callable[[], UUID],
) -> None:
    """Sets aside each log for which another directory has a newer log.

    `loaders` are those of the online directories; a directory may be offline afterwards. Without `topic_ids` the ids in
    ZooKeeper are unknown. Raises KafkaError(KAFKA_STORAGE_ERROR) when it is not clear which log is the partition's, or
    after a shortage; also raises the errors of `topic_ids`.
    """
    duplicates = await _duplicates(loaders)
    if not duplicates:
        return
    names = list(dict.fromkeys(topic for topic, _ in duplicates))
    live: Mapping[str, UUID | None] = dict.fromkeys(names) if topic_ids is None else await topic_ids(names)
    aside: dict[DirectoryLoader, list[PartitionKey]] = {}
    refused: dict[PartitionKey, list[DirectoryLoader]] = {}
    for key, held in duplicates.items():
        topic = LiveTopic(key[0] in live, live.get(key[0]))
        kept = await _log_to_keep(key, held, topic, config_of(key[0]))
        if kept is None:
            refused[key] = held
            continue
        for loader in held:
            if loader is not kept and loader.directory.is_online:
                aside.setdefault(loader, []).append(key)
    if refused:
        await _refuse(refused)
    for loader, keys in aside.items():
        await loader.set_aside(keys, new_unique)


async def _duplicates(loaders: Sequence[DirectoryLoader]) -> dict[PartitionKey, list[DirectoryLoader]]:
    """The partitions with several logs, and the loaders of those logs."""
    places: dict[PartitionKey, list[DirectoryLoader]] = {}
    for loader in loaders:
        async for piece in slices(loader.partitions, NAMES_PER_SLICE):
            for key in piece:
                places.setdefault(key, []).append(loader)
    return {key: held for key, held in places.items() if len(held) > 1}


async def _log_to_keep(
    key: PartitionKey, held: Sequence[DirectoryLoader], topic: LiveTopic, config: LogConfig
) -> DirectoryLoader | None:
    """The directory whose log stays. A directory whose disk fails meanwhile goes offline, and its log with it."""
    while True:
        online = [loader for loader in held if loader.directory.is_online]
        if len(online) < 2:
            return online[0] if online else held[0]
        kept = await _choose(key, online, topic, config)
        if all(loader.directory.is_online for loader in online):
            return kept


async def _choose(
    key: PartitionKey, held: Sequence[DirectoryLoader], topic: LiveTopic, config: LogConfig
) -> DirectoryLoader | None:
    """The directory whose log stays. The result is void if a directory goes offline meanwhile."""
    topic_ids = [await loader.topic_id(key) for loader in held]
    numbers = possible_logs(topic_ids, topic)
    if len(numbers) < 2:
        return held[numbers[0]] if numbers else None
    if any(topic_ids[number] is None for number in numbers):
        return None
    possible = [held[number] for number in numbers]
    histories = [await loader.history(key, config) for loader in possible]
    number = newest(histories)
    if number is None:
        return None
    kept, newer = possible[number], histories[number]
    have_same_records = _have_same_whole_batches if config.is_compacted else _have_same_batch
    for loader, older in zip(possible, histories, strict=True):
        if loader is kept or newer is None or older is None:
            continue
        offset = last_common_offset(newer, older)
        if offset is not None and not await have_same_records(key, offset, kept, loader):
            return None
    return kept


async def _have_same_batch(key: PartitionKey, offset: int, one: DirectoryLoader, other: DirectoryLoader) -> bool:
    batch = await one.batch_at(key, offset)
    return batch is not None and batch == await other.batch_at(key, offset)


async def _have_same_whole_batches(
    key: PartitionKey, offset: int, one: DirectoryLoader, other: DirectoryLoader
) -> bool:
    some, others = await one.whole_batches(key, offset), await other.whole_batches(key, offset)
    return some is not None and others is not None and not contradict(some, others)


async def _refuse(duplicates: Mapping[PartitionKey, Sequence[DirectoryLoader]]) -> None:
    told = []
    for (topic, partition), held in list(duplicates.items())[:DUPLICATES_TOLD]:
        logs = [await loader.describe((topic, partition)) for loader in held]
        told.append(f"{topic}-{partition} has two directories: {', and '.join(logs)}")
    more = f" (and {len(duplicates) - len(told)} more partitions)" if len(duplicates) > len(told) else ""
    raise KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        "; ".join(told) + f"{more}; of each, move the one that is not up to date out of log.dirs, and start again",
    )
