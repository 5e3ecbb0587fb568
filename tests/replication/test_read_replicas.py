"""The follower that a leader names to a consumer (KIP-392)."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from klamm.plugins.replica_selection import (
    ClientMetadata,
    PartitionView,
    RackAwareReplicaSelector,
    ReplicaSelector,
    ReplicaView,
)
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.replication.read_replicas import ReadReplicas
from support.replicas import ME, Broker, batch, settle, state, values_in, want

pytestmark = pytest.mark.loop("virtual")

NOBODY = -1
RACKS = {1: "a", 2: "b", 3: "b"}


def client(rack: str) -> ClientMetadata:
    return ClientMetadata(rack, "client", "127.0.0.1", "User:ANONYMOUS", "PLAINTEXT")


def replica(broker_id: int, rack: str | None, end: int = 10, lag_ms: float = 0) -> ReplicaView:
    return ReplicaView(broker_id, f"host{broker_id}", 9092, rack, end, lag_ms)


@pytest.mark.parametrize(
    ("rack", "replicas", "selected"),
    [
        ("", [replica(1, "a"), replica(2, "b")], None),
        ("c", [replica(1, "a"), replica(2, "b")], None),
        ("b", [replica(1, None), replica(2, None)], None),
        ("b", [replica(1, "a"), replica(2, "b")], 2),
        # The leader of the own rack goes before all.
        ("a", [replica(1, "a", lag_ms=0), replica(2, "a")], None),
        # Then the most caught up, then the one that was caught up last, then the greatest id.
        ("b", [replica(1, "a"), replica(2, "b", end=9), replica(3, "b", end=8)], 2),
        ("b", [replica(1, "a"), replica(2, "b", lag_ms=5), replica(3, "b", lag_ms=6)], 2),
        ("b", [replica(1, "a"), replica(2, "b"), replica(3, "b")], 3),
    ],
)
async def test_the_rack_aware_selector(rack: str, replicas: list[ReplicaView], selected: int | None) -> None:
    found = RackAwareReplicaSelector().select(client(rack), PartitionView("t", 0, replicas))
    assert (None if found is None else found.broker_id) == selected


class LeadingBroker(Broker):
    """Broker 1, in rack a, leads t-0 with four records; 2 and 3 are in rack b."""

    selector: ReplicaSelector = RackAwareReplicaSelector()

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.alive = dict(RACKS)

    async def start(self) -> None:
        await super().start()

        def address(broker_id: int, listener_name: str) -> tuple[str, int, str | None] | None:
            return (f"{listener_name}{broker_id}", 9092, self.alive[broker_id]) if broker_id in self.alive else None

        self.manager._read_replicas = ReadReplicas(self.selector, address)
        await self.tell(state(0))
        for value in (b"a", b"b", b"c", b"d"):
            self.manager.append_records("t", 0, batch(value), 1)

    async def report(self, follower: int, offset: int, log_start_offset: int = 0) -> None:
        """A fetch of a follower."""
        topic, wanted = want(offset)
        wanted.log_start_offset = log_start_offset
        await self.manager.fetch(
            [(topic, wanted)], replica_id=follower, isolation_level=0, max_wait_ms=0, min_bytes=1, max_bytes=10**6
        )

    async def fetch(self, offset: int, rack: str = "b", max_wait_ms: int = 0, epoch: int | None = None):
        """A consumer's fetch, by default with the current leader epoch."""
        if epoch is None:
            epoch = self.manager.partition("t", 0).leader_epoch
        [result] = await self.manager.fetch(
            [want(offset, epoch=epoch)],
            isolation_level=0,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=10**6,
            only_leader=False,
            consumer=client(rack),
        )
        return result

    async def named(self, offset: int, rack: str = "b") -> int:
        return (await self.fetch(offset, rack)).preferred_read_replica


@asynccontextmanager
async def leading(path: Path) -> AsyncIterator[LeadingBroker]:
    broker = LeadingBroker(path)
    await broker.start()
    yield broker
    await broker.stop()


async def test_a_consumer_is_sent_to_the_follower_in_its_rack_and_gets_no_records(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 4)
        await broker.report(3, 3)
        result = await broker.fetch(1)
        assert (result.error_code, result.preferred_read_replica, result.records) == (0, 2, b"")
        assert (result.high_watermark, result.log_start_offset) == (3, 0)
        assert await broker.named(1, rack="a") == NOBODY
        assert values_in((await broker.fetch(1, rack="a")).records) == [b"b", b"c"]


