"""Planted faults that take a guard away: what brokers then do is wrong at once, and loses records only sometimes.

The rules over what brokers do (`rules`, `group_rules`, `event_witness`, `state_checker`) find them in the moment in
which it is done.
"""

from typing import Any

from klamm.broker.request_errors import as_kafka_error
from klamm.broker.topics import topic_admin
from klamm.controller import broker_flows
from klamm.controller.bounces import PartitionStateWriter
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.features import compatible_brokers
from klamm.controller.parts import ControllerParts
from klamm.coordinator.groups import group_coordinator
from klamm.coordinator.groups.admission import commit_error, member_error
from klamm.coordinator.groups.group import Group
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.replication.partition import isr
from klamm.replication.partition import partition as hosted
from klamm.replication.partition.isr import CommittedIsr, IsrState
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.replica import Replica
from klamm.replication.state_changes import StateChanges
from klamm.storage.log.log import AppendInfo
from klamm.storage.log.producer_state import ProducerState
from klamm.znodes import requests
from klamm.znodes.controller_store import ControllerStore
from klamm.znodes.store import LiveBroker
from support.planted_faults.fault import PlantedFault, Replacement

# -- partitions -----------------------------------------------------------------------------------------------------


def _no_minimum(_partition: Partition) -> int:
    return 0


_append = Partition.append_records_as_leader


def _append_with_the_replica_that_is_to_join(partition: Partition, *arguments: Any, **options: Any) -> AppendInfo:
    state = partition.isr_state
    partition.isr_state = CommittedIsr(state.maximal_isr)
    try:
        return _append(partition, *arguments, **options)
    finally:
        partition.isr_state = state


def _may_join_before_the_epoch(
    state: IsrState, replica: Replica, high_watermark: int, _epoch_start_offset: int, log_start_offset: int
) -> bool:
    return isr.may_join(state, replica, high_watermark, 0, log_start_offset)


def _up_to_the_high_watermark(partition: Partition, _isolation_level: int) -> int:
    return partition.log.high_watermark


_first_unstable_offset = ProducerState.first_unstable_offset


def _latest_transaction(state: ProducerState) -> int | None:
    return next(reversed(state._ongoing), None) if state._ongoing else _first_unstable_offset.__get__(state)


_check = ProducerState.check


def _check_no_epoch(state: ProducerState, *arguments: Any) -> None:
    try:
        _check(state, *arguments)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
            raise


def _obey_any_controller(changes: StateChanges, epoch: int, *_: object) -> None:
    changes.controller_epoch = epoch


# -- groups ---------------------------------------------------------------------------------------------------------


def _commit_in_any_generation(group: Group, generation_id: int, *rest: Any) -> ErrorCode | None:
    return commit_error(group, generation_id if generation_id < 0 else group.generation_id, *rest)


def _commit_by_anyone(group: Group, *arguments: Any) -> ErrorCode | None:
    error = commit_error(group, *arguments)
    return None if error is ErrorCode.UNKNOWN_MEMBER_ID else error


def _member_in_any_generation(group: Group, generation_id: int, *rest: Any) -> ErrorCode | None:
    return member_error(group, group.generation_id, *rest)


def _same_generation(group: Group, _now_ms: int) -> None:
    generation_id = group.generation_id
    _begin_next_generation(group, _now_ms)
    group.generation_id = max(1, generation_id)


_begin_next_generation = Group.begin_next_generation


# -- the controller -------------------------------------------------------------------------------------------------


def _forget_waiting(manager: ControllerEventManager) -> None:
    manager._queue.clear()


async def _brokers_as_they_were(parts: ControllerParts) -> dict[int, LiveBroker]:
    known = parts.context.live_or_shutting_down_brokers
    return {id_: known.get(id_, broker) for id_, broker in (await compatible_brokers(parts)).items()}


_take_up_states = PartitionStateWriter.take_up


async def _take_up_trusting(writer: PartitionStateWriter, partitions: Any) -> dict[Any, Any]:
    await _take_up_states(writer, partitions)
    return {}


_delete_topic_guarded = ControllerStore.delete_topic_guarded


async def _delete_mark_first(store: ControllerStore, topic: str, guard: int) -> None:
    await store._delete_all([requests.delete_topic_path(topic)], guard)
    await _delete_topic_guarded(store, topic, guard)


