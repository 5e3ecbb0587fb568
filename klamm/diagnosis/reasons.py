"""Why a partition is not healthy, in words. Pure.

A reason names the broker, and what an operator can check or do. A healthy partition has no reasons.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from klamm.base.words import brokers_text
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.partition_health import (
    is_off_preferred,
    is_unavailable,
    is_under_min_isr,
    out_of_sync,
)
from klamm.diagnosis.topic_descriptions import TopicDescription
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER

LogEnds = Mapping[int, int | KafkaError]
"""The log end offset of each replica that was asked, by broker, or why it is unknown."""

# A reason names at most this many partitions.
NAMED = 10


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The known facts about a partition besides its state. `live` are the live brokers; `deletion_waits_for` says what
    a deletion of the topic waits for. `broken` are the live brokers with an offline log directory, None if the brokers
    were not asked."""

    live: AbstractSet[int]
    log_ends: LogEnds = field(default_factory=dict)
    min_insync_replicas: int | None = None
    unclean: bool | None = None
    marked_for_deletion: bool = False
    deletion_waits_for: Sequence[str] = ()
    broken: AbstractSet[int] | None = None


def replicas_to_ask(partition: PartitionView, live: AbstractSet[int]) -> list[int]:
    """The replicas whose log ends tell how far an unhealthy partition is from healthy."""
    if is_unavailable(partition, live):
        return []
    return [
        each for each in partition.replicas if each in live and (each not in partition.isr or each == partition.leader)
    ]


def explained(
    topic: TopicDescription,
    numbers: Iterable[int],
    live: AbstractSet[int],
    log_ends: Mapping[int, LogEnds],
    *,
    about_preferred: bool = False,
) -> TopicDescription:
    """The topic with the reasons of these partitions. `log_ends` has each partition whose replicas were asked."""
    found = {}
    waits_for = tuple(_deletion_waits_for(topic, live)) if topic.marked_for_deletion else ()
    for number in numbers:
        known = Circumstances(
            live,
            log_ends.get(number, {}),
            topic.min_insync_replicas,
            topic.unclean,
            topic.marked_for_deletion,
            waits_for,
        )
        if why := reasons(topic.partitions[number], known, about_preferred=about_preferred):
            found[number] = why
    return replace(topic, reasons=found)


def reasons(partition: PartitionView, known: Circumstances, *, about_preferred: bool = False) -> list[str]:
    """Why this partition is not healthy; with `about_preferred` also why the preferred leader does not lead."""
    if known.marked_for_deletion:
        copying = [each for each in partition.target if partition.is_reassigning and each not in partition.isr]
        of_copies = (absence(partition, each, known) for each in copying)
        return list(dict.fromkeys(("the topic is being deleted", *known.deletion_waits_for, *of_copies)))
    found = list(_reasons(partition, known))
    if about_preferred and is_off_preferred(partition):
        found += [each for each in _off_preferred(partition, known) if each not in found]
    return found


def _deletion_waits_for(topic: TopicDescription, live: AbstractSet[int]) -> Iterator[str]:
    moving = [number for number, partition in sorted(topic.partitions.items()) if partition.is_reassigning]
    if moving:
        named = ", ".join(map(str, moving[:NAMED])) + (" ..." if len(moving) > NAMED else "")
        of = f"partition {named}" if len(moving) == 1 else f"partitions {named}"
        yield f"the deletion waits for the reassignment of {of}: see `klamm reassign list`, or cancel it"
    replicas = {each for partition in topic.partitions.values() for each in partition.origin}
    for broker_id in sorted(replicas - live):
        yield f"broker {broker_id} is not live"


def _reasons(partition: PartitionView, known: Circumstances) -> Iterator[str]:
    if partition.leader == NO_LEADER:
        yield from _without_leader(partition, known)
        return
    if is_unavailable(partition, known.live):
        yield f"the leader, broker {partition.leader}, is not live, and no other is elected yet"
    yield from (absence(partition, broker_id, known) for broker_id in out_of_sync(partition))
    if is_under_min_isr(partition, known.min_insync_replicas):
        yield (
            f"the ISR has {len(partition.isr)} of the {known.min_insync_replicas} replicas that min.insync.replicas"
            " requires: producers with acks=all are refused"
        )


