"""The requests of a member of a consumer group, and the meaning of their answers.

`GroupMember` joins its group and stays in it; `group_consumer.py` reads the assigned partitions. The functions that
build requests also serve the simulator's members, which check other things.

What must stay true:
- A coordinator is used as long as it answers without errors. A coordinator that is cut off from its cluster may still
  answer, and let its members join again for ever, so after each failure another broker is asked for the coordinator.
- A fenced member (its group instance id has a new owner) never joins again: this is an error.
- An answer about a former membership does not affect the current one.

Source: org.apache.kafka.clients.consumer.internals.AbstractCoordinator, ConsumerCoordinator; KIP-345, KIP-394.
"""

import asyncio
import contextlib
import math
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import OffsetAndMetadata, offset_commit_request, offset_fetch_request
from klamm.client.fan_out import answers, error_of, find_coordinator_request
from klamm.client.options import GroupOptions
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import BuildRequest, Connection, Disconnected, NotSent
from klamm.protocol.apis.heartbeat import HeartbeatRequest
from klamm.protocol.apis.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.apis.leave_group import LeaveGroupRequest
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.sync_group import SyncGroupRequest
from klamm.protocol.consumer_protocol import (
    ASSIGNORS,
    CONSUMER_PROTOCOL_TYPE,
    Subscriber,
    decode_assignment,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 1.0
NO_GENERATION = -1
# A coordinator answers JoinGroup when the rebalance is over, so a lost answer is noticed a little later.
JOIN_MARGIN_MS = 5_000

_UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
# The generation is over, or the coordinator has removed the member: the member joins again.
_REJOIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Membership:
    """A client's identity for its group's coordinator (Java's `ConsumerGroupMetadata`).

    `interrupted_s` is a time of the loop's clock: when the caller got the last records of an earlier assignment. A
    transaction with the results of such records can no longer commit their offsets.
    """

    group_id: str
    group_instance_id: str | None = None
    member_id: str = ""
    generation_id: int = NO_GENERATION
    interrupted_s: float = -math.inf

    def forget(self) -> None:
        """The coordinator no longer knows the member."""
        self.member_id, self.generation_id = "", NO_GENERATION

    def is_same_member(self, other: "Membership") -> bool:
        """Whether both are the same member in the same generation."""
        is_same = (self.member_id, self.generation_id) == (other.member_id, other.generation_id)
        return is_same and self.generation_id != NO_GENERATION


def join_request(
    membership: Membership,
    protocol_type: str,
    protocols: Mapping[str, bytes],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> JoinGroupRequest:
    """`protocols` has the member's metadata for each protocol, by preference."""
    return JoinGroupRequest(
        group_id=membership.group_id,
        member_id=membership.member_id,
        group_instance_id=membership.group_instance_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=protocol_type,
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name, metadata in protocols.items()
        ],
    )


def sync_request(
    membership: Membership, protocol_type: str, protocol_name: str, assignments: Mapping[str, bytes]
) -> SyncGroupRequest:
    """Only the group's leader sends `assignments`, by member id."""
    return SyncGroupRequest(
        group_id=membership.group_id,
        generation_id=membership.generation_id,
        member_id=membership.member_id,
        group_instance_id=membership.group_instance_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ],
    )


def heartbeat_request(membership: Membership) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=membership.group_id,
        generation_id=membership.generation_id,
        member_id=membership.member_id,
        group_instance_id=membership.group_instance_id,
    )


def leave_request(membership: Membership) -> LeaveGroupRequest:
    identity = LeaveGroupRequest.MemberIdentity(
        member_id=membership.member_id, group_instance_id=membership.group_instance_id
    )
    return LeaveGroupRequest(group_id=membership.group_id, member_id=membership.member_id, members=[identity])


def commit_request(
    membership: Membership, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, metadata: str = ""
) -> OffsetCommitRequest:
    """Commits the next offsets to be read. `metadata` is for offsets that are plain numbers."""
    return offset_commit_request(
        membership.group_id,
        {
            partition: OffsetAndMetadata(offset, metadata) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        },
        generation_id=membership.generation_id,
        member_id=membership.member_id,
        group_instance_id=membership.group_instance_id,
    )


# -- a member ---------------------------------------------------------------------------------------------------------


class MustRejoin(KafkaError):
    """The member is not in the group's current generation."""


class FormerMembership(MustRejoin):
    """The request's membership is over. The current membership, or the pending join, continues."""


class _Transient(Exception):
    """No answer, or a transient error."""


