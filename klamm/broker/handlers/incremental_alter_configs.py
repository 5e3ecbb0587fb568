"""IncrementalAlterConfigs (key 44), versions 0 and 1: changes single configs of topics and brokers (KIP-339).

Every broker serves it, but only the named broker alters its own configs. The levels of broker loggers cannot be
changed.
"""

from klamm.base.slices import Steps, in_slices
from klamm.broker.handlers.altered_resources import alter_each, response_of
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, ResourceType

Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


def error_response(
    request: Request[IncrementalAlterConfigsRequest], error: KafkaError
) -> Steps[IncrementalAlterConfigsResponse]:
    return response_of(IncrementalAlterConfigsResponse, ((resource, error) for resource in request.body.resources))


@handler(IncrementalAlterConfigsRequest, Operation.ALTER_CONFIGS, ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request[IncrementalAlterConfigsRequest]) -> IncrementalAlterConfigsResponse:
    admin, validate_only = request.services.config_admin, request.body.validate_only

    async def alter(kind: ConfigResourceType, resource: Resource) -> None:
        changes = [AlterConfigOp(config.name, config.value, config.config_operation) for config in resource.configs]
        change = admin.change_topic if kind is ConfigResourceType.TOPIC else admin.change_broker
        await change(resource.resource_name, changes, validate_only=validate_only)

    outcomes = await alter_each(request, request.body.resources, alter)
    return await in_slices(response_of(IncrementalAlterConfigsResponse, outcomes))
