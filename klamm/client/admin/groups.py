"""Consumer groups: list, describe, delete. Their offsets are in `offsets.py`.

Source: org.apache.kafka.clients.admin.KafkaAdminClient.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import ask_every_broker, checked, coordinators, error_of, fan_out
from klamm.net.client import Connection, UnsupportedVersion
from klamm.protocol.apis.delete_groups import DeleteGroupsRequest
from klamm.protocol.apis.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.apis.list_groups import ListGroupsRequest
from klamm.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition


@dataclass(frozen=True)
class GroupListing:
    """A group in a list. `state` is "" when the broker is older than Kafka 2.6."""

    group: str
    protocol_type: str
    state: str

    @property
    def is_of_consumers(self) -> bool:
        """Whether the members are consumers. A group without a protocol only commits offsets."""
        return self.protocol_type in (CONSUMER_PROTOCOL_TYPE, "")


@dataclass(frozen=True)
class Member:
    """A member of a group. Only consumers have an `assignment`."""

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
    protocol_type: str = CONSUMER_PROTOCOL_TYPE

    @property
    def is_of_consumers(self) -> bool:
        """Whether the members are consumers. A group without a protocol only commits offsets, or does not exist."""
        return self.protocol_type in (CONSUMER_PROTOCOL_TYPE, "")


async def list_groups(client: ClusterClient, states: Collection[str] = ()) -> list[GroupListing]:
    """The groups of all brokers in these states (in any state if empty), sorted by name.

    Raises KafkaError and ClientError, also when one broker does not answer.
    """
    return sorted_groups(map(checked, (await list_groups_of_brokers(client, states)).values()))


async def list_groups_of_brokers(
    client: ClusterClient, states: Collection[str] = ()
) -> dict[int, list[GroupListing] | KafkaError]:
    """The groups that each broker coordinates, by broker id, or why it has not answered. Raises KafkaError and
    ClientError."""
    return await ask_every_broker(client, lambda broker_id: _list_groups(client, broker_id, states))


def sorted_groups(answers: Iterable[Iterable[GroupListing]]) -> list[GroupListing]:
    """The groups of several brokers, each once, sorted by name."""
    found = {listing.group: listing for answer in answers for listing in answer}
    return [found[name] for name in sorted(found)]


async def _list_groups(client: ClusterClient, broker_id: int, states: Collection[str]) -> list[GroupListing]:
    connection = await client.connection_to(broker_id)

    def build(version: int) -> ListGroupsRequest:
        if states and version < 4:
            raise UnsupportedVersion(f"{connection}: brokers before Kafka 2.6 do not list groups by their states")
        return ListGroupsRequest(states_filter=sorted(states))

    response = await connection.send(ApiKey.LIST_GROUPS, build)
    if (error := error_of(response.error_code, f"the groups of broker {broker_id}")) is not None:
        raise error
    client.coordinators.update((group.group_id, broker_id) for group in response.groups)
    return [GroupListing(group.group_id, group.protocol_type, group.group_state) for group in response.groups]


async def describe_groups(client: ClusterClient, groups: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
    """The groups by name, including those that do not exist."""

    async def ask(connection: Connection, names: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        coordinator = Coordinator(client.coordinators.get(names[0], NO_LEADER), *connection.address)
        request = DescribeGroupsRequest(groups=list(names))
        response = await connection.send(ApiKey.DESCRIBE_GROUPS, lambda version: request)
        return {group.group_id: _description(group, coordinator) for group in response.groups}

    return await fan_out(client, groups, coordinators(client), ask)


def _description(
    group: DescribeGroupsResponse.DescribedGroup, coordinator: Coordinator
) -> GroupDescription | KafkaError:
    # For an unknown group, brokers since Kafka 4.0 send this error besides the state Dead.
    if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        error = error_of(group.error_code, f"group {group.group_id}")
        if error is not None:
            return error
    try:
        members = [_member(each, group.protocol_type == CONSUMER_PROTOCOL_TYPE) for each in group.members]
    except ValueError as error:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group.group_id}: {error}")
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_data, coordinator, members, group.protocol_type
    )


def _member(member: DescribeGroupsResponse.DescribedGroup.DescribedGroupMember, is_consumer: bool) -> Member:
    """Raises ValueError."""
    try:
        assignment = decode_assignment(member.member_assignment) if is_consumer else []
    except ValueError as error:
        raise ValueError(f"member {member.member_id} has an invalid assignment: {error}") from None
    return Member(member.member_id, member.group_instance_id, member.client_host, member.client_id, assignment)


async def delete_groups(client: ClusterClient, groups: Iterable[str]) -> dict[str, KafkaError | None]:
    """Deletes groups that have no members, with their offsets."""

    async def ask(connection: Connection, names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = DeleteGroupsRequest(groups_names=list(names))
        response = await connection.send(ApiKey.DELETE_GROUPS, lambda version: request)
        return {result.group_id: error_of(result.error_code) for result in response.results}

    return await fan_out(client, groups, coordinators(client), ask, repeatable=False)
