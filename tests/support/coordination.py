"""What the coordinator's tests share: a coordinator in virtual time, its groups kept in memory, members that ask."""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from klamm.base.environment import Environment
from klamm.base.slices import in_one_go
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState, JoinResult, Member, SyncResult
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.groups.group_records import GroupKey, read_group_value, read_key
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey
from klamm.simulation.machine.loop import simulated_loop
from support.coordinator_logs import MemoryCoordinatorLog

NOW_MS = 1_700_000_000_000
G = "g"
RANGE = ("range", b"")
ROUND_ROBIN = ("roundrobin", b"")


def in_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a scenario in which waiting takes no time; it must not leave anybody waiting."""
    simulated_loop().run_until_complete(scenario)


async def after(seconds: float) -> None:
    """Virtual time passes."""
    await asyncio.sleep(seconds)


async def settle() -> None:
    """Everything happens that needs no time."""
    for _ in range(10):
        await asyncio.sleep(0)


class Machine(Environment):
    """The wall clock goes with the loop's; ids come from a seed."""

    def __init__(self) -> None:
        self.random = random.Random(7)

    def now_ms(self) -> int:
        return NOW_MS + round(asyncio.get_running_loop().time() * 1000)

    def host_name(self) -> str:
        raise AssertionError("a coordinator has no business with the machine's name")

    async def run_blocking(self, function: Callable[..., Any], *arguments: object) -> Any:
        raise AssertionError("a coordinator does nothing that blocks")

    async def run_in_worker(self, work: Callable[..., Any], *arguments: object) -> Any:
        raise AssertionError("a coordinator walks through no records")

    async def run_in_background(self, work: Callable[..., Any], *arguments: object) -> Any:
        raise AssertionError("a coordinator compacts nothing")


class GroupLog(MemoryCoordinatorLog):
    """Partition 0 of __consumer_offsets."""

    def generations(self) -> list[tuple[int, dict[str, bytes]]]:
        """What was written of the group: each generation, and what is assigned in it by member id. -1: a tombstone."""
        found: list[tuple[int, dict[str, bytes]]] = []
        for key, value in self.records():
            if read_key(key) == GroupKey(G):
                if value is None:
                    found.append((-1, {}))
                else:
                    group = read_group_value(G, value)
                    assignments = {member.member_id: member.assignment for member in group.members.values()}
                    found.append((group.generation_id, assignments))
        return found

    def tombstones(self) -> list[object]:
        return [read_key(key) for key, value in self.records() if value is None]


