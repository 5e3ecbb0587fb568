"""IncrementalAlterConfigs (key 44), versions 0 and 1: changes single configs of topics and brokers (KIP-339).

Every broker serves it, but a broker's own configs only that broker. The levels of broker loggers cannot be changed.
"""

from klamm.broker.config_alterations import ConfigChange
from klamm.broker.handlers.altered_resources import ConfigResourceType, alter_each, refuse_all
from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)


def error_response(request: Request, error: KafkaError) -> Body:
    return refuse_all(request, Response, error)


@handler(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    operation=Operation.ALTER_CONFIGS,
    resource_type=ResourceType.TOPIC,
    error_response=error_response,
)
async def handle(request: Request) -> Body:
    admin, validate_only = request.services.config_admin, request.body.validate_only

    async def alter(kind: ConfigResourceType, resource: Body) -> None:
        changes = [ConfigChange(config.name, config.value, config.config_operation) for config in resource.configs]
        change = admin.change_topic if kind is ConfigResourceType.TOPIC else admin.change_broker
        await change(resource.resource_name, changes, validate_only=validate_only)

    return await alter_each(request, Response, alter)
