"""DescribeCluster (key 60), version 0: the brokers and the controller (KIP-700).

Every client may learn the brokers' addresses; only the list of authorized operations depends on authorization.
"""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ResourceType


@handler(DescribeClusterRequest, Operation.DESCRIBE, ResourceType.CLUSTER, ends_with_client=True)
async def handle(request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
    allowed = None
    if request.body.include_cluster_authorized_operations:
        # As in Kafka, a client that may not describe the cluster has no operations on it, but gets the brokers'
        # addresses.
        described = request.allows(CLUSTER_NAME)
        allowed = request.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME) if described else set()
    snapshot = await request.services.metadata_cache.first_snapshot()
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=request.services.cluster_id,
        controller_id=snapshot.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in snapshot.brokers.values()
            if (endpoint := broker.endpoints.get(request.listener_name)) is not None
        ],
        authorized_operations=allowed,
    )
