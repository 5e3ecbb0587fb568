"""Moves a group from one generation to the next: members join or are removed, and get their assignments.

    Empty --first member--> PreparingRebalance --all have joined, or time is up--> CompletingRebalance
                                   ^                                                      | the leader's assignment
                                   | a member joins, leaves, or changes its protocols     v is in the log
                                   +------------------------------------------------------+-- Stable

What must stay true:
- A group in PreparingRebalance has one delayed join. A group in CompletingRebalance has a delayed sync or an assignment
  that is being written to the log. So no group waits for ever.
- A member that has not joined in time is not in the next generation (static members stay until their session ends).
- Members get an assignment only when it is in the log, and only in the generation that it was made for.
- After a write to the log, and after each slice of members, the group's state is checked again: it may have changed
  meanwhile. A group may have thousands of members, which are answered and removed in steps.
- The memory of the members of all groups is bounded (`has_memory`). The more is in use, the less a group may take.

Source: kafka.coordinator.group.GroupCoordinator, DelayedJoin, InitialDelayedJoin, DelayedSync.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from klamm.base.purgatory import DelayedOperation, Purgatory
from klamm.base.repeated_lines import RepeatedLines
from klamm.base.slices import Slices, Steps, begin
from klamm.base.tasks import OnFailure, start_task
from klamm.config.current import CurrentConfig
from klamm.coordinator.groups.group import (
    MEMBERS_PER_SLICE,
    NO_GROUP_LEADER,
    NO_MEMBER_ID,
    Group,
    GroupState,
    JoinCallback,
    JoinResult,
    Member,
    SyncCallback,
    SyncResult,
)
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.groups.sessions import Sessions
from klamm.protocol.error_codes import ErrorCode

_log = logging.getLogger(__name__)

# While all static members are away, the shortest time between checks whether one has come back. A rebalance timeout is
# no bound: clients may choose 0.
MIN_WAIT_FOR_ANYBODY_MS = 1000

# The memory that the members of all groups may take. One group may take this fraction of the free memory, and at least
# the minimum while any memory is free; the record of a group with more is larger than most brokers'
# `message.max.bytes`. Without free memory, a group may take what a few consumers of a few topics need.
ALL_GROUPS_BYTES = 256 * 1024 * 1024
SHARE_OF_FREE = 8
MIN_GROUP_BYTES = 256 * 1024
LEAST_GROUP_BYTES = 8 * 1024


class DelayedJoin(DelayedOperation):
    """Waits until all members have joined again."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def is_ready(self) -> bool:
        return self._group.state is GroupState.DEAD or self._group.has_all_members_joined


class InitialDelayedJoin(DelayedOperation):
    """Waits for more members to join a group that was Empty, so that they do not cause a rebalance each."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def is_ready(self) -> bool:
        return self._group.state is GroupState.DEAD


class DelayedSync(DelayedOperation):
    """Waits until all members of a generation have asked for their assignment."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._generation_id = group.generation_id

    def is_over(self) -> bool:
        """Whether the generation is over, so that no member needs to ask again."""
        return self._group.generation_id != self._generation_id or self._group.state not in (
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        )

    def is_ready(self) -> bool:
        return self.is_over() or not self._group.pending_sync_members


