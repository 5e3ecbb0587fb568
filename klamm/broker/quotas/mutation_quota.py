"""The quota on partitions that a client creates and deletes (KIP-599). Pure.

Each client has a bucket of tokens, one for each partition. The tokens are refilled at the rate of the quota, and the
bucket holds the tokens of all windows. A topic's partitions are admitted together, and may overdraw the bucket.

Clients that know the error THROTTLING_QUOTA_EXCEEDED get it for each topic while the bucket is overdrawn (strict). For
older clients, and for topics that are created automatically, the change is made and the client is throttled.

Source: kafka.server.ControllerMutationQuotaManager.
"""

from collections.abc import Callable, Iterator

from klamm.base.rates import SampledRate, TokenBucket
from klamm.broker.quotas.bounds import QuotaTags
from klamm.broker.quotas.rate_quota import MAX_THROTTLE_MS
from klamm.broker.quotas.sensors import METRIC_SAMPLES, METRIC_WINDOW_MS, ClientQuota, Sensor
from klamm.protocol.error_codes import ErrorCode, KafkaError


class MutationSensor(Sensor):
    """The tokens of one client, and its changes."""

    __slots__ = ("bucket", "mutations")

    def __init__(self) -> None:
        super().__init__()
        self.bucket = TokenBucket()
        self.mutations = SampledRate(samples=METRIC_SAMPLES, window_ms=METRIC_WINDOW_MS)


class Mutations:
    """The changes of one request."""

    def record(self, partitions: int) -> None:
        """Counts partitions before they are created or deleted. Raises KafkaError THROTTLING_QUOTA_EXCEEDED if the
        client exceeds its quota."""

    def throttle_time_ms(self) -> int:
        """How long the client must be throttled from now on."""
        return 0


class BoundedMutations(Mutations):
    """The changes of a request of a client with a quota."""

    def __init__(
        self, sensor: MutationSensor, per_second: float, burst_s: float, strict: bool, clock_ms: Callable[[], float]
    ) -> None:
        self._sensor = sensor
        self._per_second = per_second
        self._burst = per_second * burst_s
        # A quota of 0 gives no token back; its clients are told to come again after this.
        self._zero_wait_ms = burst_s * 1000
        self._strict = strict
        self._clock_ms = clock_ms
        self._throttled_until_ms = 0.0

    def record(self, partitions: int) -> None:
        now_ms, sensor = self._clock_ms(), self._sensor
        if self._strict and (left := sensor.bucket.tokens(self._per_second, self._burst, now_ms)) < 0:
            self._overdrawn(left, now_ms)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        sensor.mutations.forget_old(now_ms)
        sensor.mutations.record(partitions, now_ms)
        left = sensor.bucket.take(partitions, self._per_second, self._burst, now_ms)
        if left < 0 and not self._strict:
            self._overdrawn(left, now_ms)

    def _overdrawn(self, left: float, now_ms: float) -> None:
        wait_ms = -left * 1000 / self._per_second if self._per_second > 0 else self._zero_wait_ms
        self._throttled_until_ms = now_ms + round(min(wait_ms, MAX_THROTTLE_MS))

    def throttle_time_ms(self) -> int:
        return max(0, round(self._throttled_until_ms - self._clock_ms()))


UNBOUNDED_MUTATIONS = Mutations()


class MutationQuota(ClientQuota[MutationSensor]):
    """The quotas of all clients. `clock_ms` is the loop's clock."""

    def __init__(self, *, samples: int, window_ms: float, clock_ms: Callable[[], float]) -> None:
        super().__init__(MutationSensor)
        self._burst_s = samples * window_ms / 1000
        self._clock_ms = clock_ms

    def of(self, user: str, client_id: str, *, strict: bool) -> Mutations:
        """The changes of a new request of a client."""
        sensor, bound = self._sensor(user, client_id, self._clock_ms())
        if bound is None:
            return UNBOUNDED_MUTATIONS
        return BoundedMutations(sensor, bound, self._burst_s, strict, self._clock_ms)

    def tokens(self, now_ms: float) -> Iterator[tuple[QuotaTags, float]]:
        """The tokens that each client has left."""
        for tags, sensor in self._sensors.items(now_ms):
            bound = self.bounds.of(*tags).value
            if bound is not None:
                yield tags, sensor.bucket.tokens(bound, bound * self._burst_s, now_ms)

    def rates(self, now_ms: float) -> Iterator[tuple[QuotaTags, float]]:
        """The partitions that each client creates and deletes, per second."""
        for tags, sensor in self._sensors.items(now_ms):
            sensor.mutations.forget_old(now_ms)
            yield tags, sensor.mutations.total * 1000 / sensor.mutations.full_span_ms(now_ms)
