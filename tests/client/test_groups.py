"""Groups and their offsets, in clusters that answer as a test says."""

from typing import Any

import pytest

from klamm.client.admin.groups import Coordinator, GroupListing, describe_groups, list_groups
from klamm.client.consumer.offsets import (
    OffsetAndMetadata,
    alter_consumer_group_offsets,
    delete_consumer_group_offsets,
    list_consumer_group_offsets,
)
from klamm.client.fan_out import checked
from klamm.net.client import UnsupportedVersion
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.describe_groups import DescribeGroupsResponse
from klamm.protocol.apis.list_groups import ListGroupsResponse
from klamm.protocol.apis.offset_commit import OffsetCommitResponse
from klamm.protocol.apis.offset_delete import OffsetDeleteResponse
from klamm.protocol.apis.offset_fetch import OffsetFetchResponse
from klamm.protocol.consumer_protocol import encode_assignment
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from support.scripted_cluster import HANG_UP, ScriptedCluster

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


# -- groups -----------------------------------------------------------------------------------------------------------


def listed(*groups: tuple[str, str], error_code: int = 0) -> tuple[ApiKey, ListGroupsResponse]:
    row = ListGroupsResponse.ListedGroup
    rows = [row(group_id=name, protocol_type=kind, group_state="Stable") for name, kind in groups]
    return ApiKey.LIST_GROUPS, ListGroupsResponse(error_code=error_code, groups=rows)


def described(
    group: str,
    *,
    error_code: int = 0,
    state: str = "Stable",
    kind: str = "consumer",
    assignment: bytes = encode_assignment([P1, P0]),
) -> tuple[ApiKey, DescribeGroupsResponse]:
    row = DescribeGroupsResponse.DescribedGroup
    member = row.DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_metadata=b"", member_assignment=assignment
    )
    one = row(
        error_code=error_code,
        group_id=group,
        group_state=state,
        protocol_type=kind,
        protocol_data="range",
        members=[member] if state == "Stable" else [],
    )
    return ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=[one])


async def test_the_groups_of_all_brokers_are_listed() -> None:
    async with ScriptedCluster(listed(("b", "consumer"), ("c", "connect")), listed(("a", ""))) as cluster:
        found = await list_groups(cluster.client())
        assert found == [
            GroupListing("a", "", "Stable"),
            GroupListing("b", "consumer", "Stable"),
            GroupListing("c", "connect", "Stable"),
        ]
        assert [each.is_of_consumers for each in found] == [True, True, False]
        assert sorted(broker for _, broker in cluster.asked) == [0, 1]


async def test_a_coordinator_that_loads_is_asked_again() -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    async with ScriptedCluster(listed(), listed(error_code=loading), listed(), listed(("a", "consumer"))) as cluster:
        assert [each.group for each in await list_groups(cluster.client())] == ["a"]


async def test_a_broker_that_is_lost_while_groups_are_listed_is_left_out_when_it_has_left_the_cluster() -> None:
    async with ScriptedCluster(listed(), (ApiKey.LIST_GROUPS, HANG_UP), listed(("a", "consumer"))) as cluster:
        client = cluster.client()
        await client.refresh_metadata(())
        cluster.answers[1] = (ApiKey.LIST_GROUPS, lambda _: cluster.forget(1) or HANG_UP)
        assert [each.group for each in await list_groups(client)] == ["a"]


async def test_an_old_broker_cannot_list_groups_by_their_states() -> None:
    async with ScriptedCluster(brokers=1) as cluster:
        client = cluster.client()
        await client.refresh_metadata(())
        connection = await client.connection_to(0)
        assert connection.api_versions is not None
        connection.api_versions[ApiKey.LIST_GROUPS] = (0, 3)
        with pytest.raises(UnsupportedVersion, match=r"brokers before Kafka 2\.6 do not list groups by their states"):
            await list_groups(client, ["Stable"])


async def test_the_coordinators_of_listed_groups_are_known() -> None:
    async with ScriptedCluster(listed(("g", "consumer")), described("g"), brokers=1, coordinators=[]) as cluster:
        client = cluster.client()
        await list_groups(client)
        group = checked((await describe_groups(client, ["g"]))["g"])
        host, port = cluster.address(0)
        assert (group.state, group.assignor, group.coordinator) == ("Stable", "range", Coordinator(0, host, port))
        assert group.members[0].assignment == [P0, P1]


async def test_a_coordinator_that_hangs_up_is_looked_up_again() -> None:
    async with ScriptedCluster((ApiKey.DESCRIBE_GROUPS, HANG_UP), described("g"), coordinators=[0, 1]) as cluster:
        group = checked((await describe_groups(cluster.client(), ["g"]))["g"])
        assert (group.state, group.coordinator.broker_id) == ("Stable", 1)


