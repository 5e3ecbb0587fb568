"""A consumer group in a simulated cluster: members that join, own partitions and commit, and a ledger of the answers.

A member behaves as clients do: it finds the coordinator, joins and synchronizes, fetches the committed offsets of its
partitions, continues from there and commits. Each member has its own machine, which may die or be stalled. Now and then
a request of a member's former generation arrives when the member is already in the next generation.

What must stay true, and is checked with every answer (a contradiction is an AssertionError and ends the run):
- In one generation of a group a partition has one owner. A member owns exactly the partitions that the leader of its
  generation has assigned to it.
- Generations only rise: once a member has its assignment, no member joins an earlier generation, and no commit of an
  earlier generation is acknowledged.
- The new owner of a partition finds at least the last offset whose commit was acknowledged before it asked, and no
  offset that no member has committed. The same holds for a client that asks after all members have left.

As in Kafka, a former coordinator that does not know its successor yet still answers: its members continue from older
offsets, and none of their commits is acknowledged. If `coordinator_id` says that another broker is the coordinator, an
answer is only checked for offsets that no member has committed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.group_member import (
    Membership,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from klamm.client.consumer.offsets import offset_fetch_request
from klamm.client.fan_out import find_coordinator_request
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import ClientError, Connection
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import PartitionKey, TopicPartition
from klamm.simulation.machine.process import ProcessDead
from klamm.simulation.machine.world import World

SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_S = 0.5
BACK_OFF_S = 0.1
REQUEST_TIMEOUT_MS = 20_000
FAILURES_UNTIL_NEW_CLIENT = 5
# The share of new memberships after which a request of the former one arrives late.
LATE_SHARE = 0.5
PROTOCOL_TYPE, PROTOCOL = "consumer", "simulated"

# Error codes that make a member join again, with or without its id.
REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
FORGOTTEN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
# Transient error codes. Another broker may be the coordinator.
ELSEWHERE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    *RETRIABLE_ERRORS,
}


class _MustRejoin(Exception):
    """The generation is over."""


class _Retry(Exception):
    """No answer, or a transient error."""


class GroupLedger:
    """The answers to all members of one group. `progress` is set with every commit and assignment."""

    def __init__(self, group_id: str, partitions: Sequence[PartitionKey]) -> None:
        self.group_id = group_id
        self.partitions = list(partitions)
        self.acknowledged: dict[PartitionKey, int] = dict.fromkeys(partitions, -1)
        self.attempted: dict[PartitionKey, int] = dict.fromkeys(partitions, -1)
        self.commits = 0
        self.latest_generation = -1
        self.progress = asyncio.Event()
        self._owners: dict[int, dict[PartitionKey, str]] = defaultdict(dict)
        # The assignments of leaders to each member in a generation. There are several if the first did not reach the
        # log. A static member is identified by its instance id, because it may come back with another member id.
        self._given: dict[tuple[int, str], list[list[PartitionKey]]] = defaultdict(list)

    def given(self, generation: int, identity: str, partitions: Sequence[PartitionKey]) -> None:
        """A leader assigns these partitions to the member with this instance id, or member id."""
        self._given[generation, identity].append(list(partitions))

    def assigned(
        self, generation: int, member: str, identity: str, partitions: Sequence[PartitionKey], least_generation: int
    ) -> None:
        """A member has its assignment. `least_generation` was the latest generation when the member joined."""
        assert generation >= least_generation, (
            f"{self.group_id}: {member} is in generation {generation} after generation {least_generation}"
        )
        given = self._given[generation, identity]
        assert list(partitions) in given, (
            f"{self.group_id}, generation {generation}: {member} ({identity}) owns {list(partitions)}, and the leader"
            f" has given it {given}"
        )
        owners = self._owners[generation]
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            assert owner == member, f"{self.group_id}, generation {generation}: {owner} and {member} own {partition}"
        self.latest_generation = max(self.latest_generation, generation)
        self.progress.set()

    def fetched(self, partition: PartitionKey, offset: int, acknowledged_before: int) -> None:
        assert acknowledged_before <= offset <= self.attempted[partition], (
            f"{self.group_id}: {partition} is at {offset}; {acknowledged_before} had been acknowledged, "
            f"{self.attempted[partition]} is the last attempted one"
        )

    def committed(self, partition: PartitionKey, offset: int, generation: int, least_generation: int) -> None:
        """A commit is acknowledged. `least_generation` was the latest generation when the commit was sent."""
        assert generation >= least_generation, (
            f"{self.group_id}: a commit of generation {generation} is acknowledged after generation {least_generation}"
        )
        self.acknowledged[partition] = max(self.acknowledged[partition], offset)
        self.commits += 1
        self.progress.set()

    async def until_commits(self, count: int) -> None:
        """Waits until `count` more commits are acknowledged."""
        wanted = self.commits + count
        await self._until(lambda: self.commits >= wanted)

    async def until_generation(self, generation: int) -> None:
        """Waits until a member is in this generation, or in a later one."""
        await self._until(lambda: self.latest_generation >= generation)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.progress.clear()
            await self.progress.wait()


class GroupMember:
    """One member. `group_instance_id` makes it a static member."""

    def __init__(
        self,
        world: World,
        new_client: Callable[[], ClusterClient],
        ledger: GroupLedger,
        name: str,
        group_instance_id: str | None = None,
        coordinator_id: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.owned: list[PartitionKey] = []
        self.node = world.node(name)
        self._world = world
        self._random = world.random
        self._new_client = new_client
        self._ledger = ledger
        self._membership = Membership(ledger.group_id, group_instance_id)
        # The membership in the last generation in which this member got an assignment.
        self._former = replace(self._membership)
        self._coordinator_id = coordinator_id
        self._asked_id = -1
        self._stop = asyncio.Event()

    def start(self) -> None:
        """Starts the member. After a crash it has forgotten everything."""
        if not self.node.process.alive:
            self.node.restart()
        self._stop.clear()
        self.owned = []
        self._client = self._new_client()
        self._coordinator: Connection | None = None
        self._failures = 0
        self._membership.forget()
        self._former = replace(self._membership)
        self._running = self.node.run(self._run())
        self._running.add_done_callback(self._ended)

    def _ended(self, running: "asyncio.Future[None]") -> None:
        error = running.exception()
        if error is not None and not isinstance(error, ProcessDead):
            self._world.loop.fail(f"{self.name} ended: {error!r}", error)

    def kill(self) -> None:
        self.node.crash()

    async def stop(self) -> None:
        """Makes the member leave the group. A dead member stays dead."""
        self._stop.set()
        if self.node.process.alive:
            try:
                await self._running
            except ProcessDead:
                return

    async def check_committed(self) -> None:
        """Fetches all committed offsets, without being a member of the group. Call it after the member has left."""
        if not self.node.process.alive:
            self.node.restart()
        await self.node.run(self._check_committed())

    async def _check_committed(self) -> None:
        self._client, self._coordinator = self._new_client(), None
        while True:
            try:
                await self._positions(self._ledger.partitions)
                break
            except _Retry:
                await asyncio.sleep(BACK_OFF_S)
        await self._client.close()

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                await self._join()
                positions = await self._positions(self.owned)
                await self._work(positions)
            except _MustRejoin:
                self.owned = []
                await self._count_failure()
            except _Retry:
                self.owned = []
                await asyncio.sleep(BACK_OFF_S * (1 + self._random.random()))
                self._coordinator = None
                await self._count_failure()
        await self._leave()
        await self._client.close()

    async def _count_failure(self) -> None:
        """After some failures without a commit in between, the member asks another broker for the coordinator.

        A coordinator that is cut off from the other brokers still believes that it is the coordinator. Members could
        rejoin there forever."""
        self._failures += 1
        if self._failures % FAILURES_UNTIL_NEW_CLIENT == 0:
            await self._client.close()
            self._client = self._new_client()
            self._coordinator = None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _ask(self, api_key: ApiKey, request: Any) -> Any:
        """The coordinator's response. Raises _Retry without a response."""
        try:
            if self._coordinator is None or not self._coordinator.connected:
                self._coordinator = await self._find_coordinator()
            return await self._coordinator.send(api_key, lambda version: request, timeout_ms=REQUEST_TIMEOUT_MS)
        except (ClientError, KafkaError) as error:
            raise _Retry from error

    async def _find_coordinator(self) -> Connection:
        request = find_coordinator_request(self._ledger.group_id)
        response = await self._client.send_to_any(ApiKey.FIND_COORDINATOR, lambda version: request)
        self._check(response.error_code)
        await self._client.refresh_metadata([])
        self._asked_id = response.node_id
        return await self._client.connection_to(response.node_id)

    def _check(self, code: int) -> None:
        """Raises _MustRejoin or _Retry as the error code requires, and AssertionError for a code that no fault
        excuses."""
        if code == ErrorCode.NONE:
            return
        if code in FORGOTTEN:
            self._membership.forget()
            raise _MustRejoin
        if code in REJOIN:
            raise _MustRejoin
        assert code in ELSEWHERE, f"{self.name} was answered with {error_name(code)}"
        raise _Retry

    # -- a member's steps ---------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        membership, latest = self._membership, self._ledger.latest_generation
        request = join_request(
            membership,
            PROTOCOL_TYPE,
            {PROTOCOL: b""},
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        )
        joined = await self._ask(ApiKey.JOIN_GROUP, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            membership.member_id = joined.member_id
            raise _MustRejoin
        self._check(joined.error_code)
        membership.member_id, membership.generation_id = joined.member_id, joined.generation_id
        is_leader = joined.leader == joined.member_id
        assignments = self._assign([member.member_id for member in joined.members]) if is_leader else {}
        for each in joined.members if is_leader else ():
            assigned = self._partitions(assignments[each.member_id])
            self._ledger.given(joined.generation_id, each.group_instance_id or each.member_id, assigned)
        synced = await self._ask(ApiKey.SYNC_GROUP, sync_request(membership, PROTOCOL_TYPE, PROTOCOL, assignments))
        self._check(synced.error_code)
        self.owned = self._partitions(bytes(synced.assignment or b""))
        self._ledger.assigned(membership.generation_id, self.name, _identity(membership), self.owned, latest)
        former, self._former = self._former, replace(membership)
        if former.generation_id >= 0 and not former.is_same_member(membership) and self._random.random() < LATE_SHARE:
            with suppress(_Retry):
                await self._send_late(former)

    async def _send_late(self, former: Membership) -> None:
        """A request of the member's former generation, which the coordinator refuses."""
        latest, coordinator = self._ledger.latest_generation, self._coordinator
        if self._random.random() < 0.5:
            synced = await self._ask(ApiKey.SYNC_GROUP, sync_request(former, PROTOCOL_TYPE, PROTOCOL, {}))
            # A former coordinator may answer. It does not know the current generation.
            if synced.error_code == ErrorCode.NONE and self._coordinator is coordinator:
                owned = self._partitions(bytes(synced.assignment or b""))
                self._ledger.assigned(former.generation_id, self.name, _identity(former), owned, latest)
            return
        partition = self._random.choice(self._ledger.partitions)
        offset = max(0, self._ledger.attempted[partition])
        self._ledger.attempted[partition] = offset
        response = await self._ask(ApiKey.OFFSET_COMMIT, commit_request(former, {TopicPartition(*partition): offset}))
        (error_code,) = response.error_codes().values()
        if error_code == ErrorCode.NONE:
            self._ledger.committed(partition, offset, former.generation_id, latest)

    def _partitions(self, assignment: bytes) -> list[PartitionKey]:
        return [self._ledger.partitions[index] for index in assignment]

    def _assign(self, member_ids: list[str]) -> dict[str, bytes]:
        """Assigns the partitions to the members in turn. An assignment has one byte for each partition."""
        count = len(self._ledger.partitions)
        return {member_id: bytes(range(place, count, len(member_ids))) for place, member_id in enumerate(member_ids)}

    async def _positions(self, partitions: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """The offsets to continue from. Like a client, the member waits for pending transactional commits (KIP-447)."""
        before = {partition: self._ledger.acknowledged[partition] for partition in partitions}
        wanted = [TopicPartition(*partition) for partition in sorted(partitions)]
        request = offset_fetch_request(self._ledger.group_id, wanted, require_stable=True)
        while True:
            response = await self._ask(ApiKey.OFFSET_FETCH, request)
            self._check(response.error_code)
            found = {(t.name, p.partition_index): p for t in response.topics for p in t.partitions}
            codes = {partition.error_code for partition in found.values()}
            if codes <= {ErrorCode.NONE}:
                break
            assert codes <= {ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT}, response
            await self._heartbeat()
            await asyncio.sleep(BACK_OFF_S)
        is_coordinator = self._coordinator_id is None or self._coordinator_id() == self._asked_id
        for partition in partitions:
            least = before[partition] if is_coordinator else -1
            self._ledger.fetched(partition, found[partition].committed_offset, least)
        return {partition: found[partition].committed_offset for partition in partitions}

    async def _work(self, positions: dict[PartitionKey, int]) -> None:
        """Commits, and sends heartbeats in between, until the generation is over or the member stops."""
        while not self._stop.is_set():
            for partition in self._random.sample(self.owned, len(self.owned)):
                positions[partition] += self._random.randint(1, 3)
                await self._commit(partition, positions[partition])
            await self._heartbeat()
            await asyncio.sleep(HEARTBEAT_INTERVAL_S * self._random.random())

    async def _heartbeat(self) -> None:
        response = await self._ask(ApiKey.HEARTBEAT, heartbeat_request(self._membership))
        self._check(response.error_code)

    async def _commit(self, partition: PartitionKey, offset: int) -> None:
        self._ledger.attempted[partition] = max(self._ledger.attempted[partition], offset)
        generation, latest = self._membership.generation_id, self._ledger.latest_generation
        request = commit_request(self._membership, {TopicPartition(*partition): offset}, metadata=self.name)
        response = await self._ask(ApiKey.OFFSET_COMMIT, request)
        (error_code,) = response.error_codes().values()
        self._check(error_code)
        self._failures = 0
        self._ledger.committed(partition, offset, generation, latest)

    async def _leave(self) -> None:
        if not self._membership.member_id:
            return
        try:
            await self._ask(ApiKey.LEAVE_GROUP, leave_request(self._membership))
        except _Retry:
            return  # The member's session will expire.


def _identity(membership: Membership) -> str:
    return membership.group_instance_id or membership.member_id


class GroupWorkload:
    """A group of `members`, every other one static, that share the partitions."""

    def __init__(
        self,
        world: World,
        new_client: Callable[[], ClusterClient],
        group_id: str,
        partitions: Sequence[PartitionKey],
        members: int = 3,
        coordinator_id: Callable[[], int] | None = None,
    ) -> None:
        self.ledger = GroupLedger(group_id, partitions)
        self.members = [
            GroupMember(
                world,
                new_client,
                self.ledger,
                f"{group_id}-{index}",
                f"instance-{index}" if index % 2 else None,
                coordinator_id,
            )
            for index in range(members)
        ]

    def start(self) -> None:
        for member in self.members:
            member.start()

    async def until_stable(self) -> None:
        """Returns when every partition has one owner."""
        while True:
            owned = [partition for member in self.members for partition in member.owned]
            if sorted(owned) == sorted(self.ledger.partitions):
                return
            await asyncio.sleep(BACK_OFF_S)

    async def stop(self) -> None:
        """Makes all members leave."""
        for member in self.members:
            if member.node.process.alive and member.node.process.stalled:
                member.node.resume()
        await asyncio.gather(*[member.stop() for member in self.members])

    async def check_committed(self) -> None:
        """Checks that the cluster still has the group's offsets. All members have left, and the cluster is whole."""
        await self.members[0].check_committed()
