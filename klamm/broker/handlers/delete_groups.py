"""DeleteGroups (key 42), versions 0 to 2: deletes groups without members, with their committed offsets."""

import asyncio

from klamm.base.slices import Slices, Steps, in_slices, mapped
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Result = DeleteGroupsResponse.DeletableGroupResult

# How many groups a slice deletes, in a few milliseconds; fewer with longer names.
GROUPS_PER_SLICE = 50
CHARACTERS_PER_PIECE = 50


def error_response(request: Request[DeleteGroupsRequest], error: KafkaError) -> Steps[DeleteGroupsResponse]:
    failed = lambda group_id: Result(group_id=group_id, error_code=error.code)  # noqa: E731
    return DeleteGroupsResponse(results=(yield from mapped(failed, dict.fromkeys(request.body.groups_names))))


@handler(DeleteGroupsRequest, Operation.DELETE, ResourceType.GROUP, error_response=error_response)
async def handle(request: Request[DeleteGroupsRequest]) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.body.groups_names))
    codes: dict[str, ErrorCode] = {}
    slices = Slices(GROUPS_PER_SLICE)
    allowed = []
    for name in names:
        if request.allows(name):
            allowed.append(name)
        if slices.spend(1 + len(name) // CHARACTERS_PER_PIECE):
            codes |= request.services.group_coordinator.delete_groups(allowed)
            allowed = []
            await asyncio.sleep(0)
    codes |= request.services.group_coordinator.delete_groups(allowed)
    answer = lambda name: Result(group_id=name, error_code=codes.get(name, request.denied))  # noqa: E731
    return DeleteGroupsResponse(results=await in_slices(mapped(answer, names)))
