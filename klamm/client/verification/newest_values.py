"""The values in a compacted topic that a replica has lost, as far as the replicas' records tell. Pure.

Compaction removes a record only for a later one with the same key. So when one replica has a value that another one
lacks, and no record up to the end of the partition has its key, then either that replica has lost the value, or the
other one has missed a tombstone that left the log since. In both cases readers of the two see different tables.

What must stay true:
- The records come in the order of their offsets, and all of them come: from where a value was missing to the end.
- Records in transactions are not judged, because compaction removes aborted ones. A record in an aborted transaction
  counts as a later one: a loss may stay unnoticed, nothing is reported wrongly.
- Replicas are compacted while they are read. A value is lost only if `CONFIRMATIONS` further readings say the same: a
  record that is still there when a reading begins has not been replaced below what the reading before has read.
- Memory is bounded: at most `MAX_VALUES` values wait for a later record at a time, and further ones are not judged.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from klamm.protocol.record.records import Record

CONFIRMATIONS = 2
MAX_VALUES = 100_000
_DIGEST_SIZE_BYTES = 16


class Unreplaced(NamedTuple):
    """A value that one replica has and others lack."""

    offset: int
    replica: int
    lacking: tuple[int, ...]


class NewestValues:
    """The values that some replicas lack and that no later record has replaced so far, by the digest of their key."""

    def __init__(self) -> None:
        self._values: dict[bytes, Unreplaced] = {}
        # Whether a value was not judged because too many others wait.
        self.is_full = False

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def first_offset(self) -> int:
        return min(value.offset for value in self._values.values())

    def replaced(self, records: Iterable[Record]) -> None:
        """These records come next, and all replicas have them."""
        for record in records:
            if record.key is not None:
                self._values.pop(_digest(record.key), None)

    def only_on(self, record: Record, replica: int, lacking: Sequence[int]) -> None:
        """This record comes next, and `lacking` do not have it."""
        if record.key is None:
            return
        digest = _digest(record.key)
        self._values.pop(digest, None)
        if record.value is not None and len(self._values) >= MAX_VALUES:
            self.is_full = True
        elif record.value is not None:
            self._values[digest] = Unreplaced(record.offset, replica, tuple(lacking))

    def keep_confirmed(self, again: "NewestValues") -> None:
        """Forgets each value of which a further reading did not say the same."""
        self._values = {digest: value for digest, value in self._values.items() if again._values.get(digest) == value}

    def take(self) -> list[Unreplaced]:
        """The values in the order of their offsets; they are forgotten."""
        values, self._values = sorted(self._values.values()), {}
        return values


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_SIZE_BYTES).digest()
