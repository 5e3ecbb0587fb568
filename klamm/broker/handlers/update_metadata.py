"""UpdateMetadata (key 6), versions 0 to 7: the controller tells who lives and who leads what.

The only source of the metadata cache. Refused like LeaderAndIsr: stale controllers, and what was meant for this
broker's former life. Whoever waits for a topic to come or to go looks again afterwards.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.broker.services import Services
from klamm.broker.topic_admin import OFFSETS_TOPIC
from klamm.protocol.errors import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

# Topics whose change is made known before others have the loop.
TOPICS_PER_STEP = 1000


def error_response(request: Request, error: KafkaError) -> Body:
    return UpdateMetadataResponse(error.code)


@handler(
    ApiKey.UPDATE_METADATA,
    operation=Operation.CLUSTER_ACTION,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
async def handle(request: Request) -> Body:
    body, services = request.body, request.services
    request.require_cluster()
    services.registrar.require_broker_epoch(body.broker_epoch)
    await services.replica_manager.update_metadata(body, lambda: _apply(body, services), request.correlation_id)
    services.controller_channel.controller_changed()
    if OFFSETS_TOPIC in services.metadata_cache.snapshot.topics:
        await services.offsets_topic.load()
    return UpdateMetadataResponse()


def _apply(body: UpdateMetadataRequest, services: Services) -> Steps[None]:
    """All that follows from the request, before another of the controller's requests is looked at.

    Nobody can commit offsets of what was deleted any more, nor yet of what comes in its place.
    """
    before = services.metadata_cache.snapshot
    deleted = yield from services.metadata_cache.update_steps(body)
    yield from services.group_coordinator.partitions_deleted(deleted)
    now = services.metadata_cache.snapshot
    yield from services.replica_manager.brokers_died([id_ for id_ in before.brokers if id_ not in now.brokers])
    for index, topic in enumerate(body.topics, 1):
        if topic.topic not in now.topics:
            services.topic_configs.forget(topic.topic)
        services.topic_admin.metadata_changed(topic.topic)
        services.leader_elections.metadata_changed(topic.topic)
        if index % TOPICS_PER_STEP == 0:
            yield
