"""Three brokers and ZooKeeper, as they are, in a simulated world, and one kind of trouble per scenario.

In each, clients produce and consume throughout; at the end everything is healed, the cluster must become whole, and
what clients were told is compared with what every replica has. The scenarios are also run by
`klamm.simulation.machine.determinism` in processes of their own, and `klamm.simulation.runs.random_faults` mixes all of
it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.base.slices import Steps
from klamm.controller.channels import channel_manager
from klamm.controller.coalescing import QueuedRequest, coalesce
from klamm.controller.leader_election import Election, offline_partition_leader_election
from klamm.protocol.error_codes import ErrorCode
from klamm.replication.partition.delayed_operations import Appended
from klamm.replication.partition.partition import Partition
from klamm.replication.replica_manager import ReplicaManager
from klamm.simulation.cluster.cluster import LOG_DIRS, SimulatedCluster
from klamm.simulation.machine.determinism import assert_same_trace
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import random_faults
from klamm.simulation.workloads.trimming import Trimming
from klamm.simulation.workloads.verdict import converge, judge, replica_bytes
from klamm.simulation.workloads.workload import Workload, create_topic, delete_topic
from klamm.storage.log.log import Log
from support.long_rows import long
from support.seeds import seeds

TOPIC = "events"
TRIMMED_TOPIC = "trimmed"
KEYS = {(TOPIC, 0): True, (TOPIC, 1): False, (TOPIC, 2): True}
SESSION_S = 6
# In scenarios that last long, batches are as far apart as in many of the mixed runs.
SLOW_PAUSE_S = 0.4


@asynccontextmanager
async def working_cluster(
    world: World, *, has_racks: bool = False, pause_s: float = 0.05, **properties: str
) -> AsyncIterator[tuple[SimulatedCluster, Workload]]:
    """A cluster in which records are produced, up to `pause_s` apart, and consumed; at the end it is healed and
    judged."""
    names = {key.replace("_", "."): value for key, value in properties.items()}
    cluster = SimulatedCluster(world, properties=names, has_racks=has_racks)
    await cluster.start()
    client = cluster.client()
    await world.node("client").run(create_topic(client, TOPIC, partitions=len(KEYS), replication_factor=3))
    workload = Workload(world, cluster.client, KEYS, racks=cluster.racks)
    workload.start(pause_s=pause_s)
    await workload.produced(20)
    yield cluster, workload
    await cluster.heal()
    await workload.produced(20)
    await workload.stop_producing()
    await converge(cluster)
    await judge(cluster, workload, trimmed=[TRIMMED_TOPIC])
    await world.node("client").run(client.close())
    await cluster.close()


async def elsewhere(cluster: SimulatedCluster, partition: int, old_leader: int) -> None:
    """Waits until another broker leads."""
    await cluster.until(lambda: cluster.leader(TOPIC, partition) not in (old_leader, -1))


# -- scenarios ------------------------------------------------------------------------------------------------------


async def whole_story(world: World) -> None:
    """The controller dies, then a leader is cut off from everybody, and comes back."""
    async with working_cluster(world) as (cluster, workload):
        controller = cluster.controller_id()
        cluster.brokers[controller].kill()
        await cluster.until(lambda: cluster.controller_id() not in (controller, -1))
        await workload.produced(20)
        cluster.brokers[controller].start()
        await cluster.until(lambda: len(cluster.isr(TOPIC, 0)) == 3)
        leader = cluster.leader(TOPIC, 0)
        cluster.isolate(leader, from_zookeeper=True, from_brokers=True)
        await elsewhere(cluster, 0, leader)
        await workload.produced(20)


async def leader_without_followers(world: World) -> None:
    """A leader that ZooKeeper still sees, and its followers do not: alone in the ISR it may not acknowledge."""
    async with working_cluster(world) as (cluster, _):
        leader = cluster.leader(TOPIC, 0)
        cluster.isolate(leader, from_brokers=True)
        await asyncio.sleep(world.random.uniform(10, 40))


async def leader_without_zookeeper(world: World) -> None:
    """A leader whose session expires while its followers still fetch from it."""
    async with working_cluster(world) as (cluster, workload):
        leader = cluster.leader(TOPIC, 0)
        cluster.isolate(leader, from_zookeeper=True)
        await elsewhere(cluster, 0, leader)
        await workload.produced(20)


async def one_way(world: World) -> None:
    """A leader whose followers reach it, but whom it does not reach: its answers are lost, its requests too."""
    async with working_cluster(world) as (cluster, _):
        leader = cluster.leader(TOPIC, 0)
        for other in cluster.brokers.values():
            if other.broker_id != leader:
                world.network.cut_one_way(cluster.brokers[leader].node.name, other.node.name)
        await asyncio.sleep(world.random.uniform(5, 30))


async def paused_leader(world: World) -> None:
    """A leader is paused past its session with records that nobody else has, and is resumed with its longer log."""
    async with working_cluster(world) as (cluster, workload):
        leader = cluster.leader(TOPIC, 0)
        broker = cluster.brokers[leader]
        # First its followers die, so that it appends what they never fetch: their fetches end with them.
        others = [other for other in cluster.brokers.values() if other.broker_id != leader]
        for other in others:
            other.kill()
        await asyncio.sleep(1)
        lengths = {other: len(replica_bytes(cluster.brokers[other], (TOPIC, 0))) for other in cluster.brokers}
        assert all(lengths[leader] > lengths[other.broker_id] for other in others)
        broker.node.stall()
        # As long as the leader's session lives, a controller takes it for the only one that has everything.
        await cluster.until(lambda: leader not in cluster.state.live_brokers())
        for other in others:
            other.start()
        await elsewhere(cluster, 0, leader)
        await workload.produced(20)
        broker.node.resume()
        await workload.produced(20)


async def paused_controller(world: World) -> None:
    """The controller is paused past its session, while a topic is created; it comes back into the next one's reign."""
    async with working_cluster(world) as (cluster, workload):
        controller = cluster.controller_id()
        client = cluster.client()
        creating = world.node("client").run(create_topic(client, "while-paused", partitions=3, replication_factor=2))
        await asyncio.sleep(world.random.uniform(0, 0.02))
        cluster.brokers[controller].node.stall()
        await cluster.until(lambda: cluster.controller_id() not in (controller, -1))
        await workload.produced(20)
        cluster.brokers[controller].node.resume()
        await creating
        await world.node("client").run(client.close())


