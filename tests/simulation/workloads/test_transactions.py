"""Transactional producers on a simulated cluster, and one kind of trouble per scenario.

`klamm.simulation.judges.transaction_ledger` says what must stay true. In every scenario producers also die, fence each
other, leave transactions to their timeout and have them ended by another process. At the end everything is healed, all
transactions must be decided within their timeout, and the rest is copied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from klamm.client.producer.batches import Identity
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.coordinator.groups.transactional_offsets import TransactionalOffsets
from klamm.coordinator.transactions import coordinator as coordinator_module
from klamm.coordinator.transactions import loader
from klamm.coordinator.transactions.marker_manager import TransactionMarkerManager
from klamm.coordinator.transactions.records import read_transaction_value
from klamm.coordinator.transactions.state_manager import OwnedPartition
from klamm.coordinator.transactions.states import VALID_PREVIOUS_STATES, TransactionState
from klamm.coordinator.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata, init_producer
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.record.records import EndTransactionMarker
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.judges.transaction_ledger import Copied, Outcome, Transaction, TransactionLedger, TransactionsHang
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.witnesses.rules import Rules
from klamm.simulation.workloads.transactional_clients import GROUP
from klamm.simulation.workloads.transactional_workload import PROPERTIES, TransactionalWorkload
from klamm.simulation.workloads.verdict import compare_replicas, converge
from klamm.simulation.workloads.workload import create_topic
from klamm.storage.log.log import Log
from klamm.storage.log.producer_state import ProducerState

INPUT, OUTPUT = "orders", "copies"
INPUTS = [(INPUT, 0), (INPUT, 1)]
OUTPUTS = [(OUTPUT, 0), (OUTPUT, 1)]
STATE_PARTITIONS = OFFSETS_PARTITIONS = 3


@asynccontextmanager
async def working_transactions(world: World) -> AsyncIterator[tuple[SimulatedCluster, TransactionalWorkload]]:
    """A cluster with transactional producers at work; at the end it is healed and judged."""
    cluster = SimulatedCluster(world, properties=PROPERTIES)
    await cluster.start()
    client = cluster.client()
    for topic in (INPUT, OUTPUT):
        await world.node("client").run(create_topic(client, topic, partitions=2, replication_factor=3))
    await world.node("client").run(client.close())
    workload = TransactionalWorkload(cluster, INPUTS, OUTPUTS)
    workload.start()
    await workload.ledger.until_commits(5)
    yield cluster, workload
    await cluster.heal()
    await workload.ledger.until_commits(5)
    await workload.stop()
    await converge(cluster)
    await workload.check()
    await compare_replicas(cluster)
    await cluster.close()


def coordinator(cluster: SimulatedCluster) -> int:
    """The broker that coordinates one of the transactional ids."""
    return cluster.leader(TRANSACTION_STATE_TOPIC_NAME, partition_for("writer-0", STATE_PARTITIONS))


async def elsewhere(cluster: SimulatedCluster, old: int) -> None:
    await cluster.until(lambda: coordinator(cluster) not in (old, -1))


# -- scenarios --------------------------------------------------------------------------------------------------------


async def transaction_coordinators_die(world: World) -> None:
    """At any step of a transaction."""
    async with working_transactions(world) as (cluster, workload):
        for _ in range(3):
            await asyncio.sleep(world.random.choice((0.0, 0.01, 0.1, 1.0)) * world.random.random())
            old = coordinator(cluster)
            cluster.brokers[old].kill()
            await elsewhere(cluster, old)
            await workload.ledger.until_commits(5)
            cluster.brokers[old].start()
            await cluster.brokers[old].until_up()


async def leaders_and_group_coordinators_die(world: World) -> None:
    """While markers are on their way to them, and while they replicate."""
    async with working_transactions(world) as (cluster, workload):
        for name, partition in (OUTPUTS[0], (GROUP_METADATA_TOPIC_NAME, partition_for(GROUP, OFFSETS_PARTITIONS))):
            await asyncio.sleep(world.random.random())
            old = cluster.leader(name, partition)
            cluster.brokers[old].kill()
            await workload.ledger.until_commits(3)
            cluster.brokers[old].start()
            await cluster.brokers[old].until_up()


async def coordinator_is_stalled(world: World) -> None:
    """When it wakes up, it still believes that it coordinates, and sends the markers that it had decided on."""
    async with working_transactions(world) as (cluster, workload):
        old = coordinator(cluster)
        cluster.brokers[old].node.stall()
        await elsewhere(cluster, old)
        await workload.ledger.until_commits(5)
        cluster.brokers[old].node.resume()
        await workload.ledger.until_commits(5)


async def coordinator_without_zookeeper(world: World) -> None:
    """The other brokers elect another coordinator, and both reach the leaders. The markers of the first one are late:
    they arrive when the next transactions are open."""
    async with working_transactions(world) as (cluster, workload):
        old = coordinator(cluster)
        broker = cluster.brokers[old].broker
        assert broker is not None
        markers = broker.parts.transaction_coordinator.markers
        send = markers._send

        def send_late(*arguments: Any, **_: Any) -> None:
            asyncio.get_running_loop().call_later(world.random.uniform(7, 12), send, *arguments)

        markers._send = send_late
        await asyncio.sleep(2)
        cluster.isolate(old, from_zookeeper=True)
        await elsewhere(cluster, old)
        await workload.ledger.until_commits(8)
        await asyncio.sleep(5)
        markers._send = send


async def coordinator_without_followers(world: World) -> None:
    """It may acknowledge nothing, and what it has written is gone when it comes back."""
    async with working_transactions(world) as (cluster, workload):
        old = coordinator(cluster)
        cluster.isolate(old, from_zookeeper=True, from_brokers=True)
        await elsewhere(cluster, old)
        await workload.ledger.until_commits(5)


async def zookeeper_and_controller_die(world: World) -> None:
    async with working_transactions(world) as (cluster, workload):
        cluster.zookeeper.kill()
        await workload.ledger.until_commits(2)
        await cluster.zookeeper.start()
        cluster.brokers[cluster.controller_id()].kill()
        await workload.ledger.until_commits(5)


SCENARIOS: list[Callable[[World], Coroutine[Any, Any, None]]] = [
    transaction_coordinators_die,
    leaders_and_group_coordinators_die,
    coordinator_is_stalled,
    coordinator_without_zookeeper,
    coordinator_without_followers,
    zookeeper_and_controller_die,
]


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int) -> None:
    _run(scenario, seed)


def _run(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=3600)


# -- the checks find what they are for --------------------------------------------------------------------------------


async def without_faults(world: World) -> None:
    async with working_transactions(world) as (_, workload):
        await workload.ledger.until_commits(20)


def test_copiers_stand_still_and_lose_answers() -> None:
    """The members of the group, not the writers."""
    world = World(1)
    events: set[tuple[str, str]] = set()
    world.trace.on_event = lambda where, what, _: events.add((where.partition("-")[0], what))
    world.run(without_faults(world), time_limit_s=3600)
    assert events >= {("copier", "stands-still"), ("copier", "lost-answer")}
    assert not events & {("writer", "stands-still"), ("writer", "lost-answer")}


def group_with_offsets(*, has_faults: bool) -> TransactionLedger:
    """The ledger of a group that has committed an offset."""
    ledger = TransactionLedger(has_faults=has_faults)
    ledger.transactions.append(
        Transaction("copier-0", Identity(1, 0), "one", 0.0, [Copied(INPUTS[0], 0, 1)], outcome=Outcome.COMMITTED)
    )
    return ledger


def test_a_partition_with_two_owners_in_a_generation_is_found() -> None:
    ledger = group_with_offsets(has_faults=True)
    ledger.assigned(1, "a", INPUTS)
    ledger.assigned(2, "b", INPUTS)
    ledger.assigned(2, "b", INPUTS)
    with pytest.raises(AssertionError, match="generation 1: a and b own"):
        ledger.assigned(1, "b", INPUTS[1:])


def test_a_group_without_offsets_may_be_forgotten_and_begin_again() -> None:
    ledger = TransactionLedger(has_faults=True)
    ledger.assigned(1, "a", INPUTS)
    ledger.assigned(1, "b", INPUTS)


def test_a_member_that_loses_its_partitions_in_time_is_found() -> None:
    group_with_offsets(has_faults=True).lost("a", INPUTS, was_late=False)
    ledger = group_with_offsets(has_faults=False)
    ledger.lost("a", INPUTS, was_late=True)
    with pytest.raises(AssertionError, match=r"a has lost .* and was never late"):
        ledger.lost("a", INPUTS, was_late=False)


def test_a_marker_that_reaches_only_one_partition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the other partitions of the transaction stay open."""
    begin = TransactionMarkerManager.begin

    def only_the_first(
        self: TransactionMarkerManager, owned: OwnedPartition, transactional_id: str, metadata: TransactionMetadata
    ) -> None:
        first = dict(list(metadata.partitions.items())[:1])
        begin(self, owned, transactional_id, metadata._replace(partitions=first))

    monkeypatch.setattr(TransactionMarkerManager, "begin", only_the_first)
    with pytest.raises(TransactionsHang, match="the last stable offset is"):
        _run(without_faults, 1)


