"""What an archive holds: a log of records, each a small JSON file, in the archive's directory.

    commits/00000000000000000000.json    the records, numbered without a gap
    data/<topic id>/<partition>-<start>-<end>.parquet
    data/_delta_log                      where the archive is a Delta table as well, that table's own log (`delta.py`)
    lock                                 held by the one program that adds to the archive

A record is of one of two kinds: a snapshot of the cluster (topics with configs, groups with offsets), or ranges of
offsets, each with the file of its records.

What must stay true:
- A file in `data` that no record names is not part of the archive. A file is complete and on disk before a record names
  it.
- The ranges of a partition follow one another: each begins where the one before ended, and says which of its offsets
  were lost. So no offset is there twice, and no offset is skipped in silence.
- A record is never changed, and is there as a whole or not at all.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from klamm.environment import FileSystem, SystemFileSystem
from klamm.protocol.vocabulary import TopicPartition

FORMAT_VERSION = 1
DATA = "data"
_COMMITS, _LOCK = "commits", "lock"
_DELTA_LOG = "_delta_log"
_DIGITS = 20


class ArchiveError(ValueError):
    """A broken archive, or one in use; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The records of one partition from `start_offset` to before `end_offset`: `rows` of them, in `file`.

    `topic_id` has 32 hexadecimal digits. `file` is relative to the archive; None when the range has no record
    (compaction, control records, aborted transactions, or all were lost). `size_bytes` is the file's. `lost` are the
    offsets, as (first, the one after the last), of which records were removed from the topic before they were archived.
    """

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    rows: int
    size_bytes: int
    file: str | None
    lost: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        return self.topic_id, self.partition

    @property
    def lost_offsets(self) -> int:
        return sum(end - start for start, end in self.lost)


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

    Only the holder of the lock (`locked`) may commit.
    """

    def __init__(self, directory: str, files: FileSystem | None = None) -> None:
        self.directory = directory
        self.ranges: list[ArchivedRange] = []
        self.snapshot: Snapshot | None = None
        self._files = files or SystemFileSystem()
        self._ends: dict[tuple[str, int], int] = {}
        # Of each record, how many ranges those before it have.
        self._ranges_before: list[int] = []
        commits = os.path.join(directory, _COMMITS)
        for name in self._files.list_directory(commits) if self._files.is_directory(commits) else ():
            if not name.endswith(".tmp"):
                self._load(os.path.join(commits, name))

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        return len(self._ranges_before)

    def ranges_from(self, number: int) -> list[ArchivedRange]:
        """The ranges of this record and of those after it."""
        return self.ranges[self._ranges_before[number] :] if number < self.next_number else []

    def commit(self, ranges: Sequence[ArchivedRange]) -> None:
        """Adds ranges whose files are complete. Returns when the record is on disk."""
        self._check_follow(ranges, "what is to be committed")
        self._write({"ranges": [asdict(each) for each in ranges]})
        self._take(ranges)

    def commit_snapshot(self, snapshot: Snapshot) -> None:
        """Adds a snapshot. Returns when the record is on disk."""
        self._write({"snapshot": asdict(snapshot)})
        self._take(())
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
        data = os.path.join(self.directory, DATA)
        for topic_id in self._files.list_directory(data) if self._files.is_directory(data) else ():
            of_topic = os.path.join(data, topic_id)
            if topic_id == _DELTA_LOG or not self._files.is_directory(of_topic):
                continue
            for name in self._files.list_directory(of_topic):
                if data_file(topic_id, name) not in named:
                    self._files.remove(os.path.join(of_topic, name))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _write(self, content: Mapping[str, Any]) -> None:
        path = os.path.join(self.directory, _COMMITS, f"{self.next_number:0{_DIGITS}}.json")
        if self._files.exists(path):
            raise ArchiveError(f"{path} exists: another program has added to the archive")
        text = json.dumps({"version": FORMAT_VERSION, **content}, separators=(",", ":"))
        self._files.replace_file(path, text.encode())

    def _load(self, path: str) -> None:
        if os.path.basename(path) != f"{self.next_number:0{_DIGITS}}.json":
            raise ArchiveError(f"{path}: the next record of the archive should be number {self.next_number}")
        kind, value = parse_record(self._files.read_file(path), path)
        if kind == "snapshot":
            self.snapshot = value
            self._take(())
        else:
            self._check_follow(value, path)
            self._take(value)

    def _check_follow(self, ranges: Sequence[ArchivedRange], where: str) -> None:
        ends = dict(self._ends)
        for each in ranges:
            expected = ends.get(each.key)
            if expected not in (None, each.start_offset):
                raise ArchiveError(
                    f"{where}: {each.topic}-{each.partition} continues at offset {each.start_offset}, but was"
                    f" archived to {expected}"
                )
            ends[each.key] = each.end_offset

    def _take(self, ranges: Sequence[ArchivedRange]) -> None:
        self._ranges_before.append(len(self.ranges))
        self.ranges.extend(ranges)
        self._ends.update((each.key, each.end_offset) for each in ranges)


@contextmanager
def locked(directory: str, files: FileSystem | None = None) -> Iterator[CommitLog]:
    """The archive in this directory, which is made if need be, for the one program that adds to it.

    Raises ArchiveError when another program does.
    """
    files = files or SystemFileSystem()
    for part in (_COMMITS, DATA):
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
    return f"{DATA}/{topic_id}/{name}"


def parse_record(content: bytes, path: str) -> tuple[str, Any]:
    """("snapshot", a Snapshot) or ("ranges", ArchivedRanges). Raises ArchiveError, which names the path."""
    try:
        record = json.loads(content)
        if record["version"] != FORMAT_VERSION:
            raise ArchiveError(f"{path} has version {record['version']!r}; this program reads {FORMAT_VERSION}")
        if "snapshot" in record:
            return "snapshot", _snapshot(record["snapshot"])
        return "ranges", [parse_range(each) for each in record["ranges"]]
    except ArchiveError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArchiveError(f"{path} is not a record of an archive: {error!r}") from None


def parse_range(value: Mapping[str, Any]) -> ArchivedRange:
    """A range from its JSON form. Raises ValueError, TypeError or KeyError when the value is not a range."""
    found = ArchivedRange(**{**value, "lost": tuple((start, end) for start, end in value["lost"])})
    numbers = (found.partition, found.start_offset, found.end_offset, found.rows, found.size_bytes)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"a number in {value} is not valid")
    if not all(type(text) is str for text in (found.topic, found.topic_id)):
        raise ValueError(f"the topic of {value} is not text")
    if not isinstance(found.file, str | None):
        raise ValueError(f"the file of {value} is not valid")
    if found.start_offset >= found.end_offset:
        raise ValueError(f"the range {value} is empty")
    edges = [found.start_offset, *(edge for span in found.lost for edge in span), found.end_offset]
    if not all(type(edge) is int for edge in edges) or edges != sorted(edges):
        raise ValueError(f"the lost offsets of {value} are not within its range, or not in order")
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
