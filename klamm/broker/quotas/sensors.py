"""The recorded values of each client, in bounded memory, and the base of all types of quotas. Pure.

What must stay true: clients choose their ids, so a client may use any number of ids of any length. At most
`MAX_SENSORS` are kept, by the first `MAX_NAME_LENGTH` characters of a name: longer names with the same beginning share
a sensor. A sensor is forgotten when it was unused for an hour, as in Kafka, or as the least recently used of too many.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from klamm.base.rates import SampledRate
from klamm.broker.quotas.bounds import QuotaBounds, QuotaTags

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")

MAX_SENSORS: Final = 5_000
MAX_NAME_LENGTH: Final = 256
EXPIRATION_MS: Final = 3_600_000

# The windows of other metrics than quotas: the defaults of metrics.num.samples and metrics.sample.window.ms.
METRIC_SAMPLES: Final = 2
METRIC_WINDOW_MS: Final = 30_000


class Sensors(Generic[K, S]):
    """The sensors by their keys, the least recently used first. `make` makes one."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        # [when the sensor was last used, the sensor]
        self._sensors: dict[K, tuple[float, S]] = {}

    def __len__(self) -> int:
        return len(self._sensors)

    def of(self, key: K, now_ms: float) -> S:
        """The sensor of this key, marked as used now."""
        found = self._sensors.pop(key, None)
        if found is None:
            self._forget(now_ms)
        sensor = self._make() if found is None else found[1]
        self._sensors[key] = now_ms, sensor
        return sensor

    def items(self, now_ms: float) -> Iterator[tuple[K, S]]:
        """The keys and sensors that have not expired."""
        self._forget(now_ms)
        return iter([(key, sensor) for key, (_, sensor) in self._sensors.items()])

    def _forget(self, now_ms: float) -> None:
        while self._sensors:
            key = next(iter(self._sensors))
            used_ms, _ = self._sensors[key]
            if len(self._sensors) < MAX_SENSORS and now_ms - used_ms < EXPIRATION_MS:
                return
            del self._sensors[key]


class AverageOfRecent:
    """The mean of the values of the last minute or half minute, as Kafka's metrics show it."""

    __slots__ = ("_counts", "_values")

    def __init__(self) -> None:
        self._values = SampledRate(samples=METRIC_SAMPLES, window_ms=METRIC_WINDOW_MS)
        self._counts = SampledRate(samples=METRIC_SAMPLES, window_ms=METRIC_WINDOW_MS)

    def record(self, value: float, now_ms: float) -> None:
        for rate, recorded in ((self._values, value), (self._counts, 1)):
            rate.forget_old(now_ms)
            rate.record(recorded, now_ms)

    def mean(self, now_ms: float) -> float:
        """NaN if nothing was recorded, as in Kafka."""
        self._values.forget_old(now_ms)
        self._counts.forget_old(now_ms)
        return self._values.total / self._counts.total if self._counts.total else float("nan")


class Sensor:
    """The recorded values of one client: at least its throttle times, if it was throttled."""

    __slots__ = ("throttle_times",)

    def __init__(self) -> None:
        self.throttle_times: AverageOfRecent | None = None


R = TypeVar("R", bound=Sensor)


class ClientQuota(Generic[R]):
    """A type of quota: the bounds, and the sensors of the clients. `default` is for all clients by their ids."""

    def __init__(self, make: Callable[[], R], default: float | None = None) -> None:
        self.bounds = QuotaBounds(default)
        self._sensors: Sensors[QuotaTags, R] = Sensors(make)

    def _sensor(self, user: str, client_id: str, now_ms: float) -> tuple[R, float | None]:
        """The recorded values of a client, and its bound; None is unlimited."""
        tags, bound = self.bounds.of(user, client_id)
        if len(tags.user) > MAX_NAME_LENGTH or len(tags.client_id) > MAX_NAME_LENGTH:
            tags = QuotaTags(tags.user[:MAX_NAME_LENGTH], tags.client_id[:MAX_NAME_LENGTH])
        return self._sensors.of(tags, now_ms), bound

    def throttled(self, user: str, client_id: str, throttle_ms: int, now_ms: float) -> None:
        """Counts in the metrics that a client is throttled because of this quota."""
        sensor, _ = self._sensor(user, client_id, now_ms)
        if sensor.throttle_times is None:
            sensor.throttle_times = AverageOfRecent()
        sensor.throttle_times.record(throttle_ms, now_ms)

    def throttle_times(self, now_ms: float) -> Iterator[tuple[QuotaTags, float]]:
        """The mean throttle time of each client that was throttled."""
        for tags, sensor in self._sensors.items(now_ms):
            if sensor.throttle_times is not None:
                yield tags, sensor.throttle_times.mean(now_ms)
