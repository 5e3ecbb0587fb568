"""The quotas that bound copying between replicas (KIP-73). Pure.

Callers pass the time, in milliseconds of any one clock that never goes back.

What must stay true:
- A quota lets bytes flow while the rate over its window is below the bound. It never splits a piece, so the last piece
  may exceed the bound. The whole excess is paid back before the next piece, however large it is.
- A bound above 0 never stops progress, even if a single batch is larger than the whole window allows.

Source: kafka.server.ReplicationQuotaManager.
"""

from collections.abc import Iterable
from typing import Final

from klamm.base.rates import SampledRate

UNLIMITED: Final = 2**63 - 1
"""The bound, in bytes per second, of a quota that is not set."""

_NO_PARTITIONS: Final[frozenset[int]] = frozenset()


def throttled_partitions(replicas: Iterable[str], broker_id: int) -> frozenset[int] | None:
    """The partitions of a topic whose replica on this broker is throttled, by leader.replication.throttled.replicas or
    the follower's; None means all."""
    found = set()
    for replica in replicas:
        if replica == "*":
            return None
        partition, _, broker = replica.partition(":")
        if int(broker) == broker_id:
            found.add(int(partition))
    return frozenset(found)


class ReplicationQuota:
    """A common bound on the bytes per second of all throttled replicas of a broker."""

    def __init__(self, *, samples: int, window_ms: float, bytes_per_second: int = UNLIMITED) -> None:
        self._rate = SampledRate(samples=samples, window_ms=window_ms)
        self._bytes_per_second = bytes_per_second
        # The throttled partitions of a topic; None means all.
        self._throttled: dict[str, frozenset[int] | None] = {}
        # How many times the throttled replicas have changed.
        self.changes = 0

    # -- which replicas are throttled -----------------------------------------------------------------------------

    @property
    def has_throttled_replicas(self) -> bool:
        return bool(self._throttled)

    def is_throttled(self, topic: str, partition: int) -> bool:
        partitions = self._throttled.get(topic, _NO_PARTITIONS)
        return partitions is None or partition in partitions

    def throttle(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Throttles these partitions of a topic and no others; None throttles all."""
        if partitions == self._throttled.get(topic, _NO_PARTITIONS):
            return
        self.changes += 1
        if partitions is not None and not partitions:
            del self._throttled[topic]
        else:
            self._throttled[topic] = partitions

    # -- the rate -------------------------------------------------------------------------------------------------

    @property
    def bytes_per_second(self) -> int:
        """The bound. A new bound takes effect at once: bytes recorded under the old bound are forgotten."""
        return self._bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, bound: int) -> None:
        if bound != self._bytes_per_second:
            self._bytes_per_second = bound
            self._rate.clear()

    def record(self, size_bytes: int, now_ms: float) -> None:
        """Counts bytes that have flowed, including bytes beyond the bound."""
        self._settle(now_ms)
        self._rate.record(size_bytes, now_ms)

    def rate(self, now_ms: float) -> float:
        """Bytes per second."""
        self._settle(now_ms)
        return self._rate.per_second(now_ms)

    def allowance_bytes(self, now_ms: float) -> int:
        """How many bytes may flow now; 0 while the quota is exceeded."""
        self._settle(now_ms)
        return max(0, self._left(now_ms))

    def is_exceeded(self, now_ms: float) -> bool:
        """Whether no bytes may flow now."""
        return self.allowance_bytes(now_ms) == 0

    def wait_ms(self, now_ms: float) -> float:
        """How long until bytes may flow again, if none are recorded meanwhile; infinite with a bound of 0."""
        if not self.is_exceeded(now_ms):
            return 0.0
        if self._bytes_per_second == 0:
            return float("inf")
        paid_ms = self._rate.began_ms(now_ms) + (self._rate.total + 1) * 1000 / self._bytes_per_second
        return max(0.0, paid_ms - now_ms)

    def _left(self, now_ms: float) -> int:
        return int(self._bytes_per_second * self._rate.elapsed_ms(now_ms) / 1000) - int(self._rate.total)

    def _settle(self, now_ms: float) -> None:
        """Forgets old windows, but only once the quota has paid for them."""
        if self._left(now_ms) >= 0:
            self._rate.forget_old(now_ms)
