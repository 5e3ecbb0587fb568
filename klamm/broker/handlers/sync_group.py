"""SyncGroup (key 14), versions 0 to 5: a member asks for its assignment; the leader sends all assignments.

The answer waits until the leader's assignments are in the log. From version 5 on a member names the protocol that it
expects (KIP-559).
"""

from klamm.base.slices import each
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.group import SyncResult
from klamm.protocol.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

FIRST_VERSION_WITH_PROTOCOL = 5


@handler(SyncGroupRequest, Operation.READ, ResourceType.GROUP, ends_with_client=True)
async def handle(request: Request[SyncGroupRequest]) -> SyncGroupResponse:
    body = request.body
    if request.version >= FIRST_VERSION_WITH_PROTOCOL and None in (body.protocol_type, body.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "protocol type and name are required")
    request.require(body.group_id)
    result = await request.services.group_coordinator.sync_group(
        body.group_id,
        body.generation_id,
        body.member_id,
        body.group_instance_id,
        body.protocol_type,
        body.protocol_name,
        {assignment.member_id: assignment.assignment async for assignment in each(body.assignments)},
    )
    return _response(request, result)


def _response(request: Request[SyncGroupRequest], result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error_code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
