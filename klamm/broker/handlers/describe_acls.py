"""DescribeAcls (key 29), versions 1 and 2: lists access control lists.

Without an authorizer the answer is SECURITY_DISABLED, as in Kafka.
"""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import NO_AUTHORIZER, Operation
from klamm.protocol.apis.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType


@handler(DescribeAclsRequest, Operation.DESCRIBE, ResourceType.CLUSTER, ends_with_client=True)
def handle(request: Request[DescribeAclsRequest]) -> DescribeAclsResponse:
    request.require_cluster()
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
