"""Compares the state of brokers and the controller with the znodes.

A healed cluster comes to agree with its znodes: `disagreements` then returns no line, and `converge` waits for that.
The checks look into the brokers, because clients may not see the worst faults: a broker that still leads a partition
after the election of another leader answers only clients with old metadata.

What must come true in a healed cluster:
- A broker leads a partition only if the state znode says so, with the znode's epoch, ISR and version; every other
  replica copies from that leader, in that epoch. A broker that is no replica neither leads nor copies; its data may
  stay.
- Metadata caches equal the znodes; there are no offsets of topics that do not exist.
- Topics and brokers run with the stored configurations.
- The broker that /controller names acts as the controller, and no other broker does. Its context equals the znodes, the
  broker epochs included, so it has noticed each bounce. No work is left: no event, no request, no reassignment, no
  deletion. All partitions and replicas are online.
- The brokers' gauges of replicas and fetchers equal a recount of the znodes. Their gauges of groups equal a recount of
  the groups in the memory of all brokers.
- Offsets committed by a leader are committed by its followers.
- No transaction is open.
- No hosted replica is being moved to another log directory, and the log cleaner skips no partition.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from klamm.base.metrics import Metrics
from klamm.broker.requests.services import Services
from klamm.broker.start.broker import Broker
from klamm.config.topic import TopicConfig, TopicKeys
from klamm.controller.context import ControllerContext
from klamm.controller.controller import KafkaController
from klamm.controller.states import PartitionState, ReplicaState
from klamm.coordinator.groups import group_metrics
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.replication.metrics import replica_metrics
from klamm.replication.partition.isr import CommittedIsr
from klamm.replication.partition.partition import Partition
from klamm.replication.replica_manager import log_config
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.witnesses.state_checker import StateChecker
from klamm.znodes.configs import broker_entity, topic_entity
from klamm.znodes.requests import (
    DELETE_TOPICS_PATH,
    ISR_CHANGES_PATH,
    LOG_DIR_EVENTS_PATH,
    PREFERRED_REPLICA_ELECTION_PATH,
    REASSIGN_PARTITIONS_PATH,
)
from klamm.znodes.topics import LeaderAndIsr

# Znodes of requests and notifications that the controller has not handled yet.
REQUEST_PATHS = (DELETE_TOPICS_PATH, ISR_CHANGES_PATH, LOG_DIR_EVENTS_PATH)
NONE_FAILED = {"FailedPartitionsCount": 0}
REQUESTS = (REASSIGN_PARTITIONS_PATH, PREFERRED_REPLICA_ELECTION_PATH)


def disagreements(cluster: SimulatedCluster) -> list[str]:
    """One line for each difference between a broker's state and the znodes. Brokers that are down are left out."""
    state = cluster.state
    found = [*_unfinished_requests(state), *_active_controllers(cluster), *_bounced(state)]
    groups = _known_groups(cluster)
    for one in cluster.brokers.values():
        if one.broker is not None:
            services = one.broker.parts.services
            found += [f"broker {one.broker_id} {line}" for line in _of_broker(state, one.broker, services)]
            found += [f"broker {one.broker_id} {line}" for line in _offsets(state, services)]
            found += [f"broker {one.broker_id} {line}" for line in _group_gauges(one.broker, groups)]
            if services.controller.is_active:
                found += [f"controller {one.broker_id} {line}" for line in _of_controller(state, services.controller)]
    return found


def leftovers(cluster: SimulatedCluster) -> list[str]:
    """The work in brokers that waits for clients. Must be empty some time after all clients have gone."""
    found = []
    for one in cluster.brokers.values():
        if one.broker is not None:
            services = one.broker.parts.services
            manager = services.replica_manager
            waiting = {
                "produces": len(manager.produce_purgatory),
                "fetches of consumers": len(manager.fetch_purgatory),
                "members of groups": services.group_coordinator.waiting_count,
                "bytes of responses": one.broker.parts.response_memory.held_bytes,
            }
            found += [f"broker {one.broker_id} holds {count} {what}" for what, count in waiting.items() if count]
    return found


def _unfinished_requests(state: StateChecker) -> Iterator[str]:
    for path in REQUEST_PATHS:
        if names := state.children(path):
            yield f"{path} still has {', '.join(names)}"
    for path in REQUESTS:
        if state.exists(path):
            yield f"{path} is still there"


def _bounced(state: StateChecker) -> Iterator[str]:
    for (topic, number), broker_id in state.bounced():
        yield f"replica {broker_id} of {topic}-{number} has bounced, and has not left the ISR since"


