"""DeleteAcls (key 31), versions 1 and 2: removes the access control lists that match filters.

Without an authorizer each filter is refused with SECURITY_DISABLED, as in Kafka.
"""

from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import NO_AUTHORIZER, Operation
from klamm.protocol.apis.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType


def error_response(request: Request[DeleteAclsRequest], error: KafkaError) -> DeleteAclsResponse:
    result = DeleteAclsResponse.DeleteAclsFilterResult(**outcome(error), matching_acls=[])
    return DeleteAclsResponse(filter_results=[result] * len(request.body.filters))


@handler(DeleteAclsRequest, Operation.ALTER, ResourceType.CLUSTER, error_response=error_response)
def handle(request: Request[DeleteAclsRequest]) -> DeleteAclsResponse:
    request.require_cluster()
    raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
