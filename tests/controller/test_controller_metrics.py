"""The controller's metrics have Kafka's names, and its numbers."""

from pathlib import Path
from typing import Any

from klamm.base.metrics import Metrics
from klamm.controller import controller_metrics
from support.controller.scene import Scene, playing

GAUGES = [
    "ActiveControllerCount",
    "OfflinePartitionsCount",
    "PreferredReplicaImbalanceCount",
    "ControllerState",
    "GlobalTopicCount",
    "GlobalPartitionCount",
    "TopicsToDeleteCount",
    "ReplicasToDeleteCount",
    "TopicsIneligibleToDeleteCount",
    "ReplicasIneligibleToDeleteCount",
]
# Kafka 2.8.2's, but for that of ControllerStats' meter.
TIMERS = [
    "ControllerChangeRateAndTimeMs",
    "LeaderElectionRateAndTimeMs",
    "TopicChangeRateAndTimeMs",
    "TopicDeletionRateAndTimeMs",
    "PartitionReassignmentRateAndTimeMs",
    "AutoLeaderBalanceRateAndTimeMs",
    "ManualLeaderBalanceRateAndTimeMs",
    "ControlledShutdownRateAndTimeMs",
    "IsrChangeRateAndTimeMs",
    "LeaderAndIsrResponseReceivedRateAndTimeMs",
    "LogDirChangeRateAndTimeMs",
    "ControllerShutdownRateAndTimeMs",
    "UncleanLeaderElectionEnableRateAndTimeMs",
    "TopicUncleanLeaderElectionEnableRateAndTimeMs",
    "ListPartitionReassignmentRateAndTimeMs",
    "UpdateFeaturesRateAndTimeMs",
]


def metrics_of(scene: Scene, broker_id: int) -> Metrics:
    metrics = Metrics()
    controller_metrics.register(metrics, scene.brokers[broker_id].controller)
    return metrics


def values(metrics: Metrics, kind: str) -> dict[str, Any]:
    return {metric.name.name: metric.read() for metric in metrics if metric.name.type == kind}


async def test_names(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        metrics = metrics_of(scene, 1)
        assert {metric.name.group for metric in metrics} == {"kafka.controller"}
        assert list(values(metrics, "KafkaController")) == GAUGES
        assert list(values(metrics, "ControllerStats")) == ["UncleanLeaderElectionsPerSec", *TIMERS]
        assert list(values(metrics, "ControllerEventManager")) == ["EventQueueTimeMs", "EventQueueSize"]
        channels = ["TotalQueueSize", "QueueSize", "RequestRateAndQueueTimeMs"]
        assert list(values(metrics, "ControllerChannelManager")) == channels
        assert {metric.tag for metric in metrics} == {"", "broker-id"}


async def test_numbers(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 2], [2, 1], [3])
        await scene.create("u", [2, 3])
        # One of the brokers does not answer, and the other one dies: this waits.
        scene.silent.update((2, 3))
        await scene.store.mark_topic_for_deletion("u")
        await scene.settled()
        await scene.kill(3)
        await scene.settled()
        found = {name: read[""] for name, read in values(metrics_of(scene, 1), "KafkaController").items()}
        assert found == {
            "ActiveControllerCount": 1,
            "OfflinePartitionsCount": 1,
            "PreferredReplicaImbalanceCount": 1,
            "ControllerState": 0,
            "GlobalTopicCount": 2,
            "GlobalPartitionCount": 4,
            "TopicsToDeleteCount": 1,
            "ReplicasToDeleteCount": 2,
            "TopicsIneligibleToDeleteCount": 1,
            "ReplicasIneligibleToDeleteCount": 1,
        }
        stats = values(metrics_of(scene, 1), "ControllerStats")
        assert stats["TopicChangeRateAndTimeMs"][""].count >= 2
        assert stats["LeaderElectionRateAndTimeMs"][""].count >= 2
        assert stats["UncleanLeaderElectionsPerSec"] == {"": 0}
        assert list(values(metrics_of(scene, 1), "ControllerChannelManager")["QueueSize"]) == ["1", "2"]
        events = values(metrics_of(scene, 1), "ControllerEventManager")
        assert events["EventQueueTimeMs"][""].count >= sum(stats[name][""].count for name in TIMERS)
        others = {name: read[""] for name, read in values(metrics_of(scene, 2), "KafkaController").items()}
        assert set(others.values()) == {0}
