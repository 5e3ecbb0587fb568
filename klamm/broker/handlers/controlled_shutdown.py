"""ControlledShutdown (key 7), versions 0 to 3: a broker that is about to stop has its leaderships moved away.

The active controller serves it. The answer has the partitions that the broker still leads. The broker asks again until
this list is empty, or gives up. A broker that asks a former controller gets STALE_CONTROLLER_EPOCH, as in Kafka.
"""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ResourceType

RemainingPartition = ControlledShutdownResponse.RemainingPartition


@handler(ControlledShutdownRequest, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
async def handle(request: Request[ControlledShutdownRequest]) -> ControlledShutdownResponse:
    request.require_cluster()
    body = request.body
    remaining = await request.services.controller.controlled_shutdown(body.broker_id, body.broker_epoch)
    return ControlledShutdownResponse(
        error_code=ErrorCode.NONE,
        remaining_partitions=[
            RemainingPartition(topic_name=topic, partition_index=number) for topic, number in remaining
        ],
    )
