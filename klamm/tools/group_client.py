"""What `klamm groups` asks of a cluster: its groups, their committed offsets, and where the partitions begin and end.

This module handles the error codes of every answer. Transient errors (a coordinator that loads or moves, a leader
election) are retried until the timeout. Other errors become a ToolError, or are reported per partition where the other
partitions have an answer. Requests go through kafka-python's connections, but not through its admin client's methods
for groups: those stop at the first error and keep a coordinator that has moved.

Source: org.apache.kafka.clients.admin.KafkaAdminClient.
"""

import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from klamm.processes.errors import ToolError
from klamm.protocol.vocabulary import TopicPartition
from klamm.tools.clients import explain_code

CONSUMER_PROTOCOL: Final = "consumer"
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
GROUP_ID_NOT_FOUND: Final = 69

RETRY_BACKOFF_S: Final = 0.1

T = TypeVar("T")


@dataclass(frozen=True)
class GroupListing:
    """A group as a list shows it; `state` is "" when the broker is older than Kafka 2.6."""

    group: str
    protocol_type: str
    state: str


@dataclass(frozen=True)
class Member:
    consumer_id: str
    group_instance_id: str | None
    host: str
    client_id: str
    assignment: Sequence[TopicPartition] = ()


@dataclass(frozen=True)
class Coordinator:
    broker_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port} ({self.broker_id})"


@dataclass(frozen=True)
class GroupDescription:
    """A group as its coordinator describes it. A group that does not exist is Dead, without members."""

    group: str
    state: str
    assignor: str
    coordinator: Coordinator
    members: Sequence[Member] = ()


