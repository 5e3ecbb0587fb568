"""Plans elections: which partitions get a new leader, and which records that may cost. Pure.

A preferred election loses no record that all in-sync replicas have, because it only elects replicas in the ISR. It
truncates records that a producer sent with acks=1 and that the preferred replica has not fetched yet, so the election
of a replica that is far behind is delayed. An unclean election may lose any record; its plan shows the known loss.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from klamm.diagnosis.cluster_view import ClusterView, PartitionView, joined
from klamm.diagnosis.partition_health import is_unavailable
from klamm.diagnosis.reasons import Circumstances, LogEnds, absence, outage
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

# A plan shows at most this many partitions, and counts the rest.
SHOWN_PARTITIONS = 20
# The preferred replica of a busy partition is always a little behind.
DEFAULT_MAX_LAG = 10_000
MISSING = "UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist"

PartitionLogEnds = Mapping[TopicPartition, LogEnds]
NO_LOG_ENDS: PartitionLogEnds = {}


# -- the partitions ---------------------------------------------------------------------------------------------------


def parse_partitions(text: str | bytes) -> list[TopicPartition]:
    """The partitions of Kafka's JSON file, `{"partitions": [{"topic": "t", "partition": 0}]}`. Raises ToolError."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"Replica election data is not JSON: {error}") from None
    entries = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ToolError('Replica election data is missing "partitions" field')
    partitions = Counter(_partition(entry) for entry in entries)
    if twice := [each for each, count in partitions.items() if count > 1]:
        raise ToolError(f"Replica election data contains duplicate partitions: {named(twice)}")
    if not partitions:
        raise ToolError("Replica election data is empty")
    return sorted(partitions)


def _partition(entry: Any) -> TopicPartition:
    match entry:
        case {"topic": str(topic), "partition": int(number)} if not isinstance(number, bool):
            return TopicPartition(topic, number)
    raise ToolError(f'Replica election data has {json.dumps(entry)}, which is not {{"topic": "t", "partition": 0}}')


@dataclass(frozen=True, slots=True)
class Scope:
    """The partitions that a command is for: all of the cluster, all of `topic`, or `partitions`."""

    topic: str | None = None
    partitions: Sequence[TopicPartition] | None = None

    @property
    def topics(self) -> list[str] | None:
        if self.partitions is not None:
            return sorted({each.topic for each in self.partitions})
        return None if self.topic is None else [self.topic]

    @property
    def is_open(self) -> bool:
        """Whether the scope is a topic or the cluster. Partitions that need no election are then left out."""
        return self.partitions is None

    def of(self, view: ClusterView) -> list[TopicPartition]:
        """The partitions, including named ones that do not exist. Raises ToolError for a topic that does not exist."""
        if self.partitions is not None:
            return list(self.partitions)
        if self.topic is not None and not any(each.topic == self.topic for each in view.partitions):
            raise ToolError(f"Topic '{self.topic}' does not exist")
        return list(view.partitions)


# -- preferred leaders ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreferredPlan:
    """`due` are the partitions whose preferred replica can be elected. `refused` holds others, with the reason."""

    due: list[TopicPartition] = field(default_factory=list)
    not_needed: list[TopicPartition] = field(default_factory=list)
    refused: dict[TopicPartition, str] = field(default_factory=dict)


def preferred_plan(
    view: ClusterView,
    wanted: Iterable[TopicPartition],
    *,
    log_ends: PartitionLogEnds = NO_LOG_ENDS,
) -> PreferredPlan:
    """Sorts the partitions into due, not needed and refused elections."""
    plan = PreferredPlan()
    for key in wanted:
        partition = view.partitions.get(key)
        if partition is None:
            plan.refused[key] = MISSING
        elif partition.leader == partition.replicas[0]:
            plan.not_needed.append(key)
        elif (obstacle := _obstacle(partition, view, log_ends.get(key, {}))) is not None:
            plan.refused[key] = obstacle
        else:
            plan.due.append(key)
    return plan


def _obstacle(partition: PartitionView, view: ClusterView, log_ends: LogEnds) -> str | None:
    """Why the preferred replica cannot be elected."""
    preferred, known = partition.replicas[0], Circumstances(view.brokers.keys(), log_ends)
    why = absence(partition, preferred, known)
    if preferred in partition.isr and outage(partition, preferred, known) is None:
        # A broker that hangs stays in the ISR until it has been behind for replica.lag.time.max.ms.
        end = log_ends.get(preferred)
        hangs = isinstance(end, KafkaError) and end.code is ErrorCode.NETWORK_EXCEPTION
        return f"PREFERRED_LEADER_NOT_AVAILABLE: {why}" if hangs else None
    return f"PREFERRED_LEADER_NOT_AVAILABLE: the ISR is {joined(partition.isr)}; {why}"


