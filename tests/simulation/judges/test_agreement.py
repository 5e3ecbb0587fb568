"""What brokers and the controller believe against the znodes: each kind of disagreement is planted, and found."""

import asyncio
import types
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from klamm.base.purgatory import DelayedOperation
from klamm.base.slices import in_one_go
from klamm.broker.configs.handlers import ConfigHandlers
from klamm.broker.requests.services import Services
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets
from klamm.client.retries import RetryPolicy
from klamm.config.topic import TopicConfig
from klamm.controller.states import PartitionState, ReplicaState
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey, request_class
from klamm.protocol.record.records import Record
from klamm.protocol.vocabulary import TopicPartition
from klamm.replication.partition.partition import Partition
from klamm.replication.state_changes import StateChanges
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.judges.agreement import disagreements, leftovers, uncommitted
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import _check_acknowledged_by_leader, check_leader_epochs, converge, judge
from klamm.simulation.workloads.workload import Acknowledged, Workload, create_topic, delete_topic

TOPIC = "events"


async def started(world: World, **options: Any) -> SimulatedCluster:
    """A cluster with a topic of one partition, at rest."""
    cluster = SimulatedCluster(world, **options)
    await cluster.start()
    client = cluster.client()
    await world.node("client").run(create_topic(client, TOPIC, partitions=1, replication_factor=2))
    await converge(cluster)
    await world.node("client").run(client.close())
    return cluster


@dataclass
class Parts:
    """The parts of the leader, of its follower, of a broker without a replica, and of the controller."""

    cluster: SimulatedCluster

    def services(self, broker_id: int) -> Services:
        broker = self.cluster.brokers[broker_id].broker
        assert broker is not None and broker.parts.services is not None
        return broker.parts.services

    @property
    def leader(self) -> Services:
        return self.services(self.cluster.leader(TOPIC, 0))

    @property
    def follower(self) -> Services:
        (other,) = set(self.cluster.isr(TOPIC, 0)) - {self.cluster.leader(TOPIC, 0)}
        return self.services(other)

    @property
    def stranger(self) -> Services:
        (other,) = set(self.cluster.brokers) - set(self.cluster.isr(TOPIC, 0))
        return self.services(other)

    @property
    def controller(self) -> Services:
        return self.services(self.cluster.controller_id())


def partition_of(services: Services) -> Partition:
    return services.replica_manager.partition(TOPIC, 0)


def leads_too(parts: Parts) -> None:
    partition_of(parts.follower).leader_id = parts.follower.broker_id


def leads_in_an_old_epoch(parts: Parts) -> None:
    partition_of(parts.leader).leader_epoch -= 1


def leads_what_others_have(parts: Parts) -> None:
    hosted = parts.stranger.replica_manager.partitions
    assert isinstance(hosted, dict)
    hosted[TOPIC, 0] = leader = partition_of(parts.leader)
    leader.leader_id = parts.stranger.broker_id


def copies_no_more(parts: Parts) -> None:
    parts.follower.replica_manager._followers.remove_fetchers([(TOPIC, 0)])


def hosts_nothing(parts: Parts) -> None:
    hosted = parts.follower.replica_manager.partitions
    assert isinstance(hosted, dict)
    del hosted[TOPIC, 0]


def believes_in_another_version(parts: Parts) -> None:
    partition_of(parts.leader).zk_version += 1


def knows_a_topic_that_is_gone(parts: Parts) -> None:
    cache = parts.stranger.metadata_cache
    cache.snapshot = replace(cache.snapshot, topics={**cache.snapshot.topics, "gone": cache.snapshot.topics[TOPIC]})


def knows_another_id(parts: Parts) -> None:
    cache = parts.stranger.metadata_cache
    other = parts.stranger.environment.random_uuid()
    cache.snapshot = replace(cache.snapshot, topic_ids={TOPIC: other})


def knows_fewer_brokers(parts: Parts) -> None:
    cache = parts.stranger.metadata_cache
    cache.snapshot = replace(cache.snapshot, brokers={})


def runs_with_another_config(parts: Parts) -> None:
    config = TopicConfig.from_overrides(parts.leader.config.current, {"min.insync.replicas": "1"})
    partition_of(parts.leader).topic_config = config


def runs_with_another_default(parts: Parts) -> None:
    config = parts.leader.config
    config.replace(config.current.with_dynamic(default={"log.retention.ms": "1"}))


def takes_a_partition_for_reassigned(parts: Parts) -> None:
    parts.controller.controller.context.partitions_being_reassigned.add((TOPIC, 0))


def takes_another_for_leader(parts: Parts) -> None:
    context = parts.controller.controller.context
    state = context.partition_leadership_info((TOPIC, 0))
    assert state is not None
    context.put_partition_leadership_info((TOPIC, 0), replace(state, leader_epoch=state.leader_epoch + 1))


def forgets_a_topic(parts: Parts) -> None:
    in_one_go(parts.controller.controller.context.remove_topic(TOPIC))


def is_the_controller_only_by_name(parts: Parts) -> None:
    parts.controller.controller._is_active = False


