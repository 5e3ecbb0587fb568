"""A consumer group in a simulated cluster: members that join, own partitions and commit, and a ledger of the answers.

A member behaves as clients do: it finds the coordinator, joins and synchronizes, fetches the committed offsets of its
partitions, continues from there and commits. Members run on machines of their own, which may die or be stalled.

What must stay true, and is checked with every answer (a contradiction is an AssertionError and ends the run):
- In one generation of a group a partition has one owner.
- The new owner of a partition finds at least the last offset whose commit was acknowledged before it asked, and no
  offset that no member has committed. The same holds for a client that asks after all members have left.

As in Kafka, a former coordinator that does not know its successor yet still answers: its members continue from older
offsets, and none of their commits is acknowledged. Where `coordinator_id` names another broker as the coordinator, such
an answer is only checked for offsets that no member has committed.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from klamm.client.cluster import RETRIABLE_ERRORS, ClusterClient
from klamm.net.client import ClientError, Connection
from klamm.protocol.apis.find_coordinator import FindCoordinatorRequest
from klamm.protocol.apis.join_group import JoinGroupRequest
from klamm.protocol.apis.leave_group import LeaveGroupRequest
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.offset_fetch import OffsetFetchRequest
from klamm.protocol.apis.sync_group import SyncGroupRequest
from klamm.protocol.errors import ErrorCode, KafkaError, error_name
from klamm.protocol.messages import ApiKey, request_class
from klamm.protocol.vocabulary import PartitionKey
from klamm.simulation.process import ProcessDead
from klamm.simulation.world import World

SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_S = 0.5
BACK_OFF_S = 0.1
REQUEST_TIMEOUT_MS = 20_000
FAILURES_UNTIL_NEW_CLIENT = 5
PROTOCOL_TYPE, PROTOCOL = "consumer", "simulated"
GROUP_KEY_TYPE = 0

# Error codes that make a member join again, with or without its id.
REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
FORGOTTEN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
# Transient error codes; perhaps another broker is the coordinator.
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

    def assigned(self, generation: int, member: str, partitions: Sequence[PartitionKey]) -> None:
        owners = self._owners[generation]
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            assert owner == member, f"{self.group_id}, generation {generation}: {owner} and {member} own {partition}"
        self.latest_generation = max(self.latest_generation, generation)
        self.progress.set()

    def fetched(self, partition: PartitionKey, offset: int, acknowledged_before: int) -> None:
        assert acknowledged_before <= offset <= self.attempted[partition], (
            f"{self.group_id}: {partition} is at {offset}; {acknowledged_before} had been acknowledged, "
            f"{self.attempted[partition]} is the last that anybody tried"
        )

    def committed(self, partition: PartitionKey, offset: int) -> None:
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
    """One member; `group_instance_id` makes it a static one."""

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
        self._instance_id = group_instance_id
        self._coordinator_id = coordinator_id
        self._asked_id = -1
        self._stop = asyncio.Event()

    def start(self) -> None:
        """Starts the member; after a crash it starts without any memory."""
        if not self.node.process.alive:
            self.node.restart()
        self._stop.clear()
        self.owned = []
        self._client = self._new_client()
        self._coordinator: Connection | None = None
        self._failures = 0
        self._member_id, self._generation = "", -1
        self._running = self.node.run(self._run())
        self._running.add_done_callback(self._ended)

    def _ended(self, running: "asyncio.Future[None]") -> None:
        error = running.exception()
        if error is not None and not isinstance(error, ProcessDead):
            self._world.loop.fail(f"{self.name} ended: {error!r}", error)

    def kill(self) -> None:
        self.node.crash()

    async def stop(self) -> None:
        """Leaves the group; a dead member stays dead."""
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

        A coordinator that is cut off from the other brokers still believes that it is the coordinator, and lets members
        join again for ever."""
        self._failures += 1
        if self._failures % FAILURES_UNTIL_NEW_CLIENT == 0:
            await self._client.close()
            self._client = self._new_client()
            self._coordinator = None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _send(self, api_key: ApiKey, **fields: Any) -> Any:
        """The coordinator's response to a request of the group with these fields. Raises _Retry without a response."""
        build = request_class(api_key)
        return await self._ask(api_key, lambda version: build(group_id=self._ledger.group_id, **fields))

    async def _ask(self, api_key: ApiKey, make_request: Callable[[int], Any]) -> Any:
        """Like `_send`, with a function that builds the request for a version."""
        try:
            if self._coordinator is None or not self._coordinator.connected:
                self._coordinator = await self._find_coordinator()
            response = await self._coordinator.send(api_key, make_request, timeout_ms=REQUEST_TIMEOUT_MS)
        except (ClientError, KafkaError) as error:
            raise _Retry from error
        return response

    async def _find_coordinator(self) -> Connection:
        response = await self._client.send_to_any(
            ApiKey.FIND_COORDINATOR,
            lambda version: FindCoordinatorRequest(key=self._ledger.group_id, key_type=GROUP_KEY_TYPE),
        )
        self._check(response.error_code)
        await self._client.refresh_metadata([])
        self._asked_id = response.node_id
        return await self._client.connection_to(response.node_id)

    def _check(self, code: int) -> None:
        """Raises _MustRejoin or _Retry as the error code requires; AssertionError for a code that no fault excuses."""
        if code == ErrorCode.NONE:
            return
        if code in FORGOTTEN:
            self._member_id, self._generation = "", -1
            raise _MustRejoin
        if code in REJOIN:
            raise _MustRejoin
        assert code in ELSEWHERE, f"{self.name} was answered with {error_name(code)}"
        raise _Retry

    # -- a member's steps ---------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"")
        joined = await self._send(
            ApiKey.JOIN_GROUP,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            raise _MustRejoin
        self._check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        is_leader = joined.leader == joined.member_id
        synced = await self._send(
            ApiKey.SYNC_GROUP,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=self._assign([member.member_id for member in joined.members]) if is_leader else [],
        )
        self._check(synced.error_code)
        indexes = bytes(synced.assignment or b"")
        self.owned = [self._ledger.partitions[index] for index in indexes]
        self._ledger.assigned(self._generation, self.name, self.owned)

    def _assign(self, member_ids: list[str]) -> list[Any]:
        """Assigns each partition to one member in turn; an assignment is a byte for each partition."""
        assignment = SyncGroupRequest.SyncGroupRequestAssignment
        count = len(self._ledger.partitions)
        return [
            assignment(member_id=member_id, assignment=bytes(range(place, count, len(member_ids))))
            for place, member_id in enumerate(member_ids)
        ]

    async def _positions(self, partitions: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """The offsets to continue from; like a client, the member waits for pending commits (KIP-447)."""
        before = {partition: self._ledger.acknowledged[partition] for partition in partitions}
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[number for _, number in numbers])
            for topic, numbers in itertools.groupby(sorted(partitions), key=lambda partition: partition[0])
        ]
        while True:
            response = await self._send(ApiKey.OFFSET_FETCH, topics=topics, require_stable=True)
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
        response = await self._send(
            ApiKey.HEARTBEAT,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
        )
        self._check(response.error_code)

    async def _commit(self, partition: PartitionKey, offset: int) -> None:
        self._ledger.attempted[partition] = max(self._ledger.attempted[partition], offset)
        request = OffsetCommitRequest.of(self._ledger.group_id, {partition: offset}, metadata=self.name)
        request.generation_id_or_member_epoch = self._generation
        request.member_id, request.group_instance_id = self._member_id, self._instance_id
        response = await self._ask(ApiKey.OFFSET_COMMIT, lambda _version: request)
        (error_code,) = response.error_codes().values()
        self._check(error_code)
        self._failures = 0
        self._ledger.committed(partition, offset)

    async def _leave(self) -> None:
        if not self._member_id:
            return
        identity = LeaveGroupRequest.MemberIdentity
        try:
            await self._send(
                ApiKey.LEAVE_GROUP,
                member_id=self._member_id,
                members=[identity(member_id=self._member_id, group_instance_id=self._instance_id)],
            )
        except _Retry:
            return  # The member's session will expire.


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
