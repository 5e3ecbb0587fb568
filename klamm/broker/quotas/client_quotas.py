"""The quotas of clients on one broker: the four types, their configurations and their metrics.

What must stay true: while no quota is set, a request is neither measured nor recorded, and costs one look at
`is_active`.

A *request quota* is a percentage of the time of the broker's one loop: with 50, a client's requests may take half of
each second. In Kafka it is a percentage of one of many threads; a klamm broker has 100 percent in all. Work in the
worker process, and waits for the disk outside of the loop, do not count.

Source: kafka.server.QuotaFactory, kafka.server.ClientRequestQuotaManager, kafka.server.QuotaConfigHandler.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from klamm.base.metrics import MetricName, Metrics
from klamm.base.rates import SampledRate
from klamm.broker.quotas.bounds import QuotaEntity, QuotaTags
from klamm.broker.quotas.mutation_quota import MutationQuota
from klamm.broker.quotas.rate_quota import RateQuota
from klamm.broker.quotas.sensors import METRIC_SAMPLES, METRIC_WINDOW_MS
from klamm.config.broker import BrokerConfig
from klamm.config.definition import LONG_MAX

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"

# The tags of a quota's metric. As in Prometheus' JMX exporter, the type of quota is also a tag.
_TAGS: Final = ("resource", "user", "clientId")

Values = Callable[[float], Iterator[tuple[QuotaTags, float]]]


class ClientQuotas:
    """`clock_ms` is the loop's clock."""

    def __init__(self, config: BrokerConfig, clock_ms: Callable[[], float]) -> None:
        self.clock_ms = clock_ms
        samples, window_ms = config.quota_window_num, config.quota_window_size_seconds * 1000
        self.produce = RateQuota(
            samples=samples, window_ms=window_ms, default=_unless_unlimited(config.quota_producer_default)
        )
        self.fetch = RateQuota(
            samples=samples, window_ms=window_ms, default=_unless_unlimited(config.quota_consumer_default)
        )
        self.request = RateQuota(samples=samples, window_ms=window_ms, limit_ms=window_ms)
        self.controller_mutation = MutationQuota(
            samples=config.controller_quota_window_num,
            window_ms=config.controller_quota_window_size_seconds * 1000,
            clock_ms=clock_ms,
        )
        self._bounds = {
            PRODUCER_BYTE_RATE: self.produce.bounds,
            CONSUMER_BYTE_RATE: self.fetch.bounds,
            REQUEST_PERCENTAGE: self.request.bounds,
            CONTROLLER_MUTATION_RATE: self.controller_mutation.bounds,
        }
        # The time of requests that no quota bounds: those of brokers, and Produce requests with acks=0.
        self._exempt = SampledRate(samples=METRIC_SAMPLES, window_ms=METRIC_WINDOW_MS)
        self.is_active = False
        """Whether any client may have a quota."""
        self.measures_time = False
        """Whether any client may have a request quota."""
        self._set_flags()

    def configure(self, entity: QuotaEntity, values: Mapping[str, float]) -> None:
        """Gives the entity exactly these quotas, by their keys. They take effect at once."""
        for key, bounds in self._bounds.items():
            bounds.set(entity, values.get(key))
        self._set_flags()

    def _set_flags(self) -> None:
        self.is_active = any(bounds.is_set for bounds in self._bounds.values())
        self.measures_time = self.request.bounds.is_set

    def record_exempt(self, percent: float, now_ms: float) -> None:
        """Records the time of a request that no quota bounds."""
        self._exempt.forget_old(now_ms)
        self._exempt.record(percent, now_ms)

    # -- metrics ----------------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        """Under Kafka's names, as Prometheus' JMX exporter writes those of quotas."""
        produce, fetch, request, mutation = self.produce, self.fetch, self.request, self.controller_mutation
        for name, documentation, values in (
            ("byte-rate", "Bytes per second.", {"Produce": produce.rates, "Fetch": fetch.rates}),
            ("request-time", "Percentage of the loop's time.", {"Request": request.rates}),
            ("tokens", "Partitions that may be created or deleted.", {"ControllerMutation": mutation.tokens}),
            ("mutation-rate", "Partitions created and deleted per second.", {"ControllerMutation": mutation.rates}),
            (
                "throttle-time",
                "Mean throttle time in milliseconds.",
                {
                    "Produce": produce.throttle_times,
                    "Fetch": fetch.throttle_times,
                    "Request": request.throttle_times,
                    "ControllerMutation": mutation.throttle_times,
                },
            ),
        ):
            metrics.gauges(
                MetricName("kafka.server", "quota", name),
                documentation,
                _TAGS,
                lambda values=values: self._by_tags(values),  # type: ignore[misc]
            )
        metrics.gauge(
            MetricName("kafka.server", "Request", "exempt-request-time"),
            "Percentage of the loop's time for requests without a quota.",
            self._exempt_percent,
        )

    def _by_tags(self, values: Mapping[str, Values]) -> Iterator[tuple[tuple[str, ...], float]]:
        for resource, read in values.items():
            for tags, value in read(self.clock_ms()):
                yield (resource, *tags), value

    def _exempt_percent(self) -> float:
        now_ms = self.clock_ms()
        self._exempt.forget_old(now_ms)
        return self._exempt.total * 1000 / self._exempt.full_span_ms(now_ms)


def _unless_unlimited(value: int) -> float | None:
    return None if value == LONG_MAX else value
