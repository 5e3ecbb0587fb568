"""Metadata (key 3), all versions: the brokers, the controller and the leaders of topics in this broker's metadata
cache.

Missing topics are created if the request allows it, auto.create.topics.enable is on and the client is authorized. As in
Kafka, they get LEADER_NOT_AVAILABLE, even while ZooKeeper is unreachable, and a later request finds them. Existing
topics are always answered. Topics are found by name only; topic ids in requests come with version 12, which Kafka 2.8
does not have.
"""

from collections.abc import Iterable, Mapping, Sequence

from klamm.base.slices import Slices, Steps, each, mapped
from klamm.broker.metadata.metadata_cache import MetadataSnapshot
from klamm.broker.requests.registry import NO_BROKER, Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.broker.topics.topic_admin import NewTopic, validate_topic_name
from klamm.protocol.apis.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.apis.update_metadata import UpdateMetadataPartitionState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import INTERNAL_TOPICS, ResourceType

Topic = MetadataResponse.MetadataResponseTopic
Partition = Topic.MetadataResponsePartition

# How many partitions a step of an answer describes, in about two milliseconds.
PARTITIONS_PER_SLICE = 500

# Up to this version a leader without the client's listener counts as not available.
LAST_VERSION_WITHOUT_LISTENER_NOT_FOUND = 5


def error_response(request: Request[MetadataRequest], error: KafkaError) -> Steps[MetadataResponse]:
    topics = yield from mapped(lambda topic: _failed(topic.name or "", error.code), request.body.topics or ())
    return MetadataResponse(brokers=[], topics=topics)


@handler(MetadataRequest, Operation.DESCRIBE, ResourceType.TOPIC, error_response=error_response, ends_with_client=True)
async def handle(request: Request[MetadataRequest]) -> MetadataResponse:
    body, services = request.body, request.services
    snapshot = await services.metadata_cache.first_snapshot()
    everything = body.topics is None or (request.version == 0 and not body.topics)
    if everything:
        codes = {name: ErrorCode.NONE async for name in each(sorted(snapshot.topics)) if request.allows(name)}
    else:
        codes = await _missing_topics(request, snapshot, await _names(body.topics or ()))
    topics = await services.long_answers.take(_topics(request, snapshot, codes))
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in snapshot.brokers.values()
            if (endpoint := broker.endpoints.get(request.listener_name)) is not None
        ],
        cluster_id=services.cluster_id,
        controller_id=snapshot.controller_id,
        topics=topics,
        authorized_operations=_cluster_operations(request),
    )


def _cluster_operations(request: Request[MetadataRequest]) -> set[int] | None:
    if not request.body.include_cluster_authorized_operations:
        return None
    if not request.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER):
        return set()
    return request.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)


async def _names(topics: Sequence[MetadataRequest.MetadataRequestTopic]) -> dict[str, None]:
    names: dict[str, None] = {}
    async for topic in each(topics):
        if topic.name is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic name is null; topics are found by name only")
        names[topic.name] = None
    return names


async def _missing_topics(
    request: Request[MetadataRequest], snapshot: MetadataSnapshot, names: Iterable[str]
) -> dict[str, ErrorCode]:
    """The error code of each name: an error if the snapshot lacks it, else NONE. Creates missing topics if allowed.

    A broker that has not heard from a controller since its start knows no topics. It must not answer that a topic does
    not exist: librdkafka would forget the topic's partitions.
    """
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not request.services.metadata_cache.is_filled.is_set():
        missing = ErrorCode.LEADER_NOT_AVAILABLE
    codes = {}
    to_create = []
    async for name in each(names):
        if not request.allows(name):
            codes[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif name in snapshot.topics:
            codes[name] = ErrorCode.NONE
        else:
            codes[name] = _name_error(name) or missing
            if codes[name] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and _may_auto_create(request):
                if _may_create(request, name):
                    to_create.append(name)
                else:
                    codes[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    codes.update(await _auto_create(request, to_create))
    return codes


def _name_error(name: str) -> ErrorCode | None:
    try:
        validate_topic_name(name)
    except KafkaError as error:
        return error.code
    return None


def _may_auto_create(request: Request[MetadataRequest]) -> bool:
    return bool(request.body.allow_auto_topic_creation and request.services.config.current.auto_create_topics_enable)


def _may_create(request: Request[MetadataRequest], name: str) -> bool:
    return request.allows(CLUSTER_NAME, Operation.CREATE, ResourceType.CLUSTER) or request.allows(
        name, Operation.CREATE
    )


async def _auto_create(request: Request[MetadataRequest], names: Sequence[str]) -> dict[str, ErrorCode]:
    """Starts the creation of topics with the broker's defaults and does not wait for their leaders."""
    if not names:
        return {}
    topics = [_new_topic(request, name) for name in names]
    # As in Kafka, the partitions count for the client's quota, but only its later requests are throttled or refused.
    changes = request.changes(strict=False, throttles=False)
    refused = await request.services.auto_topic_creation.create(topics, changes)
    return {name: refused[name].code if name in refused else ErrorCode.LEADER_NOT_AVAILABLE for name in names}


def _new_topic(request: Request[MetadataRequest], name: str) -> NewTopic:
    services = request.services
    for topic in (services.offsets_topic, services.transaction_topic):
        if topic.name == name:
            return topic.new_topic()
    return NewTopic(name)


def _topics(
    request: Request[MetadataRequest], snapshot: MetadataSnapshot, codes: Mapping[str, ErrorCode]
) -> Steps[list[Topic]]:
    topics: list[Topic] = []
    slices = Slices(PARTITIONS_PER_SLICE)
    for name, code in codes.items():
        if slices.spend():
            yield
        known = snapshot.topics.get(name)
        if known is None:
            topics.append(_failed(name, code))
            continue
        partitions = []
        for number, partition in known.items():
            partitions.append(_partition(request, snapshot, number, partition))
            if slices.spend():
                yield
        topics.append(_known(request, snapshot, name, partitions))
    return topics


def _known(
    request: Request[MetadataRequest], snapshot: MetadataSnapshot, name: str, partitions: list[Partition]
) -> Topic:
    wants_operations = request.body.include_topic_authorized_operations
    return Topic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=snapshot.topic_ids.get(name),
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
        authorized_operations=request.authorized_operations(ResourceType.TOPIC, name) if wants_operations else None,
    )


def _partition(
    request: Request[MetadataRequest], snapshot: MetadataSnapshot, number: int, partition: UpdateMetadataPartitionState
) -> Partition:
    code, leader = ErrorCode.NONE, partition.leader
    if snapshot.endpoint(partition.leader, request.listener_name) is None:
        leader = NO_BROKER
        has_listener = partition.leader not in snapshot.brokers
        if has_listener or request.version <= LAST_VERSION_WITHOUT_LISTENER_NOT_FOUND:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            code = ErrorCode.LISTENER_NOT_FOUND
    return Partition(
        error_code=code,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=list(partition.offline_replicas),
    )


def _failed(name: str, code: ErrorCode) -> Topic:
    return Topic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[])
