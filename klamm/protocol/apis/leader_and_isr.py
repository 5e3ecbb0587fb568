"""LeaderAndIsr (key 4): the controller tells a broker which partitions it leads and follows.

Versions: 1 new replicas; 2 grouped by topic, broker epoch (KIP-380); 3 replicas being added and removed (KIP-455); 4
flexible; 5 topic ids (KIP-516).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import (
    STATE,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Kept,
    Request,
    Response,
    String,
    Struct,
    Uuid,
    field,
)


class LeaderAndIsrRequest(
    Request["LeaderAndIsrResponse"], api=ApiKey.LEADER_AND_ISR, versions="0-5", flexible="4+", size=STATE
):
    """`broker_epoch` is the receiver's, as the controller knows it. 2.8 does not use the type, full or incremental."""

    class LeaderAndIsrTopicState(Struct, kw_only=False):
        class LeaderAndIsrPartitionState(Kept, kw_only=False):
            """`leader` is -1 without a leader. `controller_epoch` is the epoch of the controller that decided."""

            partition_index: Int32
            controller_epoch: Int32
            leader: Int32
            leader_epoch: Int32
            isr: tuple[Int32, ...]
            zk_version: Int32
            replicas: tuple[Int32, ...]
            adding_replicas: tuple[Int32, ...] = field("3+", default=())
            removing_replicas: tuple[Int32, ...] = field("3+", default=())
            is_new: Bool = field("1+", default=False)

        topic_name: String
        topic_id: Uuid = field("5+")
        partition_states: list[LeaderAndIsrPartitionState]

    class LeaderAndIsrLiveLeader(Struct, kw_only=False):
        """The endpoint of a leader's inter-broker listener, for its followers."""

        broker_id: Int32
        host_name: String
        port: Int32

    controller_id: Int32
    controller_epoch: Int32
    broker_epoch: Int64 = field("2+", default=-1)
    request_type: Int8 = field("5+", default=0)
    topic_states: list[LeaderAndIsrTopicState] = field(default=[], flat="0-1")
    live_leaders: list[LeaderAndIsrLiveLeader] = field(default=[])


class LeaderAndIsrResponse(Response, kw_only=False):
    """`error_code` concerns the request as a whole."""

    class LeaderAndIsrTopicError(Struct, kw_only=False):
        class LeaderAndIsrPartitionError(Struct, kw_only=False):
            partition_index: Int32
            error_code: Int16

        topic_name: String = field("0-4")
        topic_id: Uuid = field("5+")
        partition_errors: list[LeaderAndIsrPartitionError]

    error_code: Int16 = 0
    topics: list[LeaderAndIsrTopicError] = field(default=[], flat="0-4")


LeaderAndIsrTopicState = LeaderAndIsrRequest.LeaderAndIsrTopicState
LeaderAndIsrPartitionState = LeaderAndIsrTopicState.LeaderAndIsrPartitionState
LeaderAndIsrLiveLeader = LeaderAndIsrRequest.LeaderAndIsrLiveLeader
LeaderAndIsrTopicError = LeaderAndIsrResponse.LeaderAndIsrTopicError
LeaderAndIsrPartitionError = LeaderAndIsrTopicError.LeaderAndIsrPartitionError
