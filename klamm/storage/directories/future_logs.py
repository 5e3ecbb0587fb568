"""Future logs: copies that replace the logs of partitions and so move the partitions to other log directories
(KIP-113).

A partition's *current* log serves its clients. Its *future* log is in another directory, under a name that ends with
`-future`. `klamm.replication.log_dir_moves` copies the records. When the future log has all records, it is promoted,
and the former current log is garbage:

| step | what happens                                                       | what a start finds after it, and does    |
|------|--------------------------------------------------------------------|------------------------------------------|
|      | the copying                                                        | current, future: loads both              |
| P1   | the current log's directory is renamed to `-delete`, with the      | future, `-delete` with the same unique   |
|      | unique id of the future log; from now on the future log is current | id: promotes the future log              |
| P2   | the log directory that had the current log is synced               | as after P1                              |
| P3   | the future log's directory gets the partition's name               | current, `-delete`: removes the garbage  |
| P4   | its log directory is synced; the checkpoints are rewritten soon    | as after P3                              |
| P5   | after file.delete.delay.ms the garbage is removed                  | current                                  |

What must stay true:
- A partition never has two current logs. Kafka 2.8.2 takes P3 before P1; if it dies in between, its next start fails.
- Before P1, every record that the current log has on the disk, not only in the kernel, is on the disk in the future
  log.
- P1 is durable before a sync of the promoted log counts (`Log.take_place_of`), and before P3.
- The `-delete` directory of P1 stays until P3 is durable, because it shows that the future log is complete.
- A deletion deletes the future log first. So a future log without a current log belongs to a deleted partition only if
  its log directory was offline at the deletion.

A future log without a current log and without that `-delete` directory may lack records. If no log directory is
offline, it becomes the current log nevertheless: the disk of the current log was replaced, and any prefix is better
than no log.

Source: kafka.log.LogManager (replaceCurrentWithFutureLog, loadLog).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from uuid import UUID

from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.directories.directory_loader import DirectoryLoader
from klamm.storage.segments.log_directory import unique_id

# The most partitions not hosted yet that have a preferred directory. The oldest preference is forgotten first.
MAX_PREFERRED = 100_000


class Fate(Enum):
    """What a start does with a future log."""

    KEEP = "keep"
    PROMOTE = "promote"
    DROP = "drop"


def fates(found: Sequence[str], current_directory: str | None, *, all_online: bool) -> list[Fate]:
    """The fate of each future log of one partition, in these log directories (see the module).

    `current_directory` is the directory of the current log, if there is one.
    """
    if current_directory is not None:
        chosen = next((directory for directory in found if directory != current_directory), None)
        fate = Fate.KEEP
    else:
        chosen, fate = found[0], Fate.PROMOTE if all_online else Fate.KEEP
    return [fate if directory == chosen else Fate.DROP for directory in found]


async def finish_promotions(loaders: Sequence[DirectoryLoader], new_unique: Callable[[], UUID]) -> None:
    """Promotes the future logs whose current logs a killed process has renamed (P1), and drops their other copies.

    If such a partition still has a current log, in a directory that was offline until now, it then has two
    (`duplicate_logs.py`). `loaders` are those of the online directories.
    """
    deleted = {unique for loader in loaders for unique in loader.deleted}
    for loader in loaders:
        for key, name in list(loader.future_logs.items()):
            if unique_id(name) in deleted and key not in loader.partitions:
                await loader.promote_future_log(key)
                for other in loaders:
                    if key in other.future_logs and other is not loader:
                        await other.drop_future_log(key, new_unique())


async def settle(loaders: Sequence[DirectoryLoader], new_unique: Callable[[], UUID], *, all_online: bool) -> None:
    """Promotes and drops the other future logs that a killed process has left."""
    places: dict[PartitionKey, list[DirectoryLoader]] = {}
    for loader in loaders:
        for key in loader.future_logs:
            places.setdefault(key, []).append(loader)
    if not places:
        return
    current = {key: loader.directory.path for loader in loaders for key in loader.partitions if key in places}
    for key, held in places.items():
        found = [loader.directory.path for loader in held]
        for loader, fate in zip(held, fates(found, current.get(key), all_online=all_online), strict=True):
            if fate is Fate.PROMOTE:
                await loader.promote_future_log(key)
            elif fate is Fate.DROP:
                await loader.drop_future_log(key, new_unique())


class PreferredDirectories:
    """The log directories in which to create partitions that this broker does not host yet."""

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
