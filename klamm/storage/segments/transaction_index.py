"""The aborted transactions whose markers lie in one segment, for consumers with isolation level read_committed.

What must stay true: entries are in the order of their markers, so that a fetch finds its first entry at once. The file
exists only if there is an entry. All entries are in memory, in few bytes each: a segment may have a million. A fetch
reads few entries, even if most transactions end after it: a long transaction may keep the last stable offset low.

File: entries of 34 bytes: version (i16, 0), producer id, first offset, offset of the marker, last stable offset
when the marker was written (i64 each), big-endian.
Source: kafka.log.TransactionIndex.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from klamm.base.environment import FileSystem
from klamm.base.slices import Steps
from klamm.storage.segments.disk_errors import PASSING
from klamm.storage.segments.index_file import CorruptIndexError, IndexFile
from klamm.storage.segments.unsynced_files import UnsyncedFiles

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE_BYTES = _ENTRY.size
_FIELDS = 4
# A search skips blocks of entries.
BLOCK_FIELDS = 256 * _FIELDS


class CompletedTransaction(NamedTuple):
    """A transaction that wrote data and whose marker has just been appended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction that wrote into this partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Methods that touch the disk raise OSError."""

    __slots__ = ("_base_offset", "_fields", "_least_first_offsets", "file")

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, unsynced: UnsyncedFiles) -> None:
        self.file = IndexFile(file_system, path, unsynced)
        self._base_offset = base_offset
        # The fields of all entries, one entry after the other.
        self._fields = array("q")
        # The least first offset of each block.
        self._least_first_offsets = array("q")

    @property
    def entries(self) -> list[AbortedTransaction]:
        return list(unpack_entries(self.packed))

    @property
    def packed(self) -> bytes:
        """All entries, for `unpack_entries` of another process."""
        return self._fields.tobytes()

    @property
    def is_empty(self) -> bool:
        return not self._fields

    def find(self, start_offset: int, end_offset: int, found: list[tuple[int, int]]) -> Steps[bool]:
        """Adds to `found`, a block in each step, (producer id, first offset) of the transactions that begin before
        `end_offset` and have their markers at or after `start_offset`. Returns whether the search is complete, so that
        no later segment has more of them."""
        fields = self._fields
        position = self._position(start_offset)
        while position < len(fields):
            block = position // BLOCK_FIELDS
            block_end = min((block + 1) * BLOCK_FIELDS, len(fields))
            if self._least_first_offsets[block] < end_offset:
                for at in range(position, block_end, _FIELDS):
                    if fields[at + 1] < end_offset:
                        found.append((fields[at], fields[at + 1]))
            if fields[block_end - 1] >= end_offset:  # the last stable offset: later transactions begin at or after it
                return True
            position = block_end
            yield
        return False

    def _position(self, offset: int) -> int:
        """The position of the first entry whose marker is at or after `offset`."""
        fields = self._fields
        return _FIELDS * bisect_left(range(len(fields) // _FIELDS), offset, key=lambda at: fields[_FIELDS * at + 2])

    def load(self) -> None:
        """Reads the file if there is one. Raises CorruptIndexError."""
        data = self.file.read_all() if self.file.exists() else b""
        if len(data) % ENTRY_SIZE_BYTES:
            raise CorruptIndexError(f"{self.file.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
        fields = array("q")
        last_offset = self._base_offset - 1
        for version, *entry in _ENTRY.iter_unpack(data):
            transaction = AbortedTransaction(*entry)
            if version != 0:
                raise CorruptIndexError(f"{self.file.path} has an entry of version {version}, only 0 is known")
            if transaction.last_offset <= last_offset or transaction.first_offset > transaction.last_offset:
                raise CorruptIndexError(f"{self.file.path} has an impossible entry: {transaction}")
            last_offset = transaction.last_offset
            fields.extend(transaction)
        self._fields = fields
        self._summarize_from(0)

    def note(self, completed: Iterable[CompletedTransaction]) -> None:
        """Appends the aborted ones among these transactions."""
        self.append(
            [
                AbortedTransaction(
                    transaction.producer_id,
                    transaction.first_offset,
                    transaction.last_offset,
                    transaction.last_stable_offset,
                )
                for transaction in completed
                if transaction.is_aborted
            ]
        )

    def append(self, entries: Sequence[AbortedTransaction]) -> None:
        """Writes the entries at once, because a recovery needs them. On a full disk the next flush writes them."""
        if not entries:
            return
        for entry in entries:
            self._fields.extend(entry)
            if len(self._fields) % BLOCK_FIELDS == _FIELDS:
                self._least_first_offsets.append(entry.first_offset)
            elif entry.first_offset < self._least_first_offsets[-1]:
                self._least_first_offsets[-1] = entry.first_offset
        self.file.append(pack_entries(entries))
        try:
            self.file.write_pending()
        except OSError as error:
            if error.errno not in PASSING:
                raise

    def reset(self) -> None:
        """Empties the index before it is rebuilt."""
        self._fields = array("q")
        self._summarize_from(0)
        if self.file.exists():
            self.file.truncate(0)

    def truncate_to(self, offset: int) -> None:
        """Keeps the transactions whose markers are below `offset`."""
        position = self._position(offset)
        if position < len(self._fields):
            del self._fields[position:]
            self._summarize_from(position // BLOCK_FIELDS)
            self.file.truncate(position // _FIELDS * ENTRY_SIZE_BYTES)

    def _summarize_from(self, block: int) -> None:
        del self._least_first_offsets[block:]
        for start in range(block * BLOCK_FIELDS, len(self._fields), BLOCK_FIELDS):
            self._least_first_offsets.append(min(self._fields[start + 1 : start + BLOCK_FIELDS : _FIELDS]))


def unpack_entries(packed: bytes) -> Iterator[AbortedTransaction]:
    fields = memoryview(packed).cast("q")
    for start in range(0, len(fields), _FIELDS):
        yield AbortedTransaction(*fields[start : start + _FIELDS])


def pack_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """The content of a file with these entries."""
    return b"".join([_ENTRY.pack(0, *entry) for entry in entries])
