"""DescribeProducers (key 61), version 0: the idempotent and transactional producers of partitions (KIP-664).

Every replica answers, as in Kafka, so that tools can compare replicas. A partition that is named more than once is
answered once: its state may be much larger than its name in the request.
"""

from klamm.base.slices import Slices, Steps, mapped
from klamm.broker.handlers.by_partition import by_partition
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler, long_answer
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType
from klamm.storage.log.producer_state import ProducerEntry

Topic = DescribeProducersResponse.TopicResponse
Partition = Topic.PartitionResponse
Producer = Partition.ProducerState

PRODUCERS_PER_SLICE = 500


def error_response(request: Request[DescribeProducersRequest], error: KafkaError) -> Steps[DescribeProducersResponse]:
    topics = ((topic.name, topic.partition_indexes) for topic in request.body.topics)
    failed = yield from by_partition(Topic, topics, lambda _, number: _failed(number, error))
    return DescribeProducersResponse(topics=failed)


@handler(
    DescribeProducersRequest, Operation.READ, ResourceType.TOPIC, error_response=error_response, ends_with_client=True
)
@long_answer
def handle(request: Request[DescribeProducersRequest]) -> Steps[DescribeProducersResponse]:
    topics: dict[str, dict[int, Partition]] = {}
    slices = Slices(PRODUCERS_PER_SLICE)
    for topic in request.body.topics:
        partitions = topics.setdefault(topic.name, {})
        allowed = request.allows(topic.name)
        for number in topic.partition_indexes:
            if slices.spend():
                yield
            if number in partitions:
                continue
            if allowed:
                partitions[number] = yield from _partition(request, topic.name, number, slices)
            else:
                partitions[number] = _failed(number, KafkaError(request.denied))
    answers = yield from mapped(_topic, topics.items())
    return DescribeProducersResponse(topics=answers)


def _topic(described: tuple[str, dict[int, Partition]]) -> Topic:
    name, partitions = described
    return Topic(name=name, partitions=list(partitions.values()))


def _partition(request: Request[DescribeProducersRequest], topic: str, number: int, slices: Slices) -> Steps[Partition]:
    try:
        log = request.services.replica_manager.partition(topic, number).log
    except KafkaError as error:
        return _failed(number, error)
    entries = list(log.producer_state.entries.items())
    producers = yield from mapped(_producer, entries, slices)
    return Partition(partition_index=number, error_code=ErrorCode.NONE, active_producers=producers)


def _producer(entry: tuple[int, ProducerEntry]) -> Producer:
    producer_id, state = entry
    return Producer(
        producer_id=producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.transaction_first_offset,
    )


def _failed(number: int, error: KafkaError) -> Partition:
    return Partition(partition_index=number, **outcome(error), active_producers=[])
