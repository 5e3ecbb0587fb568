"""DeleteGroups (key 42), versions 0 to 2: deletes groups without members, with their committed offsets."""

from klamm.broker.registry import Request, handler
from klamm.broker.security import Operation
from klamm.protocol.apis.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import ResourceType
from klamm.slices import in_slices, mapped, slices

Result = DeleteGroupsResponse.DeletableGroupResult

# The number of groups that are deleted in one slice: a few milliseconds.
GROUPS_PER_SLICE = 50


def error_response(request: Request[DeleteGroupsRequest], error: KafkaError) -> Steps[DeleteGroupsResponse]:
    failed = lambda group_id: Result(group_id=group_id, error_code=error.code)  # noqa: E731
    return DeleteGroupsResponse(results=(yield from mapped(failed, dict.fromkeys(request.body.groups_names))))


@handler(
    ApiKey.DELETE_GROUPS, operation=Operation.DELETE, resource_type=ResourceType.GROUP, error_response=error_response
)
async def handle(request: Request[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.body.groups_names))
    codes: dict[str, ErrorCode] = {}
    async for piece in slices(names, GROUPS_PER_SLICE):
        allowed = [name for name in piece if request.allows(name)]
        codes |= request.services.group_coordinator.delete_groups(allowed)
    answer = lambda name: Result(group_id=name, error_code=codes.get(name, request.denied))  # noqa: E731
    return DeleteGroupsResponse(results=await in_slices(mapped(answer, names)))
