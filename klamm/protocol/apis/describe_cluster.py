"""DescribeCluster (key 60): the brokers and the controller (KIP-700).

Versions: 0 flexible; 1 endpoint type (KIP-919); 2 fenced brokers (KIP-1073).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, BitField, Bool, Int8, Int16, Int32, Request, Response, String, Struct, field


class DescribeClusterRequest(
    Request["DescribeClusterResponse"],
    api=ApiKey.DESCRIBE_CLUSTER,
    versions="0",
    known="0-2",
    flexible="0+",
    size=SMALL,
):
    include_cluster_authorized_operations: Bool
    endpoint_type: Int8 = field("1+", default=1)
    include_fenced_brokers: Bool = field("2+", default=False)


class DescribeClusterResponse(Response):
    class DescribeClusterBroker(Struct):
        broker_id: Int32
        host: String
        port: Int32
        rack: String | None = None
        is_fenced: Bool = field("2+", default=False)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: String
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker]
    authorized_operations: BitField = None