def _different(what: str, believed: Mapping[Any, Any], true: Mapping[Any, Any]) -> Iterator[str]:
    for key in sorted({*believed, *true}):
        if believed.get(key) != true.get(key):
            name = f"{key[0]}-{key[1]}" if isinstance(key, tuple) else key
            yield f"{what} {name}: {believed.get(key)}; true is {true.get(key)}"


def _assignments(state: StateChecker) -> dict[PartitionKey, tuple[int, ...]]:
    return {
        (topic, partition): replicas
        for topic in state.topics()
        for partition, replicas in state.replicas(topic).items()
    }


# -- brokers ----------------------------------------------------------------------------------------------------------


def _of_broker(state: StateChecker, broker: Broker, services: Services) -> Iterator[str]:
    assignments, states = _assignments(state), state.partitions()
    yield from _metadata(state, services, assignments)
    yield from _configs(state, services, assignments)
    for partition in services.replica_manager.partitions.values():
        if partition.future_log is not None:
            yield f"still moves {partition.log} to {partition.future_log.directory}: {partition.future_log}"
    followed, hosted = broker.parts.followers.followed_partitions, services.replica_manager.partitions
    yield from _gauges(state, services)
    yield from _fetcher_gauges(state, broker)
    for left_alone in broker.parts.log_manager.cleaner.uncleanable:
        yield f"does not clean {left_alone.key}: {left_alone.reason}"
    for key in sorted({*assignments, *hosted, *followed}):
        replicas, truth = assignments.get(key, ()), states.get(key)
        if truth is not None and services.broker_id in replicas:
            wrong = _replica(hosted.get(key), followed.get(key), truth, services.broker_id)
        else:
            wrong = _stranger(hosted.get(key), followed.get(key), services.broker_id)
        if wrong is not None:
            yield f"{wrong} {key[0]}-{key[1]}: {hosted.get(key)}; true are {truth} and replicas {replicas}"


def _gauges(state: StateChecker, services: Services) -> Iterator[str]:
    """Compares the broker's gauges of its replicas with a recount of the znodes. The cluster must be whole."""
    metrics = Metrics()
    replica_metrics.register(metrics, services.replica_manager)
    for _ in metrics.walks():
        pass
    true = {
        "LeaderCount": sum(one.leader == services.broker_id for one in state.partitions().values()),
        "OfflineReplicaCount": 0,
        "UnderReplicatedPartitions": 0,
        "ReassigningPartitions": 0,
    }
    told = {metric.name.name: dict(metric.values()).get("") for metric in metrics if metric.name.name in true}
    yield from _different("counts as", told, true)


def _fetcher_gauges(state: StateChecker, broker: Broker) -> Iterator[str]:
    """Compares the metrics of the broker's fetchers with the znodes. The cluster must be whole."""
    broker_id, metrics = broker.parts.services.broker_id, Metrics()
    broker.parts.followers.register(metrics)
    told = {metric.name.name: dict(metric.values()) for metric in metrics}
    yield from _different("counts as", {"FailedPartitionsCount": told["FailedPartitionsCount"]["Replica"]}, NONE_FAILED)
    states = state.partitions()
    yield from _different(
        "has lags of",
        Counter((topic, int(partition)) for _, topic, partition in told["ConsumerLag"]),
        {
            key: 1
            for key, replicas in _assignments(state).items()
            if broker_id in replicas and key in states and states[key].leader != broker_id
        },
    )


def _known_groups(cluster: SimulatedCluster) -> dict[int, dict[str, int]]:
    """The groups that any broker has in its memory, and their number of offsets, by coordinator in ZooKeeper."""
    by_coordinator: dict[int, dict[str, int]] = {}
    for one in cluster.brokers.values():
        for group in one.broker.parts.groups.groups() if one.broker is not None else ():
            known = by_coordinator.setdefault(cluster.coordinator(group.group_id), {})
            known[group.group_id] = max(known.get(group.group_id, 0), group.offsets.count)
    return by_coordinator


def _group_gauges(broker: Broker, groups: Mapping[int, Mapping[str, int]]) -> Iterator[str]:
    """Compares the broker's gauges of groups with a recount of the groups in the memory of all brokers. This finds a
    group that the coordinator lacks, and a group that a former coordinator has kept."""
    metrics = Metrics()
    group_metrics.register(metrics, broker.parts.groups)
    told = {metric.name.name: dict(metric.values())[""] for metric in metrics}
    mine = groups.get(broker.parts.services.broker_id, {})
    states = sum(count for name, count in told.items() if name not in ("NumGroups", "NumOffsets"))
    yield from _different(
        "counts as",
        {"NumGroups": told["NumGroups"], "groups in all states": states, "NumOffsets": told["NumOffsets"]},
        {"NumGroups": len(mine), "groups in all states": len(mine), "NumOffsets": sum(mine.values())},
    )


