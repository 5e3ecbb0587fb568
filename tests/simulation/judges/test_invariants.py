"""What is looked at all the time: each kind of violation is planted, and found at once."""

from collections.abc import Callable

import pytest

from klamm.controller import partition_state_machine
from klamm.controller.states import VALID_PREVIOUS_PARTITION_STATES, PartitionState
from klamm.replication.partition.partition import Partition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.judges.invariants import Invariants
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.witnesses.rules import Rules
from klamm.simulation.workloads.verdict import converge
from klamm.simulation.workloads.workload import Workload, create_topic

TOPIC = "events"
TIME_LIMIT_S = 120.0


async def at_work(world: World, then: Callable[[SimulatedCluster], object] = lambda cluster: None) -> int:
    """A cluster at work, in which a leader dies; returns how often it was looked at."""
    cluster = SimulatedCluster(world, replication_factor=3)
    await cluster.start()
    invariants = Invariants(cluster)
    invariants.start()
    client, node = cluster.client(), world.node("client")
    await node.run(create_topic(client, TOPIC, partitions=1, replication_factor=3))
    workload = Workload(world, cluster.client, {(TOPIC, 0): True})
    workload.start()
    await workload.produced(20)
    then(cluster)
    await workload.produced(20)
    leader = cluster.brokers[cluster.leader(TOPIC, 0)]
    leader.kill()
    await workload.produced(20)
    leader.start()
    await workload.stop_producing()
    await converge(cluster)
    await workload.stop_consuming({(TOPIC, 0): workload.acknowledged_records()})
    await invariants.stop()
    await node.run(client.close())
    await cluster.close()
    return invariants.looks


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    world = World(1)
    assert world.run(at_work(world), TIME_LIMIT_S) > 50


def acknowledges_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(partition: Partition, now_ms: float | None = None) -> None:
        if partition.log.high_watermark < partition.log.log_end_offset:
            partition.log.update_high_watermark(partition.log.log_end_offset)
            partition._on_high_watermark(partition)

    monkeypatch.setattr(Partition, "_advance_high_watermark", advance)


def forgets_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Partition._advance_high_watermark
    forgotten = dict[Partition, None]()

    def once(partition: Partition, now_ms: float | None = None) -> None:
        if partition.topic == TOPIC and partition.log.high_watermark > 15:
            forgotten[partition] = None
        if partition in forgotten:
            partition.log._high_watermark = 3
        else:
            advance(partition, now_ms)

    monkeypatch.setattr(Partition, "_advance_high_watermark", once)


def commits_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(partition: Partition, leader_high_watermark: int) -> int:
        partition.log._high_watermark = leader_high_watermark + 1
        return leader_high_watermark

    monkeypatch.setattr(Partition, "update_follower_high_watermark", update)


def knows_fewer_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {**VALID_PREVIOUS_PARTITION_STATES, PartitionState.ONLINE: (PartitionState.NEW,)}
    monkeypatch.setattr(partition_state_machine, "VALID_PREVIOUS_PARTITION_STATES", fewer)


@pytest.mark.parametrize(
    "plant, found",
    [
        (forgets_the_high_watermark, r"the high watermark of leader \d went back from \d+ to 3 in epoch \d"),
        (commits_more_than_there_is, r"high watermark \d+ and end \d+ are not in order"),
        (knows_fewer_transitions, r"events-0"),
    ],
)
def test_a_planted_violation_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    world = World(1)
    with pytest.raises(SimulationFailure, match=found):
        world.run(at_work(world), TIME_LIMIT_S)


def test_a_leader_that_acknowledges_alone_is_found_while_a_follower_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def stall_a_follower(cluster: SimulatedCluster) -> None:
        cluster.brokers[next(each for each in cluster.brokers if each != cluster.leader(TOPIC, 0))].node.stall()

    acknowledges_alone(monkeypatch)
    # They would find it first.
    monkeypatch.setattr(Rules, "broken", lambda _rules, _message: None)
    world = World(1)
    with pytest.raises(SimulationFailure, match=r"is in the ISR and ends at \d+, the leader has committed all up to"):
        world.run(at_work(world, stall_a_follower), TIME_LIMIT_S)


def test_a_wrong_count_of_the_controller_is_found() -> None:
    def miscount(cluster: SimulatedCluster) -> None:
        broker = cluster.brokers[cluster.controller_id()].broker
        assert broker is not None
        broker.parts.controller.context.offline_partition_count += 7

    world = World(1)
    with pytest.raises(SimulationFailure, match=r"controller \d counts .* as \(7, \d+\); a recount gives \(0, \d+\)"):
        world.run(at_work(world, miscount), TIME_LIMIT_S)


def test_an_elected_replica_must_have_what_was_committed() -> None:
    def shorten_the_followers(cluster: SimulatedCluster) -> None:
        """And kills the leader, so that a follower is elected that has lost its records."""
        cluster.brokers[cluster.leader(TOPIC, 0)].kill()
        for one in cluster.brokers.values():
            if one.broker is None:
                continue
            hosted = one.broker.parts.services.replica_manager.partitions[TOPIC, 0]
            hosted.log._log_end_offset = hosted.log._high_watermark = 5

    world = World(1)
    with pytest.raises(
        SimulationFailure, match=r"is elected in epoch \d+ and ends at \d+; all up to \d+ was committed"
    ):
        world.run(at_work(world, shorten_the_followers), TIME_LIMIT_S)
