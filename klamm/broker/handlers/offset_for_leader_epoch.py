"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where the records of a leader epoch end (KIP-101, KIP-320).

After a change of leader a client or follower asks from where on its own records may differ. A client that is authorized
to act in the cluster, as followers are, needs no authorization for the topics.
"""

from klamm.broker.registry import Request, handler
from klamm.broker.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType

Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Partition = Topic.EpochEndOffset


def error_response(request: Request[OffsetForLeaderEpochRequest], error: KafkaError) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            Topic(topic=topic.topic, partitions=[_failed(wanted.partition, error.code) for wanted in topic.partitions])
            for topic in request.body.topics
        ],
    )


@handler(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.TOPIC,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    topics = []
    is_broker = request.allows(CLUSTER_NAME, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    for topic in request.body.topics:
        allowed = is_broker or request.allows(topic.topic)
        partitions = [
            _answer(request, topic.topic, wanted) if allowed else _failed(wanted.partition, request.denied)
            for wanted in topic.partitions
        ]
        topics.append(Topic(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(
    request: Request[OffsetForLeaderEpochRequest],
    topic: str,
    wanted: OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition,
) -> Partition:
    try:
        partition = request.services.replica_manager.partition(topic, wanted.partition)
        partition.require_leader(wanted.current_leader_epoch)
    except KafkaError as error:
        return _failed(wanted.partition, error.code)
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset_for(wanted.leader_epoch, log.log_end_offset)
    return Partition(error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


def _failed(number: int, code: ErrorCode) -> Partition:
    return Partition(error_code=code, partition=number, leader_epoch=-1, end_offset=-1)
