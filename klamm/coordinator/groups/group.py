"""One group in its coordinator: state, members, generation, assignment (Kafka's `GroupMetadata`). Its `offsets` are in
`committed_offsets`.

| state               | may follow on                              | what members are doing                            |
|---------------------|--------------------------------------------|---------------------------------------------------|
| Empty               | PreparingRebalance                         | no members exist; offsets may exist               |
| PreparingRebalance  | Empty, CompletingRebalance, Stable         | they (re)join                                     |
| CompletingRebalance | PreparingRebalance                         | they wait for the leader's assignment             |
| Stable              | CompletingRebalance                        | they work, and send heartbeats                    |
| Dead                | every state                                | the group was deleted, or has another coordinator |

What must stay true:
- This module is pure: no clock, no timers, no log. Times are arguments. A waiting request is a callback that is called
  once, also when the member leaves, is replaced, or sends another request.
- A member has one id; an instance id (KIP-345) has one member. The leader is a member, if there are members.
- The protocol of a generation is one that all its members support.
- Members' metadata are opaque bytes. Only the steps of `subscribed_among` look into them, when they must.

Source: kafka.coordinator.group.GroupMetadata, MemberMetadata.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from klamm.base.slices import Slices, Steps
from klamm.coordinator.groups.committed_offsets import CommittedOffsets
from klamm.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_among
from klamm.protocol.error_codes import ErrorCode

NO_GENERATION = -1
_LAST_GENERATION = 2**31 - 1
NO_GROUP_LEADER = ""
NO_MEMBER_ID = ""

# The number of members that a step loads, tells or describes: a few milliseconds.
MEMBERS_PER_SLICE = 500
# What a member or an assigned id takes besides its texts and its metadata: objects and a timer.
MEMBER_OVERHEAD_BYTES = 1_000


class GroupState(StrEnum):
    """The states, by the names that clients and tools see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS_STATES: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}

# (name, metadata), in the order of preference.
Protocols = Sequence[tuple[str, bytes]]


class JoinedMember(NamedTuple):
    """A member as the leader learns of it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a JoinGroup. Only the leader gets `members`."""

    error_code: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = NO_GROUP_LEADER
    members: Sequence[JoinedMember] = ()


class SyncResult(NamedTuple):
    """The answer to a SyncGroup."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


JoinCallback = Callable[[JoinResult], None]
SyncCallback = Callable[[SyncResult], None]


class MemberSummary(NamedTuple):
    """A member as DescribeGroups shows it; metadata and assignment are empty unless the group is Stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupSummary(NamedTuple):
    """A group as DescribeGroups shows it. `state` is a `GroupState`, or empty with an error."""

    state: str
    protocol_type: str
    protocol: str
    members: Sequence[MemberSummary]


