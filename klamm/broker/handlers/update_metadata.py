"""UpdateMetadata (key 6), versions 0 to 7: the controller sends the live brokers and the partitions' leaders.

`metadata_updates.py` applies it. Stale controller and broker epochs are refused as in LeaderAndIsr.
"""

import logging

from klamm.base.slices import in_slices
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ResourceType

_log = logging.getLogger(__name__)


def error_response(request: Request[UpdateMetadataRequest], error: KafkaError) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(error.code)


@handler(UpdateMetadataRequest, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[UpdateMetadataRequest]) -> UpdateMetadataResponse:
    body, services = request.body, request.services
    request.require_cluster()
    services.registrar.require_broker_epoch(body.broker_epoch)
    before = services.metadata_cache.snapshot
    await services.metadata_updates.update(body, request.correlation_id)
    now = services.metadata_cache.snapshot
    if now.brokers != before.brokers and now.has_other_listeners_than(services.broker_id):
        listeners = {broker_id: sorted(broker.endpoints) for broker_id, broker in now.brokers.items()}
        _log.error("Listeners are not identical across brokers: %s", listeners)
    services.controller_channel.controller_changed()
    services.transaction_markers.brokers_changed()
    await in_slices(services.transaction_coordinator.markers.leaders_changed())
    for topic in (services.offsets_topic, services.transaction_topic):
        if topic.name in services.metadata_cache.snapshot.topics:
            await topic.load()
    return UpdateMetadataResponse()
