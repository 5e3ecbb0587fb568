"""The file of a recording: blocks of JSON lines. Each block is compressed by itself and has a head with its contents.

A file is a sequence of zstd frames, so zstdcat prints its lines. A block consists of two frames:

1. A skippable frame, which zstdcat skips, with the block's head: a JSON object.
2. A frame with the block's lines.

So a reader finds blocks by their heads without decompressing them. If the writer of a file was killed, only the end is
missing.

What must stay true: the bytes of a file are not trusted. A head is at most MAX_HEAD_BYTES long, and a block at most
MAX_BLOCK_BYTES, compressed or not, with MAX_BLOCK_ENTRIES entries of MAX_ENTRIES_BYTES together. An error names the
file, the position and what is wrong.

Source: RFC 8878, section 3.1.2 (skippable frames).
"""

import os
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import zstandard

from klamm.base import json_bytes

FORMAT: Final = "klamm recording"
VERSION: Final = 1
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BLOCK_BYTES: Final = 64 * 1024 * 1024
MAX_BLOCK_ENTRIES: Final = 100_000
# Without its keyframe a block has some megabytes, even with the largest znode that ZooKeeper accepts by default.
# Decoded JSON may take twenty times as much memory.
MAX_ENTRIES_BYTES: Final = 8 * 1024 * 1024
MAX_BLOCKS: Final = 1_000_000
LEVEL: Final = 3

_SKIPPABLE = 0x184D2A50
_FRAME = struct.Struct("<II")  # the magic number of a skippable frame, and the size of its content


class RecordingError(ValueError):
    """A file is not a recording, or is damaged. The message is for users."""


@dataclass(frozen=True, slots=True)
class Block:
    """The head of a block. Times are milliseconds since 1970.

    `first` is the number of the block's first entry in the file, counted from 0. A keyframe is the first line of its
    block, and does not count as an entry. `marks` counts the entries by mark. `position` and `size_bytes` are those of
    the compressed lines.
    """

    position: int
    size_bytes: int
    raw_bytes: int
    first: int
    count: int
    first_ms: int
    last_ms: int
    has_keyframe: bool
    marks: dict[str, int] = field(hash=False)


def write_block(
    file: BinaryIO,
    lines: bytes,
    *,
    first: int,
    count: int,
    first_ms: int,
    last_ms: int,
    has_keyframe: bool,
    marks: dict[str, int],
) -> None:
    """Appends a block. `lines` are whole lines. Raises OSError."""
    body = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(lines)
    head = json_bytes.encode(
        {
            "format": FORMAT,
            "version": VERSION,
            "size_bytes": len(body),
            "raw_bytes": len(lines),
            "first": first,
            "count": count,
            "first_ms": first_ms,
            "last_ms": last_ms,
            "has_keyframe": has_keyframe,
            "marks": marks,
        }
    )
    # One write, so that a reader of a growing file seldom sees a part of a block.
    file.write(_FRAME.pack(_SKIPPABLE, len(head)) + head + body)
    file.flush()


def read_heads(file: BinaryIO, name: str) -> tuple[list[Block], str | None]:
    """The heads of all whole blocks, and a sentence about a missing end, or None.

    Raises RecordingError for a file that is not a recording, or is damaged before its end.
    """
    end = file.seek(0, os.SEEK_END)
    position = 0
    blocks: list[Block] = []
    while position < end:
        file.seek(position)
        frame = file.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            return _cut(blocks, name, position)
        magic, head_bytes = _FRAME.unpack(frame)
        if magic != _SKIPPABLE or head_bytes > MAX_HEAD_BYTES:
            raise _not_one(blocks, name, position, "it has no head of a block there")
        head = file.read(head_bytes)
        if len(head) < head_bytes:
            return _cut(blocks, name, position)
        block = _block(blocks, name, position, head, position + _FRAME.size + head_bytes)
        if block.position + block.size_bytes > end:
            return _cut(blocks, name, position)
        blocks.append(block)
        if len(blocks) > MAX_BLOCKS:
            raise RecordingError(f"{name} has more than {MAX_BLOCKS} blocks")
        position = block.position + block.size_bytes
    if not blocks:
        raise RecordingError(f"{name} is empty")
    return blocks, None


