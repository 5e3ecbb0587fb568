"""DeleteRecords (key 21), versions 0 to 2: moves the log start offsets of partitions forward (KIP-107).

Offset -1 stands for the high watermark. Answered when all live replicas have the new log start offset on disk, so that
no restart brings a record back; Kafka checkpoints it within a minute. The next retention check removes whole segments
below it. Records of internal topics, and of topics that are only compacted, are not deleted.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from klamm.base.slices import Slices, Steps, each, in_slices
from klamm.broker.handlers.by_partition import by_partition, named_partitions
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey, ResourceType
from klamm.replication.replica_manager import DeleteRecordsResult

Wanted = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
Partition = Topic.DeleteRecordsPartitionResult

# A deletion writes the leader epochs of its log.
DELETIONS_PER_SLICE = 50


def error_response(request: Request[DeleteRecordsRequest], error: KafkaError) -> Steps[DeleteRecordsResponse]:
    failed = DeleteRecordsResult(error.code)
    return _response(request.body, lambda _: failed)


@handler(DeleteRecordsRequest, Operation.DELETE, ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request[DeleteRecordsRequest]) -> AnswerOnly[DeleteRecordsResponse]:
    replica_manager = request.services.replica_manager
    results: list[DeleteRecordsResult] = []
    # Each partition has one result, however often the request names it. The highest offset counts.
    deleted: dict[PartitionKey, DeleteRecordsResult] = {}
    slices = Slices(DELETIONS_PER_SLICE, asyncio.get_running_loop().time)
    async for topic, wanted in each(await in_slices(named_partitions(_topics(request.body))), slices):
        result = _delete(request, topic, wanted)
        if result.required_offset >= 0:
            first = deleted.setdefault((topic, wanted.partition_index), result)
            first.required_offset = max(first.required_offset, result.required_offset)
            result = first
        results.append(result)

    async def answer() -> DeleteRecordsResponse:
        await replica_manager.wait_deleted(deleted, request.body.timeout_ms)
        next_result = iter(results)
        return await in_slices(_response(request.body, lambda _: next(next_result)))

    return AnswerOnly(answer)


def _delete(request: Request[DeleteRecordsRequest], topic: str, wanted: Wanted) -> DeleteRecordsResult:
    services, number = request.services, wanted.partition_index
    if not request.allows(topic):
        return DeleteRecordsResult(request.denied)
    if services.metadata_cache.snapshot.partition(topic, number) is None:
        return DeleteRecordsResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic in INTERNAL_TOPICS:
        return DeleteRecordsResult(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return services.replica_manager.delete_records(topic, number, wanted.offset)


def _topics(body: DeleteRecordsRequest) -> Iterator[tuple[str, Sequence[Wanted]]]:
    return ((topic.name, topic.partitions) for topic in body.topics)


def _response(
    body: DeleteRecordsRequest, result_of: Callable[[Wanted], DeleteRecordsResult]
) -> Steps[DeleteRecordsResponse]:
    def answer(_: str, wanted: Wanted) -> Partition:
        result = result_of(wanted)
        return Partition(
            partition_index=wanted.partition_index, low_watermark=result.low_watermark, error_code=result.error_code
        )

    return DeleteRecordsResponse(topics=(yield from by_partition(Topic, _topics(body), answer)))
