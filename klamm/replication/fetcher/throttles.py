"""The throttles of a broker: for its traffic to followers, its traffic as a follower (KIP-73), and its copies between
log directories (KIP-113).

The first two bound the traffic of throttled replicas that are out of sync, so that a reassignment leaves room for
clients. In-sync replicas are never throttled. Unlike in Kafka, their traffic does not use up the quota: otherwise a
throttle below the producers' rate would stop the reassignment for good.

What must stay true: changes of the rates and of the throttled replicas take effect while the broker runs.

Source: kafka.server.QuotaFactory, kafka.server.TopicConfigHandler.
"""

from collections.abc import Callable

from klamm.base.metrics import MetricName, Metrics
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.config.throttles import FOLLOWER_RATE, LEADER_RATE, LOG_DIR_RATE
from klamm.config.topic import TopicConfig
from klamm.replication.quota import ReplicationQuota, throttled_partitions


class ReplicationThrottles:
    """`leader` counts bytes sent to throttled followers, `follower` bytes fetched by throttled replicas here, and
    `alter_log_dirs` bytes copied between log directories, which are throttled for all replicas."""

    def __init__(self, config: CurrentConfig, broker_id: int) -> None:
        self._broker_id = broker_id
        current = config.current
        samples, window_ms = current.replication_quota_window_num, current.replication_quota_window_size_seconds * 1000
        self.leader = ReplicationQuota(samples=samples, window_ms=window_ms)
        self.follower = ReplicationQuota(samples=samples, window_ms=window_ms)
        self.alter_log_dirs = ReplicationQuota(
            samples=current.alter_log_dirs_replication_quota_window_num,
            window_ms=current.alter_log_dirs_replication_quota_window_size_seconds * 1000,
        )
        self._configured(current, current)
        config.subscribe(self._configured)

    def _configured(self, _old: BrokerConfig, new: BrokerConfig) -> None:
        self.leader.bytes_per_second = new.dynamic_only(LEADER_RATE)
        self.follower.bytes_per_second = new.dynamic_only(FOLLOWER_RATE)
        self.alter_log_dirs.bytes_per_second = new.dynamic_only(LOG_DIR_RATE)

    def topic_configured(self, topic: str, config: TopicConfig) -> None:
        """Throttles the replicas that the topic's configuration names."""
        for quota, replicas in (
            (self.leader, config.leader_replication_throttled_replicas),
            (self.follower, config.follower_replication_throttled_replicas),
        ):
            quota.throttle(topic, throttled_partitions(replicas, self._broker_id))

    def register(self, metrics: Metrics, clock_ms: Callable[[], float]) -> None:
        """Registers the rates under Kafka's names, and the bounds, which Kafka does not show, under similar names."""
        out_of_sync = "Bytes per second of throttled replicas that are out of sync."
        for type_, documentation, quota in (
            ("LeaderReplication", out_of_sync, self.leader),
            ("FollowerReplication", out_of_sync, self.follower),
            ("AlterLogDirsReplication", "Bytes per second copied between log directories.", self.alter_log_dirs),
        ):
            metrics.gauge(
                MetricName("kafka.server", type_, "byte-rate"),
                documentation,
                lambda quota=quota: quota.rate(clock_ms()),  # type: ignore[misc]
            )
            metrics.gauge(
                MetricName("kafka.server", type_, "throttled-rate"),
                "The configured bound in bytes per second.",
                lambda quota=quota: quota.bytes_per_second,  # type: ignore[misc]
            )
