"""JoinGroup (key 11), versions 0 to 7: a member joins a group, and gets its generation.

The answer waits until the generation is complete: for the first generation up to `group.initial.rebalance.delay.ms`,
then up to the largest rebalance timeout of the members. From version 4 on a member first gets its id, with
MEMBER_ID_REQUIRED (KIP-394). From version 5 on it may be a static member (KIP-345).
"""

from klamm.base.slices import Slices, Steps, in_slices, mapped
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.group import NO_MEMBER_ID, JoinResult
from klamm.protocol.apis.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ResourceType

Member = JoinGroupResponse.JoinGroupResponseMember

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITHOUT_PROTOCOL = 7

# A slice describes this many members, or fewer with more metadata for each.
MEMBERS_PER_SLICE = 500
BYTES_PER_PIECE = 2_000


def error_response(request: Request[JoinGroupRequest], error: KafkaError) -> Steps[JoinGroupResponse]:
    return _response(request, JoinResult(error.code, NO_MEMBER_ID))


@handler(JoinGroupRequest, Operation.READ, ResourceType.GROUP, error_response=error_response, ends_with_client=True)
async def handle(request: Request[JoinGroupRequest]) -> JoinGroupResponse:
    body, version = request.body, request.version
    request.require(body.group_id)
    has_rebalance_timeout = version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    result = await request.services.group_coordinator.join_group(
        body.group_id,
        body.member_id,
        body.group_instance_id,
        requires_known_member_id=(version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED and body.group_instance_id is None),
        client_id=request.client_id or "",
        client_host=f"/{request.client.host}",
        rebalance_timeout_ms=body.rebalance_timeout_ms if has_rebalance_timeout else body.session_timeout_ms,
        session_timeout_ms=body.session_timeout_ms,
        protocol_type=body.protocol_type,
        protocols=await in_slices(mapped(lambda protocol: (protocol.name, protocol.metadata), body.protocols)),
    )
    return await request.services.long_answers.take(_response(request, result))


def _response(request: Request[JoinGroupRequest], result: JoinResult) -> Steps[JoinGroupResponse]:
    members = []
    slices = Slices(MEMBERS_PER_SLICE)
    for member_id, group_instance_id, metadata in result.members:
        members.append(Member(member_id=member_id, group_instance_id=group_instance_id, metadata=metadata))
        if slices.spend(1 + len(metadata) // BYTES_PER_PIECE):
            yield
    protocol_name = result.protocol_name
    if protocol_name is None and request.version < FIRST_VERSION_WITHOUT_PROTOCOL:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=result.error_code,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name,
        leader=result.leader_id,
        member_id=result.member_id,
        members=members,
    )