async def bounces(world: World) -> None:
    """Brokers are killed and started again faster than anybody notices."""
    async with working_cluster(world) as (cluster, workload):
        for _ in range(6):
            broker = world.random.choice(list(cluster.brokers.values()))
            broker.kill()
            await asyncio.sleep(world.random.choice([0, 0.01, 0.5]))
            broker.start()
            await asyncio.sleep(world.random.choice([0, 0.1, 3]))
        await workload.produced(5)


async def hidden_bounce(world: World) -> None:
    """A leader is killed and is back, under the same id, before the controller looks: it sees only a later epoch."""
    async with working_cluster(world) as (cluster, workload):
        controller = cluster.controller_id()
        others = [broker for broker in cluster.brokers.values() if broker.broker_id != controller]
        bounced = world.random.choice(others)
        led = [key for key in KEYS if cluster.leader(*key) == bounced.broker_id]
        before = {key: cluster.state.partition(*key) for key in KEYS}

        def known_epoch() -> int:
            serving = cluster.brokers[controller].broker
            assert serving is not None
            return serving.parts.controller.context.live_or_shutting_down_brokers[bounced.broker_id].epoch

        first = known_epoch()
        cluster.brokers[controller].node.stall()
        bounced.kill()
        bounced.start()
        await bounced.until_up()
        assert known_epoch() == first
        cluster.brokers[controller].node.resume()
        for key in led:
            await elsewhere(cluster, key[1], bounced.broker_id)
            assert bounced.broker_id not in cluster.isr(*key)
        await workload.produced(20)
        assert known_epoch() > first
        # The same controller found it out, and it gave every partition of the broker a new epoch.
        assert cluster.controller_id() == controller
        for key, state in before.items():
            assert cluster.state.partition(*key).leader_epoch > state.leader_epoch


async def every_broker_in_turn(world: World) -> None:
    """Each broker dies, the controller too, without waiting for the ISR to be whole again."""
    async with working_cluster(world) as (cluster, workload):
        for broker in cluster.brokers.values():
            broker.kill()
            await workload.produced(10)
            broker.start()
            await broker.until_up()