def test_a_last_stable_offset_that_ignores_open_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "last_stable_offset", property(lambda log: log.high_watermark))
    # They would find it first.
    monkeypatch.setattr(Rules, "broken", lambda _rules, _message: None)
    with pytest.raises(AssertionError, match=r"the last stable offset was \d+ .*; true is|was aborted"):
        _run(without_faults, 1)


def test_an_empty_index_of_aborted_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> Generator[None, None, list[tuple[int, int]]]:
        yield
        return []

    monkeypatch.setattr(Log, "aborted_transactions", nothing)
    with pytest.raises(AssertionError, match=r"a read_committed consumer has read .*, which was aborted"):
        _run(without_faults, 1)


def test_a_coordinator_that_forgets_commits_when_it_loads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: what was committed is open again for the next coordinator, and times out. Markers are slow, so
    that coordinators die before them."""

    def forgetful(value: Any) -> TransactionMetadata:
        known = read_transaction_value(value)
        is_commit = known.state is TransactionState.PREPARE_COMMIT
        return known._replace(state=TransactionState.ONGOING) if is_commit else known

    monkeypatch.setattr(loader, "read_transaction_value", forgetful)
    _delay_markers(monkeypatch, 1.0)
    # Its records, or the offsets that it has committed, are gone.
    with pytest.raises((AssertionError, SimulationFailure), match=r"which was committed, only|had been acknowledged"):
        _run(transaction_coordinators_die, 1)


def test_a_coordinator_that_does_not_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(known: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> ErrorCode | None:
        return None if known is not None else ErrorCode.INVALID_PRODUCER_ID_MAPPING

    monkeypatch.setattr(coordinator_module, "producer_error", generous)
    with pytest.raises(SimulationFailure, match="was fenced at"):
        _run(without_faults, 13)


def test_offsets_that_are_visible_before_their_marker_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    appended = TransactionalOffsets.appended

    def hasty(self: TransactionalOffsets[Any], *appended_commit: Any) -> bool:
        appended(self, *appended_commit)
        return True

    monkeypatch.setattr(TransactionalOffsets, "appended", hasty)
    with pytest.raises(SimulationFailure, match="is visible, and its client has not asked to commit the transaction"):
        _run(without_faults, 1)


def test_a_marker_of_an_old_coordinator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ProducerState.check

    def generous(self: ProducerState, header: BatchHeader, marker: EndTransactionMarker | None, *rest: Any) -> None:
        check(self, header, marker and marker._replace(coordinator_epoch=2**31 - 1), *rest)

    monkeypatch.setattr(ProducerState, "check", generous)
    with pytest.raises(AssertionError, match="has markers of former coordinators"):
        _run(coordinator_without_zookeeper, 5)


def test_an_open_transaction_that_is_left_to_the_next_producer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: InitProducerId aborts nothing. A transaction stays open, or the next commit commits it too."""

    def careless(known: TransactionMetadata | None, *rest: Any) -> Any:
        if known is not None and known.state is TransactionState.ONGOING:
            known = known._replace(state=TransactionState.EMPTY, partitions={})
        return init_producer(known, *rest)

    monkeypatch.setattr(coordinator_module, "init_producer", careless)
    monkeypatch.setitem(
        cast("dict[Any, Any]", VALID_PREVIOUS_STATES), TransactionState.EMPTY, frozenset(TransactionState)
    )
    found = "the last stable offset is|which was never to be committed, is visible"
    with pytest.raises((TransactionsHang, AssertionError), match=found):
        _run(without_faults, 0)


def _delay_markers(monkeypatch: pytest.MonkeyPatch, most_s: float) -> None:
    begin = TransactionMarkerManager.begin

    def late(self: TransactionMarkerManager, *arguments: Any) -> None:
        delay_s = self._environment.random.uniform(0, most_s)
        asyncio.get_running_loop().call_later(delay_s, begin, self, *arguments)

    monkeypatch.setattr(TransactionMarkerManager, "begin", late)
