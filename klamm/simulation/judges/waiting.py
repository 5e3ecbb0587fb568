"""Explains why a cluster does not become whole: from each partition, broker and controller that waits, a chain leads to
the process, link or request that it waits for in the end.

    events-0 has no leader -> waits for broker 2 of its ISR -> broker 2 has no session -> zookeeper is paused

What must stay true: this module changes nothing. It names every wait, even if it does not know what the wait ends with.
"""

from collections.abc import Iterator, Sequence

from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.simulation.cluster.cluster import SimulatedBroker, SimulatedCluster
from klamm.simulation.machine.world import Node
from klamm.znodes.controller_store import NO_CONTROLLER
from klamm.znodes.topics import LeaderAndIsr

_Chain = tuple[str, ...]


def chains(cluster: SimulatedCluster) -> list[str]:
    """One line for each chain that is not the end of another chain. Partitions with the same chain share a line, which
    names the first of them."""
    found = dict.fromkeys(_all_chains(cluster))
    ends = {chain[at:] for chain in found for at in range(1, len(chain))}
    alike: dict[_Chain, list[_Chain]] = {}
    for chain in found:
        if chain not in ends:
            alike.setdefault(chain[1:] or chain, []).append(chain)
    return [
        " -> ".join((first + (f" (and {len(others)} more)" if others else ""), *rest))
        for (first, *rest), *others in alike.values()
    ]


def _all_chains(cluster: SimulatedCluster) -> Iterator[_Chain]:
    for key, state in cluster.state.partitions().items():
        for reason, *rest in _of_partition(cluster, key, state):
            yield (f"{key[0]}-{key[1]} {reason}", *rest)
    for broker_id in cluster.brokers:
        yield from _of_broker(cluster, broker_id)
    yield from _of_controller(cluster)


def _of_partition(cluster: SimulatedCluster, key: PartitionKey, state: LeaderAndIsr) -> Iterator[_Chain]:
    if state.leader == NO_LEADER:
        if set(state.isr) & set(cluster.state.live_brokers()):
            for why in _of_controller(cluster) or [()]:
                yield "has no leader", "waits for the controller", *why
            return
        for broker_id in state.isr:
            for why in _of_broker(cluster, broker_id) or [()]:
                yield "has no leader", f"waits for broker {broker_id} of its ISR", *why
        return
    for broker_id in cluster.state.replicas(key[0]).get(key[1], ()):
        if broker_id not in state.isr:
            for why in _of_follower(cluster, key, state, broker_id) or [()]:
                yield "has a short ISR", f"waits for replica {broker_id}", *why


def _of_follower(cluster: SimulatedCluster, key: PartitionKey, state: LeaderAndIsr, broker_id: int) -> Sequence[_Chain]:
    """Why a replica is not in sync."""
    if down := [*_of_broker(cluster, broker_id), *_of_broker(cluster, state.leader)]:
        return down
    follower, leader = (cluster.hosted_partition(one, key) for one in (broker_id, state.leader))
    for one, hosted in ((broker_id, follower), (state.leader, leader)):
        if hosted is None or hosted.leader_epoch != state.leader_epoch:
            knows = "does not host it" if hosted is None else f"knows epoch {hosted.leader_epoch}"
            whys = _of_controller(cluster) or [()]
            return [(f"broker {one} {knows}, the epoch is {state.leader_epoch}", *why) for why in whys]
    assert follower is not None and leader is not None
    if cut := _of_link(cluster, cluster.brokers[broker_id].node, cluster.brokers[state.leader].node):
        return cut
    if follower.log.log_end_offset >= leader.log.high_watermark:
        return [(f"leader {state.leader} has not put it into the ISR", *why) for why in _of_controller(cluster) or [()]]
    return [(f"it ends at {follower.log.log_end_offset}, leader {state.leader} at {leader.log.log_end_offset}",)]


def _of_controller(cluster: SimulatedCluster) -> list[_Chain]:
    """The chains of the controller; empty if it has nothing to do."""
    controller_id = cluster.controller_id()
    if controller_id == NO_CONTROLLER:
        return [("there is no controller", *why) for why in _of_zookeeper(cluster) or [()]]
    one = cluster.brokers[controller_id]
    if down := _of_broker(cluster, controller_id):
        return [(f"broker {controller_id} is the controller", *why) for why in down]
    assert one.broker is not None
    controller = one.broker.parts.controller
    if not controller.is_active:
        return [(f"broker {controller_id} does not act as the controller that /controller names",)]
    waits: list[_Chain] = []
    if (current := controller.event_manager.current) is not None:
        event, for_ms = current
        doing = f"controller {controller_id} has processed {type(event).__name__} for {for_ms / 1000:.1f} s"
        cut = _of_link(cluster, one.node, cluster.zookeeper.node)
        waits += [(f"{doing}, {controller.queue_size} events wait", *why) for why in cut or [()]]
    for broker_id, queue in controller.send_queues().items():
        if queue.sending is not None:
            sends = f"controller {controller_id} has waited for broker {broker_id}'s answer to {queue.sending}"
            sends += f" for {queue.sending_for_ms / 1000:.1f} s{queue.trouble and f' ({queue.trouble})'}"
            whys = _of_broker(cluster, broker_id) or _of_link(cluster, one.node, cluster.brokers[broker_id].node)
            waits += [(sends, *why) for why in whys or [()]]
    return waits


def _of_broker(cluster: SimulatedCluster, broker_id: int) -> list[_Chain]:
    """Why a broker does not work; empty if it works."""
    one, name = cluster.brokers[broker_id], f"broker {broker_id}"
    unable = _of_node(one.node)
    if unable and (one.node.process.alive or not one.is_wanted):
        return [(unable,)]
    if one.disk_is_faulty:
        return [(f"the disk of {name} has failed",)]
    if one.broker is None:  # Its supervisor keeps starting it.
        what = f"{name} is starting"
    elif broker_id not in cluster.state.live_brokers():
        what = f"{name} has no session"
    else:
        return []
    return [(what, *why) for why in _of_session(cluster, one) or [()]]


def _of_session(cluster: SimulatedCluster, one: SimulatedBroker) -> list[_Chain]:
    return _of_zookeeper(cluster) or _of_link(cluster, one.node, cluster.zookeeper.node)


def _of_zookeeper(cluster: SimulatedCluster) -> list[_Chain]:
    unable = _of_node(cluster.zookeeper.node)
    return [(unable,)] if unable else []


def _of_node(node: Node) -> str:
    """Why no process runs on a machine; empty if one runs."""
    if not node.process.alive:
        return f"{node.name} is down"
    return f"{node.name} is paused" if node.process.stalled else ""


def _of_link(cluster: SimulatedCluster, one: Node, other: Node) -> list[_Chain]:
    """The directions of the link between two machines that are cut."""
    network = cluster.world.network
    return [
        (f"the link from {source.name} to {target.name} is cut",)
        for source, target in ((one, other), (other, one))
        if network.is_cut(network.resolve(source.name), network.resolve(target.name))
    ]
