"""Plans what `klamm topics` creates, alters and deletes. Pure.

A plan is made from the cluster as it was read. If the cluster has changed since, the broker or the version of the znode
shows that when the plan is carried out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import typer

from klamm.base.visible import visible
from klamm.diagnosis.cluster_view import BrokerView, PartitionView, joined
from klamm.processes.tool_errors import ToolError

OPTION = "--replica-assignment"


class Chance(Protocol):
    """Draws a number. `random.Random` fits."""

    def randrange(self, stop: int, /) -> int: ...


def parse_assignment(text: str) -> list[list[int]]:
    """The brokers of each partition from "0:1,1:2". Raises typer.BadParameter."""
    try:
        assignment = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form broker:broker,broker:broker", param_hint=OPTION
        ) from None
    for number, brokers in enumerate(assignment):
        if len(set(brokers)) < len(brokers):
            raise typer.BadParameter(f"partition {number} has a broker twice", param_hint=OPTION)
        if len(brokers) != len(assignment[0]):
            raise typer.BadParameter("every partition must have the same number of brokers", param_hint=OPTION)
    return assignment


# -- placement --------------------------------------------------------------------------------------------------------


def place_topic(
    brokers: Mapping[int, BrokerView], partitions: int, replication_factor: int, chance: Chance, *, rack_aware: bool
) -> dict[int, list[int]]:
    """The replicas of a new topic. Raises ToolError."""
    count = max(1, len(brokers))
    return _place(
        brokers, partitions, replication_factor, chance.randrange(count), chance.randrange(count), 0, rack_aware
    )


def place_partitions(
    brokers: Mapping[int, BrokerView], existing: Mapping[int, PartitionView], total: int, *, rack_aware: bool
) -> dict[int, list[int]]:
    """The replicas of the new partitions, up to `total` partitions. Raises ToolError.

    The round robin continues from the first partition's preferred leader.
    """
    first = existing[0].replicas
    start = next((place for place, each in enumerate(sorted(brokers)) if each >= first[0]), 0)
    added = total - len(existing)
    return _place(brokers, added, len(existing[0].origin), start, start, len(existing), rack_aware)


def _place(
    brokers: Mapping[int, BrokerView],
    partitions: int,
    replication_factor: int,
    start_index: int,
    shift: int,
    first_partition: int,
    rack_aware: bool,
) -> dict[int, list[int]]:
    from klamm.base.slices import in_one_go
    from klamm.broker.topics.replica_assignment import InvalidPartitions, InvalidReplicationFactor, assign_replicas

    racks = {each.broker_id: each.rack for each in brokers.values() if each.rack is not None} if rack_aware else {}
    if racks and len(racks) < len(brokers):
        raise ToolError(
            f"Not all brokers have rack information: {joined(sorted(set(brokers) - set(racks)))} have no rack. Add"
            " --disable-rack-aware to place replicas without regard to racks."
        )
    try:
        return in_one_go(
            assign_replicas(
                sorted(brokers),
                partitions,
                replication_factor,
                start_index=start_index,
                shift=shift,
                first_partition=first_partition,
                racks=racks or None,
            )
        )
    except (InvalidPartitions, InvalidReplicationFactor) as error:
        raise ToolError(str(error)) from None


def assignment_lines(assignment: Mapping[int, Sequence[int]]) -> Iterator[str]:
    for number, replicas in assignment.items():
        yield f"\tPartition: {number}\tReplicas: {joined(replicas)}"


# -- alterations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `klamm topics alter`: a number of partitions, and configs to set and to delete."""

    partitions: int | None = None
    assignment: Sequence[Sequence[int]] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    deleted_configs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Alteration:
    """The changes of one topic. `assignment` has the new partitions; None if the brokers place them.

    `partitions` and `count` are the numbers of partitions after and before. In `configs`, None deletes the config.
    """

    topic: str
    count: int
    partitions: int | None = None
    assignment: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


def alterations(topics: Mapping[str, Mapping[int, PartitionView]], wanted: Wanted) -> list[Alteration]:
    """The changes of these topics for `wanted`. Raises ToolError.

    With several topics, those that already have the wanted number of partitions stay as they are, so that an
    interrupted command can be run again.
    """
    if len(topics) > 1 and any(len(existing) != wanted.partitions for existing in topics.values()):
        only_configs = replace(wanted, partitions=None, assignment=None)
        changes = [
            alteration(name, existing, only_configs if len(existing) == wanted.partitions else wanted)
            for name, existing in topics.items()
        ]
        return [each for each in changes if each.partitions is not None or each.configs]
    return [alteration(name, existing, wanted) for name, existing in topics.items()]


def alteration(topic: str, existing: Mapping[int, PartitionView], wanted: Wanted) -> Alteration:
    """The changes of this topic for `wanted`, with its assignment. Raises ToolError.

    As in Kafka's tool, an assignment names the brokers of all partitions; existing partitions are not moved.
    """
    configs: dict[str, str | None] = {**dict.fromkeys(wanted.deleted_configs), **wanted.configs}
    total, count = wanted.partitions, len(existing)
    if total is None:
        return Alteration(topic, count, configs=configs)
    if total <= count:
        raise ToolError(
            "The number of partitions for a topic can only be increased."
            f" Topic {topic} currently has {count} partitions, {total} would not be an increase."
        )
    if any(each.is_reassigning for each in existing.values()):
        raise ToolError(f"Topic {topic} is being reassigned; add partitions when that is done")
    if wanted.assignment is None:
        return Alteration(topic, count, total, None, configs)
    if len(wanted.assignment) != total:
        raise ToolError(f"{OPTION} has {len(wanted.assignment)} partitions, --partitions is {total}")
    new = {number: tuple(wanted.assignment[number]) for number in range(count, total)}
    return Alteration(topic, count, total, new, configs)


def alteration_lines(change: Alteration, configs: Mapping[str, str | None]) -> Iterator[str]:
    """The plan for one topic, which has these configs now."""
    if change.partitions is not None:
        where = "" if change.assignment is not None else ", placed by the brokers"
        yield f"Topic: {visible(change.topic)}\tPartitionCount: {change.count} -> {change.partitions}{where}"
        yield from assignment_lines(change.assignment or {})
    for key, value in change.configs.items():
        before = configs.get(key)
        if before != value:
            yield (
                f"Topic: {visible(change.topic)}\tConfig: {visible(key)}:"
                f" {'not set' if before is None else visible(before)} ->"
                f" {'not set' if value is None else visible(value)}"
            )


def alteration_value(change: Alteration, error: str | None) -> dict[str, Any]:
    return {
        "topic": change.topic,
        "partitions": change.count if change.partitions is None else change.partitions,
        "partitions_before": change.count,
        "configs": dict(change.configs),
        "error": error,
    }


def deletion_lines(topics: Mapping[str, Mapping[int, PartitionView]]) -> Iterator[str]:
    for name, partitions in topics.items():
        factor = len(next(iter(partitions.values())).origin) if partitions else 0
        yield f"Delete topic: {visible(name)}\tPartitionCount: {len(partitions)}\tReplicationFactor: {factor}"


def question(verb: str, topics: Sequence[str]) -> str:
    return f"{verb} topic {topics[0]}?" if len(topics) == 1 else f"{verb} {len(topics)} topics?"