class GroupMember:
    """One member of a group, with its own connection to the coordinator.

    Requests are repeated until they get a final answer; callers cancel them to stop earlier. They raise KafkaError for
    an error that no repetition resolves, including MustRejoin, and ClientError when brokers do not trust this client.
    """

    def __init__(self, client: ClusterClient, options: GroupOptions) -> None:
        unknown = [name for name in options.assignors if name not in ASSIGNORS]
        if unknown or not options.assignors:
            raise ValueError(f"partition.assignment.strategy: allowed are {', '.join(ASSIGNORS)}, not {unknown}")
        self.membership = Membership(options.group_id, options.group_instance_id)
        self.options = options
        # The partition counts with which this member, as the leader, has assigned the partitions; 0 for a topic that
        # was not found.
        self.assigned_by: dict[str, int] | None = None
        self._source = client
        self._client = client.another()
        self._coordinator: Connection | None = None
        self._failures = 0
        self._is_joining = False

    @property
    def needs_heartbeats(self) -> bool:
        """Whether the group expects heartbeats of this member. It expects none during a JoinGroup."""
        return not self._is_joining and self.membership.generation_id != NO_GENERATION

    async def join(self, topics: Sequence[str]) -> list[TopicPartition]:
        """Joins the group's next generation. Returns the partitions that this member owns in it."""
        while True:
            try:
                joined = await self._join(topics)
                return await self._sync(joined)
            except MustRejoin:
                await self._pause()
            except asyncio.CancelledError:
                # The coordinator reads no other request of this connection until it has answered the join.
                if self._coordinator is not None:
                    self._coordinator.close()
                raise

    async def heartbeat(self) -> None:
        """Tells the coordinator that the member is alive. Raises MustRejoin when a rebalance has begun."""
        asked_as = replace(self.membership)
        request = heartbeat_request(asked_as)
        response = await self._repeat(
            ApiKey.HEARTBEAT,
            request,
            lambda response: [response.error_code],
            timeout_ms=self.options.session_timeout_ms,
        )
        if self.membership == asked_as:
            self._check(response.error_code, asked_as=asked_as)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], read_as: Membership) -> None:
        """Commits the next offsets to be read, of partitions that the member owns in the membership `read_as`.

        Raises FormerMembership when that membership is over.
        """
        if not offsets:
            return
        if not read_as.is_same_member(self.membership):
            # The membership in which the records were read is over. Without a generation the coordinator would take the
            # commit for one of a client that is not a member, which an Empty group accepts.
            raise FormerMembership(ErrorCode.UNKNOWN_MEMBER_ID, "this client is no longer a member of that generation")
        asked_as = replace(self.membership)
        response = await self._repeat(
            ApiKey.OFFSET_COMMIT,
            commit_request(asked_as, offsets),
            lambda response: list(response.error_codes().values()),
        )
        for (topic, number), code in response.error_codes().items():
            self._check(code, f"the offset of {topic}-{number} was not committed", asked_as=asked_as)

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition, or None.

        Leaves out partitions whose offset an open transaction may still change (KIP-447).
        """
        if not partitions:
            return {}

        def codes(response: Any) -> list[int]:
            of_partitions = [each.error_code for _, each in answers(response.topics)]
            return [response.error_code, *(code for code in of_partitions if code != _UNSTABLE)]

        request = offset_fetch_request(self.membership.group_id, partitions, require_stable=True)
        response = await self._repeat(ApiKey.OFFSET_FETCH, request, codes)
        self._check(response.error_code)
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for partition, each in answers(response.topics):
            if each.error_code == _UNSTABLE:
                continue
            self._check(each.error_code, f"the offset of {partition}")
            found = OffsetAndMetadata(each.committed_offset, each.metadata or "", each.committed_leader_epoch)
            offsets[partition] = found if found.offset >= 0 else None
        return offsets

    def leave(self) -> Coroutine[Any, Any, None]:
        """Ends the membership here at once. The coroutine tells the coordinator, in one attempt: without an answer the
        session expires. A static member stays in the group until then."""
        left = replace(self.membership)
        self.membership.forget()
        return self._leave(left)

    async def _leave(self, left: Membership) -> None:
        if left.member_id and left.group_instance_id is None:
            with contextlib.suppress(_Transient, KafkaError):
                await self._ask(ApiKey.LEAVE_GROUP, leave_request(left))

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    # -- joining --------------------------------------------------------------------------------------------------

    async def _join(self, topics: Sequence[str]) -> JoinGroupResponse:
        self._is_joining = True
        while True:
            request = join_request(
                self.membership,
                CONSUMER_PROTOCOL_TYPE,
                dict.fromkeys(self.options.assignors, encode_subscription(topics)),
                session_timeout_ms=self.options.session_timeout_ms,
                rebalance_timeout_ms=self.options.max_poll_interval_ms,
            )
            timeout_ms = self.options.max_poll_interval_ms + JOIN_MARGIN_MS
            joined: JoinGroupResponse = await self._repeat(
                ApiKey.JOIN_GROUP, request, lambda response: [response.error_code], timeout_ms=timeout_ms
            )
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.membership.member_id = joined.member_id
                continue
            self._check(joined.error_code)
            self.membership.member_id, self.membership.generation_id = joined.member_id, joined.generation_id
            self._is_joining = False
            return joined

    async def _sync(self, joined: JoinGroupResponse) -> list[TopicPartition]:
        assignments: dict[str, bytes] = {}
        self.assigned_by = None
        if joined.leader == joined.member_id:
            assignments = await self._assign(joined)
        request = sync_request(self.membership, CONSUMER_PROTOCOL_TYPE, joined.protocol_name or "", assignments)
        timeout_ms = self.options.max_poll_interval_ms + JOIN_MARGIN_MS
        # A sync is not repeated at another coordinator, which would not know the generation.
        synced = await self._repeat(
            ApiKey.SYNC_GROUP, request, lambda response: [response.error_code], timeout_ms=timeout_ms
        )
        self._check(synced.error_code)
        try:
            return decode_assignment(synced.assignment)
        except ValueError as error:
            what = f"the leader of group {self.membership.group_id} has sent no valid assignment: {error}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what) from None

    async def _assign(self, joined: JoinGroupResponse) -> dict[str, bytes]:
        """The assignments of all members by the selected protocol."""
        assignor = ASSIGNORS.get(joined.protocol_name or "")
        if assignor is None:
            what = f"the group has agreed on {joined.protocol_name}, which this member did not name"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
        members = []
        for member in joined.members:
            try:
                topics = subscribed_topics(member.metadata)
            except ValueError as error:
                what = f"member {member.member_id} has sent no valid subscription: {error}"
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what) from None
            members.append(Subscriber(member.member_id, topics, member.group_instance_id))
        counts = await self.partition_counts(sorted({topic for member in members for topic in member.topics}))
        self.assigned_by = counts
        return {member_id: encode_assignment(owned) for member_id, owned in assignor(members, counts).items()}

    async def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """The number of partitions of these topics; 0 for topics that the broker does not know."""
        while True:
            try:
                metadata = await self._client.refresh_metadata(topics)
                break
            except (NotSent, Disconnected):
                await self._pause()
        described = {topic: metadata.topics.get(topic) for topic in topics}
        return {topic: 0 if each is None else len(each.partitions) for topic, each in described.items()}

    # -- requests -------------------------------------------------------------------------------------------------

    async def _repeat(self, api_key: ApiKey, request: Any, codes: Any, *, timeout_ms: int | None = None) -> Any:
        """Repeats the request until the coordinator's answer has no transient error."""
        while True:
            try:
                response = await self._ask(api_key, request, timeout_ms=timeout_ms)
                if not any(code in RETRIABLE_ERRORS for code in codes(response)):
                    self._failures = 0
                    return response
                if api_key is not ApiKey.OFFSET_FETCH or response.error_code != ErrorCode.NONE:
                    self._coordinator = None
            except _Transient:
                self._coordinator = None
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(min(MIN_BACKOFF_S * 2 ** min(self._failures, 10), MAX_BACKOFF_S))
        self._failures += 1

    async def _ask(self, api_key: ApiKey, request: Any, *, timeout_ms: int | None = None) -> Any:
        """One attempt. Raises _Transient without an answer."""
        build: BuildRequest[Any] = lambda version: request  # noqa: E731
        try:
            if self._coordinator is None or not self._coordinator.connected:
                self._coordinator = await self._find_coordinator()
            return await self._coordinator.send(api_key, build, timeout_ms=timeout_ms)
        except (NotSent, Disconnected) as error:
            raise _Transient from error

    async def _find_coordinator(self) -> Connection:
        client = self._client
        await client.refresh_metadata_once((), elsewhere=self._failures > 0)
        broker_ids = sorted(client.metadata.brokers)
        if not broker_ids:
            raise _Transient
        try:
            # After a failure another broker is asked: this broker may be cut off and know an old coordinator.
            asked = await client.connection_to(broker_ids[self._failures % len(broker_ids)])
            request = find_coordinator_request(self.membership.group_id)
            found = await asked.send(ApiKey.FIND_COORDINATOR, lambda version: request)
            if found.error_code == ErrorCode.NONE:
                return await client.connection_to(found.node_id)
        except KafkaError as unknown_broker:
            raise _Transient from unknown_broker
        if found.error_code in RETRIABLE_ERRORS:
            raise _Transient
        raise KafkaError(ErrorCode(found.error_code), f"the coordinator of group {self.membership.group_id}")

    def _check(self, code: int, what: str = "", *, asked_as: Membership | None = None) -> None:
        """Raises the error of a response. Updates the membership if it is still the one of the request."""
        error = error_of(code, what or f"group {self.membership.group_id}")
        if error is None:
            return
        is_present = asked_as is None or asked_as == self.membership
        if is_present:
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.membership.forget()
            elif error.code is ErrorCode.ILLEGAL_GENERATION:
                self.membership.generation_id = NO_GENERATION
        if error.code in _REJOIN:
            raise (MustRejoin if is_present else FormerMembership)(error.code, error.message)
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            instance_id = self.membership.group_instance_id
            raise KafkaError(error.code, f"another member has taken over the group instance id {instance_id}")
        raise error
