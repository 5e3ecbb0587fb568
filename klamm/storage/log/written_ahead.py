"""A large batch whose bytes are written in pieces before it is appended, so that its append is a short step.

    async with log.writing_ahead(records):  # in pieces, behind the end of the active segment
        log.append_as_leader(records)

What must stay true:
- Nothing of the batch counts before its append, which writes the header: readers end at the segment's size, and a
  recovery finds no batch.
- At most one batch is written ahead in a log. Other appends wait for its append (`Log.must_prepare`). An append that
  cannot wait, a roll or a truncation throws the bytes away; then the batch is written with its append.
- No bytes stay behind the end of a segment. A client could have chosen them, and after another append of the right
  size a recovery would read them as batches.
"""

import asyncio

from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, BatchHeader, parse_header_of_one
from klamm.storage.segments.segment import LogSegment

# This many bytes are written in one step.
PIECE_BYTES = 2 * 1024 * 1024


def header_of_large(records: Buffer, most_bytes: int) -> BatchHeader | None:
    """The header of one batch that should be written ahead; None for other records."""
    return parse_header_of_one(records) if PIECE_BYTES < len(records) <= most_bytes else None


class WrittenAhead:
    """A batch that is written ahead of its append, from the present end of `segment` on. Methods raise OSError."""

    __slots__ = ("_file", "ended", "position", "records", "segment", "written_bytes")

    def __init__(self, segment: LogSegment, records: Buffer) -> None:
        # Kept open, so that the bytes can be cut even when file descriptors run out.
        self._file = segment.pin()
        self.segment = segment
        self.position = segment.size_bytes
        self.records = records
        self.written_bytes = HEADER_SIZE_BYTES
        # Set when the batch is appended, or the bytes are thrown away.
        self.ended = asyncio.Event()

    @property
    def is_whole(self) -> bool:
        return self.written_bytes == len(self.records)

    async def write(self) -> None:
        """Returns when the batch is written, or has been thrown away. Raises OSError."""
        while not self.is_whole and not self.ended.is_set():
            self.write_piece()
            await asyncio.sleep(0)

    def write_piece(self) -> None:
        """Raises OSError."""
        start = self.written_bytes
        piece = memoryview(self.records)[start : start + PIECE_BYTES]
        self._file.write(self.position + start, piece)
        self.written_bytes = start + len(piece)

    def holds(self, records: Buffer, segment: LogSegment) -> bool:
        """Whether all of `records` are already written for an append to `segment`."""
        is_there = records is self.records and segment is self.segment and segment.size_bytes == self.position
        return is_there and self.is_whole

    def end(self, *, is_kept: bool) -> None:
        """Throws the bytes away, unless `is_kept` or the segment is deleted. Raises OSError."""
        self.ended.set()
        try:
            if not is_kept and not self.segment.is_gone:
                self._file.truncate(self.segment.size_bytes)
        finally:
            self.segment.unpin()
