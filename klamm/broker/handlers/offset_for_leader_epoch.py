"""OffsetForLeaderEpoch (key 23), versions 2 to 4: the end offsets of leader epochs (KIP-101, KIP-320).

After a change of leader, clients and followers use it to find out from which offset on their records may differ. A
client that is authorized to act in the cluster, like a follower, needs no authorization for the topics.
"""

from collections.abc import Callable

from klamm.base.slices import Steps
from klamm.broker.handlers.by_partition import by_partition
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Partition = Topic.EpochEndOffset


def error_response(
    request: Request[OffsetForLeaderEpochRequest], error: KafkaError
) -> Steps[OffsetForLeaderEpochResponse]:
    return _response(request.body, lambda _, wanted: _failed(wanted.partition, error.code))


@handler(
    OffsetForLeaderEpochRequest,
    Operation.DESCRIBE,
    ResourceType.TOPIC,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request[OffsetForLeaderEpochRequest]) -> Steps[OffsetForLeaderEpochResponse]:
    is_broker = request.allows(CLUSTER_NAME, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)

    def answer(topic: str, wanted: Wanted) -> Partition:
        try:
            if not is_broker:
                request.require(topic)
            return _answer(request, topic, wanted)
        except KafkaError as error:
            return _failed(wanted.partition, error.code)

    return _response(request.body, answer)


def _response(
    body: OffsetForLeaderEpochRequest, answer: Callable[[str, Wanted], Partition]
) -> Steps[OffsetForLeaderEpochResponse]:
    topics = ((topic.topic, topic.partitions) for topic in body.topics)
    return OffsetForLeaderEpochResponse(topics=(yield from by_partition(Topic, topics, answer)))


def _answer(request: Request[OffsetForLeaderEpochRequest], topic: str, wanted: Wanted) -> Partition:
    partition = request.services.replica_manager.partition(topic, wanted.partition)
    partition.require_leader(wanted.current_leader_epoch)
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset_for(wanted.leader_epoch, log.log_end_offset)
    return Partition(error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


def _failed(number: int, code: ErrorCode) -> Partition:
    return Partition(error_code=code, partition=number, leader_epoch=-1, end_offset=-1)