class Member:
    """A member. `rebalance_timeout_ms` is how long others wait for it, `session_timeout_ms` how long it may be silent.

    `is_new` until the member's first generation: until then the member may not have received its id.
    """

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.set_protocols(protocols)
        self.assignment = assignment
        self.is_new = False
        self.on_joined: JoinCallback | None = None
        self.on_synced: SyncCallback | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.on_joined is not None

    @property
    def is_awaiting_sync(self) -> bool:
        return self.on_synced is not None

    def set_protocols(self, protocols: Protocols) -> None:
        self.protocols = protocols
        texts = len(self.group_instance_id or "") + len(self.client_id)  # Once more in the member's id.
        metadata = sum(len(name) + len(metadata) for name, metadata in protocols)
        # What the member takes in memory, about.
        self.size_bytes = MEMBER_OVERHEAD_BYTES + 2 * texts + metadata

    def matches(self, protocols: Protocols) -> bool:
        """Whether the member's protocols are unchanged."""
        return list(protocols) == list(self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for this protocol. LookupError if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise LookupError(f"member {self.member_id} does not support protocol {protocol!r}")

    def vote(self, candidates: Collection[str]) -> str:
        """The member's preferred protocol among the candidates. LookupError if it supports no candidate."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise LookupError(f"member {self.member_id} supports none of {sorted(candidates)}")


class Group:
    """A group. `now_ms` is when it entered this state, by the wall clock, because the time is stored."""

    def __init__(self, group_id: str, state: GroupState, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = state
        # None if the group's record has no timestamp.
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        # Member ids that were assigned but have not joined yet (KIP-394). Dicts serve as ordered sets.
        self.pending_members: dict[str, None] = {}
        # Members of this generation that have not asked for their assignment yet.
        self.pending_sync_members: dict[str, None] = {}
        # The leader has sent this generation's assignment; later ones are ignored.
        self.has_assignment = False
        # The subscriptions of this generation's members; None if they are not known.
        self._subscriptions: Sequence[bytes] | None = None
        # What the members and the pending ids take in memory.
        self.size_bytes = 0
        # A member has joined during the initial rebalance delay.
        self.new_member_added = False
        self._awaiting_join = 0
        self._supported_protocols: Counter[str] = Counter()
        self.offsets = CommittedOffsets()

    @classmethod
    def load_steps(
        cls,
        group_id: str,
        generation_id: int,
        protocol_type: str | None,
        protocol_name: str | None,
        leader_id: str | None,
        state_timestamp_ms: int | None,
        members: Sequence[Member],
    ) -> Steps["Group"]:
        """Makes the group of a record, in steps: Stable if it has members, else Empty."""
        slices = Slices(MEMBERS_PER_SLICE)
        group = cls(group_id, GroupState.STABLE if members else GroupState.EMPTY, state_timestamp_ms)
        group.generation_id = generation_id
        group.protocol_type = protocol_type or None
        group.protocol_name = protocol_name
        for member in members:
            group.add(member)
            if slices.spend():
                yield
        if leader_id in group.members:
            group.leader_id = leader_id
        group._subscriptions = group._find_subscriptions()
        return group

    # -- state ------------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Raises ValueError for a transition that the table does not have."""
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise ValueError(f"group {self.group_id} cannot go from {self.state} to {state}")
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]

    def begin_next_generation(self, now_ms: int) -> None:
        """All members have joined: CompletingRebalance, or Empty without members."""
        # A log may hold any generation; the largest int32 is followed by 1.
        self.generation_id = self.generation_id + 1 if self.generation_id < _LAST_GENERATION else 1
        self.protocol_name = self.select_protocol() if self.members else None
        self._subscriptions = self._find_subscriptions()
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_sync_members.clear()
        self.has_assignment = False

    # -- members ----------------------------------------------------------------------------------------------------

    def add(self, member: Member, on_joined: JoinCallback | None = None) -> None:
        """Adds a member. The first member sets the group's protocol type and becomes the leader."""
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._support(member, 1)
        self._set_awaiting_join(member, on_joined)
        self._remove_pending(member.member_id)

    def add_pending(self, member_id: str) -> None:
        """An id was assigned to a client, which must join with it (KIP-394)."""
        self.pending_members[member_id] = None
        self.size_bytes += MEMBER_OVERHEAD_BYTES + len(member_id)

    def _remove_pending(self, member_id: str) -> None:
        if member_id in self.pending_members:
            del self.pending_members[member_id]
            self.size_bytes -= MEMBER_OVERHEAD_BYTES + len(member_id)

    def remove(self, member_id: str) -> None:
        """Removes the member or pending id. Its waiting request is answered with UNKNOWN_MEMBER_ID."""
        self._remove_pending(member_id)
        self.pending_sync_members.pop(member_id, None)
        member = self.members.get(member_id)
        if member is None:
            return
        self.answer_join(member, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID))
        self.answer_sync(member, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        del self.members[member_id]
        self._support(member, -1)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def update_member(
        self,
        member: Member,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        on_joined: JoinCallback | None,
    ) -> None:
        """The member has rejoined with new properties. This ends its earlier JoinGroup."""
        self.answer_join(member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._support(member, -1)
        member.set_protocols(protocols)
        self._support(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._set_awaiting_join(member, on_joined)

    def await_sync(self, member: Member, on_synced: SyncCallback) -> None:
        """The member has asked for its assignment. This ends its earlier SyncGroup."""
        self.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.on_synced = on_synced
        self.pending_sync_members.pop(member.member_id, None)

    def replace_static_member(self, group_instance_id: str, new_member_id: str) -> Member:
        """The instance has rejoined under a new member id. Requests that wait under the old id are fenced."""
        old_member_id = self.static_members[group_instance_id]
        member = self.members.pop(old_member_id)
        self.answer_join(member, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_member_id))
        self.answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        member.member_id = new_member_id
        self.members[new_member_id] = member
        self.static_members[group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync_members:
            del self.pending_sync_members[old_member_id]
            self.pending_sync_members[new_member_id] = None
        return member

    def is_fenced(self, member_id: str, group_instance_id: str | None) -> bool:
        """Whether the instance has another member id (KIP-345)."""
        return group_instance_id is not None and self.static_members.get(group_instance_id, member_id) != member_id

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- joining ----------------------------------------------------------------------------------------------------

    @property
    def awaiting_join_count(self) -> int:
        """How many members wait for an answer to their JoinGroup."""
        return self._awaiting_join

    @property
    def has_all_members_joined(self) -> bool:
        return self._awaiting_join == len(self.members) and not self.pending_members

    def elect_joined_leader(self) -> bool:
        """Makes a joined member the leader. Returns False if the group has members but no member has joined."""
        if self.leader_id is None or self.members[self.leader_id].is_awaiting_join:
            return True
        joined = next((member for member in self.members.values() if member.is_awaiting_join), None)
        if joined is None:
            return False
        self.leader_id = joined.member_id
        return True

    def answer_join(self, member: Member, result: JoinResult) -> None:
        """Answers the member's JoinGroup, if one is waiting."""
        callback = member.on_joined
        if callback is not None:
            self._set_awaiting_join(member, None)
            callback(result)

    def answer_sync(self, member: Member, result: SyncResult) -> bool:
        """Answers the member's SyncGroup; returns whether one was waiting."""
        callback, member.on_synced = member.on_synced, None
        if callback is None:
            return False
        callback(result)
        return True

    def joined(self, member_id: str) -> JoinResult:
        """The answer to JoinGroup for a member of this generation."""
        return JoinResult(
            ErrorCode.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or NO_GROUP_LEADER,
            self._joined_members() if self.is_leader(member_id) else (),
        )

    def synced(self, member: Member) -> SyncResult:
        """The answer to SyncGroup for a member of a Stable group."""
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def _joined_members(self) -> list[JoinedMember]:
        assert self.protocol_name is not None
        return [
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        ]

    def _set_awaiting_join(self, member: Member, on_joined: JoinCallback | None) -> None:
        self._awaiting_join += (on_joined is not None) - member.is_awaiting_join
        member.on_joined = on_joined

    # -- protocols --------------------------------------------------------------------------------------------------

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can be in the group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and any(
            self._supported_protocols[name] == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol that all members support and most members prefer; among equals, the one voted for first."""
        candidates = {name for name, count in self._supported_protocols.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _support(self, member: Member, change: int) -> None:
        """Adds a member's protocols to those that members support, or takes them away."""
        self.size_bytes += change * member.size_bytes
        supported = self._supported_protocols
        for name in dict.fromkeys(name for name, _ in member.protocols):  # Each once, even if a client repeats one.
            supported[name] += change
            if not supported[name]:
                del supported[name]

    def subscribed_among(self, topics: Collection[str]) -> Steps[Collection[str]]:
        """Those of the topics to which a member of this generation may be subscribed, in steps: all of them if the
        subscriptions are not known, or the clients use their own format for the consumer protocol."""
        if self._subscriptions is None:
            return topics
        try:
            return (yield from subscribed_among(self._subscriptions, topics))
        except ValueError:
            return topics

    def _find_subscriptions(self) -> Sequence[bytes] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return ()
        if self.protocol_name is None:
            return None
        return [member.metadata(self.protocol_name) for member in self.members.values()]

    # -- what others see --------------------------------------------------------------------------------------------

    def summary(self) -> Steps[GroupSummary]:
        """The group as it is in the first step."""
        protocol = self.protocol_name if self.state is GroupState.STABLE else None
        summary = GroupSummary(self.state, self.protocol_type or "", protocol or "", members := [])
        shown = [
            (member, b"", b"") if protocol is None else (member, member.metadata(protocol), member.assignment)
            for member in self.members.values()
        ]
        slices = Slices(MEMBERS_PER_SLICE)
        for one, metadata, assignment in shown:
            texts = one.member_id, one.group_instance_id, one.client_id, one.client_host
            members.append(MemberSummary(*texts, metadata, assignment))
            if slices.spend():
                yield
        return summary