class Rebalances:
    """The rebalances of all groups. `now_ms` is the wall clock."""

    def __init__(
        self,
        config: CurrentConfig,
        manager: GroupMetadataManager,
        now_ms: Callable[[], int],
        on_failure: OnFailure,
    ) -> None:
        self._config = config
        self._manager = manager
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._joins: Purgatory[Group] = Purgatory()
        self._syncs: Purgatory[Group] = Purgatory()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._lines = RepeatedLines(_log)
        # The memory of the members of each group, and of all groups together.
        self._sizes_bytes: dict[Group, int] = {}
        self._size_bytes = 0
        self.sessions = Sessions(self._on_session_expired)

    @property
    def purgatories(self) -> dict[str, list[Purgatory[Any]]]:
        """By their names in Kafka, which has no purgatory for members that wait for their assignments."""
        return {"Rebalance": [self._joins], "Heartbeat": [self.sessions.purgatory]}

    @property
    def waiting_count(self) -> int:
        """The number of running timers."""
        return len(self._joins) + len(self._syncs) + len(self.sessions)

    # -- groups -----------------------------------------------------------------------------------------------------

    def load(self, group: Group) -> Steps[None]:
        """This broker now coordinates the group. Its members have a full session to find the new coordinator."""
        self._measure(group)
        if len(group.members) > self._config.current.group_max_size:
            self.prepare(group, "the group was loaded with more members than group.max.size")
        slices = Slices(MEMBERS_PER_SLICE)
        for member in list(group.members.values()):
            self.sessions.renew(group, member)
            if slices.spend():
                yield

    def unload(self, group: Group) -> Steps[None]:
        """Another broker now coordinates the group. Waiting requests are answered with NOT_COORDINATOR."""
        group.transition_to(GroupState.DEAD, self._now_ms())
        slices = Slices(MEMBERS_PER_SLICE)
        for member in list(group.members.values()):
            group.answer_join(member, JoinResult(ErrorCode.NOT_COORDINATOR, member.member_id))
            group.answer_sync(member, SyncResult(ErrorCode.NOT_COORDINATOR))
            if slices.spend():
                yield
        yield from self._end_timers(group)

    def bury(self, group: Group) -> None:
        """The group is Dead: ends its timers."""
        self._begin(self._end_timers(group))

    def _end_timers(self, group: Group) -> Steps[None]:
        self._size_bytes -= self._sizes_bytes.pop(group, 0)
        self._joins.check(group)
        self._syncs.check(group)
        slices = Slices(MEMBERS_PER_SLICE)
        for member_id in (*group.members, *group.pending_members):
            self.sessions.end(group, member_id)
            if slices.spend():
                yield

    async def stop(self) -> None:
        """Cancels assignments that are being written to the log. Call it after all groups are unloaded."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lines.close()

    # -- memory -----------------------------------------------------------------------------------------------------

    def has_memory(self, group: Group, says: Member) -> bool:
        """Whether there is memory for a client to join as `says`. A member that needs no more than before may join."""
        member = group.members.get(says.member_id)
        more_bytes = says.size_bytes - (0 if member is None else member.size_bytes)
        free_bytes = ALL_GROUPS_BYTES - self._size_bytes
        limit_bytes = max(free_bytes // SHARE_OF_FREE, MIN_GROUP_BYTES if free_bytes > 0 else LEAST_GROUP_BYTES)
        if more_bytes <= 0 or group.size_bytes + more_bytes <= limit_bytes:
            return True
        self._lines.warn(
            f"group {group.group_id}",
            f"refused a member with {says.size_bytes} bytes of metadata: the {len(group.members)} members take"
            f" {group.size_bytes} bytes, and may take {limit_bytes}; those of all groups take {self._size_bytes}",
        )
        return False

    def _measure(self, group: Group) -> None:
        self._size_bytes += group.size_bytes - self._sizes_bytes.get(group, 0)
        self._sizes_bytes[group] = group.size_bytes

    # -- members ----------------------------------------------------------------------------------------------------

    def add_member(self, group: Group, member: Member, on_joined: JoinCallback) -> None:
        member.is_new = True
        # The initial rebalance is extended as long as new members join.
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        group.add(member, on_joined)
        self._measure(group)
        self.sessions.renew(group, member)
        self.maybe_prepare(group, f"{member.member_id} joins")

    def add_pending(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Adds a member id with which a client must join in time."""
        group.add_pending(member_id)
        self._measure(group)
        self.sessions.expect_join(group, member_id, session_timeout_ms)

    def update_member(self, group: Group, member: Member, says: Member, on_joined: JoinCallback) -> None:
        """The member has rejoined with the properties of `says`."""
        group.update_member(member, says.rebalance_timeout_ms, says.session_timeout_ms, says.protocols, on_joined)
        self._measure(group)
        self.maybe_prepare(group, f"{member.member_id} joins again")

    def replace_static_member(self, group: Group, says: Member, on_joined: JoinCallback) -> None:
        """The instance has rejoined under a new member id. The former owner of the instance id is fenced.

        In a Stable group the assignment stays and the other members are not affected, unless the selected protocol
        changes. The new id counts when it is in the log. In CompletingRebalance the group rebalances.
        """
        instance_id = says.group_instance_id
        assert instance_id is not None
        former_leader_id = group.leader_id
        former_id = group.static_members[instance_id]
        former = group.members[former_id]
        terms = former.rebalance_timeout_ms, former.session_timeout_ms, former.protocols
        self.sessions.end(group, former_id)
        member = group.replace_static_member(instance_id, says.member_id)
        group.update_member(member, says.rebalance_timeout_ms, says.session_timeout_ms, says.protocols, on_joined)
        self._measure(group)
        self.sessions.renew(group, member)

        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:

            def restore() -> None:
                group.update_member(member, *terms, None)
                self.sessions.end(group, says.member_id)
                group.replace_static_member(instance_id, former_id)
                self._measure(group)

            self._start(self._store_new_id(group, group.generation_id, member, former_leader_id, restore))
        else:
            self.maybe_prepare(group, f"{says.member_id} takes the place of {former_id}")

    async def _store_new_id(
        self,
        group: Group,
        generation_id: int,
        member: Member,
        former_leader_id: str | None,
        restore: Callable[[], None],
    ) -> None:
        new_id = member.member_id

        def is_overtaken() -> bool:
            """Whether the member has left or was replaced again, or a new rebalance answers it."""
            return not _is_in(group, GroupState.STABLE, generation_id) or group.members.get(new_id) is not member

        if is_overtaken():
            return
        assignments = {other.member_id: other.assignment for other in group.members.values()}
        error = await self._manager.store_group(group, assignments)
        if is_overtaken():
            return
        # The answer names the former leader id, so that the member does not act as leader and reassign a Stable group.
        result = group.joined(new_id)._replace(leader_id=former_leader_id or NO_GROUP_LEADER, members=())
        if error is ErrorCode.NONE:
            group.answer_join(member, result)
        else:
            _log.warning("group %s: the new id of %s was not stored: %s", group.group_id, new_id, error.name)
            group.answer_join(member, result._replace(error_code=error, member_id=NO_MEMBER_ID))
            restore()
        self.sessions.renew(group, member)

    def remove_member(self, group: Group, member_id: str, reason: str) -> None:
        """A member, or a pending member id, has left the group."""
        was_member = member_id in group.members
        self._forget_member(group, member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.check_join(group)
        elif was_member:
            self.maybe_prepare(group, reason)

    def _forget_member(self, group: Group, member_id: str) -> None:
        self.sessions.end(group, member_id)
        group.remove(member_id)
        self._measure(group)

    def _on_session_expired(self, group: Group, member_id: str) -> None:
        if group.state is not GroupState.DEAD:
            _log.info("group %s: %s was silent for too long", group.group_id, member_id)
            self.remove_member(group, member_id, f"{member_id} was silent for too long")

    # -- joining ----------------------------------------------------------------------------------------------------

    def maybe_prepare(self, group: Group, reason: str) -> None:
        """Like `prepare`, unless the group is already in PreparingRebalance."""
        if group.can_rebalance:
            self.prepare(group, reason)

    def prepare(self, group: Group, reason: str) -> None:
        """Begins a rebalance: all members must (re)join."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        was_empty = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self._now_ms())
        self._syncs.check(group)
        _log.info("group %s rebalances after generation %d: %s", group.group_id, group.generation_id, reason)
        if was_empty:
            delay_ms = self._config.current.group_initial_rebalance_delay_ms
            self._await_first_members(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        else:
            self._await_joins(group, group.rebalance_timeout_ms)

    def check_join(self, group: Group) -> None:
        """Checks whether the delayed join is complete, after a member has joined or left."""
        self._joins.check(group)

    def _await_first_members(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        def on_done(_: bool) -> None:
            if group.new_member_added and remaining_ms > 0 and group.state is not GroupState.DEAD:
                group.new_member_added = False
                next_delay_ms = min(delay_ms, remaining_ms)
                self._await_first_members(group, next_delay_ms, remaining_ms - next_delay_ms)
            else:
                self._complete_join(group)

        self._joins.put(InitialDelayedJoin(group), [group], delay_ms, on_done)

    def _await_joins(self, group: Group, timeout_ms: int) -> None:
        operation = DelayedJoin(group)
        if operation.is_ready():
            self._complete_join(group)
        else:
            self._joins.put(operation, [group], timeout_ms, lambda _: self._complete_join(group))

    def _complete_join(self, group: Group) -> None:
        """All have joined, or time is up."""
        self._begin(self._completed_join(group))

    def _completed_join(self, group: Group) -> Steps[None]:
        slices = Slices(MEMBERS_PER_SLICE)
        for member in list(group.members.values()):
            if group.state is GroupState.DEAD:
                return
            is_late = not (member.is_awaiting_join or member.is_static)
            if is_late and group.members.get(member.member_id) is member:
                _log.info("group %s: %s has not joined in time", group.group_id, member.member_id)
                self._forget_member(group, member.member_id)
                if slices.spend():
                    yield
        if group.state is GroupState.DEAD:
            return
        if not group.elect_joined_leader():
            _log.warning("group %s: no member has joined; the group waits for its static members", group.group_id)
            self._await_joins(group, max(group.rebalance_timeout_ms, MIN_WAIT_FOR_ANYBODY_MS))
            return
        group.begin_next_generation(self._now_ms())
        _log.info("group %s has %d members in generation %d", group.group_id, len(group.members), group.generation_id)
        if group.state is GroupState.EMPTY:
            self._start(self._store_empty(group, group.generation_id))
        else:
            self._begin_sync(group)

    async def _store_empty(self, group: Group, generation_id: int) -> None:
        if not _is_in(group, GroupState.EMPTY, generation_id):
            return
        error = await self._manager.store_group(group, {})
        if error is not ErrorCode.NONE:
            # The next coordinator loads the former generation, whose members then expire.
            _log.warning("group %s: its empty state was not stored: %s", group.group_id, error.name)

    # -- syncing ----------------------------------------------------------------------------------------------------

    def _begin_sync(self, group: Group) -> None:
        group.pending_sync_members |= dict.fromkeys(group.members)
        operation = DelayedSync(group)
        self._syncs.put(operation, [group], group.rebalance_timeout_ms, partial(self._on_sync_done, group, operation))
        self._begin(self._answer_joins(group, operation))

    def _answer_joins(self, group: Group, generation: DelayedSync) -> Steps[None]:
        """Answers all members of the generation. If the generation ends before, the rest take part in the next one."""
        slices = Slices(MEMBERS_PER_SLICE)
        for member in list(group.members.values()):
            if group.members.get(member.member_id) is member:
                group.answer_join(member, group.joined(member.member_id))
                member.is_new = False
                self.sessions.renew(group, member)
            if slices.spend():
                yield
                if generation.is_over():
                    return

    def has_synced(self, group: Group, member: Member) -> None:
        """The member has received its assignment."""
        group.pending_sync_members.pop(member.member_id, None)
        self._syncs.check(group)
        self.sessions.renew(group, member)

    def sync(self, group: Group, member: Member, on_synced: SyncCallback, assignments: Mapping[str, bytes]) -> None:
        """In CompletingRebalance, the member waits for its assignment; the leader sends all assignments."""
        group.await_sync(member, on_synced)
        self._syncs.check(group)
        if group.is_leader(member.member_id) and not group.has_assignment:
            group.has_assignment = True
            of_members = {member_id: assignments.get(member_id, b"") for member_id in group.members}
            self._start(self._store_assignment(group, group.generation_id, of_members))

    async def _store_assignment(self, group: Group, generation_id: int, assignments: Mapping[str, bytes]) -> None:
        if not _is_in(group, GroupState.COMPLETING_REBALANCE, generation_id):
            return
        error = await self._manager.store_group(group, assignments)
        if not _is_in(group, GroupState.COMPLETING_REBALANCE, generation_id):
            return
        if error is not ErrorCode.NONE:
            _log.warning("group %s: the assignment was not stored: %s", group.group_id, error.name)
            self._answer_syncs(group, error)
            self.prepare(group, f"the assignment was not stored: {error.name}")
            return
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.transition_to(GroupState.STABLE, self._now_ms())
        self._answer_syncs(group, ErrorCode.NONE)

    def _answer_syncs(self, group: Group, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            for member in group.members.values():
                member.assignment = b""
        waiting = [(member, member.on_synced) for member in group.members.values() if member.is_awaiting_sync]
        self._begin(self._answered_syncs(group, DelayedSync(group), waiting, error))

    def _answered_syncs(
        self,
        group: Group,
        generation: DelayedSync,
        waiting: Sequence[tuple[Member, SyncCallback | None]],
        error: ErrorCode,
    ) -> Steps[None]:
        slices = Slices(MEMBERS_PER_SLICE)
        for member, on_synced in waiting:
            # A newer request of the member gets its own answer.
            if member.on_synced is on_synced:
                group.answer_sync(member, group.synced(member) if error is ErrorCode.NONE else SyncResult(error))
                if group.members.get(member.member_id) is member and group.state is not GroupState.DEAD:
                    self.sessions.renew(group, member)
            if slices.spend():
                yield
                if error is ErrorCode.NONE and generation.is_over():
                    error = ErrorCode.REBALANCE_IN_PROGRESS

    def _on_sync_done(self, group: Group, operation: DelayedSync, is_ready: bool) -> None:
        if not is_ready:
            self._begin(self._remove_unsynced(group, operation))

    def _remove_unsynced(self, group: Group, generation: DelayedSync) -> Steps[None]:
        slices = Slices(MEMBERS_PER_SLICE)
        for member_id in list(group.pending_sync_members):
            if generation.is_over():
                return
            if member_id in group.pending_sync_members:
                _log.info("group %s: %s has not asked for its assignment in time", group.group_id, member_id)
                self._forget_member(group, member_id)
                if slices.spend():
                    yield
        if not generation.is_over():
            self.prepare(group, "members have not asked for their assignments in time")

    def _begin(self, steps: Steps[None]) -> None:
        """Runs the first step now, and the others in later turns of the loop."""
        rest = begin(steps)
        if rest is not None:
            self._start(rest)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` beside the request that started it, because the request's client may disconnect."""
        task = start_task(work, self._on_failure)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def _is_in(group: Group, state: GroupState, generation_id: int) -> bool:
    return group.state is state and group.generation_id == generation_id