def acts_as_the_controller_too(parts: Parts) -> None:
    others = [parts.services(broker_id).controller for broker_id in parts.cluster.brokers]
    zombie = next(controller for controller in others if not controller.is_active)
    zombie._is_active, zombie._parts.context = True, parts.controller.controller.context


def takes_a_replica_for_offline(parts: Parts) -> None:
    key, broker_id = (TOPIC, 0), parts.leader.broker_id
    parts.controller.controller.context.put_replica_state((key, broker_id), ReplicaState.OFFLINE)


def takes_a_partition_for_new(parts: Parts) -> None:
    parts.controller.controller.context.put_partition_state((TOPIC, 0), PartitionState.NEW)


def counts_an_offline_replica(parts: Parts) -> None:
    manager = parts.leader.replica_manager
    manager._hosted.mark_offline(("gone", 0))


def counts_a_failed_copy(parts: Parts) -> None:
    broker = parts.cluster.brokers[parts.follower.broker_id].broker
    assert broker is not None
    broker.parts.followers._failed[TOPIC, 0] = None


def leaves_a_log_uncleaned(parts: Parts) -> None:
    broker = parts.cluster.brokers[parts.follower.broker_id].broker
    assert broker is not None
    broker.parts.log_manager.cleaner._mark_uncleanable((TOPIC, 0), "it is damaged")


PLANTED: dict[Callable[[Parts], None], str] = {
    leads_too: "believes in another leader or epoch of events-0",
    leads_in_an_old_epoch: "believes in another leader or epoch of events-0",
    leads_what_others_have: "leads, and is no replica of events-0",
    copies_no_more: "copies from None events-0",
    hosts_nothing: "does not host events-0",
    believes_in_another_version: "believes in another version of events-0",
    knows_a_topic_that_is_gone: "takes gone-0: ",
    knows_another_id: "knows as the id of events: ",
    knows_fewer_brokers: r"knows brokers \[\]; true are \[0, 1, 2\]",
    runs_with_another_config: r"runs events-0 with {'min.insync.replicas': '1'}; stored is {}",
    runs_with_another_default: r"runs the default of brokers with {'log.retention.ms': '1'}; stored is {}",
    takes_a_partition_for_reassigned: r"reassigns \[\('events', 0\)\]",
    takes_another_for_leader: r"controller \d takes events-0: ",
    forgets_a_topic: "assigns events-0: None",
    takes_a_replica_for_offline: r"has the state of replica events-0 on \d: OFFLINE; true is ONLINE",
    takes_a_partition_for_new: "has the state of events-0: NEW; true is ONLINE",
    counts_a_failed_copy: "counts as FailedPartitionsCount: 1; true is 0",
    leaves_a_log_uncleaned: r"does not clean \('events', 0\): it is damaged",
    counts_an_offline_replica: "counts as OfflineReplicaCount: 1; true is 0",
    is_the_controller_only_by_name: r"brokers \[\] act as the controller; /controller names \d",
    acts_as_the_controller_too: r"brokers \[\d, \d\] act as the controller; /controller names \d",
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_broker_that_disagrees_with_the_znodes_is_found(plant: Callable[[Parts], None]) -> None:
    async def scenario(world: World) -> None:
        cluster = await started(world)
        assert disagreements(cluster) == []
        plant(Parts(cluster))
        found = "\n".join(disagreements(cluster))
        await cluster.close()
        raise AssertionError(found)

    with pytest.raises(AssertionError, match=PLANTED[plant]):
        run(scenario)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=900)


class Never(DelayedOperation):
    def is_ready(self) -> bool:
        return False


def test_what_waits_for_clients_that_are_gone_is_found() -> None:
    async def scenario(world: World) -> None:
        cluster = await started(world)
        assert [*uncommitted(cluster), *leftovers(cluster)] == []
        leader = Parts(cluster).leader
        leader.replica_manager.produce_purgatory.put(Never(), [(TOPIC, 0)], 60_000, lambda _: None)
        broker = cluster.brokers[leader.broker_id].broker
        assert broker is not None
        with broker.parts.response_memory.reading(1000):
            assert leftovers(cluster) == [
                f"broker {leader.broker_id} holds 1 produces",
                f"broker {leader.broker_id} holds 1000 bytes of responses",
            ]
        await cluster.close()

    run(scenario)


def test_a_follower_that_does_not_hear_what_is_committed_is_found() -> None:
    async def scenario(world: World) -> None:
        cluster = await started(world)
        partition_of(Parts(cluster).follower).log._high_watermark = -1
        (found,) = uncommitted(cluster)
        assert found.startswith("events-0: (high watermark, end) by broker are ")
        await cluster.close()

    run(scenario)


def test_a_checkpoint_that_lacks_an_epoch_is_found() -> None:
    async def scenario(world: World) -> None:
        cluster = await started(world)
        workload = Workload(world, cluster.client, {(TOPIC, 0): True})
        workload.start(batches=2)
        await workload.until_produced()
        await judge(cluster, workload)
        partition_of(Parts(cluster).follower).log.leader_epochs.clear()
        with pytest.raises(AssertionError, match=r"epochs begin at {0: 0}, the checkpoint says {}"):
            check_leader_epochs(cluster)
        await cluster.close()

    run(scenario)


