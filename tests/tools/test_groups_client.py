"""What klamm groups makes of a cluster's answers, which come here from a script instead of brokers."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaConnectionError
from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import (
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse

from klamm.processes.errors import ToolError
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, TopicPartition
from klamm.tools import group_client
from klamm.tools.group_client import Coordinator, FoundOffsets, GroupClient, GroupListing, decode_assignment

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, LOADING, NOT_COORDINATOR = 3, 5, 6, 14, 16
GROUP_AUTHORIZATION_FAILED, NON_EMPTY_GROUP, UNKNOWN_MEMBER, GROUP_SUBSCRIBED_TO_TOPIC = 30, 68, 25, 86


@dataclass
class Broker:
    node_id: int
    host: str = "host"
    port: int = 9092


@dataclass
class Cluster:
    """Two brokers. `answers` are given in order, each for a request of its name; `coordinators` one after another."""

    answers: list[tuple[str, Any]] = field(default_factory=list)
    coordinators: list[int] = field(default_factory=lambda: [0])
    asked: list[tuple[str, int | None]] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)

    # As kafka-python's admin client, its connections, and its metadata.

    @property
    def _manager(self) -> "Cluster":
        return self

    @property
    def cluster(self) -> "Cluster":
        return self

    def brokers(self) -> list[Broker]:
        return [Broker(0), Broker(1)]

    def broker_metadata(self, node_id: int) -> Broker:
        return Broker(node_id)

    def add_coordinator(self, *_: Any, **__: Any) -> None:
        pass

    def request_update(self) -> None:
        pass

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [topic for topic in self.topics if topic["name"] in names]

    def run(self, send: Callable[..., Any], *arguments: Any) -> Any:
        return send(*arguments)

    def send(self, request: Any, node_id: int | None, timeout_ms: int) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.asked.append((name, node_id))
        if name == "FindCoordinator":
            node = self.coordinators[0] if len(self.coordinators) == 1 else self.coordinators.pop(0)
            return FindCoordinatorResponse(error_code=0, node_id=node, host="host", port=9092)
        expected, answer = self.answers.pop(0)
        assert expected == name
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_client, "RETRY_BACKOFF_S", 0)


def client(cluster: Cluster, timeout_ms: int = 60_000) -> GroupClient:
    return GroupClient(cluster, timeout_ms)


# -- assignments ------------------------------------------------------------------------------------------------------


def encoded(topics: dict[str, list[int]], user_data: bytes = b"") -> bytes:
    parts = [struct.pack(">hi", 1, len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join(parts) + user_data


@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 99), max_size=5), max_size=4), st.binary())
def test_assignments_are_decoded(topics: dict[str, list[int]], user_data: bytes) -> None:
    expected = sorted(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)
    assert decode_assignment(encoded(topics, user_data)) == expected


@given(st.binary() | st.binary(max_size=20).map(lambda end: encoded({"t": [1]})[:8] + end))
def test_garbage_is_refused(data: bytes) -> None:
    try:
        decode_assignment(data)
    except ValueError:
        assert data


@pytest.mark.parametrize(
    "data",
    [b"\0\1", encoded({"t": [1]})[:-1], struct.pack(">hih", 1, 1, -1), encoded({"t": [1]}).replace(b"t", b"\xff")],
)
def test_bad_assignments(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_assignment(data)


# -- groups -----------------------------------------------------------------------------------------------------------


def listed(*groups: tuple[str, str], error_code: int = 0) -> tuple[str, Any]:
    row = ListGroupsResponse.ListedGroup
    groups_ = [row(group_id=name, protocol_type=kind, group_state="Stable") for name, kind in groups]
    return "ListGroups", ListGroupsResponse(error_code=error_code, groups=groups_)


def described(group: str, *, error_code: int = 0, state: str = "Stable", kind: str = "consumer") -> tuple[str, Any]:
    row = DescribeGroupsResponse.DescribedGroup
    member = row.DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_metadata=b"", member_assignment=encoded({"t": [1, 0]})
    )
    members = [member] if state == "Stable" else []
    described_ = row(
        error_code=error_code,
        group_id=group,
        group_state=state,
        protocol_type=kind,
        protocol_data="range",
        members=members,
    )
    return "DescribeGroups", DescribeGroupsResponse(groups=[described_])


def test_only_groups_of_consumers_are_listed() -> None:
    cluster = Cluster([listed(("b", "consumer"), ("connect", "connect")), listed(("a", ""))])
    assert client(cluster).list_groups() == [GroupListing("a", "", "Stable"), GroupListing("b", "consumer", "Stable")]
    assert cluster.asked == [("ListGroups", 0), ("ListGroups", 1)]


def test_a_coordinator_that_loads_is_asked_again() -> None:
    cluster = Cluster([listed(), listed(error_code=LOADING), listed(), listed(("a", "consumer"))])
    assert [each.group for each in client(cluster).list_groups()] == ["a"]


def test_the_coordinators_of_listed_groups_are_known() -> None:
    cluster = Cluster([listed(), listed(("g", "consumer")), described("g")])
    groups = client(cluster)
    groups.list_groups()
    (group,) = groups.describe(["g"])
    assert cluster.asked[-1] == ("DescribeGroups", 1)
    assert (group.state, group.assignor, group.coordinator) == ("Stable", "range", Coordinator(1, "host", 9092))
    assert group.members[0].assignment == [P0, P1]


def test_a_coordinator_that_has_moved_is_looked_for() -> None:
    cluster = Cluster([described("g", error_code=NOT_COORDINATOR), described("g")], coordinators=[0, 1])
    (group,) = client(cluster).describe(["g"])
    assert group.coordinator.broker_id == 1
    assert [node for name, node in cluster.asked if name == "DescribeGroups"] == [0, 1]


def test_a_broker_that_goes_is_no_end() -> None:
    cluster = Cluster([("DescribeGroups", KafkaConnectionError("gone")), described("g")], coordinators=[0, 1])
    assert client(cluster).describe(["g"])[0].state == "Stable"


@pytest.mark.parametrize("error_code", [0, group_client.GROUP_ID_NOT_FOUND])
def test_a_group_that_does_not_exist_is_dead(error_code: int) -> None:
    """The error code is what brokers since Kafka 4.0 answer besides."""
    cluster = Cluster([described("g", error_code=error_code, state="Dead", kind="")])
    assert client(cluster).describe(["g", "g"])[0].state == "Dead"


def test_what_does_not_pass_is_told() -> None:
    with pytest.raises(ToolError, match=r"^group g: GROUP_AUTHORIZATION_FAILED \(30\): "):
        client(Cluster([described("g", error_code=GROUP_AUTHORIZATION_FAILED)])).describe(["g"])
    with pytest.raises(ToolError, match=r"^GroupId g is not a consumer group \(connect\)\.$"):
        client(Cluster([described("g", kind="connect")])).describe(["g"])


def test_patience_ends() -> None:
    with pytest.raises(ToolError, match=r"^group g: COORDINATOR_LOAD_IN_PROGRESS \(14\): "):
        client(Cluster([described("g", error_code=LOADING)]), timeout_ms=-1).describe(["g"])


def test_each_group_is_deleted_by_itself() -> None:
    def answer(group: str, code: int) -> tuple[str, Any]:
        row = DeleteGroupsResponse.DeletableGroupResult(group_id=group, error_code=code)
        return "DeleteGroups", DeleteGroupsResponse(results=[row])

    cluster = Cluster([answer("a", NON_EMPTY_GROUP), answer("b", LOADING), answer("b", 0)])
    assert client(cluster).delete_groups(["a", "b"]) == {
        "a": "NON_EMPTY_GROUP (68): The group is not empty.",
        "b": None,
    }


# -- offsets ----------------------------------------------------------------------------------------------------------


def by_partition(topic_class: Any, partition_class: Any, rows: dict[int, dict[str, Any]]) -> list[Any]:
    partitions = [partition_class(partition_index=number, **row) for number, row in rows.items()]
    return [topic_class(name="t", partitions=partitions)]


def test_committed_offsets() -> None:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    rows = {
        number: {"committed_offset": offset, "metadata": "", "error_code": 0}
        for number, offset in ((1, 5), (0, 3), (2, -1))
    }
    topics = by_partition(topic, topic.OffsetFetchResponsePartition, rows)
    cluster = Cluster([("OffsetFetch", OffsetFetchResponse(error_code=0, topics=topics))])
    assert list(client(cluster).committed("g").items()) == [(P0, 3), (P1, 5)]


def test_commits_that_are_refused_are_told() -> None:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic

    def answer(*codes: int) -> tuple[str, Any]:
        rows = {number: {"error_code": code} for number, code in enumerate(codes)}
        topics = by_partition(topic, topic.OffsetCommitResponsePartition, rows)
        return "OffsetCommit", OffsetCommitResponse(topics=topics)

    cluster = Cluster([answer(NOT_COORDINATOR, NOT_COORDINATOR), answer(0, UNKNOWN_MEMBER)])
    refused = client(cluster).commit("g", {P0: 1, P1: 2})
    assert list(refused) == [P1]
    assert refused[P1].startswith("UNKNOWN_MEMBER_ID (25): ")
    assert client(Cluster()).commit("g", {}) == {}


def test_deleted_offsets() -> None:
    topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
    rows = {0: {"error_code": 0}, 1: {"error_code": GROUP_SUBSCRIBED_TO_TOPIC}}
    topics = by_partition(topic, topic.OffsetDeleteResponsePartition, rows)
    cluster = Cluster([("OffsetDelete", OffsetDeleteResponse(error_code=0, topics=topics))])
    whole, refused = client(cluster).delete_offsets("g", [P1, P0])
    assert whole is None
    assert list(refused) == [P1]
    assert refused[P1].startswith("GROUP_SUBSCRIBED_TO_TOPIC (86): ")
    cluster = Cluster([("OffsetDelete", OffsetDeleteResponse(error_code=NON_EMPTY_GROUP, topics=[]))])
    reason = "NON_EMPTY_GROUP (68): The group is not empty."
    assert client(cluster).delete_offsets("g", [P0]) == ("NON_EMPTY_GROUP", {P0: reason})


def topic_metadata(*leaders: int) -> dict[str, Any]:
    partitions = [
        {"partition_index": number, "leader_id": leader, "error_code": LEADER_NOT_AVAILABLE if leader < 0 else 0}
        for number, leader in enumerate(leaders)
    ]
    return {"name": "t", "error_code": 0, "partitions": partitions}


def ends(**rows: tuple[int, int]) -> tuple[str, Any]:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    by_number = {int(name[1:]): {"error_code": code, "offset": offset} for name, (code, offset) in rows.items()}
    topics = by_partition(topic, topic.ListOffsetsPartitionResponse, by_number)
    return "ListOffsets", ListOffsetsResponse(topics=topics)


def test_each_leader_is_asked_once() -> None:
    cluster = Cluster([ends(p0=(0, 5), p2=(0, 7)), ends(p1=(0, 6))], topics=[topic_metadata(0, 1, 0)])
    assert client(cluster).list_offsets([P2, P1, P0, P0], LATEST_TIMESTAMP) == FoundOffsets({P0: 5, P2: 7, P1: 6}, {})
    assert cluster.asked == [("ListOffsets", 0), ("ListOffsets", 1)]


def test_a_leader_that_has_changed_is_asked_for_again() -> None:
    cluster = Cluster([ends(p0=(0, 5), p1=(NOT_LEADER, -1)), ends(p1=(0, 6))], topics=[topic_metadata(0, 0)])
    assert client(cluster).list_offsets([P0, P1], LATEST_TIMESTAMP) == FoundOffsets({P0: 5, P1: 6}, {})


def test_partitions_without_a_leader_do_not_hide_the_others() -> None:
    cluster = Cluster([ends(p0=(0, 5))], topics=[topic_metadata(0, -1)])
    nowhere = TopicPartition("nope", 0)
    found = client(cluster, timeout_ms=-1).list_offsets([P0, P1, P2, nowhere], LATEST_TIMESTAMP)
    assert found.offsets == {P0: 5}
    unknown = "UNKNOWN_TOPIC_OR_PARTITION (3)"
    assert found.missing == {P1: "LEADER_NOT_AVAILABLE (5)", P2: unknown, nowhere: unknown}


def test_what_does_not_exist_is_not_waited_for() -> None:
    found = client(Cluster(topics=[topic_metadata(0)])).list_offsets([P2], LATEST_TIMESTAMP)
    assert list(found.missing) == [P2]
    topics = [topic_metadata(0, 1), {"name": "u", "error_code": UNKNOWN_TOPIC, "partitions": []}]
    assert client(Cluster(topics=topics)).partitions_of(["t", "u"]) == {"t": [P0, P1]}
