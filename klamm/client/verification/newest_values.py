"""Finds values in a compacted topic that a replica has lost, as far as the replicas' records tell. Pure.

Compaction removes a record only if a later record has the same key. So if one replica has a value that another replica
lacks, and no later record in the partition has its key, then either the other replica has lost the value, or the first
has missed a tombstone that was removed since. In both cases readers of the two replicas see different tables.

What must stay true:
- All records come in the order of their offsets, from where a value was missing to the end.
- Records in transactions are not judged, because compaction removes aborted ones. A record in an aborted transaction
  counts as a later record, so a loss may stay unnoticed, but no loss is reported wrongly.
- Replicas are compacted while they are read. A value counts as lost only if `CONFIRMATIONS` further readings find the
  same: a record that still exists when a reading begins was not replaced by records that the reading before has read.
- Memory is bounded: at most `MAX_VALUES` values wait for a later record at a time, and further values are not judged.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from klamm.protocol.record.records import Record

CONFIRMATIONS = 2
MAX_VALUES = 100_000
_DIGEST_SIZE_BYTES = 16


class Unreplaced(NamedTuple):
    """A value that one replica has and other replicas lack."""

    offset: int
    replica: int
    lacking: tuple[int, ...]


class NewestValues:
    """The values that some replicas lack and that no later record has replaced so far, by the digests of their keys."""

    def __init__(self) -> None:
        self._values: dict[bytes, Unreplaced] = {}
        # Whether a value was not judged because too many values wait.
        self.is_full = False

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def first_offset(self) -> int:
        return min(value.offset for value in self._values.values())

    def replaced(self, records: Iterable[Record]) -> None:
        """Takes the next records, which all replicas have."""
        for record in records:
            if record.key is not None:
                self._values.pop(_digest(record.key), None)

    def only_on(self, record: Record, replica: int, lacking: Sequence[int]) -> None:
        """Takes the next record, which the replicas `lacking` do not have."""
        if record.key is None:
            return
        digest = _digest(record.key)
        self._values.pop(digest, None)
        if record.value is not None and len(self._values) >= MAX_VALUES:
            self.is_full = True
        elif record.value is not None:
            self._values[digest] = Unreplaced(record.offset, replica, tuple(lacking))

    def keep_confirmed(self, again: "NewestValues") -> None:
        """Forgets the values that a further reading did not confirm."""
        self._values = {digest: value for digest, value in self._values.items() if again._values.get(digest) == value}

    def take(self) -> list[Unreplaced]:
        """Removes and returns all values, in the order of their offsets."""
        values, self._values = sorted(self._values.values()), {}
        return values


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_SIZE_BYTES).digest()
