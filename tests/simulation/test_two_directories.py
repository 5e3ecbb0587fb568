"""A log directory is offline while its topic is deleted and created again; then it works again, with the former log.

The new topic has a log in the broker's other directory by then. The broker must start, with that log.
"""

import pytest

from klamm.simulation.administration import Administrator
from klamm.simulation.cluster import LOG_DIRS, SimulatedBroker, SimulatedCluster
from klamm.simulation.verdict import converge, judge
from klamm.simulation.workload import Workload, create_topic, delete_topic
from klamm.simulation.world import World

KEY = ("passing", 0)


def directories(broker: SimulatedBroker) -> list[str]:
    """The directories in which the broker's disk has the partition's log, or a log that was set aside."""
    found = {path.rpartition("/")[0] for path in broker.node.disk.sizes() if path.endswith(".log")}
    return sorted(path for path in found if path.split("/")[-1].partition(".")[0] == f"{KEY[0]}-{KEY[1]}")


async def a_topic_of_that_name_returns(world: World) -> None:
    cluster = SimulatedCluster(world)
    await cluster.start()
    client, node = cluster.client(), world.node("client")
    administrator = Administrator(cluster, KEY[0], 1)
    await node.run(create_topic(client, KEY[0], partitions=1, replication_factor=3))
    await node.run(administrator.write(KEY[0]))
    await cluster.until(lambda: len(cluster.isr(*KEY)) == 3)
    broker = cluster.brokers[world.random.choice(list(cluster.brokers))]
    (lost,) = directories(broker)
    broker.kill()
    broker.fail_directory(lost.rpartition("/")[0])
    await cluster.until(lambda: broker.broker_id not in cluster.state.live_brokers())
    # The replica leaves, so that the deletion does not wait for it.
    await node.run(administrator.leave(KEY[0], broker.broker_id))
    await cluster.until(lambda: broker.broker_id not in cluster.state.replicas(KEY[0])[0])
    await node.run(delete_topic(client, KEY[0]))
    await cluster.until(lambda: KEY[0] not in cluster.state.topics())
    broker.start()
    await broker.until_up()
    await node.run(create_topic(client, KEY[0], partitions=1, replication_factor=3))
    workload = Workload(world, cluster.client, {KEY: True})
    workload.start()
    await workload.produced(20)
    await cluster.until(lambda: broker.broker_id in cluster.isr(*KEY))
    (other,) = set(LOG_DIRS) - {lost.rpartition("/")[0]}
    assert directories(broker) == sorted([lost, f"{other}/{KEY[0]}-{KEY[1]}"])

    broker.kill()
    broker.mend_disk()
    broker.start()
    await broker.until_up()
    await cluster.until(lambda: broker.broker_id in cluster.isr(*KEY))
    aside, kept = sorted(directories(broker), key=lambda path: not path.endswith("-stray"))
    assert aside.startswith(f"{lost}.") and aside.endswith("-stray")
    assert kept == f"{other}/{KEY[0]}-{KEY[1]}"
    await workload.produced(20)
    await workload.stop_producing()
    await converge(cluster)
    await judge(cluster, workload)
    await node.run(administrator.close())
    await node.run(client.close())
    await cluster.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_starts_with_the_former_log_in_another_directory(seed: int) -> None:
    world = World(seed)
    world.run(a_topic_of_that_name_returns(world), time_limit_s=600)
