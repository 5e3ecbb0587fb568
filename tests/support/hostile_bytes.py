"""Bytes that nobody who means well writes: records, batches and files with every kind of wrong content.

What clients send, logs hold and znodes contain must end in a value, in a `KafkaError` or in the error that its reader
documents, and never stop a broker. The tests with this generator are short; `KLAMM_HOSTILE_ROUNDS=20000` before the
command makes them as long as one likes. A test that fails names its seed.
"""

import os
import random
import struct
from collections.abc import Iterator

from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType, compress
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.record.records import _encode_varint, _varint

NUMBERS = [
    *(sign * 2**bits + by for bits in (7, 8, 15, 16, 31, 32, 62, 63) for by in (-1, 0, 1) for sign in (1, -1)),
    *range(-3, 4),
]


def seeds(rounds: int) -> Iterator[int]:
    """The seeds of a test that usually plays so many rounds."""
    return iter(range(int(os.environ.get("KLAMM_HOSTILE_ROUNDS", rounds))))


class Hostile:
    """A seeded source of such bytes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def number(self, bits: int) -> int:
        """A signed number of so many bits, most often one at the edge of something."""
        limit = 1 << (bits - 1)
        number = self.chance.choice(NUMBERS)
        return number if -limit <= number < limit else self.chance.randrange(-limit, limit)

    def data(self, most_bytes: int = 12) -> bytes:
        return self.chance.randbytes(self.chance.randrange(most_bytes + 1))

    # -- records --------------------------------------------------------------------------------------------------

    def varint(self, usual: int | None = None, bits: int = 32) -> bytes:
        """As record fields have it: the usual number, another, or bytes that are no number."""
        kind = self.chance.random()
        if usual is not None and kind < 0.93:
            return _encode_varint(usual)
        if kind < 0.97:
            return _encode_varint(self.number(bits))
        length = self.chance.randrange(1, 13)
        return bytes([self.chance.choice([0x80, 0xFF, self.chance.randrange(128, 256)]) for _ in range(length - 1)]) + (
            bytes([self.chance.choice([0x01, 0x7F, 0x80, self.chance.randrange(256)])])
        )

    def record(self, offset_delta: int) -> bytes:
        timestamp_delta = self.number(64) if self.chance.random() < 0.3 else self.chance.randrange(-5, 2000)
        body = [
            bytes([self.number(8) & 0xFF if self.chance.random() < 0.1 else 0]),
            self.varint(timestamp_delta, 64),
            self.varint(offset_delta),
        ]
        for _ in "key", "value":
            if self.chance.random() < 0.2:
                body.append(self.varint(-1))
            else:
                data = self.data()
                body += self.varint(len(data)), data
        headers = self.chance.choice([0, 0, 0, 1, 3])
        body.append(self.varint(headers))
        for _ in range(headers):
            key, value = self.data(), self.data()
            body += self.varint(len(key)), key, self.varint(len(value)), value
        joined = b"".join(body)
        return self.varint(len(joined)) + joined

    def records(self, count: int) -> bytes:
        data = b"".join(self.record(delta) for delta in range(count))
        return data if self.chance.random() < 0.9 else self.mutated(data)

    # -- batches --------------------------------------------------------------------------------------------------

    def batch(self, base_offset: int = 0, *, is_client: bool = True) -> bytearray:
        """A batch whose length and checksum are right, as those of most others are."""
        chance = self.chance
        count = chance.choice([1, 1, 2, 5, 20])
        codec = chance.choice([0, 0, *CompressionType])
        records = self.control_record() if not is_client and chance.random() < 0.2 else self.records(count)
        body = bytes(compress(CompressionType(codec), bytearray(records)))
        if chance.random() < 0.05:
            body = self.mutated(body)
        flags = 0x30 if records[:1] == b"\x20" and not is_client else chance.choice([0, 0, 0, 0x08, 0x10, 0x20, 0x30])
        producer = chance.random()
        header = BatchHeader(
            base_offset,
            rb.HEADER_SIZE_BYTES - rb.LOG_OVERHEAD_BYTES + len(body),
            self.sometimes(chance.randrange(3), 32),
            2,
            0,
            (chance.randrange(8) if chance.random() < 0.02 else codec) | (0 if is_client else flags),
            self.sometimes(count - 1, 32, 0.03),
            self.sometimes(1000, 64, 0.3),
            self.sometimes(2000, 64, 0.3),
            -1 if producer < 0.5 else self.sometimes(chance.randrange(3), 64),
            -1 if producer < 0.5 else self.sometimes(0, 16),
            -1 if producer < 0.5 else self.sometimes(chance.randrange(3), 32),
            self.sometimes(count, 32, 0.03),
        )
        batch = bytearray(rb.HEADER_SIZE_BYTES) + body
        rb.write_header(batch, 0, header)
        return batch

    def control_record(self) -> bytes:
        key = struct.pack(">hh", self.sometimes(0, 16), self.sometimes(self.chance.randrange(2), 16))
        value = struct.pack(">hi", self.sometimes(0, 16), self.sometimes(0, 32))
        if self.chance.random() < 0.2:
            key, value = self.mutated(key), self.mutated(value)
        body = b"\0\0\0" + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
        return _varint(len(body)) + body

    def sometimes(self, usual: int, bits: int, chance: float = 0.1) -> int:
        """The usual number, and now and then a hostile one."""
        return self.number(bits) if self.chance.random() < chance else usual

    # -- anything -------------------------------------------------------------------------------------------------

    def mutated(self, data: bytes) -> bytes:
        """The bytes with something wrong: changed, cut, longer, repeated."""
        out = bytearray(data)
        for _ in range(self.chance.choice([1, 1, 1, 2, 5])):
            at = self.chance.randrange(len(out) + 1)
            match self.chance.randrange(7):
                case 0 if out:
                    out[at % len(out)] ^= 1 << self.chance.randrange(8)
                case 1 if out:
                    out[at % len(out)] = self.chance.randrange(256)
                case 2:
                    del out[at : at + self.chance.randrange(1, 9)]
                case 3:
                    out[at:at] = self.data()
                case 4:
                    bits = self.chance.choice([8, 16, 32, 64])
                    out[at : at + bits // 8] = self.number(bits).to_bytes(bits // 8, signed=True)
                case 5:
                    out[at:at] = out[at : at + self.chance.randrange(64)]
                case _:
                    del out[at:]
        return bytes(out)
