"""Sorts entries from several sources by their times before they are written.

A controller's records arrive when their event is over, so later than the znodes that the event has written.

What must stay true: an entry waits for at most HOLD_MS, and at most MAX_HELD entries wait.
"""

import heapq
from typing import Final

from klamm.recording.entries import Json
from klamm.recording.writer import RecordingWriter

HOLD_MS: Final = 3_000
MAX_HELD: Final = 100_000
# An entry with an older time gets the current time: its source's clock is wrong.
MAX_DELAY_MS: Final = 60_000


class Ordering:
    """Passes entries to a writer in the order of their times, and entries of the same time in the order of `add`."""

    def __init__(self, writer: RecordingWriter) -> None:
        self._writer = writer
        self._held: list[tuple[int, int, Json]] = []
        self._count = 0

    def add(self, entry: Json, at_ms: int, now_ms: int) -> None:
        """Takes an entry. `at_ms` is its time according to its source."""
        if not now_ms - MAX_DELAY_MS <= at_ms <= now_ms:
            at_ms = now_ms
        self._count += 1
        heapq.heappush(self._held, (at_ms, self._count, entry))
        if len(self._held) > MAX_HELD:
            self._write_next()

    def release(self, now_ms: int) -> None:
        """Writes the entries before which no older entry is expected."""
        while self._held and self._held[0][0] <= now_ms - HOLD_MS:
            self._write_next()

    def release_all(self) -> None:
        while self._held:
            self._write_next()

    def _write_next(self) -> None:
        at_ms, _, entry = heapq.heappop(self._held)
        self._writer.add(entry, at_ms)
