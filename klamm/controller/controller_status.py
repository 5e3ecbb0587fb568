"""The controller's current work and what it is blocked on, as plain values for an operator.

What must stay true: this module only reads. It walks over partitions in slices, so it may see changes made meanwhile.
Lists are cut after `LISTED` items; their `count` is that of all items.
"""

import heapq
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from itertools import chain
from typing import Any, TypeVar

from klamm.base.slices import Slices, Steps, in_slices, slices
from klamm.controller.context import ControllerContext
from klamm.controller.controller import KafkaController
from klamm.controller.events import ReplicaLeaderElection
from klamm.controller.state_change_log import PARTITION_STATE_NAMES, REPLICA_STATE_NAMES
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.vocabulary import PartitionKey

LISTED = 100
# How many waiting events are listed.
LISTED_EVENTS = 20
# How many states are counted in one step, which takes some hundred microseconds.
COUNTED_SLICE = 20_000
# How many items of a set are sorted in one step, which takes some milliseconds.
SORTED_SLICE = 10_000

T = TypeVar("T", str, PartitionKey)
S = TypeVar("S", bound=IntEnum)


async def controller_status(controller: KafkaController, *, brief: bool = False) -> dict[str, Any]:
    """The whole status; on a broker that is not the controller only the controller's id.

    `brief` has the counts of both state machines instead of the lists of offline and under-replicated partitions, for
    which each partition must be checked. This is cheap enough to be asked for every second.
    """
    context = controller.context
    out_of_order: dict[str, Any] = {}
    if brief:
        out_of_order["machines"] = await in_slices(_machines(context))
    else:
        offline, under_replicated = await _out_of_order(context)
        out_of_order["offline_partitions"] = _listed(
            offline, lambda key: _partition(context, key, _why_offline(context, key))
        )
        out_of_order["under_replicated_partitions"] = _listed(
            under_replicated, lambda key: _partition(context, key, _why_out_of_sync(context, key))
        )
    moving = await in_slices(_least(context.partitions_being_reassigned))
    deletions = [
        found
        for topic in await in_slices(_least(context.topics_to_be_deleted))
        if (found := await in_slices(_deletion(context, topic))) is not None
    ]
    # From here on all values are of one moment.
    status: dict[str, Any] = {
        "broker_id": controller.parts.broker_id,
        "active": controller.is_active,
        "controller_id": controller.controller_id,
    }
    if not controller.is_active:
        return status
    return {
        **status,
        "epoch": context.epoch,
        "since_ms": controller.elected_at_ms,
        "now_ms": controller.parts.environment.now_ms(),
        **_events(controller),
        "brokers": _brokers(controller),
        "topics": len(context.all_topics),
        "partitions": len(context.partitions_leadership_info),
        "preferred_replica_imbalance": context.preferred_replica_imbalance_count,
        **out_of_order,
        "elections": _elections(controller),
        "deletions": {"count": len(context.topics_to_be_deleted), "first": deletions},
        "reassignments": {
            "count": len(context.partitions_being_reassigned),
            "first": [_reassignment(context, key) for key in moving if key in context.partitions_being_reassigned],
        },
    }


def _listed(items: list[PartitionKey], describe: Callable[[PartitionKey], dict[str, Any]]) -> dict[str, Any]:
    return {"count": len(items), "first": [describe(item) for item in items[:LISTED]]}


def _least(items: Collection[T]) -> Steps[list[T]]:
    """The first `LISTED` of the sorted items."""
    copied = list(items)
    found: list[T] = []
    for first in range(0, len(copied), SORTED_SLICE):
        found = heapq.nsmallest(LISTED, chain(found, copied[first : first + SORTED_SLICE]))
        yield
    return found


def _events(controller: KafkaController) -> dict[str, Any]:
    events = controller.event_manager
    current = events.current
    return {
        "state": events.state.label,
        "event": None if current is None else type(current[0]).__name__,
        "event_for_ms": 0 if current is None else round(current[1]),
        "event_queue_size": events.queue_size,
        "event_waits_ms": round(events.oldest_waits_ms),
        "waiting_events": [
            {"event": type(event).__name__, "state": event.state.label, "waits_ms": round(waits_ms)}
            for event, waits_ms in events.waiting(LISTED_EVENTS)
        ],
    }