def _replica(
    hosted: Partition | None, followed: tuple[int, int] | None, truth: LeaderAndIsr, broker_id: int
) -> str | None:
    """The fault of a replica of a partition; None if it is correct."""
    if hosted is None:
        return "does not host"
    if (hosted.leader_id, hosted.leader_epoch) != (truth.leader, truth.leader_epoch):
        return "believes in another leader or epoch of"
    if truth.leader != broker_id:
        return None if followed == (truth.leader, truth.leader_epoch) else f"copies from {followed}"
    if followed is not None:
        return f"leads and copies from {followed}"
    if not isinstance(hosted.isr_state, CommittedIsr) or set(hosted.isr) != set(truth.isr):
        return "believes in another ISR of"
    return None if hosted.zk_version == truth.zk_version else "believes in another version of"


def _stranger(hosted: Partition | None, followed: tuple[int, int] | None, broker_id: int) -> str | None:
    """The fault of a broker that acts for a partition without being a replica; None if it does not act."""
    if hosted is not None and hosted.leader_id == broker_id:
        return "leads, and is no replica of"
    return None if followed is None else "copies, and is no replica of"


def _metadata(
    state: StateChecker, services: Services, assignments: Mapping[PartitionKey, tuple[int, ...]]
) -> Iterator[str]:
    snapshot = services.metadata_cache.snapshot
    cached = {
        (topic, number): (one.leader, one.leader_epoch, sorted(one.isr), one.replicas)
        for topic, partitions in snapshot.topics.items()
        for number, one in partitions.items()
    }
    states = state.partitions()
    true = {
        key: (states[key].leader, states[key].leader_epoch, sorted(states[key].isr), replicas)
        for key, replicas in assignments.items()
        if key in states
    }
    yield from _different("takes", cached, true)
    ids = {topic: topic_id for topic in state.topics() if (topic_id := state.assignment(topic).topic_id) is not None}
    # A controller with an older protocol sends no topic ids.
    told = {topic: topic_id for topic, topic_id in snapshot.topic_ids.items() if topic_id is not None}
    yield from _different("knows as the id of", told, {topic: ids.get(topic) for topic in told})
    if list(snapshot.brokers) != state.live_brokers():
        yield f"knows brokers {list(snapshot.brokers)}; true are {state.live_brokers()}"
    if snapshot.controller_id != state.controller_id():
        yield f"takes {snapshot.controller_id} for the controller; it is {state.controller_id()}"


def _configs(
    state: StateChecker, services: Services, assignments: Mapping[PartitionKey, tuple[int, ...]]
) -> Iterator[str]:
    stored = {
        "the default of brokers": (services.config.current.dynamic_default, state.config(broker_entity(None))),
        "this broker": (services.config.current.dynamic_broker, state.config(broker_entity(services.broker_id))),
    }
    for key, partition in services.replica_manager.partitions.items():
        if services.broker_id not in assignments.get(key, ()):
            continue
        stored[f"{partition}"] = partition.topic_config.overrides, state.config(topic_entity(key[0]))
        current = services.topic_configs.of(key[0])
        if _values(partition.topic_config) != _values(current) or partition.log.config != log_config(current, key[0]):
            yield f"has not put the configuration of {partition} into effect"
    for what, (applied, true) in stored.items():
        if dict(applied) != true:
            yield f"runs {what} with {dict(applied)}; stored is {true}"


def _values(config: TopicConfig) -> list[Any]:
    return [getattr(config, field.name) for field in fields(TopicKeys)]


def _offsets(state: StateChecker, services: Services) -> Iterator[str]:
    """Committed offsets of topics that do not exist."""
    topics, coordinator = dict.fromkeys(state.topics()), services.group_coordinator
    for group in coordinator.list_groups(())[1]:
        _, offsets = coordinator.fetch_offsets(group.group_id, None, require_stable=False)
        if gone := sorted({topic for topic, _ in offsets if topic not in topics}):
            yield f"has offsets that {group.group_id} committed in {', '.join(gone)}: no such topics"


# -- the controller ---------------------------------------------------------------------------------------------------


def _active_controllers(cluster: SimulatedCluster) -> Iterator[str]:
    active = [
        one.broker_id
        for one in cluster.brokers.values()
        if one.broker is not None and one.broker.parts.controller.is_active
    ]
    if active != [cluster.controller_id()]:
        yield f"brokers {active} act as the controller; /controller names {cluster.controller_id()}"


