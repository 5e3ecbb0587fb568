"""A checkpoint of an archive's log: the content of its first records in one file, so that opening an archive is quick.

    checkpoints/<number of records>.<checksum>.parquet

The file has the ranges of these records, one in each row, and the last snapshot in its metadata. The records are kept,
and remain the truth.

What must stay true:
- A checkpoint that is missing, damaged or from another log only costs time: the checkpoint before it, or the records,
  have the same content. A checkpoint has the checksum of its last record, which names its writer. So if a log became
  shorter and grew again, checkpoints of its former records do not match.
- A checkpoint is made from committed records, so all programs make the same one.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from klamm.base.checksum import crc32c
from klamm.spark.files import Files

CHECKPOINTS: Final = "checkpoints"
VERSION: Final = b"1"
# A reader may be about to read the last checkpoint but one.
KEPT: Final = 2

_DIGITS = 20
_NAME = re.compile(rf"{CHECKPOINTS}/(?P<records>[0-9]{{{_DIGITS}}})\.(?P<checksum>[0-9a-f]{{8}})\.parquet")
_VERSION, _LAST, _SNAPSHOT = b"klamm.version", b"klamm.last", b"klamm.snapshot"
_SPANS = pa.list_(pa.list_(pa.int64()))
SCHEMA: Final = pa.schema(
    [
        # The number of the record that has the range.
        ("record", pa.int64()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int64()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("file", pa.string()),
        ("lost", _SPANS),
    ]
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the first `records` records of a log. `snapshot` is the last snapshot, in its JSON form.

    `last_checksum` is the CRC-32C of the last record.
    """

    records: int = 0
    last_checksum: int = 0
    ranges: pa.Table = field(default_factory=SCHEMA.empty_table)
    snapshot: Mapping[str, Any] | None = None

    def ends(self) -> dict[tuple[str, int], int]:
        """The offset after the last archived offset, by topic id and partition."""
        ends = self.ranges.group_by(["topic_id", "partition"]).aggregate([("end_offset", "max")])
        keys = zip(ends["topic_id"].to_pylist(), ends["partition"].to_pylist(), strict=True)
        return dict(zip(keys, ends["end_offset_max"].to_pylist(), strict=True))

    def extended(
        self,
        records: int,
        last_checksum: int,
        ranges: Iterable[tuple[int, Any]],
        snapshot: Mapping[str, Any] | None,
    ) -> "Checkpoint":
        """A checkpoint that includes the following records; `ranges` are (number of the record, range)."""
        rows = [{"record": number, **asdict(each)} for number, each in ranges]
        added = pa.Table.from_pylist(rows, schema=SCHEMA)
        return Checkpoint(records, last_checksum, pa.concat_tables([self.ranges, added]), snapshot)


def checkpoints(files: Files) -> Iterator[Checkpoint]:
    """The complete checkpoints, newest first, and at the end the empty one."""
    for path in reversed(files.paths(CHECKPOINTS)):
        found = _load(files, path)
        if found is not None:
            yield found
    yield Checkpoint()


def write_checkpoint(files: Files, checkpoint: Checkpoint) -> None:
    """Writes the file of a checkpoint, and removes old checkpoints."""
    metadata = {
        _VERSION: VERSION,
        _LAST: b"%d" % checkpoint.last_checksum,
        _SNAPSHOT: json.dumps(checkpoint.snapshot).encode(),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(checkpoint.ranges.replace_schema_metadata(metadata), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    written = f"{CHECKPOINTS}/{checkpoint.records:0{_DIGITS}}.{crc32c(content):08x}.parquet"
    files.create(written, content)
    paths = files.paths(CHECKPOINTS)
    kept = [path for path in paths if path <= written][-KEPT:]
    for path in paths:
        if path not in kept:
            files.remove(path)


def _load(files: Files, path: str) -> Checkpoint | None:
    name = _NAME.fullmatch(path)
    if name is None:
        return None
    try:
        content = files.read(path)
    except FileNotFoundError:
        # A program that adds to the archive has removed the checkpoint meanwhile.
        return None
    if f"{crc32c(content):08x}" != name["checksum"]:
        return None
    try:
        table = pq.read_table(pa.BufferReader(content))
    except pa.ArrowException:
        return None
    metadata = table.schema.metadata or {}
    if metadata.get(_VERSION) != VERSION or not table.schema.equals(SCHEMA):
        return None
    snapshot = json.loads(metadata[_SNAPSHOT])
    return Checkpoint(int(name["records"]), int(metadata[_LAST]), table.replace_schema_metadata(), snapshot)