def _elections(controller: KafkaController) -> list[dict[str, Any]]:
    """Requested elections (ElectLeaders): the one in progress, and those among the first waiting events."""
    events = controller.event_manager
    current = events.current
    found = [] if current is None else [(*current, "in progress")]
    found += [(event, waits_ms, "waiting") for event, waits_ms in events.waiting(LISTED_EVENTS)]
    return [
        {
            "type": event.election_type.name.lower(),
            "partitions": len(event.partitions),
            "step": step,
            "for_ms": round(for_ms),
            "waits_for": "the event in progress" if step == "waiting" else "ZooKeeper and the brokers' requests",
        }
        for event, for_ms, step in found
        if isinstance(event, ReplicaLeaderElection)
    ]


# -- the state machines -----------------------------------------------------------------------------------------------


def _machines(context: ControllerContext) -> Steps[dict[str, dict[str, int]]]:
    """How many partitions and replicas are in each state, under Kafka's names."""
    partitions = yield from _counted(context.partition_states.values(), PartitionState)
    replicas = dict.fromkeys(ReplicaState, 0)
    for broker_id in sorted(context.brokers_with_replica_states):
        found = yield from _counted(context.replica_states(broker_id).values(), ReplicaState)
        for state, count in found.items():
            replicas[state] += count
    return {
        "partitions": {PARTITION_STATE_NAMES[state]: count for state, count in partitions.items()},
        "replicas": {REPLICA_STATE_NAMES[state]: count for state, count in replicas.items()},
    }


def _counted(values: Collection[S], states: type[S]) -> Steps[dict[S, int]]:
    """How often each state is among the values. A list compares members of an enumeration by identity, in C. A Counter
    would compute the hash of each member in Python."""
    counts = dict.fromkeys(states, 0)
    copied = list(values)
    for first in range(0, len(copied), COUNTED_SLICE):
        some = copied[first : first + COUNTED_SLICE]
        left = len(some)
        # Nearly all values are online or offline. If these two are counted first, the other states often need no count.
        for state in sorted(states, key=lambda state: state.name not in ("ONLINE", "OFFLINE")):
            if not left:
                break
            found = some.count(state)
            counts[state] += found
            left -= found
        yield
    return counts


def _brokers(controller: KafkaController) -> list[dict[str, Any]]:
    context, queues = controller.context, controller.send_queues()
    brokers = []
    for broker_id, broker in context.live_or_shutting_down_brokers.items():
        queue = queues.get(broker_id)
        brokers.append(
            {
                "broker_id": broker_id,
                "epoch": broker.epoch,
                "shutting_down": broker_id in context.shutting_down_broker_ids,
                "offline_replicas": len(context.replicas_on_offline_dirs.get(broker_id, ())),
                "queue_size": 0 if queue is None else queue.size,
                "sending": None if queue is None else queue.sending,
                "sending_for_ms": 0 if queue is None else round(queue.sending_for_ms),
                # Without a channel the controller has logged that the broker lacks the listener.
                "trouble": "it has no listener for the controller" if queue is None else queue.trouble,
            }
        )
    return brokers


# -- partitions -------------------------------------------------------------------------------------------------------


async def _out_of_order(context: ControllerContext) -> tuple[list[PartitionKey], list[PartitionKey]]:
    """Partitions without a leader, and led partitions that lack in-sync replicas. Leaves out partitions in deletion."""
    offline, under_replicated = [], []
    async for piece in slices(context.all_partitions()):
        for partition in piece:
            if context.is_topic_queued_up_for_deletion(partition[0]):
                continue
            assignment = context.partition_full_replica_assignment(partition)
            state = context.partition_leadership_info(partition)
            if state is None or not context.is_replica_online(state.leader, partition, True):
                offline.append(partition)
            elif len(state.isr) < len(assignment.origin_replicas):
                under_replicated.append(partition)
    return offline, under_replicated


def _partition(context: ControllerContext, partition: PartitionKey, why: str) -> dict[str, Any]:
    state = context.partition_leadership_info(partition)
    return {
        "topic": partition[0],
        "partition": partition[1],
        "leader": -1 if state is None else state.leader,
        "leader_epoch": -1 if state is None else state.leader_epoch,
        "isr": [] if state is None else state.isr,
        "replicas": context.partition_replica_assignment(partition),
        "why": why,
    }


