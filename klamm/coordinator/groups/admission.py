"""The checks that a member's requests must pass. Pure.

Each check returns the member's error, or None. Their order is Kafka's: clients react differently to each error.
"""

from klamm.coordinator.groups.group import NO_MEMBER_ID, Group, GroupState, Member
from klamm.coordinator.ports import TransactionalProducer
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.primitives import MAX_STRING_BYTES

# A member id is a client's or an instance's id plus a dash and a UUID.
MEMBER_ID_SUFFIX_BYTES = 37
# Kafka has no limit. Clients send only a few assignors.
MAX_PROTOCOLS = 100


def is_storable(says: Member) -> bool:
    """Whether the member has at most `MAX_PROTOCOLS`, and all texts fit into a group record: 32,767 bytes each. Newer
    requests may contain longer texts."""
    if len(says.protocols) > MAX_PROTOCOLS:
        return False
    texts = (says.client_id, says.group_instance_id or "", says.protocol_type, *(name for name, _ in says.protocols))
    return max(len(text.encode()) for text in texts) + MEMBER_ID_SUFFIX_BYTES <= MAX_STRING_BYTES


def is_legal_group_id(group_id: str, may_be_empty: bool) -> bool:
    """Only requests for offsets may use an empty group id, as old clients do."""
    return bool(group_id or may_be_empty) and len(group_id.encode()) <= MAX_STRING_BYTES


def has_room(group: Group, member_id: str, max_size: int) -> bool:
    """Whether the group has room for the member. During a rebalance only members that have joined count, so a lowered
    group.max.size refuses the last to join."""
    if group.state in (GroupState.EMPTY, GroupState.DEAD):
        return True
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.is_awaiting_join) or group.awaiting_join_count < max_size
    return member is not None or len(group.members) < max_size


def rejoin_error(group: Group, member_id: str, group_instance_id: str | None) -> ErrorCode | None:
    """Why a member may not rejoin with an id that is not pending."""
    if group.is_fenced(member_id, group_instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    is_instance_unknown = group_instance_id is not None and group_instance_id not in group.static_members
    if member_id not in group.members or is_instance_unknown:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return None


def member_error(group: Group, generation_id: int, member_id: str, group_instance_id: str | None) -> ErrorCode | None:
    """Why a request may not act as this member of this generation."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.is_fenced(member_id, group_instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return None


def commit_error(group: Group, generation_id: int, member_id: str, group_instance_id: str | None) -> ErrorCode | None:
    """Why a commit is refused. A negative generation means the client is not a member and only stores offsets."""
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.FENCED_INSTANCE_ID if group.is_fenced(member_id, group_instance_id) else None
    error = member_error(group, generation_id, member_id, group_instance_id)
    if error is None and group.state is GroupState.COMPLETING_REBALANCE:
        # The member knows the generation, but not yet its assignment.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def producer_error(producer: TransactionalProducer) -> ErrorCode | None:
    """Why a producer has no transaction. Negative numbers mark batches without a producer."""
    if producer.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.INVALID_PRODUCER_EPOCH if producer.producer_epoch < 0 else None


def transactional_commit_error(
    group: Group, generation_id: int, member_id: str, group_instance_id: str | None
) -> ErrorCode | None:
    """Why a commit in a transaction is refused. Member id and generation count only if they are given (KIP-447)."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.is_fenced(member_id, group_instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id != NO_MEMBER_ID and member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation_id >= 0 and generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return None


def leaving_member_id(group: Group, member_id: str, group_instance_id: str | None) -> str | ErrorCode:
    """The id of the member that leaves. A static member may be named by its instance id alone."""
    if member_id == NO_MEMBER_ID and group_instance_id is not None:
        member_id = group.static_members.get(group_instance_id, NO_MEMBER_ID)
    if group.is_fenced(member_id, group_instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id not in group.members and member_id not in group.pending_members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return member_id
