"""LeaderAndIsr (key 4), versions 0 to 5: the controller sets which partitions this broker leads and which it follows.

The whole request is refused if its controller epoch is stale, or if its broker epoch is older than this broker's last
registration, because it was meant for the broker before its restart (KIP-380). Other errors are answered per partition.
"""

from klamm.base.slices import Slices, Steps, mapped
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ResourceType


def error_response(request: Request[LeaderAndIsrRequest], error: KafkaError) -> Steps[LeaderAndIsrResponse]:
    topics = []
    slices = Slices()
    for topic in request.body.topic_states:
        errors = yield from mapped(
            lambda state: LeaderAndIsrPartitionError(state.partition_index, error.code), topic.partition_states, slices
        )
        topics.append(LeaderAndIsrTopicError(topic.topic_name, topic.topic_id, errors))
    return LeaderAndIsrResponse(error.code, topics)


@handler(LeaderAndIsrRequest, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[LeaderAndIsrRequest]) -> LeaderAndIsrResponse:
    request.require_cluster()
    request.services.registrar.require_broker_epoch(request.body.broker_epoch)
    return await request.services.replica_manager.become_leader_or_follower(request.body, request.correlation_id)
