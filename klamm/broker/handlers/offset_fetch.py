"""OffsetFetch (key 9), versions 1 to 7: a group's committed offsets of these partitions, or from version 2 on of all.

A partition without a committed offset gets -1. With `require_stable` (version 7, KIP-447) a partition with a pending
commit gets UNSTABLE_OFFSET_COMMIT, and the client retries. Version 0, which read offsets from ZooKeeper, is not served.
"""

from collections.abc import Iterable, Sequence

from klamm.base.slices import Steps, in_slices, slices
from klamm.broker.handlers.by_partition import by_topic, named_partitions
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.protocol.apis.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.protocol.vocabulary import NO_EPOCH, UNKNOWN_OFFSET, PartitionKey, ResourceType

Topic = OffsetFetchResponse.OffsetFetchResponseTopic
Partition = Topic.OffsetFetchResponsePartition

# Before this version an error of the group is returned for each partition.
FIRST_VERSION_WITH_GROUP_ERROR = 2

# How many partitions a slice looks up, in one or two milliseconds.
PARTITIONS_PER_SLICE = 500

NO_OFFSET = OffsetAndMetadata(UNKNOWN_OFFSET, NO_EPOCH, "", NO_TIMESTAMP)

Answer = tuple[ErrorCode, OffsetAndMetadata | None]


def error_response(request: Request[OffsetFetchRequest], error: KafkaError) -> Steps[OffsetFetchResponse]:
    failed: dict[PartitionKey, Answer] = {}
    if request.version < FIRST_VERSION_WITH_GROUP_ERROR:
        failed = dict.fromkeys((yield from _wanted(request)), (error.code, None))
    return (yield from _response(request, error.code, failed.items()))


@handler(
    OffsetFetchRequest, Operation.DESCRIBE, ResourceType.GROUP, error_response=error_response, ends_with_client=True
)
async def handle(request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
    body = request.body
    request.require(body.group_id)
    wanted = _committed(request) if body.topics is None else await in_slices(_wanted(request))
    answers: dict[PartitionKey, Answer] = {}
    if not wanted:
        _fetch(request, wanted)  # Raises the group's error, if any.
    async for piece in slices(wanted, PARTITIONS_PER_SLICE):
        answers |= _fetch(request, piece)
    return await in_slices(_response(request, ErrorCode.NONE, answers.items()))


def _committed(request: Request[OffsetFetchRequest]) -> list[PartitionKey]:
    """The partitions with committed offsets, without topics that the client may not describe."""
    partitions = request.services.group_coordinator.partitions_of_group(request.body.group_id)
    allowed = {topic: _allows(request, topic) for topic in dict.fromkeys(topic for topic, _ in partitions)}
    return [key for key in partitions if allowed[key[0]]]


def _fetch(request: Request[OffsetFetchRequest], wanted: Sequence[PartitionKey]) -> dict[PartitionKey, Answer]:
    answers: dict[PartitionKey, Answer] = {
        key: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None) for key in wanted if not _allows(request, key[0])
    }
    allowed = [key for key in wanted if key not in answers]
    code, found = request.services.group_coordinator.fetch_offsets(
        request.body.group_id, allowed, require_stable=request.body.require_stable
    )
    if code is not ErrorCode.NONE:
        raise KafkaError(code)
    return answers | found


def _wanted(request: Request[OffsetFetchRequest]) -> Steps[list[PartitionKey]]:
    return named_partitions((topic.name, topic.partition_indexes) for topic in request.body.topics or ())


def _allows(request: Request[OffsetFetchRequest], topic: str) -> bool:
    return request.allows(topic, Operation.DESCRIBE, ResourceType.TOPIC)


def _response(
    request: Request[OffsetFetchRequest], code: ErrorCode, answers: Iterable[tuple[PartitionKey, Answer]]
) -> Steps[OffsetFetchResponse]:
    partitions = ((topic, _partition(number, *answer)) for (topic, number), answer in answers)
    return OffsetFetchResponse(topics=(yield from by_topic(Topic, partitions)), error_code=code)


def _partition(number: int, code: ErrorCode, committed: OffsetAndMetadata | None) -> Partition:
    offset = committed or NO_OFFSET
    return Partition(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=code,
    )