def absence(partition: PartitionView, broker_id: int, known: Circumstances) -> str:
    """Why a replica is not in the ISR."""
    offline = outage(partition, broker_id, known)
    if offline is not None:
        return offline
    end, leader_end = known.log_ends.get(broker_id), known.log_ends.get(partition.leader)
    match end:
        case KafkaError(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION | ErrorCode.NOT_LEADER_OR_FOLLOWER):
            return f"broker {broker_id} has no replica yet"
        case KafkaError(code=ErrorCode.NETWORK_EXCEPTION):
            return f"broker {broker_id} does not answer: {end.message}"
        case KafkaError():
            return f"broker {broker_id} answers {error_name(end.code)}"
    if not isinstance(end, int) or not isinstance(leader_end, int):
        return f"broker {broker_id} is live, but not in the ISR"
    behind = leader_end - end
    if behind > 0:
        return f"broker {broker_id} is {behind} records behind the leader"
    if behind < 0:
        return f"broker {broker_id} has {-behind} records that the leader lacks, and has not truncated them yet"
    return f"broker {broker_id} has all records of the leader, but is not in the ISR yet"


def outage(partition: PartitionView, broker_id: int, known: Circumstances) -> str | None:
    """Why a replica cannot serve because its broker or log directory has failed, or None.

    Brokers also list replicas that were offline in the controller's last update, such as those of a broker that has
    come back since.
    """
    if broker_id not in known.live:
        return f"broker {broker_id} is not live"
    end = known.log_ends.get(broker_id)
    is_refused = isinstance(end, KafkaError) and end.code is ErrorCode.KAFKA_STORAGE_ERROR
    if is_refused or (broker_id in partition.offline and broker_id in (known.broken or ())):
        return f"broker {broker_id} has the replica in a log directory that is offline"
    if broker_id not in partition.offline or isinstance(end, int):
        return None
    if known.broken is None:
        return (
            f"broker {broker_id} is live, but its replica is offline: its log directory has failed, or the controller"
            " has not used the replica since the broker came back"
        )
    return (
        f"broker {broker_id} is live, but its replica is offline: the controller has not used it since the broker came"
        " back"
    )


def election_due(able: Sequence[int]) -> str:
    """The sentence that these replicas of the ISR can lead."""
    return f"{brokers_text(able)} of the ISR can lead, and the controller has not elected a leader yet"


def none_of_isr(partition: PartitionView) -> str:
    """The sentence that no replica of the ISR can lead."""
    # Kafka 4 also removes the last replica from the ISR when it fails, and keeps it as an eligible leader replica.
    return f"no replica of the ISR ({brokers_text(partition.isr)}) can lead" if partition.isr else "the ISR is empty"


def _without_leader(partition: PartitionView, known: Circumstances) -> Iterator[str]:
    if not partition.isr and partition.leader_epoch == NO_EPOCH:
        yield "no leader was elected yet"
        return
    offline = {each: outage(partition, each, known) for each in dict.fromkeys((*partition.isr, *partition.replicas))}
    if any(offline[each] is None for each in partition.isr):
        yield election_due([each for each in partition.isr if offline[each] is None])
        return
    yield none_of_isr(partition)
    yield from (why for why in offline.values() if why is not None)
    able = [each for each in partition.replicas if offline[each] is None]
    if able and known.unclean:
        yield f"{brokers_text(able)} can be elected, as unclean.leader.election.enable is true"
    elif able:
        yield (
            f"{brokers_text(able)} may not lead, as records may be lost and unclean.leader.election.enable is false:"
            " start the brokers that are down, or see `klamm elect unclean`"
        )


def _off_preferred(partition: PartitionView, known: Circumstances) -> Iterator[str]:
    preferred = partition.replicas[0]
    if preferred in partition.isr and outage(partition, preferred, known) is None:
        yield f"the preferred leader, broker {preferred}, is in the ISR: `klamm elect preferred` elects it"
    else:
        yield absence(partition, preferred, known)
