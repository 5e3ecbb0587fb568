"""DeleteRecords (key 21), versions 0 to 2: moves the log start offsets of partitions forward (KIP-107).

Offset -1 stands for the high watermark. Answered when all live replicas have the new log start offset on disk, so that
no restart brings a record back; Kafka checkpoints it within a minute. Whole segments below it go with the next check of
retention. Records of internal topics, and of topics that are only compacted, are not deleted.
"""

import asyncio

from klamm.base.slices import Slices, mapped
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.exchange import AnswerOnly
from klamm.protocol.apis.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey, ResourceType
from klamm.replication.replica_manager import DeleteRecordsResult

Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
Partition = Topic.DeleteRecordsPartitionResult

# A deletion writes the leader epochs of its log.
DELETIONS_PER_SLICE = 50


def error_response(request: Request[DeleteRecordsRequest], error: KafkaError) -> Steps[DeleteRecordsResponse]:
    topics = []
    slices = Slices()
    for topic in request.body.topics:
        failed = mapped(
            lambda wanted: _partition(wanted.partition_index, DeleteRecordsResult(error.code)), topic.partitions, slices
        )
        topics.append(Topic(name=topic.name, partitions=(yield from failed)))
    return DeleteRecordsResponse(topics=topics)


@handler(
    ApiKey.DELETE_RECORDS, operation=Operation.DELETE, resource_type=ResourceType.TOPIC, error_response=error_response
)
async def handle(request: Request[DeleteRecordsRequest]) -> AnswerOnly[DeleteRecordsResponse]:
    replica_manager = request.services.replica_manager
    results: list[DeleteRecordsResult] = []
    # One result for each partition, however often the request names it: the highest offset counts.
    deleted: dict[PartitionKey, DeleteRecordsResult] = {}
    slices = Slices(DELETIONS_PER_SLICE, asyncio.get_running_loop().time)
    for topic in request.body.topics:
        allowed = request.allows(topic.name)
        for wanted in topic.partitions:
            number = wanted.partition_index
            if not allowed:
                result = DeleteRecordsResult(request.denied)
            else:
                result = _delete(request, topic.name, number, wanted.offset)
            if result.required_offset >= 0:
                first = deleted.setdefault((topic.name, number), result)
                first.required_offset = max(first.required_offset, result.required_offset)
                result = first
            results.append(result)
            if slices.is_over():
                await asyncio.sleep(0)

    async def answer() -> DeleteRecordsResponse:
        await replica_manager.wait_deleted(deleted, request.body.timeout_ms)
        next_result = iter(results)
        topics = []
        slices = Slices()
        for topic in request.body.topics:
            partitions = []
            for wanted in topic.partitions:
                partitions.append(_partition(wanted.partition_index, next(next_result)))
                if slices.is_over():
                    await asyncio.sleep(0)
            topics.append(Topic(name=topic.name, partitions=partitions))
        return DeleteRecordsResponse(topics=topics)

    return AnswerOnly(answer)


def _delete(request: Request[DeleteRecordsRequest], topic: str, number: int, offset: int) -> DeleteRecordsResult:
    services = request.services
    if services.metadata_cache.snapshot.partition(topic, number) is None:
        return DeleteRecordsResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic in INTERNAL_TOPICS:
        return DeleteRecordsResult(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return services.replica_manager.delete_records(topic, number, offset)


def _partition(number: int, result: DeleteRecordsResult) -> Partition:
    return Partition(partition_index=number, low_watermark=result.low_watermark, error_code=result.error_code)
