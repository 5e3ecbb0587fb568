"""Faults of the wall clock of brokers."""

from dataclasses import dataclass

from klamm.faults.commands.codec import Fault, command
from klamm.processes.local_cluster import Server

# Fifty years, so that no clock is set to a time before 1970.
MAX_SHIFT_MS = 50 * 365 * 24 * 60 * 60 * 1000
MAX_DRIFT_PPM = 1_000_000.0


@command("clock.shift")
@dataclass(frozen=True, kw_only=True)
class ShiftClock(Fault):
    """The wall clock differs by `ms`, and by `drift_ppm` microseconds more for each second from now on.

    The wall clock gives records, transactions and committed offsets their timestamps, and decides about retention and
    expired transactions. Timeouts are measured by the monotonic clock, which no fault changes.
    """

    method = "clock.shift"
    named = ("broker",)

    ms: int = 0
    drift_ppm: float = 0.0
    broker: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("ms", MAX_SHIFT_MS), ("drift_ppm", MAX_DRIFT_PPM)):
            value = getattr(self, name)
            if abs(value) > most:
                raise ValueError(f"{self.kind}: {name}={value} is not allowed; allowed: -{most:,} to {most:,}")
        if self.broker is not None and self.broker < 0:
            raise ValueError(f"{self.kind}: broker={self.broker} is not allowed; allowed: the id of a broker")

    def concerns(self, server: Server) -> bool:
        return server != "zookeeper" and self.broker in (None, server)
