"""The wall clock of a broker under faults: shifted or drifting.

Several faults add up. The end of a fault corrects the clock at once, as an operator would.
"""

from collections.abc import Callable
from functools import partial

from klamm.faults.commands.clock import ShiftClock
from klamm.faults.tally import Tally


class FaultyClock:
    """A wall clock that differs from `true_ms`."""

    def __init__(self, true_ms: Callable[[], int]) -> None:
        self._true_ms = true_ms
        # Each fault, and the true time at which it began.
        self._shifts: list[tuple[ShiftClock, int]] = []

    def install(self, fault: ShiftClock, tally: Tally) -> Callable[[], None]:
        """Begins a fault; returns a function that ends it."""
        shift = (fault, tally.first("began_ms", self._true_ms()))
        self._shifts.append(shift)
        tally.struck(now_ms=self.now_ms())
        return partial(self._end, shift)

    def _end(self, shift: tuple[ShiftClock, int]) -> None:
        self._shifts = [other for other in self._shifts if other is not shift]

    def now_ms(self) -> int:
        """The time according to the broker's clock."""
        now_ms = self._true_ms()
        if not self._shifts:
            return now_ms
        return now_ms + sum(
            fault.ms + round((now_ms - began_ms) * fault.drift_ppm / 1e6) for fault, began_ms in self._shifts
        )
