"""DescribeAcls (key 29), versions 1 and 2: which access control lists there are.

Without an authorizer there are none, and the answer is SECURITY_DISABLED, as Kafka's.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import NO_AUTHORIZER, Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.DESCRIBE_ACLS)


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(version=request.version, error_code=error.code, error_message=error.message or None, resources=[])


@handler(
    ApiKey.DESCRIBE_ACLS,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request) -> Body:
    request.require_cluster()
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
