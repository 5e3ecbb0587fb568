"""Requests to leaders, coordinators, brokers and the controller: which broker gets what, and what is retried."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client.admin.configs import ConfigResource, describe_configs
from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.groups import delete_groups
from klamm.client.admin.log_dirs import describe_log_dirs
from klamm.client.admin.reassignments import list_partition_reassignments
from klamm.client.admin.topics import CreatedTopic, NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import ListedOffset, list_consumer_group_offsets, list_offsets
from klamm.client.fan_out import checked, error_of, fan_out
from klamm.client.retries import RetryPolicy
from klamm.net.client import ClientError, ConnectFailed, Connection, Disconnected, UnsupportedVersion
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.create_topics import CreateTopicsResponse
from klamm.protocol.apis.delete_groups import DeleteGroupsResponse
from klamm.protocol.apis.describe_configs import DescribeConfigsResponse
from klamm.protocol.apis.describe_log_dirs import DescribeLogDirsResponse
from klamm.protocol.apis.elect_leaders import ElectLeadersResponse
from klamm.protocol.apis.list_offsets import ListOffsetsResponse
from klamm.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsResponse
from klamm.protocol.apis.offset_fetch import OffsetFetchResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, ConfigResourceType, ElectionType, TopicPartition
from support.played_connection import PlayedConnection
from support.processes import free_port
from support.scripted_cluster import HANG_UP, ScriptedCluster

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def ends(**rows: tuple[int, int]) -> tuple[ApiKey, ListOffsetsResponse]:
    """The answer for partitions of t: `p1=(error code, offset)`."""
    struct = ListOffsetsResponse.ListOffsetsTopicResponse
    partitions = [
        struct.ListOffsetsPartitionResponse(partition_index=int(name[1:]), error_code=code, offset=offset)
        for name, (code, offset) in rows.items()
    ]
    return ApiKey.LIST_OFFSETS, ListOffsetsResponse(topics=[struct(name="t", partitions=partitions)])


def created(**codes: int) -> tuple[ApiKey, CreateTopicsResponse]:
    struct = CreateTopicsResponse.CreatableTopicResult
    topics = [struct(name=name, error_code=code, num_partitions=3) for name, code in codes.items()]
    return ApiKey.CREATE_TOPICS, CreateTopicsResponse(topics=topics)


async def ask(client: ClusterClient, *partitions: TopicPartition, **options: Any) -> dict[TopicPartition, object]:
    """The offset of each partition, or the name of its error."""
    found = await list_offsets(client, dict.fromkeys(partitions, LATEST_TIMESTAMP), **options)
    return {
        partition: result.code.name if isinstance(result, KafkaError) else result.offset
        for partition, result in found.items()
    }


# -- leaders ----------------------------------------------------------------------------------------------------------


async def test_each_leader_is_asked_once_and_told_the_epoch_that_the_client_knows() -> None:
    async with ScriptedCluster(topics={"t": [0, 1, 0]}) as cluster:
        cluster.answers = [ends(p0=(0, 5), p2=(0, 7)), ends(p1=(0, 6))]
        assert await ask(cluster.client(), P2, P1, P0, P0) == {P2: 7, P1: 6, P0: 5}
        assert sorted(broker for _, broker in cluster.asked) == [0, 1]
        epochs = [each.current_leader_epoch for body in cluster.requests for each in body.topics[0].partitions]
        assert epochs == [3, 3, 3]


async def test_a_leader_that_has_moved_is_looked_up_and_only_its_partitions_are_asked_for_again() -> None:
    moved = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with ScriptedCluster(ends(p0=(0, 5), p1=(moved, -1)), ends(p1=(0, 6)), topics={"t": [0, 0]}) as cluster:
        assert await ask(cluster.client(), P0, P1) == {P0: 5, P1: 6}
        assert [each.partition_index for each in cluster.requests[1].topics[0].partitions] == [1]


async def test_partitions_without_a_leader_do_not_hide_the_others() -> None:
    async with ScriptedCluster(ends(p0=(0, 5)), topics={"t": [0, -1]}) as cluster:
        nowhere = TopicPartition("nope", 0)
        unknown = "UNKNOWN_TOPIC_OR_PARTITION"
        assert await ask(cluster.client(deadline_ms=0), P0, P1, P2, nowhere) == {
            P0: 5,
            P1: "LEADER_NOT_AVAILABLE",
            P2: unknown,
            nowhere: unknown,
        }


async def test_a_partition_that_does_not_exist_is_not_waited_for() -> None:
    async with ScriptedCluster(topics={"t": [0]}) as cluster:
        assert await ask(cluster.client(), P2) == {P2: "UNKNOWN_TOPIC_OR_PARTITION"}
        assert cluster.metadata_requests == 1


async def test_a_partition_may_be_missing_for_a_while() -> None:
    async with ScriptedCluster(ends(p0=(0, 5))) as cluster:
        client = cluster.client()
        send, cluster.topics = client.refresh_metadata_once, {}

        async def refresh(topics: Iterable[str] | None = None, *, elsewhere: bool = False) -> None:
            if cluster.metadata_requests == 2:
                cluster.topics = {"t": [0]}
            await send(topics, elsewhere=elsewhere)

        client.refresh_metadata_once = refresh
        assert await ask(client, P0, missing_timeout_ms=60_000) == {P0: 5}
        assert await ask(client, P1, missing_timeout_ms=5) == {P1: "UNKNOWN_TOPIC_OR_PARTITION"}


async def test_a_broker_that_hangs_up_is_asked_again_and_others_are_not() -> None:
    async with ScriptedCluster((ApiKey.LIST_OFFSETS, HANG_UP), ends(p0=(0, 5)), topics={"t": [1]}) as cluster:
        assert await ask(cluster.client(), P0) == {P0: 5}
        assert cluster.asked == [(ApiKey.LIST_OFFSETS, 1)] * 2


async def test_an_answer_that_leaves_a_partition_out_is_an_error_of_that_partition() -> None:
    async with ScriptedCluster(ends(p0=(0, 5)), topics={"t": [0, 0]}) as cluster:
        found = await list_offsets(cluster.client(), dict.fromkeys([P0, P1], LATEST_TIMESTAMP))
        assert found[P0] == ListedOffset(5, -1, -1)
        host, port = cluster.address(0)
        assert str(found[P1]) == f"UNKNOWN_SERVER_ERROR (-1): {host}:{port} returned nothing for t-1"


async def test_a_topic_that_may_not_be_described_is_not_retried() -> None:
    async with ScriptedCluster(topics={"t": []}) as cluster:
        cluster.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await ask(cluster.client(), P0) == {P0: "TOPIC_AUTHORIZATION_FAILED"}


async def test_a_cluster_that_cannot_be_reached_is_an_error_of_the_client() -> None:
    client = ClusterClient([("127.0.0.1", free_port())], retry=RetryPolicy(deadline_ms=20))
    with pytest.raises(ClientError, match="connection refused"):
        await ask(client, P0)
    await client.close()


async def test_a_client_that_is_closed_does_not_go_on_asking() -> None:
    async with ScriptedCluster((ApiKey.LIST_OFFSETS, lambda _: None), topics={"t": [0]}) as cluster:
        client = cluster.client(deadline_ms=10**9)
        asking = asyncio.ensure_future(ask(client, P0))
        while not cluster.asked:  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(0.001)
        await client.close()
        assert await asyncio.wait_for(asking, 120) == {P0: "NETWORK_EXCEPTION"}
        with pytest.raises(ClientError, match="this client is closed"):
            await ask(client, P1)


# -- coordinators -----------------------------------------------------------------------------------------------------


def committed(code: int = 0) -> tuple[ApiKey, OffsetFetchResponse]:
    return ApiKey.OFFSET_FETCH, OffsetFetchResponse(error_code=code)


async def test_a_coordinator_that_has_moved_is_looked_up_again() -> None:
    moved = committed(ErrorCode.NOT_COORDINATOR)
    async with ScriptedCluster(moved, committed(), coordinators=[0, 1]) as cluster:
        assert await list_consumer_group_offsets(cluster.client(), ["g"]) == {"g": {}}
        assert cluster.asked == [(ApiKey.OFFSET_FETCH, 0), (ApiKey.OFFSET_FETCH, 1)]


async def test_a_coordinator_that_is_known_is_not_looked_up() -> None:
    async with ScriptedCluster(committed(), committed(), coordinators=[1, 0]) as cluster:
        client = cluster.client()
        for _ in range(2):
            assert await list_consumer_group_offsets(client, ["g"]) == {"g": {}}
        assert cluster.asked == [(ApiKey.OFFSET_FETCH, 1)] * 2


async def test_a_coordinator_that_is_not_in_the_cluster_is_looked_up_until_the_deadline() -> None:
    async with ScriptedCluster(coordinators=[7]) as cluster:
        (result,) = (await list_consumer_group_offsets(cluster.client(deadline_ms=20), ["g"])).values()
        assert str(result) == "COORDINATOR_NOT_AVAILABLE (15): the coordinator of group g, 7"


async def test_a_broker_that_is_cut_off_and_knows_a_former_coordinator_does_not_hold_the_client_back() -> None:
    async with ScriptedCluster(committed(ErrorCode.NOT_COORDINATOR), committed(), coordinators=[1]) as cluster:
        cluster.cut_off = {0: 0}
        assert await list_consumer_group_offsets(cluster.client(), ["g"]) == {"g": {}}
        assert cluster.asked == [(ApiKey.OFFSET_FETCH, 0), (ApiKey.OFFSET_FETCH, 1)]


async def test_a_deletion_is_not_sent_again_when_its_answer_was_lost() -> None:
    async with ScriptedCluster((ApiKey.DELETE_GROUPS, HANG_UP)) as cluster:
        (result,) = (await delete_groups(cluster.client(), ["g"])).values()
        assert isinstance(result, KafkaError)
        assert result.code is ErrorCode.NETWORK_EXCEPTION
        assert len(cluster.asked) == 1


async def test_each_group_has_its_own_result() -> None:
    struct = DeleteGroupsResponse.DeletableGroupResult

    def answer(**codes: int) -> tuple[ApiKey, DeleteGroupsResponse]:
        results = [struct(group_id=group, error_code=code) for group, code in codes.items()]
        return ApiKey.DELETE_GROUPS, DeleteGroupsResponse(results=results)

    loading, not_empty = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NON_EMPTY_GROUP
    async with ScriptedCluster(answer(a=not_empty, b=loading, c=0), answer(b=0)) as cluster:
        results = await delete_groups(cluster.client(), ["a", "b", "c"])
        assert {group: str(result) for group, result in results.items()} == {
            "a": "NON_EMPTY_GROUP (68)",
            "b": "None",
            "c": "None",
        }
        assert [list(request.groups_names) for request in cluster.requests] == [["a", "b", "c"], ["b"]]


# -- the controller ---------------------------------------------------------------------------------------------------


async def test_a_controller_that_has_moved_is_looked_up_again() -> None:
    async with ScriptedCluster(created(a=ErrorCode.NOT_CONTROLLER), created(a=0)) as cluster:
        cluster.controllers = [0, 1]
        assert await create_topics(cluster.client(), [NewTopic("a")]) == {"a": CreatedTopic(None, 3, -1)}
        assert cluster.asked == [(ApiKey.CREATE_TOPICS, 0), (ApiKey.CREATE_TOPICS, 1)]


async def test_elections_are_asked_of_the_next_controller_too() -> None:
    struct = ElectLeadersResponse.ReplicaElectionResult

    def answer(code: int) -> tuple[ApiKey, ElectLeadersResponse]:
        result = struct.PartitionResult(partition_id=0, error_code=code, error_message=None)
        results = [struct(topic="t", partition_result=[result])]
        return ApiKey.ELECT_LEADERS, ElectLeadersResponse(replica_election_results=results)

    async with ScriptedCluster(answer(ErrorCode.NOT_CONTROLLER), answer(0)) as cluster:
        cluster.controllers = [0, 1]
        assert await elect_leaders(cluster.client(), ElectionType.PREFERRED, [P0]) == {P0: None}
        assert cluster.asked == [(ApiKey.ELECT_LEADERS, 0), (ApiKey.ELECT_LEADERS, 1)]


async def test_elections_whose_answer_was_lost_are_held_again() -> None:
    struct = ElectLeadersResponse.ReplicaElectionResult
    needless = struct.PartitionResult(partition_id=0, error_code=ErrorCode.ELECTION_NOT_NEEDED, error_message=None)
    answer = ElectLeadersResponse(replica_election_results=[struct(topic="t", partition_result=[needless])])
    async with ScriptedCluster((ApiKey.ELECT_LEADERS, HANG_UP), (ApiKey.ELECT_LEADERS, answer)) as cluster:
        (result,) = (await elect_leaders(cluster.client(), ElectionType.PREFERRED, [P0])).values()
        assert str(result) == "ELECTION_NOT_NEEDED (84)"


async def test_a_creation_whose_answer_was_lost_is_sent_again_only_if_it_is_repeatable() -> None:
    lost = (ApiKey.CREATE_TOPICS, HANG_UP)
    async with ScriptedCluster(lost) as cluster:
        (result,) = (await create_topics(cluster.client(), [NewTopic("a")])).values()
        assert isinstance(result, KafkaError)
        assert result.code is ErrorCode.NETWORK_EXCEPTION
    async with ScriptedCluster(lost, created(a=ErrorCode.TOPIC_ALREADY_EXISTS)) as cluster:
        (result,) = (await create_topics(cluster.client(), [NewTopic("a")], repeatable=True)).values()
        assert str(result) == "TOPIC_ALREADY_EXISTS (36)"


async def test_only_topics_over_their_quota_are_created_again() -> None:
    throttled = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    async with ScriptedCluster(created(a=0, b=throttled, c=ErrorCode.INVALID_PARTITIONS), created(b=0)) as cluster:
        results = await create_topics(cluster.client(), map(NewTopic, "abc"))
        assert results["a"] == results["b"] == CreatedTopic(None, 3, -1)
        assert str(results["c"]) == "INVALID_PARTITIONS (37)"
        assert [[topic.name for topic in request.topics] for request in cluster.requests] == [["a", "b", "c"], ["b"]]


async def test_a_cluster_without_a_controller() -> None:
    async with ScriptedCluster() as cluster:
        cluster.controllers = [-1]
        (result,) = (await create_topics(cluster.client(deadline_ms=20), [NewTopic("a")])).values()
        assert str(result) == "NOT_CONTROLLER (41): the cluster has no controller"


async def test_a_request_that_is_refused_as_a_whole_is_raised() -> None:
    response = ListPartitionReassignmentsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="no", topics=[]
    )
    async with ScriptedCluster((ApiKey.LIST_PARTITION_REASSIGNMENTS, response)) as cluster:
        with pytest.raises(KafkaError, match=r"^CLUSTER_AUTHORIZATION_FAILED \(31\): no$"):
            await list_partition_reassignments(cluster.client())


# -- single brokers ---------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_not_in_the_cluster_is_an_error_of_that_broker_at_once() -> None:
    answer = DescribeLogDirsResponse(results=[])
    async with ScriptedCluster((ApiKey.DESCRIBE_LOG_DIRS, answer)) as cluster:
        results = await asyncio.wait_for(describe_log_dirs(cluster.client(deadline_ms=10**9), [1, 9]), 120)
        assert results[1] == {}
        assert str(results[9]) == "BROKER_NOT_AVAILABLE (8): broker 9 is not in the cluster; live are 0, 1"


async def test_the_configs_of_a_broker_that_is_not_in_the_cluster_are_an_error_at_once() -> None:
    known, unknown = ConfigResource(ConfigResourceType.BROKER, "1"), ConfigResource(ConfigResourceType.BROKER, "9")
    struct = DescribeConfigsResponse.DescribeConfigsResult
    result = struct(resource_type=known.type, resource_name=known.name, error_code=0, error_message=None, configs=[])
    answer = DescribeConfigsResponse(results=[result])
    async with ScriptedCluster((ApiKey.DESCRIBE_CONFIGS, answer)) as cluster:
        results = await asyncio.wait_for(describe_configs(cluster.client(deadline_ms=10**9), [known, unknown]), 120)
        assert results[known] == {}
        assert str(results[unknown]) == "BROKER_NOT_AVAILABLE (8): broker 9 is not in the cluster; live are 0, 1"


async def test_a_broker_that_only_one_of_two_brokers_knows_is_asked() -> None:
    """A broker that has just started, or is cut off, knows only some of the others."""
    answer = DescribeLogDirsResponse(results=[])
    async with ScriptedCluster((ApiKey.DESCRIBE_LOG_DIRS, answer), brokers=3) as cluster:
        cluster.behind = {0: {2}}
        assert await describe_log_dirs(cluster.client(), [2]) == {2: {}}
        assert cluster.metadata_requests == 2


async def test_an_election_that_an_old_broker_does_not_know_is_refused_by_the_client() -> None:
    async with ScriptedCluster() as cluster:
        client = cluster.client()
        await client.refresh_metadata(())
        connection = await client.connection_to(0)
        assert connection.api_versions is not None
        connection.api_versions[ApiKey.ELECT_LEADERS] = (0, 0)
        with pytest.raises(UnsupportedVersion, match=r"brokers before Kafka 2\.4 elect only preferred leaders"):
            await elect_leaders(client, ElectionType.UNCLEAN, [P0])


# -- any answers ------------------------------------------------------------------------------------------------------

# What becomes of an item in an attempt; a lost connection takes all items of its broker with it.
FINE, PASSES, REFUSED, LEFT_OUT, LOST, UNREACHABLE = "fine", "passes", "refused", "left out", "lost", "unreachable"
ANSWERS = {
    PASSES: KafkaError(ErrorCode.NOT_COORDINATOR),
    REFUSED: KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED),
}
EXPECTED = {
    FINE: FINE,
    LEFT_OUT: ErrorCode.UNKNOWN_SERVER_ERROR,
    LOST: ErrorCode.NETWORK_EXCEPTION,
    UNREACHABLE: ErrorCode.NETWORK_EXCEPTION,
    **{outcome: error.code for outcome, error in ANSWERS.items()},
}
OUTCOMES = st.sampled_from([FINE, PASSES, PASSES, REFUSED, LEFT_OUT, LOST, UNREACHABLE])


class Brokers(ClusterClient):
    """Two brokers, in place of a client; item n belongs to broker n % 2. `outcomes` has those of each item in turn."""

    def __init__(self, outcomes: list[list[str]]) -> None:
        super().__init__([("nowhere", 1)], retry=RetryPolicy(deadline_ms=8, backoff_ms=1, max_backoff_ms=1))
        self.seen: list[list[str]] = [[] for _ in outcomes]
        self._outcomes = [list(reversed(each)) for each in outcomes]
        self._now: dict[int, str] = {}

    async def route(self, items: Sequence[int], stale: bool) -> dict[int, int]:
        self._now = {item: self._outcomes[item].pop() if self._outcomes[item] else FINE for item in items}
        return {item: item % 2 for item in items}

    async def connection_to(self, broker_id: int) -> Connection:
        if UNREACHABLE in self._of(broker_id):
            self._note(broker_id, UNREACHABLE)
            raise ConnectFailed("unreachable")
        return PlayedConnection(broker_id)

    async def ask(self, connection: Connection, items: Sequence[int]) -> dict[int, object]:
        assert isinstance(connection, PlayedConnection)
        broker_id = connection.broker_id
        if LOST in self._of(broker_id):
            self._note(broker_id, LOST)
            raise Disconnected("lost")
        for item in items:
            self.seen[item].append(self._now[item])
        return {item: ANSWERS.get(self._now[item], FINE) for item in items if self._now[item] != LEFT_OUT}

    def _of(self, broker_id: int) -> list[str]:
        return [outcome for item, outcome in self._now.items() if item % 2 == broker_id]

    def _note(self, broker_id: int, outcome: str) -> None:
        for item in self._now:
            if item % 2 == broker_id:
                self.seen[item].append(outcome)


@given(st.lists(st.lists(OUTCOMES, max_size=3), min_size=1, max_size=5), st.booleans())
@settings(max_examples=60)
def test_every_item_has_the_result_of_its_last_attempt_and_nothing_final_is_asked_again(
    outcomes: list[list[str]], repeatable: bool
) -> None:
    brokers = Brokers(outcomes)
    items = range(len(outcomes))
    asking = fan_out(brokers, items, brokers.route, brokers.ask, repeatable=repeatable)
    results = asyncio.run(asking)
    passing = {PASSES, UNREACHABLE, LOST} if repeatable else {PASSES, UNREACHABLE}
    assert list(results) == list(items)
    for item in items:
        *before, last = brokers.seen[item]
        assert set(before) <= passing, f"{before} was final"
        result = results[item]
        assert (result.code if isinstance(result, KafkaError) else result) == EXPECTED[last]


# -- error codes ------------------------------------------------------------------------------------------------------


def test_codes_become_errors() -> None:
    assert error_of(0, "ignored") is None
    assert str(error_of(40, "bad")) == "INVALID_CONFIG (40): bad"
    assert str(error_of(9999, None)) == "UNKNOWN_SERVER_ERROR (-1): error 9999 of the broker: no text"
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        checked(KafkaError(ErrorCode.INVALID_CONFIG))
    assert checked(5) == 5
