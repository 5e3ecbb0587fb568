"""StopReplica (key 5): the controller tells a broker to stop replicas, and which of them to delete.

Versions: 1 grouped by topic, broker epoch (KIP-380); 2 flexible; 3 leader epoch (KIP-570) and deletion for each
partition: before, a request deletes all its partitions or none of them.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import STATE, Bool, Int16, Int32, Int64, Request, Response, String, Struct, field
from klamm.protocol.vocabulary import NO_EPOCH

# A leader epoch: the topic is being deleted.
EPOCH_DURING_DELETE = -2

STATES_FROM = 3


class StopReplicaRequest(
    Request["StopReplicaResponse"], api=ApiKey.STOP_REPLICA, versions="0-3", flexible="2+", size=STATE
):
    """`broker_epoch` is the receiver's, as the controller knows it. `delete_partitions` is for all partitions."""

    class StopReplicaTopicState(Struct, kw_only=False):
        class StopReplicaPartitionState(Struct, kw_only=False, untagged="0-2"):
            """One partition that stops: in which leader epoch, and whether its data is deleted."""

            partition_index: Int32
            leader_epoch: Int32 = field("3+", default=NO_EPOCH)
            delete_partition: Bool = field("3+", default=False)

        topic_name: String
        partition_states: list[StopReplicaPartitionState]

    controller_id: Int32
    controller_epoch: Int32
    broker_epoch: Int64 = field("1+", default=-1)
    delete_partitions: Bool = field("0-2", default=False)
    topic_states: list[StopReplicaTopicState] = field(default=[], flat="0")


class StopReplicaResponse(Response, kw_only=False):
    """`error_code` concerns the request as a whole."""

    class StopReplicaPartitionError(Struct, kw_only=False):
        topic_name: String
        partition_index: Int32
        error_code: Int16

    error_code: Int16 = 0
    partition_errors: list[StopReplicaPartitionError] = field(default=[])


StopReplicaTopicState = StopReplicaRequest.StopReplicaTopicState
StopReplicaPartitionState = StopReplicaTopicState.StopReplicaPartitionState
StopReplicaPartitionError = StopReplicaResponse.StopReplicaPartitionError
