"""CreateAcls (key 30), versions 1 and 2: adds access control lists.

Without an authorizer each creation is refused with SECURITY_DISABLED, as in Kafka.
"""

from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import NO_AUTHORIZER, Operation
from klamm.protocol.apis.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType


def error_response(request: Request[CreateAclsRequest], error: KafkaError) -> CreateAclsResponse:
    result = CreateAclsResponse.AclCreationResult(**outcome(error))
    return CreateAclsResponse(results=[result] * len(request.body.creations))


@handler(CreateAclsRequest, Operation.ALTER, ResourceType.CLUSTER, error_response=error_response)
def handle(request: Request[CreateAclsRequest]) -> CreateAclsResponse:
    request.require_cluster()
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
