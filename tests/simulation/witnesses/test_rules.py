"""The rules over what brokers do: each kind of violation is planted, and found in the moment in which it is done."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import ControllerEvent, ControllerState, Question
from klamm.controller.state_change_log import StateChangeLog
from klamm.protocol.apis.fetch import FetchPartition
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import BatchHeader, parse_header
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import ACKS_ALL, READ_COMMITTED, PartitionKey
from klamm.replication.partition.isr import CommittedIsr, PendingExpandIsr
from klamm.replication.partition.partition import Partition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.witnesses.event_witness import EventWitness
from klamm.simulation.witnesses.group_rules import _Sender, _violation
from klamm.simulation.witnesses.rules import ProducersOfLog, RuledPartition, Rules
from klamm.simulation.workloads.group_workload import GroupLedger
from klamm.simulation.workloads.workload import Workload, create_topic
from support.planted_faults.guards import GUARDS

KEY: PartitionKey = ("events", 0)
TIME_LIMIT_S = 60.0
BY_NAME = {fault.name: fault for fault in GUARDS}


def header(
    base_offset: int, producer_id: int, epoch: int = 0, *, transactional: bool = True, control: bool = False
) -> BatchHeader:
    batch = build_batch([Record(None, b"v", 0)], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
    attributes = 16 * transactional + 32 * control
    return parse_header(batch)._replace(base_offset=base_offset, attributes=attributes)


# -- what the batches of a log say ------------------------------------------------------------------------------------


def test_the_last_stable_offset_is_where_the_earliest_undecided_transaction_begins() -> None:
    producers = ProducersOfLog()
    assert producers.last_stable_offset(7) == 7
    producers.add(header(0, 1, transactional=False))
    producers.add(header(1, 1))
    producers.add(header(2, 2))
    producers.add(header(3, 1))
    assert [producers.last_stable_offset(mark) for mark in (1, 2, 4)] == [1, 1, 1]
    producers.add(header(4, 1, control=True))
    # The marker counts when it is below the high watermark.
    assert [producers.last_stable_offset(mark) for mark in (3, 4, 5)] == [1, 1, 2]
    producers.add(header(5, 2, control=True))
    assert [producers.last_stable_offset(mark) for mark in (4, 5, 6)] == [1, 2, 6]
    producers.add(header(6, 3, control=True))
    assert producers.last_stable_offset(7) == 7


def test_the_epochs_of_a_producer() -> None:
    producers = ProducersOfLog()
    for epoch in (3, 4):
        producers.add(header(epoch, 1, epoch))
    assert (producers.epoch(1), producers.epoch(2)) == (4, -1)


# -- brokers ----------------------------------------------------------------------------------------------------------


async def with_dead_followers(world: World) -> None:
    """A leader whose followers are all dead is still asked for acks=all."""
    cluster = SimulatedCluster(world, replication_factor=3)
    await cluster.start()
    node, client = world.node("client"), cluster.client()
    await node.run(create_topic(client, KEY[0], partitions=1, replication_factor=3))
    workload = Workload(world, cluster.client, {KEY: False})
    workload.start()
    await workload.produced(5)
    for broker in cluster.brokers.values():
        if broker.broker_id != cluster.leader(*KEY):
            broker.kill()
    await workload.produced(5)


def test_an_append_below_min_insync_replicas_is_found() -> None:
    world = World(1)
    with (
        BY_NAME["no-minimum-isr"].planted(),
        pytest.raises(SimulationFailure, match=r"events-0: broker \d (takes|acknowledges) .*min.insync.replicas is 2"),
    ):
        world.run(with_dead_followers(world), TIME_LIMIT_S)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("uncommitted-reads", r"has given a consumer records up to \d+ with read_committed"),
        ("fenced-producer", r"of a producer that was fenced: its epoch is 1"),
    ],
)
def test_what_a_leader_does_with_transactions_is_judged(fault: str, found: str) -> None:
    world = World(1)
    with BY_NAME[fault].planted(), pytest.raises(SimulationFailure, match=found):
        world.run(with_an_open_transaction(world), TIME_LIMIT_S)


def test_a_leader_that_does_right_with_transactions_breaks_no_rule() -> None:
    world = World(1)
    world.run(with_an_open_transaction(world), TIME_LIMIT_S)


async def with_an_open_transaction(world: World) -> None:
    """An open transaction is read, and its producer is fenced and goes on."""
    cluster = SimulatedCluster(world, replication_factor=3)
    await cluster.start()
    node, client = world.node("client"), cluster.client()
    await node.run(create_topic(client, KEY[0], partitions=1, replication_factor=3))
    await cluster.until(lambda: KEY in cluster.state.partitions())
    leader = cluster.brokers[cluster.leader(*KEY)]
    await cluster.until(lambda: getattr(cluster.hosted_partition(leader.broker_id, KEY), "is_leader", False))
    assert leader.broker is not None
    manager = leader.broker.parts.replica_manager
    batches = [
        build_batch(
            [Record(None, b"v", 0)], producer_id=1, producer_epoch=epoch, base_sequence=0, is_transactional=True
        )
        for epoch in (0, 1, 0)
    ]

    async def use() -> None:
        for batch in batches:
            result = manager.append_records(*KEY, memoryview(bytearray(batch)), ACKS_ALL)
            await manager.wait_replicated([(*KEY, result)], 5_000)
            wanted = [(KEY[0], FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000))]
            await manager.fetch(wanted, isolation_level=READ_COMMITTED, max_wait_ms=0, min_bytes=0, max_bytes=1000)

    await leader.node.run(use())
    await node.run(client.close())
    await cluster.close()


def ruled(rules: Rules, **state: Any) -> RuledPartition:
    partition = RuledPartition.__new__(RuledPartition)
    partition.__dict__.update(topic_partition=KEY, topic=KEY[0], partition=0, _rules=rules, _broker_id=1, **state)
    return partition


def test_a_partition_that_goes_back_or_takes_another_for_the_leader_is_found() -> None:
    broken: list[str] = []
    state = SimpleNamespace(leader_of=lambda topic, partition, epoch: 2)
    rules = Rules(state, lambda broker_id, key: None, lambda violation: broken.append(str(violation)))  # type: ignore[arg-type]
    partition = ruled(rules, leader_epoch=5)
    partition._check_epoch(SimpleNamespace(leader_epoch=6, leader=2))  # type: ignore[arg-type]
    partition._check_epoch(SimpleNamespace(leader_epoch=6, leader=-1))  # type: ignore[arg-type]
    assert broken == []
    partition._check_epoch(SimpleNamespace(leader_epoch=4, leader=2))  # type: ignore[arg-type]
    partition._check_epoch(SimpleNamespace(leader_epoch=7, leader=1))  # type: ignore[arg-type]
    assert broken == [
        "events-0: broker 1 goes back from leader epoch 5 to 4",
        "events-0: broker 1 takes 1 for the leader in epoch 7, in which 2 leads",
    ]


def test_what_the_followers_lack_is_neither_acknowledged_nor_in_the_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[str] = []
    known = {KEY: SimpleNamespace(leader_epoch=5, isr=(1, 2, 3))}
    followers: Any = {2: follower(5, 10), 3: None, 4: follower(5, 9), 5: follower(4, 0)}
    state: Any = SimpleNamespace(partitions=lambda: known)
    rules = Rules(state, lambda broker_id, key: followers[broker_id], lambda violation: broken.append(str(violation)))
    partition = ruled(
        rules,
        leader_epoch=5,
        log=SimpleNamespace(log_end_offset=10),
        isr_state=CommittedIsr((1, 2)),
        _term_begins_at=10,
    )
    partition.__dict__.update(topic_config=SimpleNamespace(min_insync_replicas=2))
    monkeypatch.setattr(Partition, "acknowledgement", lambda *_: ErrorCode.NONE)
    monkeypatch.setattr(Partition, "_propose", lambda *_: None)
    # 3 is down, and 5 may have had the records in the present epoch: nobody can tell.
    partition.acknowledgement(10, 5)
    for each in (2, 3, 5):
        partition._propose(PendingExpandIsr((1,), each))
    assert broken == []
    known[KEY].isr = (1, 2, 4)
    partition.acknowledgement(10, 5)
    partition._propose(PendingExpandIsr((1,), 4))
    known[KEY].isr = ()
    partition.isr_state = CommittedIsr((1,))
    partition.acknowledgement(10, 5)
    assert broken == [
        "events-0: broker 1 acknowledges the records before 10 of epoch 5 in epoch 5; of the ISR (1, 2, 4) [1, 2] have"
        " them, min.insync.replicas is 2",
        "events-0: broker 1 takes 4 into the ISR, which lacks records before 10, where leader epoch 5 begins",
        "events-0: broker 1 acknowledges the records before 10 of epoch 5 in epoch 5; of the ISR (1,) [1] have them,"
        " min.insync.replicas is 2",
    ]


def follower(leader_epoch: int, end: int) -> Any:
    return SimpleNamespace(leader_epoch=leader_epoch, log=SimpleNamespace(log_end_offset=end))


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "broken"),
    [
        (_Sender(4, "a", False), None),
        (_Sender(4, "a", True), None),
        (_Sender(-1, "", True), None),
        (_Sender(3, "a", False), "its generation is 4"),
        (_Sender(5, "a", True), "its generation is 4"),
        (_Sender(4, "b", False), "its members are ['a']"),
        (_Sender(-1, "", False), "a client that is no member commits while the members are ['a']"),
    ],
)
def test_which_commits_a_coordinator_may_accept(sender: _Sender, broken: str | None) -> None:
    group: Any = SimpleNamespace(generation_id=4, members={"a": None})
    assert _violation(group, sender) == broken


def test_a_member_owns_what_the_leader_has_given_it() -> None:
    ledger = GroupLedger("g", [KEY, ("events", 1)])
    # The first assignment did not reach the log.
    ledger.given(1, "id-a", [KEY])
    ledger.given(1, "id-a", [("events", 1)])
    ledger.assigned(1, "a", "id-a", [("events", 1)], -1)
    for generation, member_id in ((1, "id-b"), (2, "id-a")):
        with pytest.raises(AssertionError, match="the leader has given it"):
            ledger.assigned(generation, "b", member_id, [KEY], 1)
    ledger.given(0, "id-c", [KEY])
    with pytest.raises(AssertionError, match="is in generation 0 after generation 1"):
        ledger.assigned(0, "c", "id-c", [KEY], 1)
    ledger.committed(KEY, 3, 1, 1)
    with pytest.raises(AssertionError, match="a commit of generation 0 is acknowledged after generation 1"):
        ledger.committed(KEY, 4, 0, 1)


# -- events of the controller -----------------------------------------------------------------------------------------


class Event(ControllerEvent):
    state = ControllerState.TOPIC_CHANGE


class Asked(Question[None]):
    state = ControllerState.TOPIC_CHANGE

    def preempt(self) -> None:
        self.resolve(None)


class Watched:
    """A queue of events with a witness; `broken` is what it has found."""

    def __init__(self, answers: bool = True) -> None:
        self.answers = answers
        self.broken: list[str] = []
        self.manager = ControllerEventManager(self._process, lambda error: None, StateChangeLog(lambda: 1), lambda: 7)
        self.witness = EventWitness(self.manager, 1, self._found)
        self.has_found = asyncio.Event()

    def _found(self, violation: BaseException) -> None:
        self.broken.append(str(violation))
        self.has_found.set()

    async def _process(self, event: ControllerEvent) -> None:
        await asyncio.sleep(0)
        if self.answers and isinstance(event, Asked):
            event.resolve(None)

    def ask(self) -> Asked:
        asked = Asked(answer=asyncio.get_running_loop().create_future())
        self.manager.put(asked)
        return asked


async def test_events_that_end_once_break_no_rule() -> None:
    watched = Watched()
    watched.manager.start()
    for _ in range(2):
        watched.manager.put(Event())
        await watched.ask().answer
        watched.witness.look()
    watched.ask()
    watched.manager.clear_and_put(Event())
    watched.ask()
    await asyncio.sleep(0)
    watched.witness.look()
    await watched.manager.close()
    # A queue that is closed preempts at once.
    assert watched.ask().answer.done()
    watched.witness.look()
    assert watched.broken == []


async def test_an_event_that_vanishes_ends_twice_or_leaves_its_sender_without_an_answer_is_found() -> None:
    watched = Watched()
    watched.ask()
    watched.manager._queue.clear()
    watched.witness.look()
    watched.witness.look()
    assert len(watched.broken) == 1
    assert "was queued and has vanished, neither processed nor preempted" in watched.broken[0]
    watched = Watched()
    watched.manager.start()
    asked = watched.ask()
    await asked.answer
    watched.manager._preempt(asked, 0.0)
    assert len(watched.broken) == 1
    assert "has ended twice" in watched.broken[0]
    await watched.manager.close()
    watched = Watched(answers=False)
    watched.manager.start()
    watched.ask()
    async with asyncio.timeout(10):
        await watched.has_found.wait()
    assert "its sender has no answer" in watched.broken[0]
    await watched.manager.close()
