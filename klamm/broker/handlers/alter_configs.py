"""AlterConfigs (key 33), versions 0 to 2: replaces the configs of topics and brokers (KIP-133).

Configs that the request does not name are removed; IncrementalAlterConfigs (key 44) changes single configs. Every
broker serves it, but only the named broker alters its own configs.
"""

from klamm.base.slices import Steps, in_slices
from klamm.broker.handlers.altered_resources import alter_each, response_of
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ConfigResourceType, ResourceType

Resource = AlterConfigsRequest.AlterConfigsResource


def error_response(request: Request[AlterConfigsRequest], error: KafkaError) -> Steps[AlterConfigsResponse]:
    return response_of(AlterConfigsResponse, ((resource, error) for resource in request.body.resources))


@handler(AlterConfigsRequest, Operation.ALTER_CONFIGS, ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request[AlterConfigsRequest]) -> AlterConfigsResponse:
    admin, validate_only = request.services.config_admin, request.body.validate_only

    async def alter(kind: ConfigResourceType, resource: Resource) -> None:
        entries = [(config.name, config.value) for config in resource.configs]
        replace = admin.replace_topic if kind is ConfigResourceType.TOPIC else admin.replace_broker
        await replace(resource.resource_name, entries, validate_only=validate_only)

    outcomes = await alter_each(request, request.body.resources, alter)
    return await in_slices(response_of(AlterConfigsResponse, outcomes))