@dataclass(frozen=True)
class FoundOffsets:
    """Offsets of partitions; for partitions without an offset, Kafka's name of the error."""

    offsets: Mapping[TopicPartition, int]
    missing: Mapping[TopicPartition, str]


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions of a member's assignment; empty bytes mean no partitions. Raises ValueError.

    The form is the same in all versions: an int16 version, then for each topic its name and an array of int32.
    Source: org.apache.kafka.clients.consumer.internals.ConsumerProtocol.
    """
    if not data:
        return []
    partitions = []
    try:
        _, topic_count = struct.unpack_from(">hi", data)
        position = 6
        for _ in range(topic_count):
            (length,) = struct.unpack_from(">h", data, position)
            position += 2
            if not 0 <= length <= len(data) - position:
                raise ValueError(f"a topic of {length} bytes at {position}")
            topic = data[position : position + length].decode()
            position += length
            (count,) = struct.unpack_from(">i", data, position)
            position += 4
            if not 0 <= count <= (len(data) - position) // 4:
                raise ValueError(f"{count} partitions at {position}")
            numbers = struct.unpack_from(f">{count}i", data, position)
            position += 4 * count
            partitions += [TopicPartition(topic, number) for number in numbers]
    except struct.error:
        raise ValueError(f"the data end after {len(data)} bytes") from None
    return sorted(partitions)


class GroupClient:
    """Sends requests through `admin`, kafka-python's admin client; `timeout_ms` bounds each call with its retries."""

    def __init__(self, admin: Any, timeout_ms: int) -> None:
        self._admin = admin
        self._manager = admin._manager
        self._timeout_ms = timeout_ms
        # The coordinator of each group; forgotten after any error.
        self._coordinators: dict[str, int] = {}

    # -- groups -------------------------------------------------------------------------------------------------------

    def list_groups(self, states: Collection[str] = ()) -> list[GroupListing]:
        """The consumer groups in these states (in any state if empty), sorted by name."""
        return self._retrying(lambda: self._list_groups(states))

    def _list_groups(self, states: Collection[str]) -> list[GroupListing]:
        from kafka.protocol.admin import ListGroupsRequest

        request = {"states_filter": sorted(states), "min_version": 4} if states else {}
        found = {}
        for broker in self._manager.cluster.brokers():
            answer = self._send(ListGroupsRequest(**request), broker.node_id)
            _raise_for(answer.error_code, f"the groups of broker {broker.node_id}")
            for group in answer.groups:
                self._coordinators[group.group_id] = broker.node_id
                # A group that only commits offsets has no protocol.
                if group.protocol_type in (CONSUMER_PROTOCOL, ""):
                    state = getattr(group, "group_state", None) or ""
                    found[group.group_id] = GroupListing(group.group_id, group.protocol_type, state)
        return [found[name] for name in sorted(found)]

    def describe(self, groups: Iterable[str]) -> list[GroupDescription]:
        """The groups sorted by name, including those that do not exist."""
        names = sorted(set(groups))
        found: dict[str, GroupDescription] = {}
        self._retrying(lambda: self._describe([name for name in names if name not in found], found))
        return [found[name] for name in names]

    def _describe(self, groups: Sequence[str], found: dict[str, GroupDescription]) -> None:
        from kafka.protocol.admin import DescribeGroupsRequest

        for node_id, names in self._by_coordinator(groups).items():
            broker = self._manager.cluster.broker_metadata(node_id)
            coordinator = Coordinator(node_id, broker.host, broker.port)
            for group in self._send(DescribeGroupsRequest(groups=names), node_id).groups:
                # For an unknown group, brokers since Kafka 4.0 send this error besides the state Dead.
                if group.error_code != GROUP_ID_NOT_FOUND:
                    _raise_for(group.error_code, f"group {group.group_id}")
                if group.protocol_type not in (CONSUMER_PROTOCOL, ""):
                    raise ToolError(f"GroupId {group.group_id} is not a consumer group ({group.protocol_type}).")
                members = [_member(group.group_id, each) for each in group.members]
                found[group.group_id] = GroupDescription(
                    group.group_id, group.group_state, group.protocol_data, coordinator, members
                )

    def delete_groups(self, groups: Iterable[str]) -> dict[str, str | None]:
        """The error of each group's deletion; None when the group is deleted."""
        results: dict[str, str | None] = {}
        for group in dict.fromkeys(groups):
            try:
                self._retrying(partial(self._delete_group, group))
                results[group] = None
            except _Refused as refused:
                results[group] = refused.reason
        return results

    def _delete_group(self, group: str) -> None:
        from kafka.protocol.admin import DeleteGroupsRequest

        answer = self._send(DeleteGroupsRequest(groups_names=[group]), self._coordinator(group))
        for result in answer.results:
            _raise_for(result.error_code, f"group {group}")

    # -- a group's offsets --------------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that the group has committed, by topic and partition."""
        return self._retrying(lambda: self._committed(group))

    def _committed(self, group: str) -> dict[TopicPartition, int]:
        from kafka.protocol.consumer import OffsetFetchRequest

        request = OffsetFetchRequest(group_id=group, topics=None, min_version=2, max_version=7)
        answer = self._send(request, self._coordinator(group))
        _raise_for(answer.error_code, f"group {group}")
        offsets = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                _raise_for(partition.error_code, f"group {group}, {key}")
                if partition.committed_offset >= 0:
                    offsets[key] = partition.committed_offset
        return dict(sorted(offsets.items()))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Commits for a group without members; returns the errors of the refused partitions."""
        refused: dict[TopicPartition, str] = {}
        if offsets:
            self._retrying(lambda: self._commit(group, offsets, refused))
        return refused

    def _commit(self, group: str, offsets: Mapping[TopicPartition, int], refused: dict[TopicPartition, str]) -> None:
        from kafka.protocol.consumer import OffsetCommitRequest

        topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
        partition_class = topic_class.OffsetCommitRequestPartition
        topics = [
            topic_class(
                name=name,
                partitions=[
                    partition_class(
                        partition_index=number,
                        committed_offset=offsets[TopicPartition(name, number)],
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for number in numbers
                ],
            )
            for name, numbers in _by_topic(offsets).items()
        ]
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=topics,
            max_version=8,
        )
        answer = self._send(request, self._coordinator(group))
        # A repeated commit sends the same offsets, so only the refusals of the last attempt count.
        refused.clear()
        refused.update(_refusals(answer.topics))

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> tuple[str | None, dict[TopicPartition, str]]:
        """The error of the whole request (Kafka's name, or None), and the errors of partitions."""
        wanted = sorted(set(partitions))
        refused: dict[TopicPartition, str] = {}
        try:
            self._retrying(lambda: self._delete_offsets(group, wanted, refused))
        except _Refused as whole:
            return whole.name, dict.fromkeys(wanted, whole.reason)
        return None, refused

    def _delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition], refused: dict[TopicPartition, str]
    ) -> None:
        from kafka.protocol.consumer import OffsetDeleteRequest

        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        topics = [
            topic_class(
                name=name,
                partitions=[topic_class.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
            )
            for name, numbers in _by_topic(partitions).items()
        ]
        answer = self._send(OffsetDeleteRequest(group_id=group, topics=topics), self._coordinator(group))
        _raise_for(answer.error_code, f"group {group}")
        refused.update(_refusals(answer.topics))

    # -- topics -------------------------------------------------------------------------------------------------------

    def partitions_of(self, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
        """The partitions of the topics that exist."""
        return {
            topic["name"]: sorted(
                TopicPartition(topic["name"], each["partition_index"]) for each in topic["partitions"]
            )
            for topic in self._topics(set(topics))
            if not topic["error_code"]
        }

    def list_offsets(self, partitions: Iterable[TopicPartition], timestamp: int) -> FoundOffsets:
        """The first offset of that time (ms) or later in each partition; UNKNOWN_OFFSET where no record is that late.

        EARLIEST_TIMESTAMP and LATEST_TIMESTAMP give the ends of each partition.
        """
        wanted = sorted(set(partitions))
        found: dict[TopicPartition, int] = {}
        missing: dict[TopicPartition, str] = {}
        deadline_s = time.monotonic() + self._timeout_ms / 1000
        while True:
            left = [each for each in wanted if each not in found]
            missing.clear()
            is_passing = self._retrying(partial(self._list_offsets, left, timestamp, found, missing))
            if not is_passing or time.monotonic() > deadline_s:
                return FoundOffsets(found, missing)
            time.sleep(RETRY_BACKOFF_S)

    def _list_offsets(
        self,
        partitions: Sequence[TopicPartition],
        timestamp: int,
        found: dict[TopicPartition, int],
        missing: dict[TopicPartition, str],
    ) -> bool:
        """Fills `found` and `missing`; returns whether a retry may find the missing offsets."""
        from kafka.errors import for_code

        leaders, codes = self._leaders(partitions)
        for node_id, led in leaders.items():
            for topic in self._send(_list_offsets_request(led, timestamp), node_id).topics:
                for partition in topic.partitions:
                    key = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code:
                        codes[key] = partition.error_code
                    else:
                        found[key] = partition.offset
        missing.update({key: explain_code(code, None).partition(":")[0] for key, code in sorted(codes.items())})
        # A partition that does not exist is not retried: this command does not create it.
        return any(for_code(code).retriable and code != UNKNOWN_TOPIC_OR_PARTITION for code in codes.values())

    def _leaders(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, int]]:
        """The partitions of each leader, and the error codes of the partitions without a leader."""
        leaders: dict[int, list[TopicPartition]] = {}
        codes = dict.fromkeys(partitions, UNKNOWN_TOPIC_OR_PARTITION)
        for topic in self._topics({each.topic for each in partitions}):
            for partition in topic["partitions"]:
                key = TopicPartition(topic["name"], partition["partition_index"])
                if key not in codes:
                    continue
                # A partition may have both a leader and an error (a replica is unavailable); its leader answers.
                if partition["leader_id"] >= 0:
                    del codes[key]
                    leaders.setdefault(partition["leader_id"], []).append(key)
                else:
                    codes[key] = partition["error_code"]
        return leaders, codes

    def _topics(self, names: Collection[str]) -> list[dict[str, Any]]:
        if not names:
            return []
        found: list[dict[str, Any]] = self._retrying(lambda: self._admin.describe_topics(sorted(names)))
        return found

    # -- requests and retries -----------------------------------------------------------------------------------------

    def _send(self, request: Any, node_id: int | None = None) -> Any:
        return self._manager.run(self._manager.send, request, node_id, self._timeout_ms)

    def _by_coordinator(self, groups: Iterable[str]) -> dict[int, list[str]]:
        by_node: dict[int, list[str]] = {}
        for group in groups:
            by_node.setdefault(self._coordinator(group), []).append(group)
        return by_node

    def _coordinator(self, group: str) -> int:
        if group not in self._coordinators:
            from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

            # Version 4 and later ask for several groups in other fields.
            request = FindCoordinatorRequest(key=group, key_type=CoordinatorType.GROUP.value, max_version=3)
            answer = self._send(request)
            _raise_for(answer.error_code, f"the coordinator of group {group}")
            # The metadata may not have the coordinator's address yet; this call adds it.
            self._manager.cluster.add_coordinator(answer, CoordinatorType.GROUP, group, synthesize_node_id=False)
            self._coordinators[group] = answer.node_id
        return self._coordinators[group]

    def _retrying(self, ask: Callable[[], T]) -> T:
        """Calls `ask`, with as many retries as the timeout allows, and returns its result."""
        from kafka.errors import KafkaError, UnknownBrokerIdError

        deadline_s = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                return ask()
            except _Refused as error:
                if not error.is_passing or time.monotonic() > deadline_s:
                    raise
            except KafkaError as error:
                is_passing = error.retriable or isinstance(error, UnknownBrokerIdError)
                if not is_passing or time.monotonic() > deadline_s:
                    raise
            time.sleep(RETRY_BACKOFF_S)
            self._coordinators.clear()
            self._manager.cluster.request_update()


class _Refused(ToolError):
    """An error code in an answer: `name` is Kafka's name of the error, `reason` describes it in one line."""

    def __init__(self, code: int, what: str) -> None:
        from kafka.errors import for_code

        self.reason = explain_code(code, None)
        self.name = self.reason.partition(" ")[0]
        self.is_passing: bool = for_code(code).retriable
        super().__init__(f"{what}: {self.reason}")


def _raise_for(code: int, what: str) -> None:
    if code:
        raise _Refused(code, what)


def _refusals(topics: Iterable[Any]) -> dict[TopicPartition, str]:
    """The errors of the partitions of an answer. Raises _Refused for a transient error."""
    refused = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                key = TopicPartition(topic.name, partition.partition_index)
                error = _Refused(partition.error_code, str(key))
                if error.is_passing and partition.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                    raise error
                refused[key] = error.reason
    return refused


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def _list_offsets_request(partitions: Iterable[TopicPartition], timestamp: int) -> Any:
    from kafka.protocol.consumer import ListOffsetsRequest

    topic_class = ListOffsetsRequest.ListOffsetsTopic
    partition_class = topic_class.ListOffsetsPartition
    topics = [
        topic_class(
            name=name,
            partitions=[partition_class(partition_index=number, timestamp=timestamp) for number in numbers],
        )
        for name, numbers in _by_topic(partitions).items()
    ]
    return ListOffsetsRequest(isolation_level=0, topics=topics)


def _member(group: str, member: Any) -> Member:
    try:
        assignment = decode_assignment(member.member_assignment)
    except ValueError as error:
        raise ToolError(f"group {group}: member {member.member_id} has an invalid assignment: {error}") from None
    instance = getattr(member, "group_instance_id", None)
    return Member(member.member_id, instance, member.client_host, member.client_id, assignment)
