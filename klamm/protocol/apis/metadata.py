"""Metadata (key 3): the brokers, and the leader and replicas of each partition.

Versions: 0 an empty list asks for all topics, from 1 on null does; 1 rack, controller, internal topics; 2 cluster id; 3
throttle time; 4 auto topic creation; 5 offline replicas; 7 leader epoch (KIP-320); 8 authorized operations (KIP-430); 9
flexible; 10 topic ids (KIP-516); 11 no operations of the cluster (KIP-700); 12 topics asked for by id; 13 error code
(KIP-1102).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, BitField, Bool, Int16, Int32, Request, Response, String, Struct, Uuid, field


class MetadataRequest(
    Request["MetadataResponse"], api=ApiKey.METADATA, versions="0-11", known="0-13", flexible="9+", size=LIST
):
    class MetadataRequestTopic(Struct):
        topic_id: Uuid = field("10+", default=None)
        name: String | None = field(nullable="10+")

    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: Bool = field("4+", default=True)
    include_cluster_authorized_operations: Bool = field("8-10", default=False)
    include_topic_authorized_operations: Bool = field("8+", default=False)


class MetadataResponse(Response):
    class MetadataResponseBroker(Struct):
        node_id: Int32
        host: String
        port: Int32
        rack: String | None = field("1+", default=None)

    class MetadataResponseTopic(Struct):
        class MetadataResponsePartition(Struct):
            error_code: Int16
            partition_index: Int32
            leader_id: Int32
            leader_epoch: Int32 = field("7+", default=-1)
            replica_nodes: list[Int32]
            isr_nodes: list[Int32]
            offline_replicas: list[Int32] = field("5+", default=[])

        error_code: Int16
        name: String | None = field(nullable="12+")
        topic_id: Uuid = field("10+", default=None)
        is_internal: Bool = field("1+", default=False)
        partitions: list[MetadataResponsePartition]
        authorized_operations: BitField = field("8+", default=None)

    throttle_time_ms: Int32 = field("3+", default=0)
    brokers: list[MetadataResponseBroker]
    cluster_id: String | None = field("2+", default=None)
    controller_id: Int32 = field("1+", default=-1)
    topics: list[MetadataResponseTopic]
    authorized_operations: BitField = field("8-10", default=None)
    error_code: Int16 = field("13+", default=0)