class Coordination:
    """A coordinator that is started, and how members talk to it. `join` and `sync` are tasks: they may wait."""

    def __init__(self, **config: object) -> None:
        self.config = CurrentConfig(self.with_config(**config))
        self.failures: list[BaseException] = []
        self.log = GroupLog()
        machine = Machine()
        self.manager = GroupMetadataManager(
            self.config.current, self.log, lambda _: 0, machine.now_ms, self.failures.append
        )
        self.coordinator = GroupCoordinator(self.config, self.manager, machine, self.failures.append)
        self.coordinator.start()

    @classmethod
    async def elected(cls, **config: object) -> "Coordination":
        """One that leads partition 0, which is empty. The first rebalance waits for nobody unless it is said."""
        coordination = cls(**{"group_initial_rebalance_delay_ms": 0, **config})
        await coordination.elect()
        return coordination

    async def elect(self, epoch: int = 0) -> None:
        self.coordinator.on_election(0, epoch)
        await settle()

    def resign(self, epoch: int | None = None) -> None:
        self.coordinator.on_resignation(0, epoch)

    @staticmethod
    def with_config(**config: object) -> BrokerConfig:
        properties = {key.replace("_", "."): str(value) for key, value in config.items()}
        return BrokerConfig.from_properties({"zookeeper.connect": "zk", **properties})

    def group(self, group_id: str = G) -> Group:
        group = self.manager.get(group_id)
        assert group is not None
        return group

    def join(
        self,
        member_id: str = "",
        instance: str | None = None,
        *,
        group_id: str = G,
        two_steps: bool = False,
        client_id: str = "c",
        rebalance_s: float = 60,
        session_s: float = 10,
        protocol_type: str = "consumer",
        protocols: Sequence[tuple[str, bytes]] = (RANGE,),
    ) -> "asyncio.Task[JoinResult]":
        return asyncio.get_running_loop().create_task(
            self.coordinator.join_group(
                group_id,
                member_id,
                instance,
                requires_known_member_id=two_steps,
                client_id=client_id,
                client_host="/127.0.0.1",
                rebalance_timeout_ms=round(rebalance_s * 1000),
                session_timeout_ms=round(session_s * 1000),
                protocol_type=protocol_type,
                protocols=protocols,
            )
        )

    def sync(
        self,
        joined: JoinResult,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        member_id: str | None = None,
        generation: int | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> "asyncio.Task[SyncResult]":
        return asyncio.get_running_loop().create_task(
            self.coordinator.sync_group(
                G,
                joined.generation_id if generation is None else generation,
                joined.member_id if member_id is None else member_id,
                instance,
                protocol_type,
                protocol,
                assignments or {},
            )
        )

    def heartbeat(self, joined: JoinResult, instance: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat(G, joined.generation_id, joined.member_id, instance)

    def leave(self, member_id: str = "", instance: str | None = None) -> ErrorCode:
        error, [(_, _, of_member)] = in_one_go(self.coordinator.leave_group(G, [(member_id, instance)]))
        assert error is ErrorCode.NONE
        return of_member

    @staticmethod
    def spawn(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)

    @staticmethod
    def an_offset(offset: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(offset, -1, "", NOW_MS)

    async def commit(
        self,
        joined: JoinResult | None,
        offset: int = 1,
        *,
        partition: PartitionKey = ("t", 0),
        instance: str | None = None,
    ) -> ErrorCode:
        generation, member_id = (-1, "") if joined is None else (joined.generation_id, joined.member_id)
        offsets = {partition: self.an_offset(offset)}
        return (await self.coordinator.commit_offsets(G, generation, member_id, instance, offsets))[partition]

    async def completing(self, count: int = 1, *, instances: Collection[int] = (), **options: Any) -> list[JoinResult]:
        """That many new members in CompletingRebalance, the leader first; those numbered so are static: s0, s1..."""
        joins = [self.join(instance=f"s{i}" if i in instances else None, **options) for i in range(count)]
        results = [await join for join in joins]
        assert [result.error_code for result in results] == [ErrorCode.NONE] * count
        assert results[0].leader_id == results[0].member_id
        return results

    async def stable(self, count: int = 1, *, instances: Collection[int] = (), **options: Any) -> list[JoinResult]:
        """As `completing`, in Stable; to each is assigned what it is called here: b"0", b"1"..."""
        joined = await self.completing(count, instances=instances, **options)
        assignments = {result.member_id: b"%d" % i for i, result in enumerate(joined)}
        syncs = [
            self.sync(result, assignments if i == 0 else None, instance=f"s{i}" if i in instances else None)
            for i, result in enumerate(joined)
        ]
        for i, sync in enumerate(syncs):
            assert (await sync).assignment == b"%d" % i
        assert self.group().state is GroupState.STABLE
        return joined

    async def stop(self) -> None:
        """Nobody may wait after that."""
        await self.coordinator.stop()
        await settle()
        assert self.coordinator.waiting_count == 0
        assert self.failures == []


def a_member(member_id: str, *protocols: tuple[str, bytes], **options: Any) -> Member:
    """One for tests of groups alone."""
    return Member(
        member_id,
        options.get("instance"),
        "c",
        "/h",
        options.get("rebalance_timeout_ms", 60_000),
        options.get("session_timeout_ms", 10_000),
        options.get("protocol_type", "consumer"),
        list(protocols) or [RANGE],
        options.get("assignment", b""),
    )
