"""AlterPartitionReassignments (key 45), version 0: moves partitions to other brokers, or cancels that (KIP-455).

Answered when the reassignments have begun, not when they are complete. Only the controller's broker serves it. The
request's timeout counts for nothing, as in Kafka: there is nothing to wait for.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
TopicResult = Response.ReassignableTopicResponse
PartitionResult = TopicResult.ReassignablePartitionResponse


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(version=request.version, error_code=error.code, error_message=error.message or None, responses=[])


@handler(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    operation=Operation.ALTER,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
async def handle(request: Request) -> Body:
    request.require_cluster()
    targets = {
        (topic.name, partition.partition_index): None if partition.replicas is None else tuple(partition.replicas)
        for topic in request.body.topics
        for partition in topic.partitions
    }
    results: dict[str, list[Body]] = {}
    for (topic, number), error in (await request.services.controller.alter_partition_reassignments(targets)).items():
        result = PartitionResult(
            partition_index=number,
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
        )
        results.setdefault(topic, []).append(result)
    return Response(
        version=request.version,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=[TopicResult(name=topic, partitions=partitions) for topic, partitions in results.items()],
    )
