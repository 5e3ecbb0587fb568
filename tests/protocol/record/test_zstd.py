"""zstd of two libraries: what the faster one takes gives the same as the other."""

import random
from collections.abc import Iterator

import cramjam
import pytest
import zstandard

from klamm.protocol.record import zstd
from klamm.protocol.record.compression import CompressionType, compress, decompress


def outcome(decompress_into, data: bytes, room_bytes: int) -> bytes | str:
    out = memoryview(bytearray(room_bytes))
    try:
        return bytes(out[: decompress_into(memoryview(data), out)])
    except cramjam.DecompressionError as error:
        return str(error)


def hostile_frames(chance: random.Random, count: int) -> Iterator[tuple[bytes, int]]:
    """Frames of both kinds of claims, with and without checksum: whole, mutated, cut, repeated, with more behind."""
    for _ in range(count):
        body = chance.randbytes(chance.randrange(60)) * chance.choice([1, 3, 50, 3000])
        has_size, has_checksum = chance.random() < 0.5, chance.random() < 0.3
        compressor = zstandard.ZstdCompressor(write_content_size=has_size, write_checksum=has_checksum)
        frame = bytearray(compressor.compress(body))
        match chance.randrange(6):
            case 0:
                frame += zstandard.compress(b"abc" * 5)
            case 1:
                del frame[chance.randrange(len(frame) + 1) :]
            case 2:
                for _ in range(chance.randrange(1, 4)):
                    frame[chance.randrange(min(20, len(frame)))] = chance.randrange(256)
            case 3:
                frame += chance.randbytes(chance.randrange(1, 9))
            case 4:
                frame[:0] = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
        yield bytes(frame), chance.choice([0, 10, 100, len(body), len(body) + 1, 200_000])


def test_any_bytes_give_what_cramjam_gives() -> None:
    outcomes = set()
    for frame, room_bytes in hostile_frames(random.Random(1), 3000):
        theirs = outcome(cramjam.zstd.decompress_into, frame, room_bytes)
        assert outcome(zstd.decompress_into, frame, room_bytes) == theirs, (frame, room_bytes)
        outcomes.add(theirs if isinstance(theirs, str) else "fine")
    assert len(outcomes) > 5


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 131_072, 131_073, 3_000_000])
def test_what_is_compressed_is_read_back(size_bytes: int) -> None:
    body = random.Random(2).randbytes(1000) * (size_bytes // 1000 + 1)
    compressed = compress(CompressionType.ZSTD, body[:size_bytes])
    assert bytes(decompress(CompressionType.ZSTD, compressed)) == body[:size_bytes]


def test_small_frames_are_left_to_the_faster_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: object, out: object) -> int:
        raise AssertionError

    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"k" * 15_000)
    monkeypatch.setattr(cramjam.zstd, "decompress_into", refuse, raising=True)
    out = memoryview(bytearray(20_000))
    assert zstd.decompress_into(memoryview(streamed), out) == 15_000