def _why_offline(context: ControllerContext, partition: PartitionKey) -> str:
    state = context.partition_leadership_info(partition)
    if state is None:
        return f"never led: {_absences(context, partition, context.partition_replica_assignment(partition))}"
    absences = _absences(context, partition, state.isr)
    return f"no in-sync replica can lead: {absences}" if absences else "a leader is about to be elected"


def _why_out_of_sync(context: ControllerContext, partition: PartitionKey) -> str:
    state = context.partition_leadership_info(partition)
    isr = () if state is None else state.isr
    return _lag(context, partition, [id_ for id_ in context.partition_replica_assignment(partition) if id_ not in isr])


def _lag(context: ControllerContext, partition: PartitionKey, missing: Iterable[int]) -> str:
    """The reasons why these replicas are not in the ISR."""
    missing = list(missing)
    online = [broker_id for broker_id in missing if context.is_replica_online(broker_id, partition)]
    behind = f"not caught up: {_ids(online)}" if online else ""
    return "; ".join(filter(None, (_absences(context, partition, missing), behind)))


def _absences(context: ControllerContext, partition: PartitionKey, broker_ids: Iterable[int]) -> str:
    """Which of these replicas are not online, and why; "" when all are online."""
    dead, stopping, broken = [], [], []
    for broker_id in broker_ids:
        if broker_id not in context.live_or_shutting_down_broker_ids:
            dead.append(broker_id)
        elif broker_id in context.shutting_down_broker_ids:
            stopping.append(broker_id)
        elif not context.is_replica_online(broker_id, partition):
            broken.append(broker_id)
    found = (("not alive", dead), ("shutting down", stopping), ("on a disk that does not work", broken))
    return "; ".join(f"{what}: {_ids(ids)}" for what, ids in found if ids)


def _ids(broker_ids: Iterable[int]) -> str:
    return "broker " + ", ".join(map(str, broker_ids))


# -- deletions and reassignments --------------------------------------------------------------------------------------


def _deletion(context: ControllerContext, topic: str) -> Steps[dict[str, Any] | None]:
    """None for a topic that is deleted meanwhile."""
    replicas = deleted = 0
    started: set[int] = set()
    is_ineligible = topic in context.topics_ineligible_for_deletion
    moving, absence = None, ""
    taken = Slices()
    for partition in context.partitions_for_topic(topic):
        if topic not in context.topics_to_be_deleted:
            return None
        if moving is None and partition in context.partitions_being_reassigned:
            moving = partition
        for broker_id in context.partition_replica_assignment(partition):
            state = context.replica_state((partition, broker_id))
            replicas += 1
            deleted += state is ReplicaState.DELETION_SUCCESSFUL
            if state is ReplicaState.DELETION_STARTED:
                started.add(broker_id)
            if is_ineligible and not absence:
                absence = _absences(context, partition, (broker_id,))
        if taken.spend():
            yield
    is_started = context.is_topic_deletion_in_progress(topic)
    if started:
        waits_for = f"the answers of {_ids(sorted(started))}"
    elif moving is not None:
        what = _reassignment(context, moving)["waits_for"]
        waits_for = f"the reassignment of {moving[0]}-{moving[1]}: {what}"
    elif is_ineligible:
        waits_for = absence or "a start of the brokers that could not delete it"
    else:
        waits_for = "its turn"
    return {
        "topic": topic,
        "started": is_started,
        "step": "deleting" if is_started else "not started",
        "replicas": replicas,
        "deleted": deleted,
        "waits_for": waits_for,
    }


def _reassignment(context: ControllerContext, partition: PartitionKey) -> dict[str, Any]:
    replicas, adding, removing = assignment = context.partition_full_replica_assignment(partition)
    state = context.partition_leadership_info(partition)
    isr = () if state is None else state.isr
    missing = [broker_id for broker_id in assignment.target_replicas if broker_id not in isr]
    if missing:
        waits_for = _lag(context, partition, missing)
    else:
        waits_for = _absences(context, partition, assignment.target_replicas) or "its turn"
    return {
        "topic": partition[0],
        "partition": partition[1],
        "replicas": replicas,
        "adding_replicas": adding,
        "removing_replicas": removing,
        "isr": isr,
        "step": "new replicas catch up" if missing else "old replicas leave",
        "waits_for": waits_for,
    }
