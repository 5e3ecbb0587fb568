"""Partitions that have logs in two log directories, or more, when the broker starts.

A log directory fails. While it is offline, the partition's topic is deleted and one of the same name is created, or the
replica leaves the broker and comes back. The controller calls the replica new, so it gets a log in another directory.
When the failed directory works again, the next start finds both. Each log has a topic id on the disk
(`partition.metadata`), and ZooKeeper has the topic's:

| the topic in ZooKeeper    | the topic ids of the logs                      | a start                                 |
|---------------------------|------------------------------------------------|-----------------------------------------|
| exists and has an id      | one is the topic's or unknown, others are not  | keeps that log, and sets others aside   |
| exists and has an id      | several are the topic's or unknown             | is refused                              |
| exists without an id      | any                                            | is refused                              |
| either has an id or does  | all are known and differ, and none of them is  | keeps the first log, in the order of    |
| not exist                 | the topic's                                    | `log.dirs`, and sets the others aside   |
| either has an id or does  | some are equal, none of them is the topic's    | is refused                              |
| not exist                 |                                                |                                         |
| does not exist            | some are unknown                               | is refused                              |

What must stay true:
- A log that is set aside is not deleted: its directory gets a name that ends with `-stray`, until an operator removes
  it. A topic's id can be changed in ZooKeeper by mistake; the log may then have the only copy of a record.
- A log that may be of the topic is never set aside. Without a log of the topic one log stays where it is, so that no
  new log is created in its place before LeaderAndIsr says what the topic is (`klamm.replication.state_changes`).
- Of two logs with one topic id a start does not choose. The one that was created later has the records that were
  acknowledged last, but an operator who takes a directory out of `log.dirs` and puts it back makes both logs hold
  records that the other lacks.
- A refused start changes nothing.
- A start without such partitions does not ask ZooKeeper, and reads no topic id.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.slices import slices
from klamm.storage.directory_loader import NAMES_PER_SLICE, DirectoryLoader

# The present ids of those topics that exist; None for a topic without an id.
TopicIds: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, UUID | None]]]

# How many partitions an error names that have two directories.
DUPLICATES_TOLD = 5


class LiveTopic(NamedTuple):
    """What ZooKeeper knows of a topic. `topic_id` is None if it does not exist, or has no id."""

    exists: bool
    topic_id: UUID | None


def log_to_keep(found: Sequence[UUID | None], topic: LiveTopic) -> int | None:
    """Which of a partition's logs stays, and the others are set aside; None if the start is refused (see the module).

    `found` has the topic id of each log; None: unknown.
    """
    if topic.exists and topic.topic_id is None:
        return None
    if topic.exists:
        candidates = [number for number, topic_id in enumerate(found) if topic_id in (None, topic.topic_id)]
        if candidates:
            return candidates[0] if len(candidates) == 1 else None
    return None if None in found or len(set(found)) < len(found) else 0


async def settle_duplicates(
    loaders: Sequence[DirectoryLoader], topic_ids: TopicIds | None, new_unique: Callable[[], UUID]
) -> None:
    """Sets aside the logs of former topics where other directories have logs of the same partitions.

    `loaders` are of the online directories; one of them may be offline afterwards. Raises KafkaError(
    KAFKA_STORAGE_ERROR) when it is not clear which log is of the topic, or after a shortage; what `topic_ids` raises.
    """
    duplicates = await _duplicates(loaders)
    if not duplicates:
        return
    names = list(dict.fromkeys(topic for topic, _ in duplicates))
    live: Mapping[str, UUID | None] = dict.fromkeys(names) if topic_ids is None else await topic_ids(names)
    aside: dict[int, list[PartitionKey]] = {}
    refused: dict[PartitionKey, list[DirectoryLoader]] = {}
    for key, places in duplicates.items():
        found = [await loaders[place].topic_id(key) for place in places]
        online = [number for number, place in enumerate(places) if loaders[place].directory.is_online]
        topic = LiveTopic(key[0] in live, live.get(key[0]))
        kept = log_to_keep([found[number] for number in online], topic) if len(online) > 1 else 0
        if kept is None:
            refused[key] = [loaders[place] for place in places]
            continue
        for number in online:
            if number != online[kept]:
                aside.setdefault(places[number], []).append(key)
    if refused:
        await _refuse(refused)
    for place, keys in aside.items():
        await loaders[place].set_aside(keys, new_unique)


async def _duplicates(loaders: Sequence[DirectoryLoader]) -> dict[PartitionKey, list[int]]:
    """The partitions with several logs, and which of the loaders have them."""
    places: dict[PartitionKey, list[int]] = {}
    for place, loader in enumerate(loaders):
        async for piece in slices(loader.partitions, NAMES_PER_SLICE):
            for key in piece:
                places.setdefault(key, []).append(place)
    return {key: held for key, held in places.items() if len(held) > 1}


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
