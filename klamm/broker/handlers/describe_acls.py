"""DescribeAcls (key 29), versions 1 and 2: lists access control lists.

Without an authorizer the answer is SECURITY_DISABLED, as in Kafka.
"""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import NO_AUTHORIZER, Operation
from klamm.protocol.apis.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType


def error_response(request: Request[DescribeAclsRequest], error: KafkaError) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error.code, error_message=error.message or None, resources=[])


@handler(
    ApiKey.DESCRIBE_ACLS,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    request.require_cluster()
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
