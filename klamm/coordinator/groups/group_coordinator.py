"""The group coordinator: the requests of members and of admin clients about groups (KIP-62, 98, 345, 394, 447,
496).

`admission` refuses requests, `rebalance` moves groups between generations, and `GroupMetadataManager` stores groups.
This module carries out the requests. The effect depends on the group's state:

| state               | JoinGroup of a member    | SyncGroup             | Heartbeat             | OffsetCommit        |
|---------------------|--------------------------|-----------------------|-----------------------|---------------------|
| Empty               | UNKNOWN_MEMBER_ID        | UNKNOWN_MEMBER_ID     | UNKNOWN_MEMBER_ID     | of non-members only |
| PreparingRebalance  | waits for the others     | REBALANCE_IN_PROGRESS | REBALANCE_IN_PROGRESS | yes                 |
| CompletingRebalance | the current generation * | waits for the leader  | yes                   | no **               |
| Stable              | the current generation * | the assignment        | yes                   | yes                 |

* A rebalance begins if the member's protocols have changed, or if it is the leader of a Stable group.
** REBALANCE_IN_PROGRESS: the member knows the generation, but not yet its assignment.

What must stay true:
- Every request is answered once: immediately, or when the rebalance that it waits for continues. A client that
  disconnects does not affect the others.
- A request acts for a member only with the member id, instance id and generation of that member.

Source: kafka.coordinator.group.GroupCoordinator; the errors and their order are the same.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from klamm.base.environment import Environment
from klamm.base.slices import Slices, Steps, in_slices
from klamm.base.tasks import OnFailure
from klamm.config.current import CurrentConfig
from klamm.coordinator.groups.admission import (
    commit_error,
    has_room,
    is_legal_group_id,
    is_storable,
    leaving_member_id,
    member_error,
    producer_error,
    rejoin_error,
    transactional_commit_error,
)
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import (
    MEMBERS_PER_SLICE,
    NO_MEMBER_ID,
    Group,
    GroupState,
    GroupSummary,
    JoinCallback,
    JoinResult,
    Member,
    Protocols,
    SyncCallback,
    SyncResult,
)
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.groups.offset_expiration import OFFSETS_PER_SLICE, pieces
from klamm.coordinator.groups.rebalance import Rebalances
from klamm.coordinator.ports import TransactionalProducer
from klamm.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey

Result = TypeVar("Result")

NO_GROUP = GroupSummary("", "", "", ())
DEAD_GROUP = GroupSummary(GroupState.DEAD, "", "", ())


class GroupCoordinator:
    """Coordinates the groups of the partitions that it was elected for, between `start` and `stop`.

    `on_failure` gets programming errors in work that no request waits for.
    """

    def __init__(
        self,
        config: CurrentConfig,
        manager: GroupMetadataManager,
        environment: Environment,
        on_failure: OnFailure,
    ) -> None:
        self._config = config
        self._manager = manager
        self._environment = environment
        self.rebalances = Rebalances(config, manager, environment.now_ms, on_failure)
        self._is_active = False

    def start(self) -> None:
        self._manager.start()
        self._is_active = True

    async def stop(self) -> None:
        """Answers waiting requests with NOT_COORDINATOR."""
        self._is_active = False
        await self._manager.stop()
        for group in self._manager.groups():
            await in_slices(self.rebalances.unload(group))
        await self.rebalances.stop()

    @property
    def waiting_count(self) -> int:
        """The number of pending joins, syncs and heartbeats."""
        return self.rebalances.waiting_count

    # -- partitions of __consumer_offsets ----------------------------------------------------------------------------

    def on_election(self, partition: int, coordinator_epoch: int) -> None:
        """This broker leads the partition now, with its groups."""
        if self._is_active:
            self._manager.become_leader(partition, coordinator_epoch, self.rebalances.load)

    def on_resignation(self, partition: int, coordinator_epoch: int | None) -> None:
        """This broker no longer leads the partition. None means any epoch."""
        if self._is_active:
            self._manager.resign(partition, coordinator_epoch, self.rebalances.unload)

    # -- members ----------------------------------------------------------------------------------------------------

    async def join_group(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        *,
        requires_known_member_id: bool,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
    ) -> JoinResult:
        """Returns when the next generation begins, or the member is refused."""
        says = Member(
            member_id,
            group_instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms,
            session_timeout_ms,
            protocol_type,
            protocols,
        )
        answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        on_joined = partial(_resolve, answer)
        at_once = self._join(group_id, says, requires_known_member_id, on_joined)
        return await answer if at_once is None else at_once

    def _join(
        self, group_id: str, says: Member, requires_known_member_id: bool, on_joined: JoinCallback
    ) -> JoinResult | None:
        """The answer, or None if `on_joined` gets it."""
        config = self._config.current
        error = self._group_error(group_id)
        if error is not None:
            return JoinResult(error, says.member_id)
        if not config.group_min_session_timeout_ms <= says.session_timeout_ms <= config.group_max_session_timeout_ms:
            return JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, says.member_id)
        if not is_storable(says):
            return JoinResult(ErrorCode.INVALID_REQUEST, says.member_id)
        is_new = says.member_id == NO_MEMBER_ID
        known = self._manager.get(group_id)
        if known is None and not is_new:
            return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, says.member_id)
        group = known or Group(group_id, GroupState.EMPTY, None)
        if not has_room(group, says.member_id, config.group_max_size):
            self.rebalances.remove_member(group, says.member_id, "group.max.size is reached")
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID)
        if group.state is GroupState.DEAD:
            return JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, says.member_id)
        if not group.supports_protocols(says.protocol_type, says.protocols):
            return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, says.member_id)
        if not self.rebalances.has_memory(group, says):
            self.rebalances.remove_member(group, says.member_id, "there is no memory for its metadata")
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID)
        group = self._manager.get_or_create(group_id)
        if is_new:
            result = self._join_new(group, says, requires_known_member_id, on_joined)
        else:
            result = self._join_known(group, says, on_joined)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.rebalances.check_join(group)
        return result

    def _join_new(
        self, group: Group, says: Member, requires_known_member_id: bool, on_joined: JoinCallback
    ) -> JoinResult | None:
        instance_id = says.group_instance_id
        prefix = says.client_id if instance_id is None else instance_id
        says.member_id = f"{prefix}-{self._environment.random_uuid()}"
        if instance_id in group.static_members:
            self.rebalances.replace_static_member(group, says, on_joined)
        elif requires_known_member_id:
            self.rebalances.add_pending(group, says.member_id, says.session_timeout_ms)
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, says.member_id)
        else:
            self.rebalances.add_member(group, says, on_joined)
        return None

    def _join_known(self, group: Group, says: Member, on_joined: JoinCallback) -> JoinResult | None:
        member_id, instance_id = says.member_id, says.group_instance_id
        if member_id in group.pending_members and instance_id is None:
            self.rebalances.add_member(group, says, on_joined)
            return None
        error = rejoin_error(group, member_id, instance_id)
        if error is not None:
            return JoinResult(error, member_id)
        member = group.members[member_id]
        is_same = member.matches(says.protocols)
        if is_same and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and not group.is_leader(member_id))
        ):
            # The member did not get its answer, or only asks for the current generation.
            return group.joined(member_id)
        self.rebalances.update_member(group, member, says, on_joined)
        return None

    async def sync_group(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
    ) -> SyncResult:
        """Returns when the leader's assignment is in the log. The leader sends `assignments`, by member id."""
        error = self._group_error(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The pending rebalance is lost, and older clients do not expect COORDINATOR_LOAD_IN_PROGRESS.
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        if error is not None:
            return SyncResult(error)
        group = self._manager.get(group_id)
        if group is None:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        error = member_error(group, generation_id, member_id, group_instance_id)
        if error is not None:
            return SyncResult(error)
        if protocol_type not in (None, group.protocol_type) or protocol_name not in (None, group.protocol_name):
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        at_once = self._sync(group, group.members[member_id], partial(_resolve, answer), assignments)
        return await answer if at_once is None else at_once

    def _sync(
        self, group: Group, member: Member, on_synced: SyncCallback, assignments: Mapping[str, bytes]
    ) -> SyncResult | None:
        """The answer, or None if `on_synced` gets it."""
        if group.state is GroupState.PREPARING_REBALANCE:
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.rebalances.sync(group, member, on_synced, assignments)
            return None
        self.rebalances.has_synced(group, member)
        return group.synced(member)

    def heartbeat(self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None) -> ErrorCode:
        error = self._group_error(group_id)
        if error is not None:
            # Members of a group that is being loaded get a full session afterwards.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = self._manager.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = member_error(group, generation_id, member_id, group_instance_id)
        if error is not None:
            return error
        self.rebalances.sessions.renew(group, group.members[member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave_group(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> Steps[tuple[ErrorCode, list[tuple[str, str | None, ErrorCode]]]]:
        """`members` are (member id, instance id). A static member may be named by its instance id alone.

        After an error of the whole request some members may have left.
        """
        left: list[tuple[str, str | None, ErrorCode]] = []
        while True:
            error = self._group_error(group_id)
            if error is not None:
                return error, []
            group = self._manager.get(group_id)
            if group is not None and group.state is GroupState.DEAD:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
            for member_id, instance_id in members[len(left) : len(left) + MEMBERS_PER_SLICE]:
                left.append((member_id, instance_id, self._leave(group, member_id, instance_id)))
            if len(left) == len(members):
                return ErrorCode.NONE, left
            yield

    def _leave(self, group: Group | None, member_id: str, instance_id: str | None) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        found = leaving_member_id(group, member_id, instance_id)
        if isinstance(found, ErrorCode):
            return found
        self.rebalances.remove_member(group, found, f"{found} leaves")
        return ErrorCode.NONE

    # -- offsets ----------------------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
        offsets: Mapping[PartitionKey, OffsetAndMetadata],
    ) -> dict[PartitionKey, ErrorCode]:
        """Returns when the offsets are in the log. A negative generation means the client only stores offsets."""
        error = self._group_error(group_id, may_be_empty=True)
        if error is not None:
            return dict.fromkeys(offsets, error)
        # Takes several steps for many offsets, so it comes before the checks of the group.
        prepared = await in_slices(self._manager.prepare_offsets(group_id, offsets))
        error = self._group_error(group_id, may_be_empty=True)
        if error is not None:
            return dict.fromkeys(offsets, error)
        if generation_id < 0:
            group = self._manager.get_or_create(group_id)
        else:
            found = self._manager.get(group_id)
            if found is None:
                return dict.fromkeys(offsets, ErrorCode.ILLEGAL_GENERATION)
            group = found
        error = commit_error(group, generation_id, member_id, group_instance_id)
        if error is not None:
            return dict.fromkeys(offsets, error)
        member = group.members.get(member_id)
        if member is not None:
            self.rebalances.sessions.renew(group, member)
        return await self._manager.store_offsets(group, prepared)

    async def commit_transactional_offsets(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
        producer: TransactionalProducer,
        offsets: Mapping[PartitionKey, OffsetAndMetadata],
    ) -> dict[PartitionKey, ErrorCode]:
        """Returns when the offsets are in the log. They become visible with the transaction's COMMIT marker.

        With a negative generation and an empty member id the client need not be a member (before KIP-447).
        """
        error = self._group_error(group_id) or producer_error(producer)
        if error is not None:
            return dict.fromkeys(offsets, error)
        prepared = await in_slices(self._manager.prepare_offsets(group_id, offsets))
        error = self._group_error(group_id)
        if error is not None:
            return dict.fromkeys(offsets, error)
        group = self._manager.get(group_id) or Group(group_id, GroupState.EMPTY, self._environment.now_ms())
        error = transactional_commit_error(group, generation_id, member_id, group_instance_id)
        if error is not None:
            return dict.fromkeys(offsets, error)
        return await self._manager.store_transactional_offsets(group_id, producer, prepared)

    def transaction_ended(
        self, partition: int, producer_id: int, marker_offset: int, *, is_committed: bool
    ) -> Steps[None]:
        """Makes a transaction's offsets visible, or drops them, in steps. Its marker must be at `marker_offset` of a
        partition of __consumer_offsets, on all in-sync replicas. Answer WriteTxnMarkers afterwards."""
        return self._manager.transaction_ended(partition, producer_id, marker_offset, is_committed)

    def partitions_of_group(self, group_id: str) -> list[PartitionKey]:
        """The partitions with committed offsets; empty if this broker does not coordinate the group."""
        group = self._manager.get(group_id)
        return [] if group is None else list(group.offsets.committed)

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[PartitionKey] | None, *, require_stable: bool
    ) -> tuple[ErrorCode, dict[PartitionKey, tuple[ErrorCode, OffsetAndMetadata | None]]]:
        """The committed offsets of the partitions, or of all partitions that have one; None for partitions without one.

        With `require_stable`, a partition with a pending commit gets UNSTABLE_OFFSET_COMMIT (KIP-447).
        """
        error = self._group_error(group_id, may_be_empty=True)
        if error is not None:
            return error, {}
        group = self._manager.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.NONE, dict.fromkeys(partitions or (), (ErrorCode.NONE, None))
        offsets = group.offsets

        def fetch(partition: PartitionKey) -> tuple[ErrorCode, OffsetAndMetadata | None]:
            if require_stable and offsets.is_pending(partition):
                return ErrorCode.UNSTABLE_OFFSET_COMMIT, None
            return ErrorCode.NONE, offsets.get(partition)

        return ErrorCode.NONE, {
            partition: fetch(partition) for partition in (offsets.committed if partitions is None else partitions)
        }

    def delete_offsets(
        self, group_id: str, partitions: Sequence[PartitionKey]
    ) -> Steps[tuple[ErrorCode, dict[PartitionKey, ErrorCode]]]:
        """Deletes committed offsets; refused for topics that a member subscribes to (KIP-496).

        After an error of the whole request some offsets may have been deleted.
        """
        errors: dict[PartitionKey, ErrorCode] = {}
        topics = dict.fromkeys(topic for topic, _ in partitions)
        subscribed: Collection[str] = ()
        searched: tuple[Group, int] | None = None
        for piece in pieces(partitions):
            if errors:
                yield
            # The members of a new generation may subscribe to other topics.
            while (group := self._manager.get(group_id)) is not None and searched != (group, group.generation_id):
                searched = group, group.generation_id
                subscribed = yield from group.subscribed_among(topics)
            error = self._delete_piece(group_id, piece, subscribed, errors)
            if error is not ErrorCode.NONE:
                return error, {}
        return ErrorCode.NONE, errors

    def _delete_piece(
        self,
        group_id: str,
        partitions: Sequence[PartitionKey],
        subscribed: Collection[str],
        errors: dict[PartitionKey, ErrorCode],
    ) -> ErrorCode:
        """Deletes some of a request's offsets, adds to its `errors`, and returns the error of the whole request."""
        error = self._group_error(group_id)
        if error is not None:
            return error
        group = self._manager.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            # An Empty group is removed with its last offset.
            if ErrorCode.NONE not in errors.values():
                return ErrorCode.GROUP_ID_NOT_FOUND
            errors |= dict.fromkeys(partitions, ErrorCode.NONE)
            return ErrorCode.NONE
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP
        unsubscribed: dict[PartitionKey, None] = {}
        for partition in partitions:
            if group.state is not GroupState.EMPTY and partition[0] in subscribed:
                errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                errors[partition] = ErrorCode.NONE
                unsubscribed[partition] = None
        if unsubscribed:
            self._delete(group, list(unsubscribed), unsubscribed)
        return ErrorCode.NOT_COORDINATOR if any(map(group.offsets.has, unsubscribed)) else ErrorCode.NONE

    def committed_partitions(self) -> Steps[dict[str, dict[int, None]]]:
        """The partitions of each topic that have offsets here, except in groups that are being loaded."""
        found: dict[str, dict[int, None]] = {}
        slices = Slices(OFFSETS_PER_SLICE)
        for group in self._manager.groups():
            for topic, partition in group.offsets.partitions:
                found.setdefault(topic, {})[partition] = None
                if slices.spend():
                    yield
            if slices.spend():
                yield
        return found

    def partitions_deleted(self, partitions: Collection[PartitionKey]) -> Steps[None]:
        """Removes the offsets of deleted partitions, in steps. Must finish before a topic of the same name exists."""
        if not partitions:
            return
        deleted = dict.fromkeys(partitions)
        each_deleted = list(deleted)
        self._manager.partitions_deleted(deleted)
        slices = Slices(OFFSETS_PER_SLICE)
        for group in self._manager.groups():
            for piece in pieces(each_deleted if len(each_deleted) <= group.offsets.count else group.offsets.partitions):
                self._delete(group, piece, deleted)
                if slices.spend(1 + len(piece)):
                    yield

    def _delete(self, group: Group, partitions: Sequence[PartitionKey], deleted: Mapping[PartitionKey, object]) -> None:
        self._cleanup([group], lambda group: [one for one in partitions if one in deleted and group.offsets.has(one)])

    def _cleanup(
        self, groups: Sequence[Group], select: Callable[[Group], list[PartitionKey]], *, with_pending: bool = False
    ) -> None:
        self._manager.cleanup(groups, select, with_pending=with_pending)
        for group in groups:
            if group.state is GroupState.DEAD:
                self.rebalances.bury(group)

    # -- groups -----------------------------------------------------------------------------------------------------

    def list_groups(self, states: Collection[str]) -> tuple[ErrorCode, list[Group]]:
        """The groups in one of `states`, or all groups if it is empty. COORDINATOR_LOAD_IN_PROGRESS: the list may be
        incomplete."""
        if not self._is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._manager.is_loading else ErrorCode.NONE
        wanted = frozenset(states)
        return error, [group for group in self._manager.groups() if not wanted or group.state in wanted]

    def describe_group(self, group_id: str) -> Steps[tuple[ErrorCode, GroupSummary]]:
        """A group that does not exist is Dead."""
        error = self._group_error(group_id, may_be_empty=True)
        if error is not None:
            return error, NO_GROUP
        group = self._manager.get(group_id)
        return ErrorCode.NONE, DEAD_GROUP if group is None else (yield from group.summary())

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Deletes groups. Only Empty groups can be deleted."""
        results = {}
        groups = []
        for group_id in dict.fromkeys(group_ids):
            group = self._manager.get(group_id)
            error = self._group_error(group_id, may_be_empty=True)
            if error is not None:
                results[group_id] = error
            elif group is None or group.state is GroupState.DEAD:
                results[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                results[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                groups.append(group)
        self._cleanup(groups, lambda group: group.offsets.partitions, with_pending=True)
        for group in groups:
            is_deleted = group.state is GroupState.DEAD
            results[group.group_id] = ErrorCode.NONE if is_deleted else ErrorCode.NOT_COORDINATOR
        return results

    def _group_error(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode | None:
        """Why this coordinator cannot answer for the group."""
        if not is_legal_group_id(group_id, may_be_empty):
            return ErrorCode.INVALID_GROUP_ID
        if not self._is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._manager.check(group_id)


def _resolve(answer: "asyncio.Future[Result]", result: Result) -> None:
    if not answer.done():
        answer.set_result(result)
