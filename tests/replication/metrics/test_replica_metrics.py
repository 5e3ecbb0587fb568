"""Metrics of hosted replicas, by the names of Kafka's MBeans."""

import asyncio
import errno

import pytest

from klamm.base.metrics import Metrics
from klamm.protocol.error_codes import ErrorCode
from klamm.replication.metrics import replica_metrics
from klamm.replication.ports import WrittenIsr
from support.metrics import Values
from support.replicas import Broker, scenario, state

pytestmark = pytest.mark.loop("virtual")


def values(broker: Broker) -> Values:
    metrics = Metrics()
    replica_metrics.register(metrics, broker.manager)
    broker.log_manager.register(metrics)
    return Values.of(metrics)


@scenario(min_insync_replicas="2")
async def test_partitions_are_counted_by_what_their_leader_knows(broker: Broker) -> None:
    await broker.tell(
        state(0),
        state(1, isr=(1, 2)),
        state(2, isr=(1,)),
        # A replica that a reassignment adds need not be in sync.
        state(3, isr=(1, 2), adding_replicas=(3,)),
        state(4, isr=(1, 2, 3), removing_replicas=(3,)),
        state(5, leader=2, isr=(2,)),
    )
    found = values(broker)
    for mbean, value in {
        "kafka.server:type=ReplicaManager,name=LeaderCount": 5,
        "kafka.server:type=ReplicaManager,name=PartitionCount": 6,
        "kafka.server:type=ReplicaManager,name=OfflineReplicaCount": 0,
        "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions": 2,
        "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount": 1,
        "kafka.server:type=ReplicaManager,name=AtMinIsrPartitionCount": 2,
        "kafka.server:type=ReplicaManager,name=ReassigningPartitions": 2,
        "kafka.cluster:type=Partition,name=UnderReplicated,topic=t,partition=0": 0,
        "kafka.cluster:type=Partition,name=UnderReplicated,topic=t,partition=1": 1,
        "kafka.cluster:type=Partition,name=UnderReplicated,topic=t,partition=3": 0,
        "kafka.cluster:type=Partition,name=UnderMinIsr,topic=t,partition=1": 0,
        "kafka.cluster:type=Partition,name=UnderMinIsr,topic=t,partition=2": 1,
        "kafka.cluster:type=Partition,name=AtMinIsr,topic=t,partition=0": 0,
        "kafka.cluster:type=Partition,name=AtMinIsr,topic=t,partition=3": 1,
        "kafka.cluster:type=Partition,name=InSyncReplicasCount,topic=t,partition=1": 2,
        "kafka.cluster:type=Partition,name=ReplicasCount,topic=t,partition=1": 3,
        "kafka.cluster:type=Partition,name=ReplicasCount,topic=t,partition=3": 2,
        # A follower knows nothing of the ISR.
        "kafka.cluster:type=Partition,name=UnderReplicated,topic=t,partition=5": 0,
        "kafka.cluster:type=Partition,name=UnderMinIsr,topic=t,partition=5": 0,
        "kafka.cluster:type=Partition,name=InSyncReplicasCount,topic=t,partition=5": 0,
        "kafka.cluster:type=Partition,name=ReplicasCount,topic=t,partition=5": 0,
    }.items():
        assert (mbean, found[mbean]) == (mbean, value)


@scenario(directories=2)
async def test_replicas_on_a_failed_disk_are_offline(broker: Broker) -> None:
    await broker.tell(state(0), state(1))
    failed = broker.manager.partitions["t", 0].log.log_directory
    failed.fail(OSError(errno.EIO, "gone"), "test")
    await asyncio.sleep(0)
    found = values(broker)
    for mbean, value in {
        "kafka.server:type=ReplicaManager,name=LeaderCount": 1,
        "kafka.server:type=ReplicaManager,name=PartitionCount": 2,
        "kafka.server:type=ReplicaManager,name=OfflineReplicaCount": 1,
        "kafka.log:type=LogManager,name=OfflineLogDirectoryCount": 1,
        **{
            f"kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory={path}": int(path == failed.path)
            for path in broker.paths
        },
    }.items():
        assert (mbean, found[mbean]) == (mbean, value)


@scenario
async def test_changes_of_the_isr_are_counted_once_the_controller_has_decided(broker: Broker) -> None:
    partition = broker.lone_partition()
    statistics = broker.manager.isr_statistics
    partition._isr_statistics = statistics
    mbeans = [f"kafka.server:type=ReplicaManager,name={name}PerSec" for name in COUNTERS]

    def counted() -> list[float]:
        found = values(broker)
        return [found[mbean] for mbean in mbeans]

    partition.make_leader(state(isr=(1,)))
    partition.update_follower_fetch_state(2, 0, 0, 0)
    assert counted() == [0, 0, 0]
    broker.proposals.submitted[0].on_result(WrittenIsr(0, (1, 2), 1))
    assert counted() == [1, 0, 0]
    partition.update_follower_fetch_state(3, 0, 0, 0)
    broker.proposals.submitted[1].on_result(ErrorCode.INVALID_UPDATE_VERSION)
    assert counted() == [1, 0, 1]
    partition.make_leader(state(isr=(1, 2, 9), epoch=1))
    partition.maybe_shrink_isr()
    broker.proposals.submitted[2].on_result(WrittenIsr(1, (1, 2), 5))
    assert counted() == [1, 1, 1]


COUNTERS = ("IsrExpands", "IsrShrinks", "FailedIsrUpdates")
