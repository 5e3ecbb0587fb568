"""The content of an archive: a log of records, each a small JSON file.

    commits/00000000000000000000.json    the records, numbered without a gap
    checkpoints/                         the content of the first records, read instead of them (`checkpoint.py`)
    data/<topic id>/<partition>-<start>-<end>.parquet             in a directory
    data/<topic id>/<partition>-<start>-<end>/<unique>.parquet    in an object store
    data/_delta_log                      the log of the Delta table, if the archive is one as well (`delta.py`)
    lock                                 in a directory, held by the one program that adds to the archive

A record is either a snapshot of the cluster (topics with configs, groups with offsets), or a list of ranges of offsets,
each with the file of its Kafka records.

What must stay true:
- A file in `data` that no record names is not part of the archive. A file is complete and on disk before a record names
  it.
- The ranges of a partition follow one another: each begins where the previous one ended, and names its lost offsets. So
  no offset is archived twice, and no offset is skipped silently.
- A record is never changed, and exists as a whole or not at all. It names its writer. So if two programs write the same
  number, both know which of them succeeded.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from klamm.base.checksum import crc32c
from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.files import Files
from klamm.spark.pipelines.checkpoint import CHECKPOINTS, Checkpoint, checkpoints, write_checkpoint

FORMAT_VERSION = 1
DATA = "data"
# A checkpoint is due when this many records have come since the last one.
RECORDS_PER_CHECKPOINT: Final = 100
_COMMITS = "commits"
_DELTA_LOG = "_delta_log"
_DIGITS = 20
_DATA_FILE = re.compile(rf"{DATA}/(?P<topic_id>[^/]+)/(?P<partition>[0-9]{{5,}})-(?P<start>[0-9]{{20}})-.*")


class ArchiveError(ValueError):
    """A broken archive, or one in use; the message says what is wrong."""


class OvertakenError(ArchiveError):
    """Another program has added a record with the number that this program was about to add."""


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The records of one partition from `start_offset` to before `end_offset`: `rows` of them, in `file`.

    `topic_id` has 32 hexadecimal digits. `file` is relative to the archive; None when the range has no record
    (compaction, control records, aborted transactions, or all records were lost). `size_bytes` is the size of the file.
    `lost` has the ranges (first offset, offset after the last) that were removed from the topic before they were
    archived.
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
    """The archived topics by name, and the groups' committed offsets for them: `{group: {topic: {partition: offset}}}`.

    It is made before the ends of the topics are requested, so that the same run archives all records that groups have
    consumed.
    """

    topics: Mapping[str, TopicSnapshot] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)


class CommitLog:
    """The records of an archive. Raises ArchiveError for a place that is not an archive, and FilesError.

    A program may commit only within `adding_to`. If programs add at the same time, a commit raises OvertakenError when
    another program was first. Then read the log again.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.snapshot: Snapshot | None = None
        self._ends: dict[tuple[str, int], int] = {}
        self._writer = SystemEnvironment().random_uuid().hex
        # The ranges of the records after the checkpoint, and the number of the record of each range.
        self._ranges: list[ArchivedRange] = []
        self._numbers: list[int] = []
        self._of_checkpoint: list[ArchivedRange] | None = None
        self._last_checksum = 0
        self._checkpoint, records = _begin(files)
        self.next_number = self._checkpoint.records
        self._ends = self._checkpoint.ends()
        if self._checkpoint.snapshot is not None:
            self.snapshot = _snapshot(self._checkpoint.snapshot)
        for path in records:
            self._load(path)

    @property
    def ranges(self) -> list[ArchivedRange]:
        """The ranges of all records, in order."""
        if self._of_checkpoint is None:
            rows = self._checkpoint.ranges.drop_columns(["record"]).to_pylist()
            self._of_checkpoint = [parse_range(row) for row in rows]
        return self._of_checkpoint + self._ranges

    def ranges_from(self, number: int) -> list[ArchivedRange]:
        """The ranges of this record and of later records."""
        if number >= self._checkpoint.records:
            return self._ranges[bisect_left(self._numbers, number) :]
        return self.ranges[bisect_left(self._checkpoint.ranges["record"].to_pylist(), number) :]

    def commit(self, ranges: Sequence[ArchivedRange]) -> None:
        """Adds ranges whose files are complete. Returns when the record is on disk."""
        self._check_follow(ranges, "what is to be committed")
        self._write({"ranges": [asdict(each) for each in ranges]})
        self._take(ranges)
        self._write_checkpoint()

    def commit_snapshot(self, snapshot: Snapshot) -> None:
        """Adds a snapshot. Returns when the record is on disk."""
        self._write({"snapshot": asdict(snapshot)})
        self._take(())
        self.snapshot = snapshot
        self._write_checkpoint()

    def ends_of(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """The offset after the last archived one, for each partition of these topics (name -> topic id)."""
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        return {
            TopicPartition(names[topic_id], partition): end
            for (topic_id, partition), end in self._ends.items()
            if topic_id in names
        }

    def remove_leftovers(self) -> None:
        """Removes files that no record names, which killed or overtaken programs have left behind.

        If programs add at the same time, files that another program may be about to commit stay.
        """
        named = {each.file for each in self.ranges}
        for path in self.files.paths(DATA):
            if path in named or path.startswith(f"{DATA}/{_DELTA_LOG}/") or path.count("/") < 2:
                continue
            if self.files.is_locked or self._is_overtaken(path):
                self.files.remove(path)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _is_overtaken(self, path: str) -> bool:
        """Whether the file begins before the archive's end of its partition. No record can name such a file any
        longer."""
        name = _DATA_FILE.fullmatch(path)
        return name is not None and int(name["start"]) < self._ends.get((name["topic_id"], int(name["partition"])), 0)

    def _write(self, content: Mapping[str, Any]) -> None:
        path = _record_path(self.next_number)
        record = {"version": FORMAT_VERSION, "writer": self._writer, **content}
        text = json.dumps(record, separators=(",", ":")).encode()
        if not self.files.create(path, text):
            raise OvertakenError(f"{self.files.address(path)} exists: another program has added to the archive")
        self._last_checksum = crc32c(text)

    def _write_checkpoint(self) -> None:
        if self.next_number - self._checkpoint.records < RECORDS_PER_CHECKPOINT:
            return
        snapshot = None if self.snapshot is None else asdict(self.snapshot)
        added = zip(self._numbers, self._ranges, strict=True)
        checkpoint = self._checkpoint.extended(self.next_number, self._last_checksum, added, snapshot)
        write_checkpoint(self.files, checkpoint)
        if self._of_checkpoint is not None:
            self._of_checkpoint += self._ranges
        self._checkpoint, self._ranges, self._numbers = checkpoint, [], []

    def _load(self, path: str) -> None:
        address = self.files.address(path)
        if path != _record_path(self.next_number):
            raise ArchiveError(f"{address}: the next record of the archive should be number {self.next_number}")
        text = self.files.read(path)
        kind, value = parse_record(text, address)
        self._last_checksum = crc32c(text)
        if kind == "snapshot":
            self.snapshot = value
            self._take(())
        else:
            self._check_follow(value, address)
            self._take(value)

    def _check_follow(self, ranges: Sequence[ArchivedRange], where: str) -> None:
        ends: dict[tuple[str, int], int] = {}
        for each in ranges:
            expected = ends.get(each.key, self._ends.get(each.key))
            if expected not in (None, each.start_offset):
                raise ArchiveError(
                    f"{where}: {each.topic}-{each.partition} continues at offset {each.start_offset}, but was"
                    f" archived to {expected}"
                )
            ends[each.key] = each.end_offset

    def _take(self, ranges: Sequence[ArchivedRange]) -> None:
        self._ranges.extend(ranges)
        self._numbers.extend(self.next_number for _ in ranges)
        self._ends.update((each.key, each.end_offset) for each in ranges)
        self.next_number += 1


@contextmanager
def adding_to(files: Files) -> Iterator[CommitLog]:
    """The archive, for a program that adds to it; created if missing. Raises ArchiveError and FilesError."""
    with files.adding(_COMMITS, CHECKPOINTS, DATA):
        yield CommitLog(files)


def _begin(files: Files) -> tuple[Checkpoint, list[str]]:
    """The checkpoint to begin with, and the paths of the records after it."""
    for checkpoint in checkpoints(files):
        count = checkpoint.records
        after = _record_path(count - 2) if count > 1 else ""
        records = [path for path in files.paths(_COMMITS, after) if not path.endswith(".tmp")]
        if count == 0:
            return checkpoint, records
        # Otherwise the checkpoint is from another log, for example from one that was longer.
        if records[:1] == [_record_path(count - 1)] and crc32c(files.read(records[0])) == checkpoint.last_checksum:
            return checkpoint, records[1:]
    raise AssertionError("the last checkpoint is the empty one")


def _record_path(number: int) -> str:
    return f"{_COMMITS}/{number:0{_DIGITS}}.json"


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
