"""Counts the traffic in each window of time. Pure.

A window begins at a multiple of its width, in milliseconds since 1970. If traffic is spread over more windows than
allowed, the windows become wider. No traffic is lost, because each width is a multiple of the previous one.

What must stay true: the sum of all windows is the sum of all additions, whatever their order and number.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
# Each width is a multiple of the previous one. After the last one follow ten times that width, and so on.
WIDTHS_MS: Final = (
    *(SECOND_MS, 5 * SECOND_MS, 15 * SECOND_MS),
    *(MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS),
    *(HOUR_MS, 4 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 10 * DAY_MS),
)


class Traffic(NamedTuple):
    """The numbers of batches and of their records, and their size on the wire and on disk (`size_bytes`)."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(self.batches + other.batches, self.records + other.records, self.size_bytes + other.size_bytes)


NOTHING: Final = Traffic()


def wider(width_ms: int) -> int:
    """The next width, a multiple of this one."""
    return next((each for each in WIDTHS_MS if each > width_ms and each % width_ms == 0), 10 * width_ms)


def fitting(span_ms: int, max_windows: int) -> int:
    """The smallest width with which a span has at most `max_windows` windows, and a part of a window at each end."""
    width_ms = WIDTHS_MS[0]
    while span_ms > width_ms * max_windows:
        width_ms = wider(width_ms)
    return width_ms


@dataclass(slots=True)
class Windows:
    """The traffic of each window with traffic, by the window's number: its begin divided by the width."""

    width_ms: int = WIDTHS_MS[0]
    cells: dict[int, Traffic] = field(default_factory=dict)

    def add(self, timestamp_ms: int, traffic: Traffic) -> None:
        number = timestamp_ms // self.width_ms
        self.cells[number] = self.cells.get(number, NOTHING).plus(traffic)

    def merge(self, other: "Windows") -> None:
        """Adds the traffic of `other`. The widths must have started from the same width."""
        self.widen(max(self.width_ms, other.width_ms))
        for number, traffic in other.cells.items():
            self.add(number * other.width_ms, traffic)

    def widen(self, width_ms: int) -> None:
        """Makes the windows this wide, a multiple of their width."""
        if width_ms == self.width_ms:
            return
        before, was_ms = self.cells, self.width_ms
        self.width_ms, self.cells = width_ms, {}
        for number, traffic in before.items():
            self.add(number * was_ms, traffic)

    def limit(self, max_windows: int) -> None:
        """Makes the windows wider until there are no more than `max_windows`."""
        while len(self.cells) > max_windows:
            self.widen(wider(self.width_ms))

    def total(self) -> Traffic:
        found = NOTHING
        for traffic in self.cells.values():
            found = found.plus(traffic)
        return found
