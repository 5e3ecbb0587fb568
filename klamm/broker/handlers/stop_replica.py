"""StopReplica (key 5), versions 0 to 3: the controller ends this broker's part in partitions, or deletes them.

Refused like LeaderAndIsr: stale controllers, and what was meant for this broker's former life.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.STOP_REPLICA)
PartitionError = Response.StopReplicaPartitionError


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(version=request.version, error_code=error.code, partition_errors=[])


@handler(
    ApiKey.STOP_REPLICA,
    operation=Operation.CLUSTER_ACTION,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
async def handle(request: Request) -> Body:
    request.require_cluster()
    request.services.registrar.require_broker_epoch(request.body.broker_epoch)
    code, results = await request.services.replica_manager.stop_replicas(
        request.version, request.body, request.correlation_id
    )
    return Response(
        version=request.version,
        error_code=code,
        partition_errors=[
            PartitionError(version=request.version, topic_name=topic, partition_index=number, error_code=result)
            for (topic, number), result in results.items()
        ],
    )
