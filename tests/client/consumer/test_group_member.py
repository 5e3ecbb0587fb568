"""A member of a group against coordinators that answer as a test says: what each error code leads to."""

from dataclasses import replace
from typing import Any

import pytest

from klamm.client.consumer.group_member import FormerMembership, GroupMember, MustRejoin
from klamm.client.consumer.offsets import OffsetAndMetadata
from klamm.client.options import GroupOptions
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.heartbeat import HeartbeatResponse
from klamm.protocol.apis.join_group import JoinGroupResponse
from klamm.protocol.apis.leave_group import LeaveGroupResponse
from klamm.protocol.apis.offset_commit import OffsetCommitResponse
from klamm.protocol.apis.offset_fetch import OffsetFetchResponse
from klamm.protocol.apis.sync_group import SyncGroupResponse
from klamm.protocol.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from support.scripted_cluster import HANG_UP, ScriptedCluster

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
OPTIONS = GroupOptions("g", assignors=("roundrobin", "range"))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.client.consumer.group_member.MIN_BACKOFF_S", 0.001)


def joined(error: int = 0, *, member_id: str = "m", leader: str = "l", members: Any = ()) -> tuple[ApiKey, Any]:
    return ApiKey.JOIN_GROUP, JoinGroupResponse(
        error_code=error,
        generation_id=7,
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        member_id=member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=metadata) for name, metadata in members
        ],
    )


def synced(error: int = 0, *partitions: TopicPartition, assignment: bytes | None = None) -> tuple[ApiKey, Any]:
    data = encode_assignment(partitions) if assignment is None else assignment
    return ApiKey.SYNC_GROUP, SyncGroupResponse(error_code=error, assignment=data)


def committed(*errors: int) -> tuple[ApiKey, Any]:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    partitions = [
        topic.OffsetCommitResponsePartition(partition_index=number, error_code=error)
        for number, error in enumerate(errors)
    ]
    return ApiKey.OFFSET_COMMIT, OffsetCommitResponse(topics=[topic(name="t", partitions=partitions)])


def fetched(error: int, *offsets: tuple[int, int]) -> tuple[ApiKey, Any]:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    partitions = [
        topic.OffsetFetchResponsePartition(
            partition_index=number, committed_offset=offset, metadata="", error_code=each
        )
        for number, (offset, each) in enumerate(offsets)
    ]
    return ApiKey.OFFSET_FETCH, OffsetFetchResponse(error_code=error, topics=[topic(name="t", partitions=partitions)])


class Joined:
    """A member that has joined, and the cluster of its coordinators."""

    def __init__(self, *answers: tuple[ApiKey, Any], **cluster: Any) -> None:
        topics = cluster.pop("topics", {"t": (0, 0, 0)})
        self.cluster = ScriptedCluster(joined(), synced(0, P0, P1), *answers, topics=topics, **cluster)

    async def __aenter__(self) -> GroupMember:
        await self.cluster.__aenter__()
        self.member = GroupMember(self.cluster.client(), OPTIONS)
        assert await self.member.join(["t"]) == [P0, P1]
        return self.member

    async def __aexit__(self, *_: object) -> None:
        await self.member.close()
        await self.cluster.__aexit__()


async def test_a_member_asks_for_its_id_first_and_names_its_assignors_by_preference() -> None:
    cluster = ScriptedCluster(
        joined(ErrorCode.MEMBER_ID_REQUIRED, member_id="given"), joined(member_id="given"), synced(0, P2)
    )
    async with cluster:
        member = GroupMember(cluster.client(), OPTIONS)
        assert await member.join(["t", "u"]) == [P2]
        await member.close()
    first, second, sync = cluster.requests
    assert (first.member_id, second.member_id) == ("", "given")
    assert [protocol.name for protocol in second.protocols] == ["roundrobin", "range"]
    assert {protocol.metadata for protocol in second.protocols} == {encode_subscription(["t", "u"])}
    assert (second.session_timeout_ms, second.rebalance_timeout_ms) == (10_000, 300_000)
    assert (sync.generation_id, sync.member_id, sync.assignments) == (7, "given", [])


