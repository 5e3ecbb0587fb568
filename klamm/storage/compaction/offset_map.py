"""The last offset of each key, in bounded memory: an open-addressing table of 24 bytes a slot.

A slot has the key's digest of 128 bits and the offset plus one; zero means that the slot is empty. The digest stands
for the key. Two keys with the same digest would make the cleaner drop the last record of one of them, so the digest is
keyed with a secret: a client cannot search for such keys, and chance needs 2^64 of them. (Kafka uses MD5.)

What must stay true: `put` never finds the table full. The caller stops at `capacity`, which is below the number of
slots.

Source: kafka.log.SkimpyOffsetMap.
"""

import struct
from collections.abc import Iterator
from hashlib import blake2b
from mmap import mmap

DIGEST_SIZE_BYTES = 16
SLOT_SIZE_BYTES = DIGEST_SIZE_BYTES + 8
_OFFSET = struct.Struct("<q")
_EMPTY = bytes(8)


class MapSize:
    """How large a table is: its slots, and its capacity, which is the most keys that it accepts."""

    def __init__(self, map_bytes: int, load_factor: float, most_keys: int) -> None:
        """For at most `most_keys` keys. A smaller table is faster. Raises ValueError when there is no room for a single
        key."""
        slots = map_bytes // SLOT_SIZE_BYTES
        self.most_slots = slots
        # As if all the memory were used. One slot stays empty, so that each search ends.
        self.capacity = min(int(slots * load_factor), slots - 1)
        if self.capacity < 1:
            raise ValueError(
                f"an offset map of {map_bytes} bytes with the load factor {load_factor} has no room for a single key;"
                " log.cleaner.dedupe.buffer.size must be larger or log.cleaner.threads smaller"
            )
        self.slots = max(2, min(slots, 2 * most_keys))


class OffsetMap:
    """The table of the plain kernel. `kernel_loops` has the same table for compiled code."""

    def __init__(self, size: MapSize, digest_key: bytes) -> None:
        self._slots = size.slots
        self._digest_key = digest_key
        # The system fills anonymous memory with zeros, and allocates only the pages that are used.
        self._table = mmap(-1, self._slots * SLOT_SIZE_BYTES)
        self.count = 0

    def put(self, key: bytes, offset: int) -> None:
        """Makes `offset` the last one of `key`."""
        digest, at = self._find(key)
        if self._table[at + DIGEST_SIZE_BYTES : at + SLOT_SIZE_BYTES] == _EMPTY:
            self._table[at : at + DIGEST_SIZE_BYTES] = digest
            self.count += 1
        _OFFSET.pack_into(self._table, at + DIGEST_SIZE_BYTES, offset + 1)

    def get(self, key: bytes) -> int:
        """The last offset of `key`; -1 for an unknown key."""
        _, at = self._find(key)
        offset: int = _OFFSET.unpack_from(self._table, at + DIGEST_SIZE_BYTES)[0]
        return offset - 1

    def offsets(self) -> Iterator[int]:
        """The last offsets of all keys, in no order."""
        for at in range(DIGEST_SIZE_BYTES, len(self._table), SLOT_SIZE_BYTES):
            stored: int = _OFFSET.unpack_from(self._table, at)[0]
            if stored:
                yield stored - 1

    def _find(self, key: bytes) -> tuple[bytes, int]:
        """(digest, position of the slot that has the digest, or of the empty slot where it belongs)."""
        digest = blake2b(key, digest_size=DIGEST_SIZE_BYTES, key=self._digest_key).digest()
        slot = int.from_bytes(digest[:8], "little") % self._slots
        while True:
            at = slot * SLOT_SIZE_BYTES
            found = self._table[at : at + SLOT_SIZE_BYTES]
            if found[:DIGEST_SIZE_BYTES] == digest or found[DIGEST_SIZE_BYTES:] == _EMPTY:
                return digest, at
            slot = (slot + 1) % self._slots
