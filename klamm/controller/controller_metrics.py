"""The controller's metrics, under Kafka's names.

Kafka keeps the ten gauges up to date after each event; here each read computes them. All except
ControllerState are 0 on a broker that is not the controller.
"""

from collections.abc import Callable

from klamm.base.metrics import MetricName, Metrics
from klamm.controller.context import ControllerContext
from klamm.controller.controller import KafkaController
from klamm.controller.events import ControllerState
from klamm.controller.states import ReplicaState

GROUP = "kafka.controller"

# States whose timer is not named after them.
_TIMER_NAMES = {
    ControllerState.BROKER_CHANGE: "LeaderElectionRateAndTimeMs",
    ControllerState.ALTER_PARTITION_REASSIGNMENT: "PartitionReassignmentRateAndTimeMs",
}


def register(metrics: Metrics, controller: KafkaController) -> None:
    _register_gauges(metrics, controller)
    _register_events(metrics, controller)
    _register_channels(metrics, controller)


def _register_gauges(metrics: Metrics, controller: KafkaController) -> None:
    def gauge(name: str, documentation: str, read: Callable[[ControllerContext], int]) -> None:
        def read_if_active() -> int:
            return read(controller.context) if controller.is_active else 0

        metrics.gauge(MetricName(GROUP, "KafkaController", name), documentation, read_if_active)

    gauge("ActiveControllerCount", "1 at the broker that is the controller.", lambda _context: 1)
    gauge("OfflinePartitionsCount", "Partitions without a leader.", lambda context: context.offline_partition_count)
    gauge(
        "PreferredReplicaImbalanceCount",
        "Partitions that are not led by their preferred replica.",
        lambda context: context.preferred_replica_imbalance_count,
    )
    metrics.gauge(
        MetricName(GROUP, "KafkaController", "ControllerState"),
        "What the controller is doing: " + ", ".join(f"{state.value} {state.label}" for state in ControllerState) + ".",
        lambda: controller.state.value,
    )
    gauge("GlobalTopicCount", "Topics of the cluster.", lambda context: len(context.all_topics))
    gauge(
        "GlobalPartitionCount",
        "Partitions of the cluster that have, or had, a leader.",
        lambda context: len(context.partitions_leadership_info),
    )
    gauge(
        "TopicsToDeleteCount",
        "Topics that are marked for deletion and still there.",
        lambda context: len(context.topics_to_be_deleted),
    )
    gauge(
        "ReplicasToDeleteCount",
        "Replicas of topics marked for deletion that are not deleted yet.",
        lambda context: sum(state is not ReplicaState.DELETION_SUCCESSFUL for state in _states_to_delete(context)),
    )
    gauge(
        "TopicsIneligibleToDeleteCount",
        "Topics that cannot be deleted now.",
        lambda context: len(context.topics_ineligible_for_deletion),
    )
    gauge(
        "ReplicasIneligibleToDeleteCount",
        "Replicas that cannot be deleted now.",
        lambda context: sum(state is ReplicaState.DELETION_INELIGIBLE for state in _states_to_delete(context)),
    )


def _states_to_delete(context: ControllerContext) -> list[ReplicaState]:
    return [
        context.replica_state(replica)
        for topic in context.topics_to_be_deleted
        for replica in context.replicas_for_topic(topic)
    ]


def _register_events(metrics: Metrics, controller: KafkaController) -> None:
    events = controller.event_manager
    metrics.meter(
        MetricName(GROUP, "ControllerStats", "UncleanLeaderElectionsPerSec"),
        "Leaders that were elected outside the in-sync replicas.",
        lambda: controller.context.unclean_leader_election_count,
    )
    for state, histogram in events.processing_time_ms.items():
        metrics.histogram(
            MetricName(GROUP, "ControllerStats", _TIMER_NAMES.get(state, f"{state.label}RateAndTimeMs")),
            f"How long events of state {state.label} took.",
            histogram,
        )
    metrics.histograms(
        MetricName(GROUP, "ControllerEventManager", "EventQueueTimeMs"),
        "How long events waited for their turn.",
        "",
        lambda: {"": events.queue_time_ms},
    )
    metrics.gauge(
        MetricName(GROUP, "ControllerEventManager", "EventQueueSize"), "Events that wait.", lambda: events.queue_size
    )


def _register_channels(metrics: Metrics, controller: KafkaController) -> None:
    def name(name: str) -> MetricName:
        return MetricName(GROUP, "ControllerChannelManager", name)

    queues = controller.send_queues
    metrics.gauge(
        name("TotalQueueSize"),
        "Requests of the controller that wait.",
        lambda: sum(queue.size for queue in queues().values()),
    )
    metrics.gauges(
        name("QueueSize"),
        "Requests of the controller that wait for one broker.",
        "broker-id",
        lambda: {str(broker_id): queue.size for broker_id, queue in queues().items()},
    )
    metrics.histograms(
        name("RequestRateAndQueueTimeMs"),
        "How long requests of the controller waited for their turn with one broker.",
        "broker-id",
        lambda: {str(broker_id): queue.time_ms for broker_id, queue in queues().items()},
    )
