"""AlterConfigs (key 33), versions 0 to 2: replaces the configs of topics and brokers (KIP-133).

What is not named in the request is no longer set; IncrementalAlterConfigs (key 44) changes single configs. Every broker
serves it, but a broker's own configs only that broker.
"""

from klamm.broker.handlers.altered_resources import ConfigResourceType, alter_each, refuse_all
from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.ALTER_CONFIGS)


def error_response(request: Request, error: KafkaError) -> Body:
    return refuse_all(request, Response, error)


@handler(
    ApiKey.ALTER_CONFIGS,
    operation=Operation.ALTER_CONFIGS,
    resource_type=ResourceType.TOPIC,
    error_response=error_response,
)
async def handle(request: Request) -> Body:
    admin, validate_only = request.services.config_admin, request.body.validate_only

    async def alter(kind: ConfigResourceType, resource: Body) -> None:
        entries = [(config.name, config.value) for config in resource.configs]
        replace = admin.replace_topic if kind is ConfigResourceType.TOPIC else admin.replace_broker
        await replace(resource.resource_name, entries, validate_only=validate_only)

    return await alter_each(request, Response, alter)