async def all_at_once(world: World) -> None:
    """All brokers die at the same time, and come back in any order."""
    async with working_cluster(world) as (cluster, _):
        for broker in cluster.brokers.values():
            broker.kill()
        brokers = list(cluster.brokers.values())
        world.random.shuffle(brokers)
        for broker in brokers:
            await asyncio.sleep(world.random.choice([0, 1, 10]))
            broker.start()


async def last_in_sync(world: World) -> None:
    """The others come back while the last broker that was in sync is dead: they may not lead, only wait for it."""
    async with working_cluster(world) as (cluster, _):
        leader = cluster.leader(TOPIC, 0)
        others = [broker for broker in cluster.brokers.values() if broker.broker_id != leader]
        for broker in others:
            broker.kill()
        await cluster.until(lambda: cluster.isr(TOPIC, 0) == (leader,))
        cluster.brokers[leader].kill()
        for broker in others:
            broker.start()
        await cluster.until(lambda: cluster.state.live_brokers() == sorted(broker.broker_id for broker in others))
        await asyncio.sleep(world.random.uniform(0, 20))
        assert cluster.leader(TOPIC, 0) in (leader, -1)


async def clean_stops(world: World) -> None:
    """Each broker is stopped as an operator does; its leaderships move first."""
    async with working_cluster(world) as (cluster, workload):
        for broker in cluster.brokers.values():
            await cluster.until(lambda: all(len(cluster.isr(*key)) == 3 for key in KEYS))
            await broker.stop()
            assert broker.broker_id not in [cluster.leader(*key) for key in KEYS]
            await workload.produced(10)
            broker.start()
            await broker.until_up()


async def controller_dies_creating(world: World) -> None:
    """The controller is killed at any moment of a topic's creation."""
    async with working_cluster(world) as (cluster, _):
        client = cluster.client()
        creating = world.node("client").run(create_topic(client, "created", partitions=6, replication_factor=3))
        await asyncio.sleep(world.random.uniform(0, 0.03))
        cluster.brokers[cluster.controller_id()].kill()
        # If it had not come to the topic, a replication factor of 3 needs all brokers.
        await cluster.heal()
        await creating
        await world.node("client").run(client.close())


async def controller_dies_deleting(world: World) -> None:
    """The controller is killed at any moment of a topic's deletion, and another broker is away."""
    async with working_cluster(world, pause_s=SLOW_PAUSE_S) as (cluster, _):
        client, node = cluster.client(), world.node("client")
        await node.run(create_topic(client, "deleted", partitions=6, replication_factor=3))
        controller = cluster.controller_id()
        if world.random.random() < 0.5:
            cluster.brokers[(controller + 1) % 3].kill()
        deleting = node.run(delete_topic(client, "deleted"))
        await asyncio.sleep(world.random.uniform(0, 0.03))
        cluster.brokers[controller].kill()
        await cluster.heal()
        await deleting
        await cluster.until(lambda: "deleted" not in cluster.state.topics())
        await asyncio.sleep(30)
        for broker in cluster.brokers.values():
            assert not any(replica_bytes(broker, ("deleted", partition)) for partition in range(6))
        await node.run(client.close())


async def zookeeper_away(world: World) -> None:
    """ZooKeeper is away for ten seconds, and then for longer than every session."""
    async with working_cluster(world, pause_s=SLOW_PAUSE_S) as (cluster, workload):
        for outage_s in (0.5, 10, 2 * SESSION_S):
            cluster.zookeeper.kill(machine=world.random.random() < 0.5)
            await asyncio.sleep(outage_s)
            await cluster.zookeeper.start()
            await workload.produced(10)


async def zookeeper_unreachable(world: World) -> None:
    """The links to ZooKeeper are down for longer than every session, while ZooKeeper runs: all sessions expire."""
    async with working_cluster(world) as (cluster, workload):
        for broker_id in cluster.brokers:
            cluster.isolate(broker_id, from_zookeeper=True)
        await cluster.until(lambda: not cluster.state.live_brokers())
        world.network.heal_all()
        await workload.produced(10)


