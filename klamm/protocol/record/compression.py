"""The codecs of record batches: gzip, snappy, lz4 and zstd, as Java's clients write and read them.

What must stay true:
- Decompression is bounded: no claim of the data is trusted before the room for it is limited.
- Any bytes give a value or a `KafkaError`.
- Large data are compressed in steps of a few milliseconds.

Source: org.apache.kafka.common.compress; xerial's framing of snappy.
"""

import mmap
import struct
from collections.abc import Callable, Generator
from enum import IntEnum
from typing import Any

import cramjam

from klamm.protocol.error_codes import ErrorCode, KafkaError, corrupt_message
from klamm.protocol.primitives import Buffer

_LENGTH = struct.Struct(">i")
MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
_COMPRESSED_AT_ONCE_BYTES = 128 * 1024
# Buffers of at least this size are mapped by the system, which zeroes a page when it is first used. Python would zero
# the whole buffer at once, and hold the GIL meanwhile.
_LAZY_FROM_BYTES = 1024 * 1024

_XERIAL_HEADER = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE_BYTES = 16
_XERIAL_CHUNK_BYTES = 32 * 1024
_XERIAL_START = _XERIAL_HEADER + struct.pack(">ii", 1, 1)


class CompressionType(IntEnum):
    """The codecs, by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """The uncompressed bytes (`data` itself when there is no compression).

    Raises KafkaError: CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE, MESSAGE_TOO_LARGE above `max_bytes`.
    """
    if codec == CompressionType.NONE:
        return data
    if codec == CompressionType.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    size_bytes = min(max_bytes, max(4 * len(data), 16 * 1024))
    while True:
        out = memoryview(mmap.mmap(-1, size_bytes) if size_bytes >= _LAZY_FROM_BYTES else bytearray(size_bytes))
        filled_bytes = decompress_into(codec, data, out)
        if filled_bytes is not None:
            return out[:filled_bytes]
        if size_bytes == max_bytes:
            raise _too_large(max_bytes)
        size_bytes = min(max_bytes, 4 * size_bytes)


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int | None:
    """Decompresses into `out`. Returns the number of bytes; None when `out` is too small. Raises as `decompress`."""
    if codec in (CompressionType.NONE, CompressionType.SNAPPY):
        body = decompress(codec, data)
        if len(body) > len(out):
            return None
        out[: len(body)] = body
        return len(body)
    decompress_bounded = _DECOMPRESS_INTO.get(codec)
    if decompress_bounded is None:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is unknown, allowed are 0 to 4"
        )
    try:
        return decompress_bounded(data, out)
    except cramjam.DecompressionError as error:
        if str(error) != _OUTPUT_FULL:
            raise corrupt_message(f"the records do not decompress: {error}") from None
        return None


def _decompress_zstd_into(data: Buffer, out: memoryview) -> int:
    # zstandard takes a megabyte of memory, and many brokers never see such data.
    from klamm.protocol.record import zstd

    return zstd.decompress_into(data, out)


# cramjam has no limit of its own: it writes into a buffer whose size is the limit.
_DECOMPRESS_INTO: dict[int, Callable[[Any, memoryview], int]] = {
    CompressionType.GZIP: cramjam.gzip.decompress_into,
    CompressionType.LZ4: cramjam.lz4.decompress_into,
    CompressionType.ZSTD: _decompress_zstd_into,
}
_OUTPUT_FULL = "failed to write whole buffer"


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    if bytes(data[: len(_XERIAL_HEADER)]) != _XERIAL_HEADER:
        return _decompress_snappy_block(data, max_bytes)
    out = bytearray()
    position = _XERIAL_HEADER_SIZE_BYTES
    while position < len(data):
        if len(data) - position < _LENGTH.size:
            raise corrupt_message("snappy data end within a chunk's length")
        length = _LENGTH.unpack_from(data, position)[0]
        position += _LENGTH.size
        if not 0 <= length <= len(data) - position:
            raise corrupt_message(f"a snappy chunk's length of {length} bytes does not fit into its batch")
        out += _decompress_snappy_block(data[position : position + length], max_bytes - len(out))
        position += length
    return out


def _decompress_snappy_block(data: Buffer, max_bytes: int) -> Buffer:
    try:
        # The length is the block's own claim, so it is compared before anything is allocated.
        size_bytes = cramjam.snappy.decompress_raw_len(data)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        out = bytearray(size_bytes)
        return memoryview(out)[: cramjam.snappy.decompress_raw_into(data, out)]
    except cramjam.DecompressionError as error:
        raise corrupt_message(f"the records do not decompress: {error}") from None


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the records decompress to more than {max_bytes} bytes")


def compress(codec: CompressionType, data: Buffer) -> Buffer:
    if codec == CompressionType.NONE:
        return data
    if codec == CompressionType.SNAPPY:
        return _compress_xerial(data)
    compressed: bytes = bytes(_COMPRESS[codec](data))
    return compressed


def compress_in_steps(codec: CompressionType, data: memoryview) -> Generator[int, None, Buffer]:
    """Pauses after each `_COMPRESSED_AT_ONCE_BYTES`; fewer bytes are compressed at once."""
    if len(data) <= _COMPRESSED_AT_ONCE_BYTES or codec == CompressionType.NONE:
        return compress(codec, bytearray(data))
    chunks = [data[at : at + _COMPRESSED_AT_ONCE_BYTES] for at in range(0, len(data), _COMPRESSED_AT_ONCE_BYTES)]
    if codec == CompressionType.SNAPPY:
        out = bytearray(_XERIAL_START)
        for chunk in chunks:
            out += _xerial_blocks(chunk)
            yield 0
        return out
    compressor = _COMPRESSOR[codec]()
    for chunk in chunks:
        compressor.compress(bytes(chunk))
        yield 0
    compressed: bytes = bytes(compressor.finish())
    return compressed


def _compress_xerial(data: Buffer) -> bytearray:
    """Snappy as Java's clients write it: a header, then blocks with their lengths."""
    return bytearray(_XERIAL_START) + _xerial_blocks(data)


def _xerial_blocks(data: Buffer) -> bytearray:
    out = bytearray()
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_CHUNK_BYTES])))
        out += _LENGTH.pack(len(block)) + block
    return out


def _lz4_compressor() -> Any:
    """Java's clients refuse frames whose blocks depend on each other."""
    return cramjam.lz4.Compressor(level=1, block_linked=False)


def _compress_lz4(data: Buffer) -> cramjam.Buffer:
    compressor = _lz4_compressor()
    compressor.compress(bytes(data))
    compressed: cramjam.Buffer = compressor.finish()
    return compressed


def _compress_zstd(data: Buffer) -> bytes:
    from klamm.protocol.record import zstd

    return zstd.compress(data)


# The levels are those of Java's clients. cramjam's defaults for lz4 and zstd take five to ten times as long.
_COMPRESS: dict[CompressionType, Callable[[Buffer], cramjam.Buffer | bytes]] = {
    CompressionType.GZIP: cramjam.gzip.compress,
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
}
_COMPRESSOR: dict[CompressionType, Callable[[], Any]] = {
    CompressionType.GZIP: cramjam.gzip.Compressor,
    CompressionType.LZ4: _lz4_compressor,
    CompressionType.ZSTD: lambda: cramjam.zstd.Compressor(level=3),
}
