"""Reads state-change.log files, plain or gzipped, as blocks of whole entries.

What must stay true: a file is open only while a block of it is read, so any number of files may be merged at once; of
each, a block and one entry are in memory.
"""

import codecs
import zlib
from collections.abc import Callable

from klamm.base.environment import FileSystem
from klamm.state_changes.entries import BEGINNING, BEGINNING_OF_LINE, FORM, TIME_SIZE

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW_BITS = 31
# Editors write it before the first line. Some shells write UTF-16.
_UTF_8_MARK = codecs.BOM_UTF8
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# What is read to find the first time; it stays in memory until the merge reaches the file.
_FIRST_BYTES = 4 * 1024
# A line break, a bracket and a time.
LONGEST_BEGINNING = 2 + TIME_SIZE
# No version of Kafka writes entries of this size.
MAX_ENTRY_BYTES = 64 * 1024 * 1024


class StateChangeFile:
    """A file, read from its beginning. Methods raise OSError. `begin` and `end` limit a plain file to the entries that
    begin between these positions. `warn` gets one line about each part of the file that cannot be read."""

    def __init__(
        self,
        file_system: FileSystem,
        path: str,
        warn: Callable[[str], object],
        *,
        block_bytes: int,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        self.path = path
        # Where in its line a time begins: 0 or 1, as in the file's first entry.
        self.time_at = 0
        self._file_system = file_system
        self._warn = warn
        self._block_bytes = block_bytes
        self._position = begin
        self._begin = begin
        self._end = end
        self._rest = b""
        self._is_over = False
        self._inflate: zlib._Decompress | None = None
        self._deflated = b""
        if self._read_raw(0, len(_GZIP_MAGIC)) == _GZIP_MAGIC:
            self._inflate = zlib.decompressobj(_GZIP_WINDOW_BITS)
        self._skip_to_first_entry(begin)

    def read(self) -> bytes:
        """The next whole entries, each with its line break. Empty at the end of the file, or of the range."""
        block = self._read_block()
        begin, self._begin = self._begin, self._begin + len(block)
        if self._end is None or self._begin <= self._end:
            return block
        # The range ends within the block: the next entry belongs to the next range.
        match = BEGINNING_OF_LINE.search(block, max(self._end - begin - 1, 0))
        if begin >= self._end or match is not None:
            self._rest, self._is_over = b"", True
        if begin >= self._end:
            return b""
        return block if match is None else block[: match.start() + 1]

    def _read_block(self) -> bytes:
        data, wanted = self._rest, self._block_bytes
        while not self._is_over:
            data += self._more(wanted)
            cut = len(data) if self._is_over else _last_beginning(data)
            if cut > 0:
                self._rest = data[cut:]
                return data[:cut]
            if len(data) > MAX_ENTRY_BYTES:
                self._warn(f"{self.path}: an entry has more than {MAX_ENTRY_BYTES} bytes; the rest of it is left out")
                self._skip_to_entry(data[-LONGEST_BEGINNING:])
                return data
            wanted = len(data)
        self._rest = b""
        return data

    def next_time(self) -> bytes | None:
        """The time of the entry behind those that `read` has returned. None at the end of the file."""
        if BEGINNING.match(self._rest):
            return self._rest[self.time_at : self.time_at + TIME_SIZE]
        return None

    def _skip_to_first_entry(self, begin: int) -> None:
        """Leaves out bytes that belong to no entry, or to an entry that begins before `begin`."""
        # The byte before `begin` says whether a line begins there.
        self._position = max(begin - 1, 0)
        first = b"" if begin else self._first_bytes()
        skipped = self._skip_to_entry(first)
        if not self._rest and not begin and skipped != b"\n":
            is_utf_16 = first[1:].startswith(_UTF_16_MARKS)
            why = "it is UTF-16; convert it to UTF-8" if is_utf_16 else f"no line begins with a time of the form {FORM}"
            self._warn(f"{self.path}: {why}")
        self._begin = self._position - len(self._rest)
        self.time_at = 1 if self._rest[:1] == b"[" else 0

    def _first_bytes(self) -> bytes:
        """The first bytes of the file, without a mark of UTF-8, behind the end of a line."""
        data = b""
        while len(data) < len(_UTF_8_MARK) and not self._is_over:
            data += self._more(min(self._block_bytes, _FIRST_BYTES))
        return b"\n" + data.removeprefix(_UTF_8_MARK)

    def _skip_to_entry(self, data: bytes) -> bytes:
        """Makes the next entry the rest; `data` are the bytes before those that are read next. Returns the last bytes
        that belong to no entry."""
        self._rest = b""
        while (match := BEGINNING_OF_LINE.search(data)) is None and not self._is_over:
            # A line may begin at the end of what was read so far.
            data = data[-LONGEST_BEGINNING:] + self._more(min(self._block_bytes, _FIRST_BYTES))
        if match is not None:
            self._rest = data[match.start() + 1 :]
        return data

    def _more(self, size_bytes: int) -> bytes:
        """The next bytes, uncompressed; sets `_is_over` when there are no others."""
        if self._inflate is None:
            data = self._read_raw(self._position, size_bytes)
            self._position += len(data)
            self._is_over = len(data) < size_bytes
            return data
        return self._inflated(self._inflate, size_bytes)

    def _inflated(self, inflate: "zlib._Decompress", size_bytes: int) -> bytes:
        if not self._deflated:
            self._deflated = self._read_raw(self._position, size_bytes)
            self._position += len(self._deflated)
            if not self._deflated:
                self._is_over = True
                if not inflate.eof:
                    self._warn(f"{self.path}: the compressed data end early")
                return b""
        if inflate.eof:
            # A gzipped file may have several members.
            inflate = self._inflate = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            data = inflate.decompress(self._deflated, size_bytes)
        except zlib.error as error:
            self._warn(f"{self.path}: the compressed data are damaged: {error}")
            self._is_over = True
            return b""
        self._deflated = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        return data

    def _read_raw(self, position: int, size_bytes: int) -> bytes:
        file = self._file_system.open_to_read(self.path)
        try:
            return bytes(file.read(position, size_bytes))
        finally:
            file.close()


def _last_beginning(data: bytes) -> int:
    """The position of the last entry, which the block may not hold as a whole; 0 when there is no second entry."""
    # Most often the last line is an entry.
    line = data.rfind(b"\n", 0, len(data) - 1) + 1
    while line > 0:
        if BEGINNING.match(data, line):
            return line
        line = data.rfind(b"\n", 0, line - 1) + 1
    return 0
