"""Wall clocks of brokers that are wrong: `c.clock`.

c.clock.shift(1, ms=-3_600_000)
c.clock.shift(None, drift_ppm=500)
"""

from klamm.faults.commands.clock import ShiftClock
from klamm.testing.faults.faults import FaultHandle, Faults


class Clock:
    """The wall clocks of one cluster."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def shift(self, broker: int | None, ms: int = 0, *, drift_ppm: float = 0.0) -> FaultHandle:
        """Sets a broker's wall clock, or every broker's if `broker` is None, ahead by `ms`, and by `drift_ppm`
        microseconds more for each second from now on. Faults of several calls add up. Timeouts are not affected: they
        use the monotonic clock."""
        return self._faults.install(ShiftClock(broker=broker, ms=ms, drift_ppm=drift_ppm))
