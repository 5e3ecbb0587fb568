"""What an archive holds: a log of records, each a small JSON file, in the archive's directory.

    commits/00000000000000000000.json    the records, numbered without a gap
    data/<topic id>/<partition>-<start>-<end>.parquet
    lock                                 held by the one program that adds to the archive

A record is of one of two kinds: a snapshot of the cluster (topics with configs, groups with offsets), or ranges of
offsets, each with the file of its records.

What must stay true:
- What no record names is not there, whatever lies in `data`. A file is complete and on disk before a record names it.
- The ranges of a partition follow one another: each begins where the one before ended, except where the record says
  that records were lost in between. So no offset is there twice, and none is passed over in silence.
- A record is never changed, and is there as a whole or not at all.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from klamm.environment import FileSystem, SystemFileSystem
from klamm.spark.options import TopicPartition

FORMAT_VERSION = 1
_COMMITS, _DATA, _LOCK = "commits", "data", "lock"
_DIGITS = 20


class ArchiveError(ValueError):
    """An archive is not what it should be, or is in use; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The records of one partition from `start_offset` to before `end_offset`: `rows` of them, in `file`.

    `topic_id` has 32 hexadecimal digits. `file` is relative to the archive; None when the range has no record
    (compaction, control records, aborted transactions). `size_bytes` is the file's. Offsets before `start_offset`, from
    `lost_from` on, had been removed from the topic before they were archived; None: nothing was.
    """

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    rows: int
    size_bytes: int
    file: str | None
    lost_from: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic: how many partitions it has, and the configs that differ from the defaults."""

    topic_id: str
    partitions: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The archived topics by name, and what each group had committed for them: `{group: {topic: {partition: offset}}}`.

    It is made before the ends of the topics are asked for, so that what groups have consumed is in the archive soon.
    """

    topics: Mapping[str, TopicSnapshot] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)


class CommitLog:
    """The records of an archive. Raises ArchiveError for a directory that holds something else.

    Only who has the lock (`locked`) may commit.
    """

    def __init__(self, directory: str, files: FileSystem | None = None) -> None:
        self.directory = directory
        self.ranges: list[ArchivedRange] = []
        self.snapshot: Snapshot | None = None
        self._files = files or SystemFileSystem()
        self._ends: dict[tuple[str, int], int] = {}
        self._next = 0
        commits = os.path.join(directory, _COMMITS)
        for name in self._files.list_directory(commits) if self._files.is_directory(commits) else ():
            if not name.endswith(".tmp"):
                self._load(os.path.join(commits, name))

    def commit(self, ranges: Sequence[ArchivedRange]) -> None:
        """Adds ranges whose files are complete. Returns when the record is on disk."""
        self._check_follow(ranges, "what is to be committed")
        self._write({"ranges": [asdict(each) for each in ranges]})
        self._take(ranges)

    def commit_snapshot(self, snapshot: Snapshot) -> None:
        """Adds a snapshot. Returns when the record is on disk."""
        self._write({"snapshot": asdict(snapshot)})
        self.snapshot = snapshot

    def ends_of(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """The offset after the last archived one of each partition of these topics, whose ids are given by name."""
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        return {
            TopicPartition(names[topic_id], partition): end
            for (topic_id, partition), end in self._ends.items()
            if topic_id in names
        }

    def remove_leftovers(self) -> None:
        """Removes the files that no record names: what programs left behind that were killed."""
        named = {each.file for each in self.ranges}
        data = os.path.join(self.directory, _DATA)
        for topic_id in self._files.list_directory(data) if self._files.is_directory(data) else ():
            for name in self._files.list_directory(os.path.join(data, topic_id)):
                if data_file(topic_id, name) not in named:
                    self._files.remove(os.path.join(data, topic_id, name))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _write(self, content: Mapping[str, Any]) -> None:
        path = os.path.join(self.directory, _COMMITS, f"{self._next:0{_DIGITS}}.json")
        if self._files.exists(path):
            raise ArchiveError(f"{path} exists: another program has added to the archive")
        text = json.dumps({"version": FORMAT_VERSION, **content}, separators=(",", ":"))
        self._files.replace_file(path, text.encode())
        self._next += 1

    def _load(self, path: str) -> None:
        if os.path.basename(path) != f"{self._next:0{_DIGITS}}.json":
            raise ArchiveError(f"{path}: the next record of the archive should be number {self._next}")
        kind, value = parse_record(self._files.read_file(path), path)
        if kind == "snapshot":
            self.snapshot = value
        else:
            self._check_follow(value, path)
            self._take(value)
        self._next += 1

    def _check_follow(self, ranges: Sequence[ArchivedRange], where: str) -> None:
        ends = dict(self._ends)
        for each in ranges:
            expected = ends.get(each.key)
            begins = each.start_offset if each.lost_from is None else each.lost_from
            if expected not in (None, begins):
                raise ArchiveError(
                    f"{where}: {each.topic}-{each.partition} goes on at offset {begins}, but was archived to {expected}"
                )
            ends[each.key] = each.end_offset

    def _take(self, ranges: Sequence[ArchivedRange]) -> None:
        self.ranges.extend(ranges)
        self._ends.update((each.key, each.end_offset) for each in ranges)


@contextmanager
def locked(directory: str, files: FileSystem | None = None) -> Iterator[CommitLog]:
    """The archive in this directory, which is made if need be, for the one program that adds to it.

    Raises ArchiveError when another program does.
    """
    files = files or SystemFileSystem()
    for part in (_COMMITS, _DATA):
        files.make_durable_directories(os.path.join(directory, part))
    try:
        lock = files.lock(os.path.join(directory, _LOCK))
    except BlockingIOError:
        raise ArchiveError(f"another program adds to the archive {directory} at this moment") from None
    try:
        yield CommitLog(directory, files)
    finally:
        lock.close()


def data_file(topic_id: str, name: str) -> str:
    """The path, relative to the archive, of a file of a topic."""
    return f"{_DATA}/{topic_id}/{name}"


def parse_record(content: bytes, path: str) -> tuple[str, Any]:
    """("snapshot", a Snapshot) or ("ranges", ArchivedRanges). Raises ArchiveError, which names the path."""
    try:
        record = json.loads(content)
        if record["version"] != FORMAT_VERSION:
            raise ArchiveError(f"{path} has version {record['version']!r}; this program reads {FORMAT_VERSION}")
        if "snapshot" in record:
            return "snapshot", _snapshot(record["snapshot"])
        return "ranges", [_range(each) for each in record["ranges"]]
    except ArchiveError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArchiveError(f"{path} is no record of an archive: {error!r}") from None


def _range(value: Mapping[str, Any]) -> ArchivedRange:
    found = ArchivedRange(**value)
    numbers = (found.partition, found.start_offset, found.end_offset, found.rows, found.size_bytes)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"a number of {value} is none")
    if not all(type(text) is str for text in (found.topic, found.topic_id)):
        raise ValueError(f"the topic of {value} is no text")
    if not isinstance(found.file, str | None) or not isinstance(found.lost_from, int | None):
        raise ValueError(f"the file or the loss of {value} is none")
    if found.start_offset >= found.end_offset:
        raise ValueError(f"the range {value} is empty")
    return found


def _snapshot(value: Mapping[str, Any]) -> Snapshot:
    topics = {name: TopicSnapshot(**topic) for name, topic in value["topics"].items()}
    if not all(type(topic.partitions) is int and isinstance(topic.configs, dict) for topic in topics.values()):
        raise ValueError("a topic has no number of partitions or no configs")
    groups = {
        group: {
            topic: {int(partition): int(offset) for partition, offset in offsets.items()}
            for topic, offsets in committed.items()
        }
        for group, committed in value["groups"].items()
    }
    return Snapshot(topics, groups)
