"""AlterReplicaLogDirs (key 34), versions 1 and 2: moves replicas to other log directories of this broker (KIP-113).

The answer says which moves have begun; DescribeLogDirs shows their progress. A partition that this broker does not host
gets REPLICA_NOT_AVAILABLE, and its log is created in the named directory when the partition is assigned to this broker.
Naming a replica's current directory cancels its move.
"""

from collections.abc import Mapping

from klamm.base.slices import Slices, Steps, in_slices
from klamm.broker.handlers.by_partition import by_topic
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey, ResourceType

TopicResult = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
PartitionResult = TopicResult.AlterReplicaLogDirPartitionResult


def error_response(
    request: Request[AlterReplicaLogDirsRequest], error: KafkaError
) -> Steps[AlterReplicaLogDirsResponse]:
    directories = yield from _directories(request)
    return (yield from _response(dict.fromkeys(directories, error.code)))


@handler(AlterReplicaLogDirsRequest, Operation.ALTER, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[AlterReplicaLogDirsRequest]) -> AlterReplicaLogDirsResponse:
    request.require_cluster()
    directories = await in_slices(_directories(request))
    codes = await request.services.replica_manager.alter_replica_log_dirs(directories)
    return await in_slices(_response(codes))


def _directories(request: Request[AlterReplicaLogDirsRequest]) -> Steps[dict[PartitionKey, str]]:
    """The directory of each partition. As in Kafka, the last one counts for a partition that is named twice."""
    directories = {}
    slices = Slices()
    for directory in request.body.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                directories[topic.name, number] = directory.path
                if slices.spend():
                    yield
            if slices.spend():
                yield
        if slices.spend():
            yield
    return directories


def _response(codes: Mapping[PartitionKey, ErrorCode]) -> Steps[AlterReplicaLogDirsResponse]:
    results = (
        (topic, PartitionResult(partition_index=number, error_code=code)) for (topic, number), code in codes.items()
    )
    return AlterReplicaLogDirsResponse(results=(yield from by_topic(TopicResult, results)))
