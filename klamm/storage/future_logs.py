"""Future logs: copies that are to replace the logs of partitions, which so move to other log directories (KIP-113).

A partition's *current* log serves its clients. Its *future* log is in another directory, under a name that ends with
`-future`. `klamm.replication.log_dir_moves` copies the records. When the future log has all of them, it is promoted,
and the former current log is garbage:

| step | what happens                                                       | what a start finds then, and does        |
|------|--------------------------------------------------------------------|------------------------------------------|
|      | the copying                                                        | current, future: loads both              |
| P1   | the current log's directory is renamed to `-delete`, with the      | future, `-delete` with the same unique   |
|      | unique id of the future log; from now on the future log is current | id: promotes the future log              |
| P2   | the log directory that had the current log is synced               | as after P1                              |
| P3   | the future log's directory gets the partition's name               | current, `-delete`: removes the garbage  |
| P4   | its log directory is synced; the checkpoints are rewritten soon    | as after P3                              |
| P5   | after file.delete.delay.ms the garbage is removed                  | current                                  |

What must stay true:
- A partition never has two current logs. Kafka 2.8.2 takes P3 before P1; when it dies in between, its next start fails.
- Every record that the current log has on the disk, not only in the kernel, is there in the future log before P1.
- P1 is durable before a sync of the promoted log counts (`Log.take_place_of`), and before P3.
- The `-delete` directory of P1 stays until P3 is durable, because it shows that the future log is complete.
- A deletion deletes the future log first. So a future log without a current log belongs to a deleted partition only if
  its log directory was offline at the deletion.

A future log without a current log and without that `-delete` directory may lack records. It becomes the current log all
the same if no log directory is offline: the disk of the current log was replaced, and any prefix is better than no log.

Source: kafka.log.LogManager (replaceCurrentWithFutureLog, loadLog).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.directory_loader import DirectoryLoader
from klamm.storage.log_directory import unique_id

# At most so many partitions that are not hosted yet have a preferred directory. The oldest wish is forgotten first.
MAX_PREFERRED = 100_000


class Fate(Enum):
    """What a start does with a future log."""

    KEEP = "keep"
    PROMOTE = "promote"
    DROP = "drop"


class FoundFuture(NamedTuple):
    """A future log: its log directory and its unique id."""

    directory: str
    unique: UUID | None


def fates(
    found: Sequence[FoundFuture], current_directory: str | None, deleted: Iterable[UUID], *, all_online: bool
) -> list[Fate]:
    """What becomes of the future logs of one partition (see the module).

    `current_directory` is where the current log is, if it is anywhere. `deleted` are the unique ids of deleted logs.
    """
    chosen = None
    fate = Fate.KEEP
    if current_directory is not None:
        chosen = next((future for future in found if future.directory != current_directory), None)
    else:
        replaced = set(deleted)
        chosen = next((future for future in found if future.unique in replaced), None)
        if chosen is not None or all_online:
            fate = Fate.PROMOTE
        chosen = chosen or found[0]
    return [fate if future is chosen else Fate.DROP for future in found]


async def settle(loaders: Sequence[DirectoryLoader], new_unique: Callable[[], UUID], *, all_online: bool) -> None:
    """Promotes and drops the future logs that a killed process has left. `loaders` are of the online directories."""
    places: dict[PartitionKey, list[DirectoryLoader]] = {}
    for loader in loaders:
        for key in loader.future_logs:
            places.setdefault(key, []).append(loader)
    if not places:
        return
    deleted = {unique for loader in loaders for unique in loader.deleted}
    current = {key: loader.directory.path for loader in loaders for key in loader.partitions if key in places}
    for key, held in places.items():
        found = [FoundFuture(loader.directory.path, unique_id(loader.future_logs[key])) for loader in held]
        decided = fates(found, current.get(key), deleted, all_online=all_online)
        for loader, fate in zip(held, decided, strict=True):
            if fate is Fate.PROMOTE:
                await loader.promote_future_log(key)
            elif fate is Fate.DROP:
                await loader.drop_future_log(key, new_unique())


class PreferredDirectories:
    """The log directories in which partitions are to be created that this broker does not host yet."""

    def __init__(self) -> None:
        self._paths: dict[PartitionKey, str] = {}

    @property
    def all(self) -> Mapping[PartitionKey, str]:
        return self._paths

    def prefer(self, key: PartitionKey, path: str) -> None:
        self._paths.pop(key, None)
        self._paths[key] = path
        if len(self._paths) > MAX_PREFERRED:
            del self._paths[next(iter(self._paths))]

    def forget(self, key: PartitionKey) -> None:
        self._paths.pop(key, None)
