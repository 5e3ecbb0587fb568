"""A quota on a rate: bytes produced, bytes fetched, or the broker's time. Pure.

A client whose rate exceeds its quota is throttled until the rate over the elapsed windows and the throttle time,
without further records, is the quota.

What must stay true:
- A throttle time fits into a response's field, whatever is recorded.
- A quota of 0 throttles every request. (In Kafka a division by 0 makes it no quota at all for bytes.)

Source: kafka.server.ClientQuotaManager, kafka.utils.QuotaUtils.
"""

from collections.abc import Iterator
from typing import Final

from klamm.base.rates import SampledRate
from klamm.broker.quotas.bounds import QuotaTags
from klamm.broker.quotas.sensors import ClientQuota, Sensor

MAX_THROTTLE_MS: Final = 2**31 - 1


class RateSensor(Sensor):
    """The usage of one client."""

    __slots__ = ("rate",)

    def __init__(self, samples: int, window_ms: float) -> None:
        super().__init__()
        self.rate = SampledRate(samples=samples, window_ms=window_ms)


def throttle_time_ms(rate: SampledRate, bound: float, limit_ms: float, now_ms: float) -> int:
    """How long a client with this rate must wait; 0 if the rate is within its bound."""
    span_ms = rate.full_span_ms(now_ms)
    if rate.total * 1000 <= bound * span_ms:
        return 0
    # Not what the rate exceeds the bound by: near the bound, too few digits of that would be left.
    excess_ms = rate.total * 1000 / bound - span_ms if bound > 0 else limit_ms
    return max(0, round(min(excess_ms, limit_ms)))


class RateQuota(ClientQuota[RateSensor]):
    """A type of quota. `default` is for all clients by their ids; `limit_ms` bounds the throttle time."""

    def __init__(
        self, *, samples: int, window_ms: float, default: float | None = None, limit_ms: float = MAX_THROTTLE_MS
    ) -> None:
        super().__init__(lambda: RateSensor(samples, window_ms), default)
        self._span_ms = max(samples - 1, 1) * window_ms
        self._limit_ms = limit_ms
        self._zero_limit_ms = min(limit_ms, samples * window_ms)

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> int:
        """Records a client's usage; returns the throttle time in ms, or 0."""
        sensor, bound = self._sensor(user, client_id, now_ms)
        sensor.rate.forget_old(now_ms)
        sensor.rate.record(value, now_ms)
        if bound is None:
            return 0
        return throttle_time_ms(sensor.rate, bound, self._limit_ms if bound > 0 else self._zero_limit_ms, now_ms)

    def take_back(self, user: str, client_id: str, value: float, now_ms: float) -> None:
        """Undoes a `record` of this moment."""
        self._sensor(user, client_id, now_ms)[0].rate.record(-value, now_ms)

    def has_used_nothing(self, user: str, client_id: str, now_ms: float) -> bool:
        """Whether the client's windows are empty."""
        rate = self._sensor(user, client_id, now_ms)[0].rate
        rate.forget_old(now_ms)
        return rate.total <= 0

    def allowance(self, user: str, client_id: str) -> float:
        """The most that a client with empty windows may use at once without being throttled."""
        bound = self.bounds.of(user, client_id).value
        return float("inf") if bound is None else bound * self._span_ms / 1000

    def rates(self, now_ms: float) -> Iterator[tuple[QuotaTags, float]]:
        """The usage of each client per second."""
        for tags, sensor in self._sensors.items(now_ms):
            sensor.rate.forget_old(now_ms)
            yield tags, sensor.rate.total * 1000 / sensor.rate.full_span_ms(now_ms)