async def test_the_leader_assigns_the_partitions_of_all_topics_that_members_want() -> None:
    subscriptions = [("a", encode_subscription(["t"])), ("b", encode_subscription(["t", "u", "missing"]))]
    cluster = ScriptedCluster(
        joined(member_id="a", leader="a", members=subscriptions), synced(0, P0), topics={"t": (0, 1, 0), "u": (1,)}
    )
    async with cluster:
        member = GroupMember(cluster.client(), OPTIONS)
        assert await member.join(["t"]) == [P0]
        assert member.assigned_by == {"t": 3, "u": 1, "missing": 0}
        await member.close()
    sent = {each.member_id: decode_assignment(each.assignment) for each in cluster.requests[-1].assignments}
    assert sent == {"a": [P0, P1], "b": [P2, TopicPartition("u", 0)]}


@pytest.mark.parametrize(
    "error",
    [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, HANG_UP],
)
async def test_a_coordinator_that_moves_is_found_again(error: Any) -> None:
    def failing(api_key: ApiKey, response: Any) -> tuple[ApiKey, Any]:
        return api_key, HANG_UP if error is HANG_UP else response

    code = 0 if error is HANG_UP else error
    answers = [
        failing(*joined(code)),
        joined(),
        failing(*synced(code)),
        synced(0, P0),
        failing(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=code)),
        (ApiKey.HEARTBEAT, HeartbeatResponse(error_code=0)),
        failing(*committed(code)),
        committed(0),
        failing(*fetched(code)),
        fetched(0, (5, 0)),
    ]
    cluster = ScriptedCluster(*answers, coordinators=(0, 1, 0, 1, 0, 1))
    async with cluster:
        member = GroupMember(cluster.client(), OPTIONS)
        assert await member.join(["t"]) == [P0]
        await member.heartbeat()
        await member.commit({P0: 4}, member.membership)
        assert await member.committed([P0]) == {P0: OffsetAndMetadata(5)}
        await member.close()
    assert {broker for _, broker in cluster.asked} == {0, 1}


@pytest.mark.parametrize(
    ("error", "member_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, "m"),
        (ErrorCode.ILLEGAL_GENERATION, "m"),
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
    ],
)
async def test_the_end_of_a_generation_makes_the_member_join_again(error: ErrorCode, member_id: str) -> None:
    again = [joined(), synced(error), joined(), synced(0, P2)]
    heartbeat = (ApiKey.HEARTBEAT, HeartbeatResponse(error_code=error))
    state = Joined(heartbeat, *again)
    async with state as member:
        with pytest.raises(MustRejoin):
            await member.heartbeat()
        assert member.membership.member_id == member_id
        assert await member.join(["t"]) == [P2]
    joins = [request for request in state.cluster.requests if hasattr(request, "protocols")]
    assert [request.member_id for request in joins] == ["", member_id, member_id]


async def test_a_member_that_another_has_replaced_is_none_any_more() -> None:
    """Neither heartbeats nor commits are sent as that member, and none as a client that is no member."""
    state = Joined((ApiKey.HEARTBEAT, HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)))
    async with state as member:
        read_as = replace(member.membership)
        with pytest.raises(KafkaError, match="another member has taken over the group instance id"):
            await member.heartbeat()
        assert not member.needs_heartbeats
        assert not read_as.is_same_member(member.membership)
        with pytest.raises(MustRejoin):
            await member.commit({P0: 4}, read_as)
    assert not any(hasattr(request, "retention_time_ms") for request in state.cluster.requests)


