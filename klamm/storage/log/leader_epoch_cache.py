"""Where each leader epoch begins in a log (KIP-101), mirrored in the partition's leader-epoch-checkpoint.

What must stay true: epochs and start offsets both ascend; the file is written before the memory changes, so that a
failed write leaves both as they were.

Source: kafka.server.epoch.LeaderEpochFileCache.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from klamm.protocol.vocabulary import NO_EPOCH

UNDEFINED = (-1, -1)

EpochEntry = tuple[int, int]


class LeaderEpochCache:
    """(epoch, start offset) entries. `persist` writes them to disk; methods that change entries raise its errors."""

    __slots__ = ("_entries", "_persist")

    def __init__(self, entries: Sequence[EpochEntry], persist: Callable[[Sequence[EpochEntry]], None]) -> None:
        self._entries = list(entries)
        self._persist = persist

    @property
    def entries(self) -> Sequence[EpochEntry]:
        return self._entries

    @property
    def latest_epoch(self) -> int:
        """The largest known epoch; -1 when no epoch is known."""
        return self._entries[-1][0] if self._entries else NO_EPOCH

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entries[0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Epoch `epoch` begins at `start_offset`, unless an entry says that it begins there or before.

        Drops contradicting entries (a later epoch, or a start at or after this one). An append that failed on a full
        disk leaves such entries behind.
        """
        if self._entries:
            last_epoch, last_start = self._entries[-1]
            if epoch == last_epoch and start_offset >= last_start:
                return
        kept = [entry for entry in self._entries if entry[0] <= epoch and entry[1] < start_offset]
        if not kept or kept[-1][0] != epoch:
            kept.append((epoch, start_offset))
        self._replace(kept)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch not above `epoch`, the offset after its last record); (-1, -1) when undefined."""
        if epoch == NO_EPOCH or not self._entries:
            return UNDEFINED
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        higher = bisect_right(self._entries, (epoch, 2**63))
        if higher == len(self._entries):
            return UNDEFINED
        end_offset = self._entries[higher][1]
        # The records before the first known epoch are gone, so the result has the requested epoch itself.
        return (epoch if higher == 0 else self._entries[higher - 1][0]), end_offset

    def epoch_for(self, offset: int) -> int:
        """The leader epoch of the record at `offset`; -1 when not known."""
        at = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[at - 1][0] if at else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: drops the epochs that begin there or later."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if len(kept) != len(self._entries):
            self._replace(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins at `start_offset`: keeps only the epoch of that offset and later epochs."""
        at = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if at:
            kept = [(self._entries[at - 1][0], start_offset), *self._entries[at:]]
            if kept != self._entries:
                self._replace(kept)

    def rewrite(self) -> None:
        """Writes the entries to disk again. If that succeeds, there is space for the next epoch, too."""
        self._persist(self._entries)

    def clear(self) -> None:
        if self._entries:
            self._replace([])

    def _replace(self, entries: list[EpochEntry]) -> None:
        self._persist(entries)
        self._entries = entries
