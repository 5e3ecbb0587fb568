"""Brokers as a table, in detail, and as values for --json. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from klamm.base.visible import visible
from klamm.base.words import address_text, size_text
from klamm.base.words import table_lines as table
from klamm.diagnosis.cluster_facts import ClusterFacts
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.health import version_text
from klamm.diagnosis.partition_health import out_of_sync
from klamm.protocol.vocabulary import TopicPartition

_TITLES = ("BROKER", "ADDRESS", "RACK", "LEADERS", "REPLICAS", "BEHIND", "SIZE", "SOFTWARE")


@dataclass(slots=True)
class Tally:
    """A broker's counts of replicas, of leaders, and of replicas that should be in the ISR and are not."""

    replicas: int = 0
    leaders: int = 0
    preferred_leaders: int = 0
    behind: int = 0


def tallies(facts: ClusterFacts) -> dict[int, Tally]:
    """The tally of every broker that is live or named in an assignment, by id."""
    found = {broker_id: Tally() for broker_id in sorted([*facts.brokers, *facts.missing])}
    for each in facts.view.partitions.values():
        behind = out_of_sync(each)
        for broker_id in each.replicas:
            tally = found[broker_id]
            tally.replicas += 1
            tally.leaders += broker_id == each.leader
            tally.behind += broker_id in behind
        for broker_id in each.replicas[:1]:
            found[broker_id].preferred_leaders += 1
    return found


def table_lines(facts: ClusterFacts, most: int | None = None) -> Iterator[str]:
    """A line for each live broker, and for each broker that only assignments name. A star marks the controller.

    With more than `most` brokers, only the controller and the first ones with a fault are shown.
    """
    rows: list[Sequence[str]] = [_TITLES]
    found = tallies(facts)
    faulty = [broker_id for broker_id, tally in found.items() if _has_fault(facts, broker_id, tally)]
    shown = list(found)
    if most is not None and len(found) > most:
        shown = [each for each in found if each in faulty[:most] or each == facts.controller_id]
    for broker_id in shown:
        tally = found[broker_id]
        broker = facts.brokers.get(broker_id)
        numbers = (str(tally.leaders), str(tally.replicas), str(tally.behind))
        name = f"{broker_id}{'*' if broker_id == facts.controller_id else ''}"
        if broker is None:
            rows.append((name, "not in the cluster", "-", *numbers, "-", "-"))
            continue
        size = "-" if broker.error is not None else size_text(broker.size_bytes)
        software = "does not answer" if broker.error is not None else broker.software or "-"
        rows.append((name, address_text(*broker.address), broker.rack or "-", *numbers, size, software))
    yield from table(rows)
    if len(shown) < len(found):
        hidden = len(set(faulty) - set(shown))
        yield f"... and {len(found) - len(shown)} more, {hidden or 'none'} of them with a fault (klamm brokers list)"


def _has_fault(facts: ClusterFacts, broker_id: int, tally: Tally) -> bool:
    broker = facts.brokers.get(broker_id)
    return broker is None or broker.error is not None or tally.behind > 0 or any(each.error for each in broker.log_dirs)


def description_lines(facts: ClusterFacts, broker_id: int) -> Iterator[str]:
    """One broker in detail."""
    broker, tally = facts.brokers.get(broker_id), tallies(facts)[broker_id]
    if broker is None:
        yield f"Broker: {broker_id}\tnot in the cluster"
    else:
        controller = "\tController" if broker_id == facts.controller_id else ""
        address = visible(address_text(*broker.address))
        yield f"Broker: {broker_id}\tAddress: {address}\tRack: {visible(broker.rack or 'none')}{controller}"
        if broker.error is not None:
            yield visible(f"Does not answer: {broker.error}")
        else:
            yield visible(f"Software: {version_text(broker)}")
    yield (
        f"Replicas: {tally.replicas}\tLeaders: {tally.leaders}\tPreferredLeaders: {tally.preferred_leaders}"
        f"\tNotInSync: {tally.behind}"
    )
    for key, each in facts.on(broker_id).items():
        if broker_id in out_of_sync(each):
            yield f"{_partition(key, each)}\tNot in sync"
        if broker_id in each.adding or broker_id in each.removing:
            what = "is being added" if broker_id in each.adding else "is being removed"
            yield f"{_partition(key, each)}\tReplica {what}"
    if broker is None:
        return
    for log_dir in broker.log_dirs:
        future = f"\tFutureReplicas: {log_dir.future_replicas}" if log_dir.future_replicas else ""
        disk = (
            f"\tDisk: {size_text(log_dir.usable_bytes)} of {size_text(log_dir.total_bytes)} free"
            if log_dir.total_bytes > 0
            else ""
        )
        state = f"\tOffline: {visible(log_dir.error)}" if log_dir.error is not None else ""
        yield (
            f"LogDir: {visible(log_dir.path)}\tReplicas: {log_dir.replicas}{future}"
            f"\tSize: {size_text(log_dir.size_bytes)}{disk}{state}"
        )
    for name, value in broker.throttles.items():
        yield visible(f"Throttle: {name}={value}")


def values(facts: ClusterFacts, broker_ids: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """These brokers, or all, for --json."""
    found = tallies(facts)
    return [_value(facts, each, found[each]) for each in (found if broker_ids is None else broker_ids)]


def _value(facts: ClusterFacts, broker_id: int, tally: Tally) -> dict[str, Any]:
    broker = facts.brokers.get(broker_id)
    found: dict[str, Any] = {
        "broker": broker_id,
        "live": broker is not None,
        "controller": broker_id == facts.controller_id,
        "leaders": tally.leaders,
        "replicas": tally.replicas,
        "not_in_sync": tally.behind,
    }
    if broker is None:
        return found
    return {
        **found,
        "address": address_text(*broker.address),
        "rack": broker.rack,
        "software": broker.software or None,
        "inter_broker_protocol_version": broker.protocol,
        "error": broker.error,
        "throttles": dict(broker.throttles),
        "log_dirs": [
            {
                "path": each.path,
                "error": each.error,
                "replicas": each.replicas,
                "future_replicas": each.future_replicas,
                "size_bytes": each.size_bytes,
                "total_bytes": None if each.total_bytes < 0 else each.total_bytes,
                "usable_bytes": None if each.usable_bytes < 0 else each.usable_bytes,
            }
            for each in broker.log_dirs
        ],
    }


def _partition(key: TopicPartition, each: PartitionView) -> str:
    leader = "none" if each.leader < 0 else each.leader
    return f"\tTopic: {visible(key.topic)}\tPartition: {key.partition}\tLeader: {leader}"