GUARDS = (
    PlantedFault(
        "no-minimum-isr",
        "min.insync.replicas counts neither before the append nor before the answer",
        (Replacement(Partition, "min_insync_replicas", property(_no_minimum)),),
        "rules",
        "with acks=all while the ISR is|acknowledges the records before",
        10,
    ),
    PlantedFault(
        "minimum-of-the-proposed-isr",
        "min.insync.replicas counts a replica that is about to join the ISR",
        (Replacement(Partition, "append_records_as_leader", _append_with_the_replica_that_is_to_join),),
        "rules",
        "with acks=all while the ISR is",
        60,
    ),
    PlantedFault(
        "joins-before-the-epoch",
        "a replica joins the ISR that has not reached the start of the leader epoch",
        (Replacement(hosted, "may_join", _may_join_before_the_epoch),),
        "rules",
        "into the ISR, which lacks records before",
        60,
    ),
    PlantedFault(
        "uncommitted-reads",
        "read_committed reads up to the high watermark",
        (Replacement(Partition, "fetch_upper_bound", _up_to_the_high_watermark),),
        "rules",
        "with read_committed",
        10,
    ),
    PlantedFault(
        "latest-transaction",
        "the last stable offset is where the latest open transaction begins, not the earliest",
        (Replacement(ProducerState, "first_unstable_offset", property(_latest_transaction)),),
        "rules",
        "with read_committed",
        60,
    ),
    PlantedFault(
        "fenced-producer",
        "a log takes batches of a producer epoch that is over",
        (Replacement(ProducerState, "check", _check_no_epoch),),
        "rules",
        "of a producer that was fenced",
        60,
    ),
    PlantedFault(
        "former-controller",
        "a broker obeys a controller of an older epoch",
        (Replacement(StateChanges, "_check_controller_epoch", _obey_any_controller),),
        "invariants",
        "obeys a controller of epoch|goes back from leader epoch",
        60,
    ),
    PlantedFault(
        "former-generation",
        "a coordinator takes commits of a former generation",
        (Replacement(group_coordinator, "commit_error", _commit_in_any_generation),),
        "group_rules, group_workload",
        "a commit of .* is accepted|is acknowledged after generation",
        60,
    ),
    PlantedFault(
        "removed-member",
        "a coordinator takes commits of members that it has removed",
        (Replacement(group_coordinator, "commit_error", _commit_by_anyone),),
        "group_rules",
        "a commit of .* is accepted",
        60,
    ),
    PlantedFault(
        "assignment-of-another-generation",
        "a member of a former generation gets the assignment of the present one",
        (Replacement(group_coordinator, "member_error", _member_in_any_generation),),
        "group_workload",
        "the leader has given it|is in generation",
        60,
    ),
    PlantedFault(
        "generation-stays",
        "a rebalance does not begin the next generation",
        (Replacement(Group, "begin_next_generation", _same_generation),),
        "group_workload",
        " own |has given it",
        10,
    ),
    PlantedFault(
        "event-lost",
        "events that wait when the session ends are thrown away, and their senders get no answer",
        (Replacement(ControllerEventManager, "_preempt_waiting", _forget_waiting),),
        "event_witness",
        "has vanished",
        60,
    ),
    PlantedFault(
        "bounce-unnoticed",
        "the controller does not notice that a broker has registered anew",
        (Replacement(broker_flows, "compatible_brokers", _brokers_as_they_were),),
        "agreement, verdict",
        "not whole|clients wait|replicas differ",
        30,
    ),
    PlantedFault(
        "bounce-trusted",
        "a controller that takes over leaves replicas in the ISR that may have lost records",
        (Replacement(PartitionStateWriter, "take_up", _take_up_trusting),),
        "agreement",
        "has bounced, and has not left the ISR",
        60,
    ),
    PlantedFault(
        "mark-first",
        "a deletion removes its mark first; a controller that dies then leaves the rest of the topic",
        (Replacement(ControllerStore, "delete_topic_guarded", _delete_mark_first),),
        "state_checker",
        "loses its mark for deletion before",
        10,
    ),
    PlantedFault(
        "unwritten-deletion",
        "a deletion that was not written is answered like one that continues (REQUEST_TIMED_OUT)",
        (Replacement(topic_admin, "as_controllers_error", as_kafka_error),),
        "administration",
        "its deletion was answered|was created, and does not exist",
        100,
    ),
)
