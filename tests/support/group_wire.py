"""What a member of a consumer group says to its coordinator, frame by frame: for tests of the broker."""

from typing import Any

from klamm.protocol import messages
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.messages import ADVERTISED_MAX, ApiKey
from support.one_broker import Client

MEMBER_ID_REQUIRED = 79

JoinRequest = messages.request_class(ApiKey.JOIN_GROUP)
SyncRequest = messages.request_class(ApiKey.SYNC_GROUP)
LeaveRequest = messages.request_class(ApiKey.LEAVE_GROUP)
FetchTopic = messages.request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic
DeleteTopic = messages.request_class(ApiKey.OFFSET_DELETE).OffsetDeleteRequestTopic

Offsets = dict[tuple[str, int], int]


async def find_coordinator(client: Client, group: str = "g", version: int = 3) -> Any:
    """The answer when there is a coordinator."""
    found: list[Any] = []

    while not found or found[-1].error_code == 15:
        found.append(await client.ask(ApiKey.FIND_COORDINATOR, version, key=group, key_type=0))
    return found[-1]


async def join(
    client: Client,
    group: str = "g",
    member_id: str = "",
    *,
    version: int = 7,
    instance_id: str | None = None,
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 10_000,
    protocols: Any = (("range", b"subscription"),),
    protocol_type: str = "consumer",
) -> Any:
    """The answer to one JoinGroup."""
    return await client.ask(
        ApiKey.JOIN_GROUP,
        version,
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[JoinRequest.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
    )


async def join_fully(client: Client, group: str = "g", **options: Any) -> Any:
    """As `join`, with the id that the coordinator gives first."""
    answer = await join(client, group, **options)
    if answer.error_code == MEMBER_ID_REQUIRED:
        answer = await join(client, group, answer.member_id, **options)
    return answer


async def sync(
    client: Client, joined: Any, assignments: dict[str, bytes], group: str = "g", *, version: int = 5
) -> Any:
    """The answer to the SyncGroup of a joined member."""
    return await client.ask(
        ApiKey.SYNC_GROUP,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
            for member, data in assignments.items()
        ],
    )


async def become_stable(client: Client, group: str = "g") -> Any:
    """One member in a Stable group; what it was told when it joined."""
    joined = await join_fully(client, group)
    assert joined.error_code == 0
    assert (await sync(client, joined, {joined.member_id: b"assignment"}, group)).error_code == 0
    return joined


async def heartbeat(client: Client, joined: Any, group: str = "g", *, version: int = 4) -> int:
    answer = await client.ask(
        ApiKey.HEARTBEAT,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
    )
    return int(answer.error_code)


async def leave(client: Client, member_id: str, group: str = "g", *, version: int = 4) -> Any:
    members: dict[str, Any] = {"member_id": member_id}
    if version >= 3:
        members = {"members": [LeaveRequest.MemberIdentity(member_id=member_id, group_instance_id=None)]}
    return await client.ask(ApiKey.LEAVE_GROUP, version, group_id=group, **members)


def commit_request(
    offsets: Offsets, group: str = "g", *, joined: Any = None, metadata: str | None = "note", **fields: Any
) -> OffsetCommitRequest:
    """Without `joined`: of a client that is not a member. `fields` replace fields of the request."""
    request = OffsetCommitRequest.of(group, offsets, metadata=metadata)
    if joined is not None:
        request.generation_id_or_member_epoch, request.member_id = joined.generation_id, joined.member_id
    for name, value in fields.items():
        setattr(request, name, value)
    return request


async def commit(client: Client, offsets: Offsets, group: str = "g", *, version: int = 8, **fields: Any) -> Offsets:
    """The error code of each partition."""
    request = commit_request(offsets, group, **fields)
    answer = await client.request(ApiKey.OFFSET_COMMIT, version, request)
    errors: Offsets = answer.error_codes()
    return errors


async def fetch_offsets(
    client: Client, wanted: dict[str, list[int]] | None, group: str = "g", *, version: int = 7, stable: bool = False
) -> Any:
    """The answer to an OffsetFetch; None: for all partitions."""
    topics = None
    if wanted is not None:
        topics = [FetchTopic(name=topic, partition_indexes=numbers) for topic, numbers in wanted.items()]
    return await client.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=topics, require_stable=stable)


async def committed(client: Client, group: str = "g") -> Offsets:
    """All committed offsets, when they can be had."""
    answer = await fetch_offsets(client, None, group)
    while answer.error_code == 14:
        answer = await fetch_offsets(client, None, group)
    assert answer.error_code == 0, answer
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    }


async def delete_offsets(client: Client, partitions: dict[str, list[int]], group: str = "g") -> Any:
    topics = [
        DeleteTopic(
            name=topic, partitions=[DeleteTopic.OffsetDeleteRequestPartition(partition_index=n) for n in numbers]
        )
        for topic, numbers in partitions.items()
    ]
    return await client.ask(ApiKey.OFFSET_DELETE, group_id=group, topics=topics)


async def state(client: Client, group: str = "g") -> str:
    answer = await client.ask(ApiKey.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)
    return str(answer.groups[0].group_state)


async def until_state(client: Client, wanted: str, group: str = "g") -> None:
    while await state(client, group) != wanted:
        pass


def newest(api_key: ApiKey, version: int) -> int:
    """`version`, or the newest that there is."""
    return min(version, ADVERTISED_MAX[api_key])