async def test_only_a_follower_that_has_the_offset_is_named(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 4, log_start_offset=2)
        await broker.report(3, 3)
        assert [await broker.named(offset) for offset in (0, 1, 2, 3, 4)] == [3, 3, 2, 2, 2]
        # What the leader itself does not have is an error, whoever might have it.
        assert (await broker.fetch(5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_consumer_without_a_leader_epoch_stays_at_the_leader(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 4)
        await broker.report(3, 4)
        result = await broker.fetch(3, epoch=NO_EPOCH)
        assert (result.preferred_read_replica, values_in(result.records)) == (NOBODY, [b"d"])


async def test_a_follower_that_has_left_the_isr_or_died_is_not_named(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 4)
        await broker.report(3, 4)
        assert await broker.named(1) == 3
        await broker.tell(state(0, epoch=1, isr=(1, 2)))
        await broker.report(2, 4)
        await broker.report(3, 3)
        assert await broker.named(1) == 2
        del broker.alive[2]
        assert await broker.named(1) == NOBODY


async def test_a_consumer_that_waits_hears_at_once_when_a_follower_is_there(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 3)
        await broker.report(3, 3)
        waiting = asyncio.ensure_future(broker.fetch(4, max_wait_ms=60_000))
        await settle()
        assert not waiting.done()
        broker.manager.append_records("t", 0, batch(b"e"), 1)
        await broker.report(2, 5)
        await broker.report(3, 5)
        assert (await waiting).preferred_read_replica == 3


async def test_followers_and_tools_are_sent_nowhere(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 4)
        [result] = await broker.manager.fetch(
            [want(0)], replica_id=3, isolation_level=0, max_wait_ms=0, min_bytes=1, max_bytes=10**6
        )
        assert (result.preferred_read_replica, len(values_in(result.records))) == (NOBODY, 4)


def replicas_of(broker: Broker) -> ReadReplicas:
    replicas = broker.manager._read_replicas
    assert replicas is not None
    return replicas


class _Raises(ReplicaSelector):
    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        raise ZeroDivisionError


class _Invents(ReplicaSelector):
    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        return replica(9, "b")


class _Exits(ReplicaSelector):
    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        raise SystemExit(3)


class _EmptiesTheList(ReplicaSelector):
    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        cast(list[ReplicaView], partition.replicas).clear()
        return None


@pytest.mark.parametrize("selector", [_Raises(), _Invents(), _Exits(), _EmptiesTheList()])
async def test_a_selector_with_a_fault_leaves_consumers_at_the_leader(tmp_path: Path, selector, caplog) -> None:
    async with leading(tmp_path) as broker:
        await broker.report(2, 4)
        await broker.report(3, 4)
        replicas_of(broker)._selector = selector
        for _ in range(3):
            assert values_in((await broker.fetch(3)).records) == [b"d"]
        assert [record.getMessage() for record in caplog.records if "has failed" in record.getMessage()] == [
            f"{type(selector).__name__} has failed; consumers read from leaders"
        ]


async def test_a_selector_that_selects_a_copy_of_the_leader_leaves_the_consumer_there(tmp_path: Path) -> None:
    class Copies(ReplicaSelector):
        def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
            return dataclasses.replace(partition.leader)

    async with leading(tmp_path) as broker:
        await broker.report(2, 4)
        await broker.report(3, 4)
        replicas_of(broker)._selector = Copies()
        assert values_in((await broker.fetch(3)).records) == [b"d"]


async def test_a_selector_is_told_of_the_client_and_the_replicas(tmp_path: Path) -> None:
    async with leading(tmp_path) as broker:
        told = []

        class Tells(ReplicaSelector):
            def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
                told.append((client, partition.topic, partition.partition, list(partition.replicas)))
                return None

        await broker.report(2, 4)
        await broker.report(3, 2)
        replicas_of(broker)._selector = Tells()
        await broker.fetch(3)
        assert told == [
            (
                client("b"),
                "t",
                0,
                [
                    ReplicaView(ME, "PLAINTEXT1", 9092, "a", 4, 0),
                    ReplicaView(2, "PLAINTEXT2", 9092, "b", 4, 0.0),
                ],
            )
        ]