async def failing_disk(world: World) -> None:
    """One log directory of one broker fails, or its disk is full: its replicas there are lost, no record is."""
    async with working_cluster(world) as (cluster, workload):
        broker = cluster.brokers[cluster.leader(TOPIC, 0)]
        if world.random.random() < 0.5:
            broker.fill_disk()
        else:
            broker.fail_directory(world.random.choice(LOG_DIRS))
        await workload.produced(40)
        await asyncio.sleep(20)


async def leaderships_go_back(world: World) -> None:
    """A leader dies, comes back into the ISR, and the automatic rebalance gives it its partition again."""
    async with working_cluster(world) as (cluster, workload):
        preferred = cluster.leader(TOPIC, 0)
        cluster.brokers[preferred].kill()
        await elsewhere(cluster, 0, preferred)
        await workload.produced(20)
        cluster.brokers[preferred].start()
        await cluster.until(lambda: cluster.leader(TOPIC, 0) == preferred)


# -- tests ----------------------------------------------------------------------------------------------------------


async def deletions_before_kills(world: World) -> None:
    """Whenever a deletion of records has been answered, all brokers are killed."""
    async with working_cluster(world) as (cluster, _):
        client = cluster.client()
        create = create_topic(client, TRIMMED_TOPIC, partitions=1, replication_factor=3)
        await world.node("client").run(create)
        trimming = Trimming(world, cluster, (TRIMMED_TOPIC, 0))
        trimming.start(pause_s=0.05)
        for _ in range(3):
            await trimming.next_answer()
            for broker in cluster.brokers.values():
                broker.kill()
            for broker in cluster.brokers.values():
                broker.start()
            await cluster.until(cluster.is_whole)
            trimming.check()
        await trimming.stop()
        trimming.check()
        trimming.check_records()
        await world.node("client").run(client.close())


async def consumers_at_followers(world: World) -> None:
    """Consumers read from the followers in their racks while leaders are cut off and followers die."""
    async with working_cluster(world, has_racks=True) as (cluster, workload):
        for _ in range(3):
            leader = cluster.leader(TOPIC, world.random.randrange(len(KEYS)))
            cluster.isolate(leader, from_brokers=True)
            await asyncio.sleep(world.random.uniform(1, 15))
            world.network.heal_all()
            await workload.produced(20)
            follower = world.random.randrange(3)
            cluster.brokers[follower].kill(machine=world.random.random() < 0.5)
            await workload.produced(20)
            cluster.brokers[follower].start()
            await cluster.until(cluster.is_whole)
        await workload.produced(20)
    assert sum(consumer.fetched_from_followers for consumer in workload.consumers) > 0


async def a_follower_runs_ahead(world: World) -> None:
    """A follower has records that the other one lacks when the leader dies and the other one is elected. A consumer
    reads from the follower that is ahead."""
    async with working_cluster(world, has_racks=True) as (cluster, workload):
        leader, elected, ahead = cluster.state.replicas(TOPIC)[0]
        consumer = workload.consumers[0]
        consumer.rack = cluster.racks[ahead]
        while consumer.fetched_from_followers == 0:
            await workload.produced(5)
        assert cluster.leader(TOPIC, 0) == leader
        world.network.cut(cluster.brokers[leader].node.name, cluster.brokers[elected].node.name)
        await asyncio.sleep(world.random.uniform(1, 3))
        cluster.brokers[leader].kill()
        world.network.heal_all()
        await elsewhere(cluster, 0, leader)
        assert cluster.leader(TOPIC, 0) == elected
        await workload.produced(20)


async def back_to_an_old_leader(world: World) -> None:
    """A leader that only clients reach does not know that another broker leads. A consumer comes back to it from a
    follower of the new leader, ahead of its log."""
    async with working_cluster(world, has_racks=True) as (cluster, workload):
        leader, _, follower = cluster.state.replicas(TOPIC)[0]
        consumer = workload.consumers[0]
        consumer.rack = cluster.racks[follower]
        while consumer.fetched_from_followers == 0:
            await workload.produced(5)
        cluster.isolate(leader, from_zookeeper=True, from_brokers=True)
        await elsewhere(cluster, 0, leader)
        await workload.produced(50)
        await asyncio.sleep(world.random.uniform(5, 10))