def _of_controller(state: StateChecker, controller: KafkaController) -> Iterator[str]:
    context = controller.context
    if controller.queue_size:
        yield f"has {controller.queue_size} events in its queue"
    for broker_id, queue in controller.send_queues().items():
        if queue.size or queue.sending is not None:
            yield f"has not told broker {broker_id} all: {queue.size} requests wait behind {queue.sending}"
    if list(context.live_broker_ids) != state.live_brokers():
        yield f"knows brokers {list(context.live_broker_ids)}; true are {state.live_brokers()}"
    epochs = {broker_id: broker.epoch for broker_id, broker in context.live_or_shutting_down_brokers.items()}
    yield from _different("takes as the epoch of broker", epochs, state.broker_epochs())
    yield from _unfinished(context)
    true = _assignments(state)
    known = {
        (topic, number): assignment.replicas
        for topic, partitions in context.partition_assignments.items()
        for number, assignment in partitions.items()
    }
    yield from _different("assigns", known, true)
    leadership = {
        key: (one.leader, one.leader_epoch, one.isr, one.zk_version)
        for key, one in context.partitions_leadership_info.items()
    }
    states = {key: (one.leader, one.leader_epoch, one.isr, one.zk_version) for key, one in state.partitions().items()}
    yield from _different("takes", leadership, states)
    yield from _states_at_rest(context, true)


def _states_at_rest(context: ControllerContext, assignments: Mapping[PartitionKey, Collection[int]]) -> Iterator[str]:
    """With all brokers up and no work left, the context has exactly the assigned replicas, and all are online."""
    yield from _different(
        "has the state of",
        {key: state.name for key, state in context.partition_states.items()},
        dict.fromkeys(assignments, PartitionState.ONLINE.name),
    )
    yield from _different(
        "has the state of replica",
        {
            f"{topic}-{number} on {broker_id}": state.name
            for broker_id in context.live_broker_ids
            for (topic, number), state in context.replica_states(broker_id).items()
        },
        {
            f"{topic}-{number} on {broker_id}": ReplicaState.ONLINE.name
            for (topic, number), replicas in assignments.items()
            for broker_id in replicas
        },
    )


def _unfinished(context: ControllerContext) -> Iterator[str]:
    work: dict[str, Collection[Any]] = {
        "reassigns": context.partitions_being_reassigned,
        "deletes": context.topics_to_be_deleted,
        "takes for shutting down": context.shutting_down_broker_ids,
        "takes for on a failed disk": {broker for broker, keys in context.replicas_on_offline_dirs.items() if keys},
    }
    for what, of in work.items():
        if of:
            yield f"{what} {sorted(of)}"
    if context.offline_partition_count:
        yield f"counts {context.offline_partition_count} partitions without a leader"


# -- logs -------------------------------------------------------------------------------------------------------------


def uncommitted(cluster: SimulatedCluster) -> list[str]:
    """Replicas whose high watermark is not the end of the leader's log. Call it after all producers have ended."""
    found = []
    for (topic, number), truth in cluster.state.partitions().items():
        if truth.leader == NO_LEADER:
            continue
        marks = {}
        for broker_id in cluster.state.replicas(topic)[number]:
            log = cluster.hosted_partition(broker_id, (topic, number))
            marks[broker_id] = None if log is None else (log.log.high_watermark, log.log.log_end_offset)
        leader = marks.get(truth.leader)
        if leader is None or any(mark != (leader[1], leader[1]) for mark in marks.values()):
            found.append(f"{topic}-{number}: (high watermark, end) by broker are {marks}")
    return found


def undecided(cluster: SimulatedCluster) -> list[str]:
    """Partitions that an open transaction holds back, and transactional ids whose transaction has not ended. Call it
    after all transactional producers have ended."""
    found = []
    for key, truth in cluster.state.partitions().items():
        partition = None if truth.leader == NO_LEADER else cluster.hosted_partition(truth.leader, key)
        if partition is not None and partition.log.last_stable_offset < partition.log.high_watermark:
            found.append(
                f"{key[0]}-{key[1]}: the last stable offset is {partition.log.last_stable_offset}, the high watermark"
                f" {partition.log.high_watermark}"
            )
    for one in cluster.brokers.values():
        owned = [] if one.broker is None else one.broker.parts.transaction_coordinator.states.owned()
        found += [
            f"broker {one.broker_id} has {transactional_id} as {known}"
            for each in owned
            for transactional_id, known in each.transactions.items()
            if not known.state.is_over or transactional_id in each.writes
        ]
    return found
