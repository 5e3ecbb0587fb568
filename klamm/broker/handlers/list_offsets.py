"""ListOffsets (key 2), versions 1 to 6: the first offset, the next offset, or the first at or after a timestamp.

Version 0 (a list of segment boundaries) is not served. The next offset is the high watermark, or the last stable offset
with isolation level read_committed, or the log end offset for a follower. Tools that look at replicas (replica id -2)
also get the log end offset, and followers answer them.
"""

from collections.abc import Callable, Iterator, Sequence

from klamm.base.slices import Steps, each, in_slices
from klamm.broker.handlers.by_partition import by_partition, named_partitions
from klamm.broker.request_errors import check_isolation_level
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.protocol.vocabulary import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    UNKNOWN_OFFSET,
    ResourceType,
)

Topic = ListOffsetsResponse.ListOffsetsTopicResponse
Partition = Topic.ListOffsetsPartitionResponse
Wanted = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition

FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5

# How many partitions a slice looks up, in one or two milliseconds.
PARTITIONS_PER_SLICE = 200


def error_response(request: Request[ListOffsetsRequest], error: KafkaError) -> Steps[ListOffsetsResponse]:
    return _response(request.body, lambda wanted: _partition(wanted.partition_index, error.code))


@handler(
    ListOffsetsRequest, Operation.DESCRIBE, ResourceType.TOPIC, error_response=error_response, ends_with_client=True
)
async def handle(request: Request[ListOffsetsRequest]) -> ListOffsetsResponse:
    named = await in_slices(named_partitions(_topics(request.body)))
    listed = iter([await _answer(request, topic, wanted) async for topic, wanted in each(named, PARTITIONS_PER_SLICE)])
    return await in_slices(_response(request.body, lambda _: next(listed)))


def _topics(body: ListOffsetsRequest) -> Iterator[tuple[str, Sequence[Wanted]]]:
    return ((topic.name, topic.partitions) for topic in body.topics)


def _response(body: ListOffsetsRequest, answer_to: Callable[[Wanted], Partition]) -> Steps[ListOffsetsResponse]:
    topics = yield from by_partition(Topic, _topics(body), lambda _, wanted: answer_to(wanted))
    return ListOffsetsResponse(topics=topics)


async def _answer(request: Request[ListOffsetsRequest], topic: str, wanted: Wanted) -> Partition:
    try:
        request.require(topic)
        return await _list(request, topic, wanted)
    except KafkaError as error:
        return _partition(wanted.partition_index, error.code)


async def _list(request: Request[ListOffsetsRequest], topic: str, wanted: Wanted) -> Partition:
    number, timestamp = wanted.partition_index, wanted.timestamp
    partition = request.services.replica_manager.partition(topic, number)
    if request.body.replica_id == DEBUGGING_REPLICA_ID:
        partition.require_leader_epoch(wanted.current_leader_epoch)
    else:
        partition.require_leader(wanted.current_leader_epoch)
    if timestamp < 0 and timestamp not in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp}: allowed are -1, -2 and those from 0 on")
    isolation_level = request.body.isolation_level if request.body.replica_id == CONSUMER_REPLICA_ID else None
    if isolation_level is not None:
        check_isolation_level(isolation_level)
    try:
        found = await partition.list_offset(timestamp, isolation_level)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and request.version < FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        raise
    if found is None:
        return _partition(number, ErrorCode.NONE)
    return _partition(number, ErrorCode.NONE, timestamp=found[0], offset=found[1], leader_epoch=found[2])


def _partition(
    number: int,
    code: ErrorCode,
    *,
    timestamp: int = NO_TIMESTAMP,
    offset: int = UNKNOWN_OFFSET,
    leader_epoch: int = NO_EPOCH,
) -> Partition:
    return Partition(
        partition_index=number, error_code=code, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )
