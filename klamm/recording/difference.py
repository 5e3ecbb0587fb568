"""The difference between two states of a recording: as data that turns one state into the other, and in words. Pure.

What must stay true: `apply(difference(a, b), a)` equals b.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from klamm.protocol.vocabulary import PartitionKey
from klamm.recording.state import PartitionMoment, State, partitions_text

# A sentence names at most this many partitions or topics, and counts the rest.
NAMED = 5


class Changed(NamedTuple):
    """One value that differs. `before` is None if only the second state has the key, and `after` is None if only the
    first state has it: no section has None as a value."""

    section: str
    key: Any
    before: Any
    after: Any


def difference(before: State, after: State) -> list[Changed]:
    """The values that differ, in the order of the sections and their keys."""
    changed = []
    others = after.sections
    for name, section in before.sections.items():
        other = others[name]
        found = [
            Changed(name, key, value, now) for key, value in section.items() if (now := other.get(key)) != value
        ] + [Changed(name, key, None, value) for key, value in other.items() if key not in section]
        changed += sorted(found, key=lambda each: each.key)
    return changed


def apply(changes: Iterable[Changed], state: State) -> State:
    """A copy of the state with these changes."""
    made = state.copy()
    sections = made.sections
    for section, key, _, after in changes:
        if after is None:
            sections[section].pop(key, None)
        else:
            sections[section][key] = after
    return made


# -- in words ---------------------------------------------------------------------------------------------------------


def words(changes: Sequence[Changed]) -> list[str]:
    """Sentences about the changes: first the cluster's, then those of partitions, grouped by kind of change."""
    lines = list(_cluster_words(changes))
    partitions = [change for change in changes if change.section == "partitions"]
    lines += _partition_words(partitions)
    return lines or ["Nothing differs."]


def _cluster_words(changes: Sequence[Changed]) -> Iterator[str]:
    for section, key, before, after in changes:
        match section, key:
            case "cluster", "controller":
                yield f"The controller is {_broker(after)}; it was {_broker(before)}."
            case "cluster", "controller_epoch":
                yield f"The controller epoch is {after}; it was {before}."
            case "brokers", _ if before is None:
                yield f"Broker {key} is registered."
            case "brokers", _ if after is None:
                yield f"Broker {key} is no longer registered."
            case "brokers", _ if before.epoch != after.epoch:
                yield f"Broker {key} has registered again: its broker epoch is {after.epoch}, was {before.epoch}."
            case "servers", _:
                yield f"{'Broker ' if key.isdigit() else ''}{key} is {after}; it was {before or 'unknown'}."
            case "faults", _ if after is not None:
                yield f"A fault holds: {after}."
            case "faults", _:
                yield f"A fault has ended: {before}."
            case "deletions", _ if before is None:
                yield f"Topic {key} is to be deleted."
            case "topics", _ if before is None:
                yield f"Topic {key} exists, with {partitions_text(after.partitions)}."
            case "topics", _ if after is None:
                yield f"Topic {key} is deleted."
            case "topics", _ if before.czxid != after.czxid:
                yield f"Topic {key} was deleted and made anew, with {partitions_text(after.partitions)}."
            case "topics", _:
                yield f"Topic {key} has {partitions_text(after.partitions)}; it had {before.partitions}."


def _partition_words(changes: Sequence[Changed]) -> Iterator[str]:
    both = [change for change in changes if change.before is not None and change.after is not None]
    lost = [change for change in both if change.after.leader is None and change.before.leader is not None]
    if lost:
        yield f"{_count(lost)} lost {_of(lost, 'its', 'their')} leader: {_names(lost)}."
    found = [change for change in both if change.before.leader is None and change.after.leader is not None]
    if found:
        yield f"{_count(found)} {_of(found, 'has', 'have')} a leader again: {_names(found)}."
    moved = [change for change in both if _has_moved(change)]
    for (old, new), count in sorted(Counter((each.before.leader, each.after.leader) for each in moved).items()):
        of_these = [each for each in moved if (each.before.leader, each.after.leader) == (old, new)]
        yield f"{partitions_text(count)} moved from leader {old} to {new}: {_names(of_these)}."
    for verb, members in (("left", _left), ("joined", _joined)):
        counts = Counter(broker for change in both for broker in members(change))
        for broker, count in sorted(counts.items()):
            yield f"Broker {broker} {verb} the ISR of {partitions_text(count)}."
    reassigned = [change for change in both if change.after.replicas != change.before.replicas]
    if reassigned:
        yield f"{_count(reassigned)} {_of(reassigned, 'has', 'have')} other replicas: {_names(reassigned)}."
    begun = [change for change in both if change.after.is_reassigned and not change.before.is_reassigned]
    if begun:
        yield f"{_count(begun)} {_of(begun, 'is', 'are')} under reassignment: {_names(begun)}."


def _has_moved(change: Changed) -> bool:
    before: PartitionMoment = change.before
    after: PartitionMoment = change.after
    return before.leader is not None and after.leader is not None and before.leader != after.leader


def _left(change: Changed) -> set[int]:
    return set(change.before.isr) - set(change.after.isr)


def _joined(change: Changed) -> set[int]:
    return set(change.after.isr) - set(change.before.isr) if change.before.isr else set()


def _broker(broker: int | None) -> str:
    return "no broker" if broker is None else f"broker {broker}"


def _count(changes: Sequence[Changed]) -> str:
    return partitions_text(len(changes))


def _of(changes: Sequence[Changed], one: str, several: str) -> str:
    return one if len(changes) == 1 else several


def _names(changes: Sequence[Changed]) -> str:
    keys: list[PartitionKey] = [change.key for change in changes[:NAMED]]
    more = f" and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys) + more
