"""The file format under transaction logs and snapshots: a header, then blocks that carry their own checksum.

    header: magic (8 bytes), salt (u32), CRC32C of both (u32)
    block:  payload size (u32), CRC32C of the payload that starts from the salt (u32), payload

The salt differs from file to file, so that no client can store bytes that look like a block of the file they end up in.

What must stay true:
- No block is larger than `MAX_BLOCK_BYTES`: to a reader, a larger block is damage.
- A block is written with one write and synced before the next block is written (logs). So after a crash only the
  last block can be damaged; a damaged block with a valid one behind it was damaged later, and its loss would go
  unnoticed if the file were cut there.
"""

import struct
from collections.abc import Iterator
from typing import Final

from klamm.base.checksum import crc32c

LOG_MAGIC: Final = b"klammZL1"
SNAPSHOT_MAGIC: Final = b"klammZS1"
HEADER_BYTES: Final = 16
MAX_BLOCK_BYTES: Final = 8 * 1024 * 1024

_HEADER = struct.Struct(">8sI")
_BLOCK = struct.Struct(">II")
_CRC = struct.Struct(">I")


class CorruptDataError(Exception):
    """The data directory does not hold what the server wrote there. The message names the file and the position."""


def encode_header(magic: bytes, salt: int) -> bytes:
    header = _HEADER.pack(magic, salt)
    return header + _CRC.pack(crc32c(header))


def encode_block(payload: bytes, salt: int) -> bytes:
    if len(payload) > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of {len(payload)} bytes could not be read back")
    return _BLOCK.pack(len(payload), crc32c(payload, salt)) + payload


def read_salt(data: bytes, magic: bytes) -> int | None:
    """The salt of a file that begins with `data`, or None if the header is not whole or not of this kind."""
    if len(data) < HEADER_BYTES:
        return None
    found, salt = _HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    return salt if found == magic and crc == crc32c(data[: _HEADER.size]) else None


def read_blocks(data: bytes, salt: int) -> Iterator[tuple[int, bytes]]:
    """The payloads of the valid blocks after the header, each with the position where its block ends."""
    position = HEADER_BYTES
    while (payload := _block_at(data, position, salt)) is not None:
        position += _BLOCK.size + len(payload)
        yield position, payload


def next_block(data: bytes, position: int, salt: int) -> int | None:
    """The position of the first valid, non-empty block at or behind `position`, or None."""
    for candidate in range(position, len(data) - _BLOCK.size):
        size = int.from_bytes(data[candidate : candidate + 4], "big")
        if 0 < size <= len(data) - candidate - _BLOCK.size and _block_at(data, candidate, salt) is not None:
            return candidate
    return None


def _block_at(data: bytes, position: int, salt: int) -> bytes | None:
    if position + _BLOCK.size > len(data):
        return None
    size, crc = _BLOCK.unpack_from(data, position)
    start = position + _BLOCK.size
    if size > MAX_BLOCK_BYTES or start + size > len(data):
        return None
    payload = data[start : start + size]
    return payload if crc == crc32c(payload, salt) else None
