"""StopReplica (key 5), versions 0 to 3: the controller stops replicas on this broker, or deletes them.

Stale controller and broker epochs are refused as in LeaderAndIsr.
"""

from klamm.base.slices import each
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ResourceType


def error_response(request: Request[StopReplicaRequest], error: KafkaError) -> StopReplicaResponse:
    return StopReplicaResponse(error.code)


@handler(StopReplicaRequest, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[StopReplicaRequest]) -> StopReplicaResponse:
    request.require_cluster()
    request.services.registrar.require_broker_epoch(request.body.broker_epoch)
    code, results = await request.services.replica_manager.stop_replicas(request.body, request.correlation_id)
    partitions = [StopReplicaPartitionError(*key, result) async for key, result in each(results.items())]
    return StopReplicaResponse(code, partitions)