def _cut(blocks: list[Block], name: str, position: int) -> tuple[list[Block], str]:
    if not blocks:
        raise RecordingError(f"{name} is no recording of klamm, or only the first bytes of one")
    return blocks, f"{name} ends within a block that begins at byte {position}: what was recorded last is missing"


def _not_one(blocks: list[Block], name: str, position: int, why: str) -> RecordingError:
    if not blocks:
        return RecordingError(f"{name} is no recording of klamm: {why}")
    return RecordingError(f"{name} is damaged at byte {position}: {why}")


def _block(blocks: list[Block], name: str, position: int, head: bytes, body_at: int) -> Block:
    try:
        found = json_bytes.decode(head)
    except json_bytes.JsonError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _not_one(blocks, name, position, "a block's head is not klamm's")
    if found.get("version") != VERSION:
        raise RecordingError(
            f"{name} has version {found.get('version')!r} of the format; this klamm reads version {VERSION}"
        )
    numbers = {
        key: _number(blocks, name, position, found, key, least, limit)
        for key, least, limit in (
            ("size_bytes", 0, MAX_BLOCK_BYTES),
            ("raw_bytes", 0, MAX_BLOCK_BYTES),
            ("first", 0, 2**53),
            ("count", 1, MAX_BLOCK_ENTRIES),
            ("first_ms", 0, 2**53),
            ("last_ms", 0, 2**53),
        )
    }
    marks = found.get("marks")
    if not isinstance(marks, dict) or not all(type(count) is int and count >= 0 for count in marks.values()):
        raise _not_one(blocks, name, position, "the head's marks are no counts")
    block = Block(body_at, has_keyframe=found.get("has_keyframe") is True, marks=marks, **numbers)
    before = blocks[-1] if blocks else None
    if block.first != (0 if before is None else before.first + before.count):
        raise _not_one(blocks, name, position, f"the block begins with entry {block.first}, which is not the next one")
    if block.first_ms > block.last_ms or (before is not None and block.first_ms < before.last_ms):
        raise _not_one(blocks, name, position, "the times of a block go back")
    return block


def _number(
    blocks: list[Block], name: str, position: int, head: dict[str, Any], key: str, least: int, limit: int
) -> int:
    value = head.get(key)
    if type(value) is not int or not least <= value <= limit:
        raise _not_one(blocks, name, position, f"{key} of a block is {str(value)[:40]}; allowed are {least} to {limit}")
    return value


def read_lines(file: BinaryIO, name: str, block: Block) -> list[bytes]:
    """The lines of a block: its keyframe, if it has one, and its entries. Raises RecordingError."""
    where = f"{name} is damaged: the block at byte {block.position}"
    file.seek(block.position)
    body = file.read(block.size_bytes)
    try:
        # A frame has its decompressed size. If it is larger than the head says, the frame is not decompressed.
        if zstandard.frame_content_size(body) != block.raw_bytes:
            raise RecordingError(f"{where} has another size than its head says")
        text = zstandard.ZstdDecompressor().decompress(body, max_output_size=block.raw_bytes)
    except zstandard.ZstdError as error:
        raise RecordingError(f"{where}: {error}") from None
    if text.count(b"\n") != block.count + block.has_keyframe or not text.endswith(b"\n"):
        raise RecordingError(f"{where} has another number of lines than its head says")
    lines = text[:-1].split(b"\n")
    entries_bytes = len(text) - (len(lines[0]) if block.has_keyframe else 0)
    if entries_bytes > MAX_ENTRIES_BYTES:
        raise RecordingError(f"{where} has entries of {entries_bytes} bytes; allowed are {MAX_ENTRIES_BYTES}")
    return lines
