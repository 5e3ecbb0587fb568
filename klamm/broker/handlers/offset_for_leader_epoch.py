"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where the records of a leader epoch end (KIP-101, KIP-320).

After a change of leader a client or follower asks from where on its own records may differ. A client that is authorized
to act in the cluster, as followers are, needs no authorization for the topics.
"""

from functools import partial

from klamm.base.slices import Slices, mapped
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import ResourceType

Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Partition = Topic.EpochEndOffset


def error_response(
    request: Request[OffsetForLeaderEpochRequest], error: KafkaError
) -> Steps[OffsetForLeaderEpochResponse]:
    topics = []
    slices = Slices()
    for topic in request.body.topics:
        failed = mapped(lambda wanted: _failed(wanted.partition, error.code), topic.partitions, slices)
        topics.append(Topic(topic=topic.topic, partitions=(yield from failed)))
    return OffsetForLeaderEpochResponse(topics=topics)


@handler(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.TOPIC,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request[OffsetForLeaderEpochRequest]) -> Steps[OffsetForLeaderEpochResponse]:
    topics = []
    slices = Slices()
    is_broker = request.allows(CLUSTER_NAME, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    for topic in request.body.topics:
        if is_broker or request.allows(topic.topic):
            answers = mapped(partial(_answer, request, topic.topic), topic.partitions, slices)
        else:
            answers = mapped(lambda wanted: _failed(wanted.partition, request.denied), topic.partitions, slices)
        topics.append(Topic(topic=topic.topic, partitions=(yield from answers)))
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