def test_a_config_that_is_not_put_into_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(handlers: ConfigHandlers, topic: str) -> None: ...

    monkeypatch.setattr(ConfigHandlers, "_topic_changed", nothing)

    async def scenario(world: World) -> None:
        cluster = await started(world)
        await world.node("client").run(configure(cluster, "retention.ms", "86400000"))
        await converge(cluster, timeout_s=5)

    with pytest.raises(SimulationFailure, match=r"runs events-0 with {}; stored is {'retention.ms': '86400000'}"):
        run(scenario)


async def configure(cluster: SimulatedCluster, key: str, value: str) -> None:
    build = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    struct = build.AlterConfigsResource
    change = struct.AlterableConfig(name=key, config_operation=0, value=value)
    resource = struct(resource_type=2, resource_name=TOPIC, configs=[change])
    client = cluster.client()
    answer = await client.send_to_any(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        lambda version: build(resources=[resource], validate_only=False),
    )
    assert [one.error_code for one in answer.responses] == [ErrorCode.NONE]
    await client.close()


def test_a_broker_that_goes_on_leading_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It obeys no StopReplica, and concludes nothing from UpdateMetadata."""
    monkeypatch.setattr(StateChanges, "_stop", lambda *_: ErrorCode.NONE)
    monkeypatch.setattr(StateChanges, "_end_if_over", lambda *_: False)

    async def scenario(world: World) -> None:
        cluster = await started(world)
        parts = Parts(cluster)
        others = [parts.stranger.broker_id, parts.follower.broker_id]
        await world.node("client").run(reassign(cluster, others))
        await cluster.until(lambda: sorted(cluster.state.replicas(TOPIC)[0]) == sorted(others))
        await converge(cluster, timeout_s=5)

    with pytest.raises(SimulationFailure, match=r"broker \d leads, and is no replica of events-0"):
        run(scenario)


async def reassign(cluster: SimulatedCluster, replicas: list[int]) -> None:
    client = cluster.client()
    results = await alter_partition_reassignments(client, {TopicPartition(TOPIC, 0): replicas})
    assert list(results.values()) == [None]
    await client.close()


def test_a_coordinator_that_keeps_offsets_of_a_deleted_topic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupMetadataManager, "cleanup", lambda *_, **__: 0)

    async def scenario(world: World) -> None:
        cluster = await started(world)
        client = cluster.client(RetryPolicy(deadline_ms=60_000))

        async def committed() -> None:
            await alter_consumer_group_offsets(client, "reports", {TopicPartition(TOPIC, 0): OffsetAndMetadata(7)})
            await delete_topic(client, TOPIC)

        await world.node("client").run(committed())
        await asyncio.sleep(5)
        await cluster.close()

    with pytest.raises(SimulationFailure, match="group reports still has"):
        run(scenario)


def test_a_broker_that_counts_the_groups_of_another_is_found() -> None:
    async def scenario(world: World) -> None:
        cluster = await started(world)
        client = cluster.client(RetryPolicy(deadline_ms=60_000))
        offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(7)}
        await world.node("client").run(alter_consumer_group_offsets(client, "reports", offsets))
        await converge(cluster)
        coordinator = cluster.coordinator("reports")
        former, group = (coordinator + 1) % len(cluster.brokers), "reports"
        kept, leading = (cluster.brokers[each].broker for each in (former, coordinator))
        assert kept is not None and leading is not None
        loaded = leading.parts.groups.get(group)
        assert loaded is not None
        kept.parts.groups._groups[-1] = {group: loaded}
        assert disagreements(cluster) == [
            f"broker {former} counts as NumGroups: 1; true is 0",
            f"broker {former} counts as NumOffsets: 1; true is 0",
            f"broker {former} counts as groups in all states: 1; true is 0",
        ]
        await world.node("client").run(client.close())
        await cluster.close()

    run(scenario)


class OnlyAcknowledged:
    """As a producer with acks=1 that has sent two batches."""

    key = (TOPIC, 3)
    sent = types.MappingProxyType(dict.fromkeys([b"a", b"b"]))
    acknowledged = (Acknowledged(0, (b"a",), 1, 1, at_s=5.0), Acknowledged(1, (b"b",), 1, 1, at_s=9.0))


@pytest.mark.parametrize(
    "values, wrong",
    [
        ([b"a", b"b"], None),
        ([b"x", b"b"], "no producer has sent"),
        ([b"b"], "was acknowledged by its leader"),
        ([b"b", b"b"], None),
    ],
)
def test_with_acks_1_nothing_is_lost_while_the_leader_stays(values: list[bytes], wrong: str | None) -> None:
    records = [Record(None, value, 0, offset=offset) for offset, value in enumerate(values)]
    producer: Any = OnlyAcknowledged()
    if wrong is None:
        _check_acknowledged_by_leader(producer, records, led_since_s=8.0)
    else:
        with pytest.raises(AssertionError, match=wrong):
            _check_acknowledged_by_leader(producer, records, led_since_s=8.0)