@pytest.mark.parametrize(
    "error", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS]
)
async def test_a_commit_of_a_former_generation_is_refused_and_never_sent_as_that_of_a_stranger(
    error: ErrorCode,
) -> None:
    state = Joined(committed(error))
    async with state as member:
        read_as = replace(member.membership)
        with pytest.raises(MustRejoin):
            await member.commit({P0: 4}, read_as)
        if error is not ErrorCode.REBALANCE_IN_PROGRESS:
            for owned_as in (read_as, member.membership):
                with pytest.raises(FormerMembership, match="no longer a member of that generation"):
                    await member.commit({P0: 4}, owned_as)
    commits = [request for request in state.cluster.requests if hasattr(request, "retention_time_ms")]
    assert [(each.generation_id_or_member_epoch, each.member_id) for each in commits] == [(7, "m")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (joined(ErrorCode.GROUP_AUTHORIZATION_FAILED), r"GROUP_AUTHORIZATION_FAILED \(30\): group g"),
        (joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL), r"INCONSISTENT_GROUP_PROTOCOL \(23\): group g"),
        (joined(ErrorCode.GROUP_MAX_SIZE_REACHED), r"GROUP_MAX_SIZE_REACHED \(81\): group g"),
        (joined(ErrorCode.FENCED_INSTANCE_ID), r"FENCED_INSTANCE_ID \(82\): another member has taken over"),
        (joined(member_id="m", leader="m", members=[("x", b"\0")]), "member x has sent no valid subscription"),
    ],
)
async def test_an_error_for_good_ends_the_join(answer: tuple[ApiKey, Any], message: str) -> None:
    async with ScriptedCluster(answer) as cluster:
        member = GroupMember(cluster.client(), OPTIONS)
        with pytest.raises(KafkaError, match=message):
            await member.join(["t"])
        await member.close()


async def test_an_assignment_that_is_none_is_an_error() -> None:
    async with ScriptedCluster(joined(), synced(assignment=b"\0")) as cluster:
        member = GroupMember(cluster.client(), OPTIONS)
        with pytest.raises(KafkaError, match="the leader of group g has sent no valid assignment"):
            await member.join(["t"])
        await member.close()


async def test_an_offset_that_a_transaction_may_still_commit_is_left_out_and_the_others_are_known() -> None:
    state = Joined(fetched(0, (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), (3, 0)), fetched(0, (9, 0), (-1, 0)))
    async with state as member:
        assert await member.committed([P0, P1]) == {P1: OffsetAndMetadata(3)}
        assert await member.committed([P0, P1]) == {P0: OffsetAndMetadata(9), P1: None}
    assert all(request.require_stable for request in state.cluster.requests[-2:])


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_what_an_answer_says_of_a_former_generation_changes_nothing_about_the_present_one(
    error: ErrorCode,
) -> None:
    """The member joins the next generation while the answers to a heartbeat and to a commit are on their way."""
    state = Joined()

    def late(response: Any) -> Any:
        def answer(request: Any) -> Any:
            state.member.membership.generation_id += 1
            return response

        return answer

    state.cluster.answers.append((ApiKey.HEARTBEAT, late(HeartbeatResponse(error_code=error))))
    state.cluster.answers.append((ApiKey.OFFSET_COMMIT, late(committed(error)[1])))
    async with state as member:
        await member.heartbeat()
        with pytest.raises(FormerMembership):
            await member.commit({P0: 4}, member.membership)
        assert (member.membership.member_id, member.membership.generation_id) == ("m", 9)


async def test_a_member_needs_heartbeats_from_the_answer_to_its_join_until_the_next_join() -> None:
    """The group's leader too, while it looks up the partitions that it assigns."""
    needed = []
    state = Joined()

    def note(response: Any) -> Any:
        def answer(request: Any) -> Any:
            needed.append(state.member.needs_heartbeats)
            return response

        return answer

    rejoined = joined(member_id="m", leader="m", members=[("m", encode_subscription(["t"]))])[1]
    state.cluster.answers += [(ApiKey.JOIN_GROUP, note(rejoined)), (ApiKey.SYNC_GROUP, note(synced(0, P0)[1]))]
    async with state as member:
        needed.append(member.needs_heartbeats)
        await member.join(["t"])
        needed.append(member.needs_heartbeats)
        member.membership.forget()
        needed.append(member.needs_heartbeats)
    assert needed == [True, False, True, True, False]


async def test_only_dynamic_members_leave() -> None:
    state = Joined((ApiKey.LEAVE_GROUP, LeaveGroupResponse(error_code=0)))
    async with state as member:
        await member.leave()
        assert member.membership.member_id == ""
        member.membership.member_id, member.membership.group_instance_id = "m", "olga"
        await member.leave()
    (left,) = [request for request in state.cluster.requests if hasattr(request, "members")]
    assert [each.member_id for each in left.members] == ["m"]
