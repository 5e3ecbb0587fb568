"""The two replication throttles of a broker (KIP-73): what it sends to followers, and what it fetches as a follower.

They bound the traffic of throttled replicas that are out of sync, so that a reassignment leaves room for clients.
Replicas in sync are never held back, and, unlike Kafka's, their traffic does not use the quota up: a throttle below the
rate of the producers would otherwise stop the reassignment for good.

What must stay true: changes of the rates and of the throttled replicas take effect while the broker runs.

Source: kafka.server.QuotaFactory, kafka.server.TopicConfigHandler.
"""

from collections.abc import Callable

from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.config.topic import TopicConfig
from klamm.metrics import MetricName, Metrics
from klamm.replication.quota import ReplicationQuota, throttled_partitions

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class ReplicationThrottles:
    """`leader` counts what is sent to throttled followers, `follower` what throttled replicas here fetch."""

    def __init__(self, config: CurrentConfig, broker_id: int) -> None:
        self._broker_id = broker_id
        current = config.current
        samples, window_ms = current.replication_quota_window_num, current.replication_quota_window_size_seconds * 1000
        self.leader = ReplicationQuota(samples=samples, window_ms=window_ms)
        self.follower = ReplicationQuota(samples=samples, window_ms=window_ms)
        self._configured(current, current)
        config.subscribe(self._configured)

    def _configured(self, _old: BrokerConfig, new: BrokerConfig) -> None:
        self.leader.bytes_per_second = new.dynamic_only(LEADER_RATE)
        self.follower.bytes_per_second = new.dynamic_only(FOLLOWER_RATE)

    def topic_configured(self, topic: str, config: TopicConfig) -> None:
        """Throttles the replicas that the topic's configuration names."""
        for quota, replicas in (
            (self.leader, config.leader_replication_throttled_replicas),
            (self.follower, config.follower_replication_throttled_replicas),
        ):
            quota.throttle(topic, throttled_partitions(replicas, self._broker_id))

    def register(self, metrics: Metrics, clock_ms: Callable[[], float]) -> None:
        """Under Kafka's names; the bounds, which Kafka does not show, under similar names."""
        for type_, quota in (("LeaderReplication", self.leader), ("FollowerReplication", self.follower)):
            metrics.gauge(
                MetricName("kafka.server", type_, "byte-rate"),
                "Bytes per second of throttled replicas that are out of sync.",
                lambda quota=quota: quota.rate(clock_ms()),  # type: ignore[misc]
            )
            metrics.gauge(
                MetricName("kafka.server", type_, "throttled-rate"),
                "The configured bound in bytes per second.",
                lambda quota=quota: quota.bytes_per_second,  # type: ignore[misc]
            )
