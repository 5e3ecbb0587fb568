"""Replicas whose log belongs to another topic of the same name: their brokers refuse LeaderAndIsr with
INCONSISTENT_TOPIC_ID.

A refusal has one of two causes, and it does not tell which:
- The topic was deleted and created again while the broker was down (KAFKA-10548). The log is worthless. Nevertheless
  the replica may be in the ISR, where the controller puts all online replicas of a new topic.
- The topic's id was changed in ZooKeeper. The log has the topic's records, and so have the logs of the other replicas,
  whose brokers refuse as well. A leader that refuses still leads.

A broker of klamm deletes such a log and copies the leader's log when a request says that it is not in the ISR. So the
controller decides about the ISR. When a member of the ISR refuses, the other members get LeaderAndIsr again, because
their earlier answers were not stored:

| the members of the ISR that are online       | the ISR                   | the leader                                |
|----------------------------------------------|---------------------------|-------------------------------------------|
| one of them has the topic's id               | loses those that refuse   | the same unless it refuses, else that one |
| all refuse                                   | unchanged, logged once    | unchanged                                 |
| no answer yet from some, the others refuse   | unchanged                 | unchanged                                 |

What must stay true:
- No replica leaves the ISR before an online member has accepted the topic's id: that member has all committed records,
  and the log that is deleted is not their only copy.
- A broker that refuses although it is not in the ISR gets LeaderAndIsr at most once more: its first refusal may have
  been of a request that named it in the ISR. Kafka's brokers refuse each time.
"""

import logging
from collections.abc import Collection, Sequence

from klamm.base.slices import CHEAP_SLICE, slices
from klamm.controller.context import ControllerContext, PartitionAndReplica
from klamm.controller.leader_election import ElectionStrategy
from klamm.controller.parts import ControllerParts
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.vocabulary import PartitionKey

_log = logging.getLogger(__name__)


async def take_up_topic_id_answers(
    parts: ControllerParts, broker_id: int, accepted: Sequence[PartitionKey], refused: Sequence[PartitionKey]
) -> None:
    """A broker has answered LeaderAndIsr: it has `accepted` the topic ids of some partitions and `refused` others."""
    context = parts.context
    if not refused and not context.topic_id_answers:
        return
    told: list[PartitionAndReplica] = []
    split: list[PartitionKey] = []
    dead_ends: list[PartitionKey] = []
    async for piece in slices(refused, CHEAP_SLICE):
        for partition in _new_refusals(context, broker_id, piece):
            context.put_topic_id_answer(broker_id, partition, has_id=False)
            told += _to_tell(context, broker_id, partition)
            if _is_refused_by_all(context, partition):
                dead_ends.append(partition)
            elif _is_split(context, partition):
                split.append(partition)
    async for piece in slices(accepted, CHEAP_SLICE):
        for partition in piece:
            if partition in context.topic_id_answers:
                context.put_topic_id_answer(broker_id, partition, has_id=True)
                if _is_split(context, partition):
                    split.append(partition)
    if dead_ends:
        _report(context, dead_ends)
    await parts.replicas.handle_state_changes(told, ReplicaState.ONLINE)
    await parts.partitions.handle_state_changes(split, PartitionState.ONLINE, ElectionStrategy.TOPIC_ID)


def _new_refusals(
    context: ControllerContext, broker_id: int, partitions: Collection[PartitionKey]
) -> list[PartitionKey]:
    return [
        partition
        for partition in partitions
        if context.topic_id_answers.get(partition, {}).get(broker_id) is not False
        and broker_id in context.partition_replica_assignment(partition)
        and context.partition_leadership_info(partition) is not None
        and not context.is_partition_to_be_deleted(partition)
    ]


def _to_tell(context: ControllerContext, broker_id: int, partition: PartitionKey) -> list[PartitionAndReplica]:
    """The replicas that get LeaderAndIsr after a first refusal, without replicas that a reassignment removes."""
    state, answers = context.partition_leadership_info(partition), context.topic_id_answers[partition]
    if state is None:
        return []
    if broker_id in state.isr:
        told = [(partition, member) for member in _online_isr(context, partition) if member not in answers]
    else:
        has_leader = context.is_replica_online(state.leader, partition) and answers.get(state.leader, True)
        told = [(partition, broker_id)] if has_leader else []
    return [replica for replica in told if context.replica_state(replica) is ReplicaState.ONLINE]


def _online_isr(context: ControllerContext, partition: PartitionKey) -> list[int]:
    state = context.partition_leadership_info(partition)
    online = context.online_brokers(partition)
    replicas = context.partition_replica_assignment(partition)
    return [] if state is None else [member for member in replicas if member in state.isr and member in online]


def _is_refused_by_all(context: ControllerContext, partition: PartitionKey) -> bool:
    answers = context.topic_id_answers[partition]
    members = _online_isr(context, partition)
    return bool(members) and all(answers.get(member) is False for member in members)


def _is_split(context: ControllerContext, partition: PartitionKey) -> bool:
    """Whether members of the ISR refuse the topic's id, and another member that is online has it."""
    state, answers = context.partition_leadership_info(partition), context.topic_id_answers.get(partition)
    if state is None or not answers or context.is_partition_to_be_deleted(partition):
        return False
    return any(answers.get(member) is False for member in state.isr) and any(
        answers.get(member) for member in _online_isr(context, partition)
    )


def _report(context: ControllerContext, partitions: Sequence[PartitionKey]) -> None:
    topic, number = partitions[0]
    _log.error(
        "the logs of all in-sync replicas of %d partitions are of another topic id, and stay as they are; the first is"
        " %s-%d, in sync on brokers %s. If the id in /brokers/topics/%s was changed, write back that of the file"
        " partition.metadata beside the logs, and delete /controller. If the topic was deleted and created anew, stop"
        " a broker, remove the directories of the former logs, and start it",
        *(len(partitions), topic, number, _online_isr(context, partitions[0]), topic),
    )
