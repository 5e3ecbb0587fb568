"""The aborted transactions whose markers lie in one segment, for consumers with isolation level read_committed.

What must stay true: entries are in the order of their markers. The file exists only if there is an entry.

File: entries of 34 bytes: version (i16, 0), producer id, first offset, offset of the marker, last stable offset
when the marker was written (i64 each), big-endian.
Source: kafka.log.TransactionIndex.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from klamm.environment import FileSystem
from klamm.storage.disk_errors import PASSING
from klamm.storage.index_file import CorruptIndexError, IndexFile
from klamm.storage.producer_state import CompletedTransaction
from klamm.storage.unsynced_files import UnsyncedFiles

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE_BYTES = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """An aborted transaction that wrote into this partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Methods that touch the disk raise OSError."""

    __slots__ = ("_base_offset", "_entries", "file")

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, unsynced: UnsyncedFiles) -> None:
        self.file = IndexFile(file_system, path, unsynced)
        self._base_offset = base_offset
        self._entries: list[AbortedTransaction] = []

    @property
    def entries(self) -> list[AbortedTransaction]:
        return self._entries

    def load(self) -> None:
        """Reads the file if there is one. Raises CorruptIndexError."""
        data = self.file.read_all() if self.file.exists() else b""
        if len(data) % ENTRY_SIZE_BYTES:
            raise CorruptIndexError(f"{self.file.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
        entries = []
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != 0:
                raise CorruptIndexError(f"{self.file.path} has an entry of version {version}, only 0 is known")
            if entry.last_offset < self._base_offset or entry.first_offset > entry.last_offset:
                raise CorruptIndexError(f"{self.file.path} has an impossible entry: {entry}")
            entries.append(entry)
        self._entries = entries

    def note(self, completed: CompletedTransaction) -> None:
        """Appends the transaction if it was aborted."""
        if completed.is_aborted:
            self.append(
                AbortedTransaction(
                    completed.producer_id,
                    completed.first_offset,
                    completed.last_offset,
                    completed.last_stable_offset,
                )
            )

    def append(self, entry: AbortedTransaction) -> None:
        """Writes the entry at once: no recovery may lack it. On a full disk it goes out with the next flush."""
        self._entries.append(entry)
        self.file.append(pack_entries([entry]))
        try:
            self.file.write_pending()
        except OSError as error:
            if error.errno not in PASSING:
                raise

    def reset(self) -> None:
        """Empties the index before it is rebuilt."""
        self._entries = []
        if self.file.exists():
            self.file.truncate(0)

    def truncate_to(self, offset: int) -> None:
        """Keeps the transactions whose markers are below `offset`."""
        kept = [entry for entry in self._entries if entry.last_offset < offset]
        if len(kept) != len(self._entries):
            self._entries = kept
            self.file.truncate(len(kept) * ENTRY_SIZE_BYTES)


def pack_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """The content of a file with these entries."""
    return b"".join([_ENTRY.pack(0, *entry) for entry in entries])