SCENARIOS = [
    a_follower_runs_ahead,
    back_to_an_old_leader,
    consumers_at_followers,
    deletions_before_kills,
    whole_story,
    leader_without_followers,
    leader_without_zookeeper,
    one_way,
    paused_leader,
    paused_controller,
    bounces,
    hidden_bounce,
    every_broker_in_turn,
    all_at_once,
    last_in_sync,
    clean_stops,
    controller_dies_creating,
    controller_dies_deleting,
    zookeeper_away,
    zookeeper_unreachable,
    failing_disk,
    leaderships_go_back,
]


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_acknowledged_record_is_lost(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=3600)


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_random_faults(seed: int) -> None:
    world = World(seed)
    print(world.run(random_faults(world), time_limit_s=3600))


# With most seeds several requests are replaced, with few none.
@pytest.mark.parametrize("seed", [14, *long(3, 4)])
def test_random_faults_while_the_controllers_queues_are_coalesced_at_every_request(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    coalesced = []

    def counted(requests: Sequence[QueuedRequest]) -> Steps[list[QueuedRequest]]:
        left = yield from coalesce(requests)
        coalesced.append(len(requests) - len(left))
        return left

    monkeypatch.setattr(channel_manager, "FEW", 0)
    monkeypatch.setattr(channel_manager, "COALESCE_FROM", 1)
    monkeypatch.setattr(channel_manager, "coalesce", counted)
    world = World(seed)
    print(world.run(random_faults(world), time_limit_s=3600))
    assert sum(coalesced) > 0


@pytest.mark.parametrize("protocols", [["2.4"], ["2.4", "2.8"]])
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_random_faults_under_older_protocols(seed: int, protocols: list[str]) -> None:
    world = World(seed)
    print(world.run(random_faults(world, protocols=protocols), time_limit_s=3600))


def failures(scenario: Callable[[World], Coroutine[Any, Any, Any]], seeds: int) -> Iterator[str]:
    """How the runs of a scenario fail, if they do."""
    for seed in range(seeds):
        world = World(seed)
        try:
            world.run(scenario(world), time_limit_s=600)
        except AssertionError as error:
            print(error)
            yield str(error)


def test_an_acknowledgement_before_replication_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_replicated(manager: ReplicaManager, appended: Appended, timeout_ms: int) -> None:
        for _, _, result in appended:
            result.error_code = ErrorCode.NONE

    monkeypatch.setattr(ReplicaManager, "wait_replicated", wait_replicated)
    found = failures(paused_leader, seeds=2)
    assert any("was acknowledged, the log has" in failure or "sent sequence" in failure for failure in found)


def test_a_follower_that_does_not_truncate_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "truncate_to", lambda partition, offset, prepared=None: False)
    found = failures(paused_leader, seeds=2)
    assert any("replicas differ" in failure or "in sync" in failure for failure in found)


def test_a_follower_that_hands_out_uncommitted_records_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole_log(partition: Partition, leader_high_watermark: int) -> int:
        return partition.log.update_high_watermark(partition.log.log_end_offset)

    monkeypatch.setattr(Partition, "update_follower_high_watermark", whole_log)
    found = failures(a_follower_runs_ahead, seeds=2)
    assert any("a consumer has read" in failure for failure in found)


def test_a_deletion_that_is_answered_before_it_is_on_disk_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "durable_log_start_offset", property(lambda log: log.log_start_offset))
    found = failures(deletions_before_kills, seeds=3)
    assert any("was answered" in failure for failure in found)


def test_an_unclean_election_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def election(replicas: Any, isr: Any, online: Any, unclean: bool) -> Election | None:
        return offline_partition_leader_election(replicas, isr, online, unclean=True)

    monkeypatch.setattr("klamm.controller.partition_state_machine.offline_partition_leader_election", election)
    found = failures(last_in_sync, seeds=3)
    assert any("the new leader was not in sync" in failure for failure in found)


@pytest.mark.parametrize(
    "scenario", ["whole_story", *(pytest.param(each, marks=pytest.mark.long) for each in ("paused_leader", "bounces"))]
)
def test_two_processes_trace_the_same(scenario: str) -> None:
    trace = assert_same_trace(f"{__file__}:{scenario}", seed=1)
    happened = Counter(line.split()[2] for line in trace)
    assert min(happened[what] for what in ("frame", "znodes", "write")) > 10, happened