def lagging(
    view: ClusterView, wanted: Iterable[TopicPartition], log_ends: PartitionLogEnds, max_lag: int
) -> dict[TopicPartition, str]:
    """The partitions whose preferred replica is more than `max_lag` records behind the leader, and its lag."""
    found = {}
    for key in wanted:
        partition = view.partitions[key]
        preferred, ends = partition.replicas[0], log_ends.get(key, {})
        leader_end, end = ends.get(partition.leader), ends.get(preferred)
        if isinstance(leader_end, int) and isinstance(end, int) and leader_end - end > max_lag:
            found[key] = (
                f"broker {preferred} is {leader_end - end} records behind the leader, and --max-lag allows {max_lag}"
            )
    return found


def unsettled(before: ClusterView, now: ClusterView, elected: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """The elected partitions that have lost in-sync replicas, or whose new leader is not known yet."""
    found = {}
    for key in elected:
        was, each = before.partitions[key], now.partitions.get(key)
        if each is None:
            continue  # The topic was deleted.
        lost = [member for member in was.isr if member not in each.isr and member in each.replicas]
        if each.leader == NO_LEADER:
            found[key] = "has no leader"
        elif each.leader == was.leader and each.leader_epoch == was.leader_epoch:
            found[key] = f"is still led by broker {each.leader}"
        elif lost:
            why = "; ".join(absence(each, member, Circumstances(now.brokers.keys())) for member in lost)
            found[key] = f"had the ISR {joined(was.isr)} and has {joined(each.isr)}: {why}"
    return found


def without_live_leader(elected: Iterable[TopicPartition], now: ClusterView) -> dict[TopicPartition, str]:
    """The elected partitions that have no live leader."""
    return {
        key: "has no live leader"
        for key in elected
        if (each := now.partitions.get(key)) is not None and is_unavailable(each, now.brokers)
    }


def batches(partitions: Sequence[TopicPartition], size: int) -> Iterator[list[TopicPartition]]:
    for start in range(0, len(partitions), size):
        yield list(partitions[start : start + size])


def preferred_lines(view: ClusterView, due: Sequence[TopicPartition], batch_size: int) -> Iterator[str]:
    """The plan in lines: each partition's new leader, and how many partitions each broker leads."""
    for key in due[:SHOWN_PARTITIONS]:
        partition = view.partitions[key]
        leader = "none" if partition.leader == NO_LEADER else partition.leader
        yield f"{key}: leader {leader} -> {partition.replicas[0]}"
    if len(due) > SHOWN_PARTITIONS:
        yield f"... and {len(due) - SHOWN_PARTITIONS} more partitions"
    leads = Counter(each.leader for each in view.partitions.values())
    after = leads.copy()
    for key in due:
        after[view.partitions[key].leader] -= 1
        after[view.partitions[key].replicas[0]] += 1
    for broker_id in sorted(view.brokers):
        if leads[broker_id] != after[broker_id]:
            yield f"Broker {broker_id} leads {leads[broker_id]} -> {after[broker_id]} partitions of these topics"
    count = -(-len(due) // batch_size)
    if count > 1:
        yield f"{len(due)} partitions in {count} batches; each waits until the one before has settled"


# -- unclean elections ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """The known loss of an unclean election of one partition.

    `candidate` is the replica that the controller will elect. `lost_at_least` counts the records between its log end
    and the largest known offset, which is that of the replica or group `known_from`. `silent` are members of the ISR
    (any replicas if the ISR is empty) with unknown log ends: their records beyond that offset are lost, too.
    """

    candidate: int
    log_end_offset: int | None
    lost_at_least: int
    known_from: str | None
    silent: Mapping[int, str]
    is_clean: bool = False

    @property
    def is_known(self) -> bool:
        return self.is_clean or (self.log_end_offset is not None and not self.silent)


@dataclass(frozen=True, slots=True)
class UncleanPlan:
    """`commits_gap` says why the committed offsets of some groups are unknown; None if all are known."""

    due: dict[TopicPartition, Loss] = field(default_factory=dict)
    not_needed: list[TopicPartition] = field(default_factory=list)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    commits_gap: str | None = None

    @property
    def may_lose_more(self) -> str | None:
        """Why groups may have committed later offsets, so that the losses may be greater than the plan says; or
        None."""
        return None if all(loss.is_known for loss in self.due.values()) else self.commits_gap


Committed = Mapping[TopicPartition, tuple[int, str]]
"""The largest offset that a group has committed in a partition, and the group."""

NO_COMMITS: Committed = {}


def leaderless(view: ClusterView, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions without a live leader, for which an unclean election may be needed."""
    return [
        key for key in wanted if (each := view.partitions.get(key)) is not None and is_unavailable(each, view.brokers)
    ]


def unclean_plan(
    view: ClusterView,
    wanted: Iterable[TopicPartition],
    log_ends: PartitionLogEnds = NO_LOG_ENDS,
    committed: Committed = NO_COMMITS,
) -> UncleanPlan:
    """Sorts the partitions into due, not needed and refused elections, with the losses of the due ones."""
    plan = UncleanPlan()
    for key in wanted:
        partition = view.partitions.get(key)
        if partition is None:
            plan.refused[key] = MISSING
        elif not is_unavailable(partition, view.brokers):
            plan.not_needed.append(key)
        else:
            known = Circumstances(view.brokers.keys(), log_ends.get(key, {}))
            able = [each for each in partition.replicas if outage(partition, each, known) is None]
            if able:
                plan.due[key] = _loss(partition, able, known, committed.get(key))
            else:
                why = "; ".join(absence(partition, each, known) for each in partition.replicas)
                plan.refused[key] = f"ELIGIBLE_LEADERS_NOT_AVAILABLE: no replica can lead: {why}"
    return plan


def _loss(
    partition: PartitionView, able: Sequence[int], known: Circumstances, committed: tuple[int, str] | None
) -> Loss:
    in_sync = [each for each in able if each in partition.isr]
    candidate = (in_sync or able)[0]
    end = known.log_ends.get(candidate)
    log_end = end if isinstance(end, int) else None
    if in_sync:
        return Loss(candidate, log_end, 0, None, {}, is_clean=True)
    others = [
        (each_end, f"broker {each}")
        for each, each_end in known.log_ends.items()
        if each != candidate and isinstance(each_end, int)
    ]
    if committed is not None:
        others.append((committed[0], f"group {committed[1]}"))
    furthest, source = max(others, default=(0, None))
    lost = 0 if log_end is None else max(0, furthest - log_end)
    # Kafka 4 also removes the last replica from the ISR when it fails. Then any replica may have all records.
    silent = {
        each: absence(partition, each, known)
        for each in partition.isr or partition.replicas
        if each != candidate and not isinstance(known.log_ends.get(each), int)
    }
    return Loss(candidate, log_end, lost, source if lost else None, silent)


def grown_losses(shown: UncleanPlan, now: UncleanPlan) -> dict[TopicPartition, str]:
    """The partitions that would now lose more than the plan has shown, and their losses."""
    return {
        key: f"the loss has grown since it was shown: {loss_text(loss)}"
        for key, loss in now.due.items()
        if _is_greater(loss, shown.due[key])
    }


def _is_greater(loss: Loss, shown: Loss) -> bool:
    if loss.is_clean:
        return False
    is_end_lost = loss.log_end_offset is None and shown.log_end_offset is not None
    return loss.lost_at_least > shown.lost_at_least or is_end_lost or not loss.silent.keys() <= shown.silent.keys()


def unclean_lines(plan: UncleanPlan) -> Iterator[str]:
    """The plan in lines. Every partition is shown, with its expected loss."""
    for key, loss in plan.due.items():
        end = "at an unknown offset" if loss.log_end_offset is None else f"at offset {loss.log_end_offset}"
        yield f"{key}: leader none -> {loss.candidate}, whose log ends {end}; {loss_text(loss)}"
    if plan.may_lose_more is not None:
        yield f"Some groups may have committed later offsets, so more may be lost: {plan.may_lose_more}"


def loss_text(loss: Loss) -> str:
    if loss.is_clean:
        return "no record is lost, as it is in the ISR"
    silent = "; ".join(loss.silent.values())
    if loss.lost_at_least:
        least = "" if loss.is_known else "at least "
        known = f"{least}{loss.lost_at_least} records are lost: the log of {loss.known_from} goes further"
        if loss.known_from is not None and loss.known_from.startswith("group "):
            known = f"{least}{loss.lost_at_least} records are lost: {loss.known_from} has committed a later offset"
        return f"{known}; {silent}, and what only it has is lost too" if silent else known
    if silent:
        return f"the loss is unknown: {silent}, and what only it has is lost"
    return "no loss is known"


def loss_value(key: TopicPartition, loss: Loss) -> dict[str, Any]:
    return {
        **key._asdict(),
        "candidate": loss.candidate,
        "log_end_offset": loss.log_end_offset,
        "lost_at_least": loss.lost_at_least,
        "known_from": loss.known_from,
        "loss_is_known": loss.is_known,
    }


def named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
