"""The common part of a segment's offset index and time index: entries of a key and a value, to be searched.

What must stay true:
- Keys ascend strictly; values never descend. One of the two is an offset, relative to the base offset.
- The entries are read from disk at their first use, as two arrays. The index of a segment without readers is not in
  memory.

File: the entries, big-endian. Kafka preallocates its index files with zeros while in use; such a file is rebuilt.
Source: kafka.log.AbstractIndex.
"""

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import lt
from typing import ClassVar

from klamm.base.environment import FileSystem
from klamm.storage.segments.index_file import CorruptIndexError, IndexFile
from klamm.storage.segments.unsynced_files import UnsyncedFiles

Entry = tuple[int, int]
Columns = tuple["array[int]", "array[int]"]


class SearchIndex:
    """Methods that touch the disk raise OSError."""

    __slots__ = ("_base_offset", "_keys", "_values", "file", "is_loaded")

    ENTRY: ClassVar[struct.Struct]
    TYPES: ClassVar[tuple[str, str]]  # of the two arrays
    OFFSET_IS_KEY: ClassVar[bool]
    LEAST_KEY: ClassVar[int]
    LEAST_LAST_VALUE: ClassVar[int]
    ASCENDS: ClassVar[Callable[[int, int], bool]]  # of a value and the next one
    # The last entry of an empty index, relative to the base offset.
    NO_ENTRY: ClassVar[Entry]

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, unsynced: UnsyncedFiles) -> None:
        self.file = IndexFile(file_system, path, unsynced)
        self.is_loaded = False
        self._base_offset = base_offset
        self._keys: array[int]
        self._values: array[int]
        self._keys, self._values = self._no_columns()

    @property
    def entry_count(self) -> int:
        """The number of entries of a loaded index."""
        return len(self._keys)

    def read_entries(self) -> Columns:
        """The entries in the file. Changes nothing, so it may run off the loop. Raises CorruptIndexError."""
        data = self.file.read_all()
        self._check_size(len(data), self.file.path)
        return self._columns(data, self.file.path)

    def adopt(self, entries: Columns) -> None:
        """Takes `entries`, as read from the file, into memory."""
        self._keys, self._values = entries
        self.is_loaded = True

    def load(self) -> None:
        """Raises CorruptIndexError."""
        if not self.is_loaded:
            self.adopt(self.read_entries())

    def start_empty(self) -> None:
        """Loads the index of a new segment, whose file is empty."""
        self.adopt(self._no_columns())

    def reset(self) -> None:
        """Empties the index before it is rebuilt."""
        self.start_empty()
        self.file.truncate(0)

    def last_entry_on_disk(self) -> Entry:
        """The last entry, without loading the index. Raises CorruptIndexError."""
        entry_bytes = self.ENTRY.size
        size_bytes, data = self.file.read_tail(entry_bytes)
        self._check_size(size_bytes, self.file.path)
        key, value = self.ENTRY.unpack(data) if data else self.NO_ENTRY
        # Only the first entry can be (0, 0); later zeros are Kafka's preallocation.
        is_preallocated = key == value == 0 and size_bytes > entry_bytes
        if data and (key < 0 or value < self.LEAST_LAST_VALUE or is_preallocated):
            raise CorruptIndexError(f"{self.file.path} ends with ({key}, {value})")
        key_base, value_base = self._bases(self._base_offset)
        return key_base + key, value_base + value

    def _keep(self, count: int) -> None:
        """Keeps the first `count` entries."""
        del self._keys[count:]
        del self._values[count:]
        self.file.truncate(count * self.ENTRY.size)

    @classmethod
    def _bases(cls, base_offset: int) -> Entry:
        """The numbers to add to the key and the value of an entry in the file."""
        return (base_offset, 0) if cls.OFFSET_IS_KEY else (0, base_offset)

    # -- files ----------------------------------------------------------------------------------------------------

    @classmethod
    def pack_entries(cls, entries: Iterable[Entry], base_offset: int) -> bytes:
        """The content of a file with these entries."""
        key_base, value_base = cls._bases(base_offset)
        return b"".join([cls.ENTRY.pack(key - key_base, value - value_base) for key, value in entries])

    @classmethod
    def entries_in_use(cls, content: bytes, path: str, base_offset: int) -> list[Entry]:
        """The entries of a file, without the zeros that Kafka keeps at the end of a file in use.

        Raises CorruptIndexError.
        """
        cls._check_size(len(content), path)
        count = -(-len(content.rstrip(b"\0")) // cls.ENTRY.size)
        key_base, value_base = cls._bases(base_offset)
        keys, values = cls._columns(content[: count * cls.ENTRY.size], path)
        return [(key_base + key, value_base + value) for key, value in zip(keys, values, strict=True)]

    @classmethod
    def _check_size(cls, size_bytes: int, path: str) -> None:
        if size_bytes % cls.ENTRY.size:
            raise CorruptIndexError(f"{path} has {size_bytes} bytes, not a multiple of {cls.ENTRY.size}")

    @classmethod
    def _no_columns(cls) -> Columns:
        return array(cls.TYPES[0]), array(cls.TYPES[1])

    @classmethod
    def _columns(cls, data: bytes, path: str) -> Columns:
        """The entries' keys and values, separated without a Python step for each entry."""
        columns = keys, values = cls._no_columns()
        at, entry_bytes = 0, cls.ENTRY.size
        for column in columns:
            width = column.itemsize
            taken = bytearray(len(data) // entry_bytes * width)
            for byte in range(width):
                taken[byte::width] = data[at + byte :: entry_bytes]
            column.frombytes(taken)
            if sys.byteorder == "little":
                column.byteswap()
            at += width
        if not _ascends(keys, lt) or not _ascends(values, cls.ASCENDS):
            raise CorruptIndexError(f"{path} does not ascend")
        if keys and (keys[0] < cls.LEAST_KEY or values[0] < 0):
            raise CorruptIndexError(f"{path} does not ascend")
        return columns


def _ascends(column: Sequence[int], is_before: Callable[[int, int], bool]) -> bool:
    return all(map(is_before, column, islice(column, 1, None)))
