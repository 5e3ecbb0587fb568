"""ControlledShutdown (key 7), versions 0 to 3: a broker that is about to stop has its leaderships moved away.

Served by the active controller. The answer names the partitions that the broker still leads; it asks again until there
are none, or gives up. A broker that asks a former controller gets STALE_CONTROLLER_EPOCH, as in Kafka.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.CONTROLLED_SHUTDOWN)
RemainingPartition = Response.RemainingPartition


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(version=request.version, error_code=error.code, remaining_partitions=[])


@handler(
    ApiKey.CONTROLLED_SHUTDOWN,
    operation=Operation.CLUSTER_ACTION,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
async def handle(request: Request) -> Body:
    request.require_cluster()
    body = request.body
    remaining = await request.services.controller.controlled_shutdown(body.broker_id, body.broker_epoch)
    return Response(
        version=request.version,
        error_code=ErrorCode.NONE,
        remaining_partitions=[
            RemainingPartition(version=request.version, topic_name=topic, partition_index=number)
            for topic, number in remaining
        ],
    )
