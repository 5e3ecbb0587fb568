"""The texts of partition states in state-change.log, as Kafka's message classes print them. Pure."""

from collections.abc import Iterable

from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.protocol.apis.update_metadata import UpdateMetadataPartitionState


def leader_and_isr_text(topic: str, state: LeaderAndIsrPartitionState) -> str:
    return (
        f"LeaderAndIsrPartitionState({_leadership(topic, state)}, addingReplicas={ids(state.adding_replicas, ', ')},"
        f" removingReplicas={ids(state.removing_replicas, ', ')}, isNew={flag(state.is_new)})"
    )


def update_metadata_text(topic: str, state: UpdateMetadataPartitionState) -> str:
    offline = ids(state.offline_replicas, ", ")
    return f"UpdateMetadataPartitionState({_leadership(topic, state)}, offlineReplicas={offline})"


def stop_replica_text(partition: int, leader_epoch: int, delete: bool) -> str:
    return (
        f"StopReplicaPartitionState(partitionIndex={partition}, leaderEpoch={leader_epoch},"
        f" deletePartition={flag(delete)})"
    )


def _leadership(topic: str, state: LeaderAndIsrPartitionState | UpdateMetadataPartitionState) -> str:
    return (
        f"topicName='{topic}', partitionIndex={state.partition_index}, controllerEpoch={state.controller_epoch},"
        f" leader={state.leader}, leaderEpoch={state.leader_epoch}, isr={ids(state.isr, ', ')},"
        f" zkVersion={state.zk_version}, replicas={ids(state.replicas, ', ')}"
    )


def ids(broker_ids: Iterable[int], separator: str = ",") -> str:
    """[1,2,3]"""
    return f"[{separator.join(map(str, broker_ids))}]"


def flag(value: bool) -> str:
    return "true" if value else "false"