@pytest.mark.parametrize("error_code", [0, ErrorCode.GROUP_ID_NOT_FOUND])
async def test_a_group_that_does_not_exist_is_dead(error_code: int) -> None:
    """The error code is what brokers since Kafka 4.0 answer besides."""
    async with ScriptedCluster(described("g", error_code=error_code, state="Dead", kind="")) as cluster:
        (group,) = (await describe_groups(cluster.client(), ["g", "g"])).values()
        assert checked(group).state == "Dead"


async def test_an_error_that_does_not_pass_is_the_groups_result() -> None:
    denied = described("g", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    async with ScriptedCluster(denied) as cluster:
        (result,) = (await describe_groups(cluster.client(), ["g"])).values()
        assert str(result) == "GROUP_AUTHORIZATION_FAILED (30): group g"
    async with ScriptedCluster(described("g", error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)) as cluster:
        (result,) = (await describe_groups(cluster.client(deadline_ms=0), ["g"])).values()
        assert str(result) == "COORDINATOR_LOAD_IN_PROGRESS (14): group g"


async def test_only_assignments_of_consumers_are_decoded() -> None:
    async with ScriptedCluster(described("g", kind="connect", assignment=b"\xff")) as cluster:
        (group,) = (await describe_groups(cluster.client(), ["g"])).values()
        assert not checked(group).is_of_consumers
        assert checked(group).members[0].assignment == []
    async with ScriptedCluster(described("g", assignment=b"\xff")) as cluster:
        (result,) = (await describe_groups(cluster.client(), ["g"])).values()
        assert str(result).startswith("UNKNOWN_SERVER_ERROR (-1): group g: member m has an invalid assignment: ")


# -- offsets ----------------------------------------------------------------------------------------------------------


def rows(topic_class: Any, partition_class: Any, partitions: dict[int, dict[str, Any]]) -> list[Any]:
    made = [partition_class(partition_index=number, **row) for number, row in partitions.items()]
    return [topic_class(name="t", partitions=made)]


async def test_committed_offsets() -> None:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    partitions = {
        number: {"committed_offset": offset, "metadata": "x", "error_code": 0}
        for number, offset in ((1, 5), (0, 3), (2, -1))
    }
    response = OffsetFetchResponse(topics=rows(topic, topic.OffsetFetchResponsePartition, partitions))
    async with ScriptedCluster((ApiKey.OFFSET_FETCH, response)) as cluster:
        (offsets,) = (await list_consumer_group_offsets(cluster.client(), ["g"])).values()
        assert list(checked(offsets).items()) == [(P0, OffsetAndMetadata(3, "x")), (P1, OffsetAndMetadata(5, "x"))]


def commit_answer(*codes: int) -> tuple[ApiKey, OffsetCommitResponse]:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    partitions = {number: {"error_code": code} for number, code in enumerate(codes)}
    response = OffsetCommitResponse(topics=rows(topic, topic.OffsetCommitResponsePartition, partitions))
    return ApiKey.OFFSET_COMMIT, response


async def test_a_commit_is_repeated_until_its_coordinator_is_found_and_refusals_are_those_of_the_last_answer() -> None:
    moved = commit_answer(ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
    async with ScriptedCluster(moved, commit_answer(0, ErrorCode.UNKNOWN_MEMBER_ID)) as cluster:
        offsets = {P0: OffsetAndMetadata(1), P1: OffsetAndMetadata(2)}
        results = await alter_consumer_group_offsets(cluster.client(), "g", offsets)
        assert {key: str(result) for key, result in results.items()} == {P0: "None", P1: "UNKNOWN_MEMBER_ID (25)"}
        assert await alter_consumer_group_offsets(cluster.client(), "g", {}) == {}
        assert len(cluster.asked) == 2


async def test_a_partition_that_does_not_exist_is_no_reason_to_repeat_a_commit() -> None:
    async with ScriptedCluster(commit_answer(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) as cluster:
        offsets = {P0: OffsetAndMetadata(1), P1: OffsetAndMetadata(2)}
        results = await alter_consumer_group_offsets(cluster.client(), "g", offsets)
        assert [str(result) for result in results.values()] == ["None", "UNKNOWN_TOPIC_OR_PARTITION (3)"]


async def test_offsets_are_deleted_by_partition_unless_the_whole_request_is_refused() -> None:
    topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
    codes: dict[int, dict[str, Any]] = {0: {"error_code": 0}, 1: {"error_code": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}}
    response = OffsetDeleteResponse(error_code=0, topics=rows(topic, topic.OffsetDeleteResponsePartition, codes))
    async with ScriptedCluster((ApiKey.OFFSET_DELETE, response)) as cluster:
        results = await delete_consumer_group_offsets(cluster.client(), "g", [P1, P0])
        assert not isinstance(results, KafkaError)
        assert [str(result) for result in results.values()] == ["None", "GROUP_SUBSCRIBED_TO_TOPIC (86)"]
    refused = OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP, topics=[])
    async with ScriptedCluster((ApiKey.OFFSET_DELETE, refused)) as cluster:
        whole = await delete_consumer_group_offsets(cluster.client(), "g", [P0])
        assert str(whole) == "NON_EMPTY_GROUP (68)"
