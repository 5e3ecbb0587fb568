"""Brokers as a table, in detail, and as values for --json. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from klamm.tools.cluster_facts import BrokerFacts, ClusterFacts
from klamm.tools.health import size_text, version_text

_TITLES = ("BROKER", "ADDRESS", "RACK", "LEADERS", "REPLICAS", "BEHIND", "SIZE", "SOFTWARE")


def table_lines(facts: ClusterFacts) -> Iterator[str]:
    """A line for each live broker, and for each that assignments name. The controller has a star."""
    rows: list[Sequence[str]] = [_TITLES]
    for broker_id in sorted([*facts.brokers, *facts.missing]):
        broker = facts.brokers.get(broker_id)
        leaders, replicas, behind = counts(facts, broker_id)
        name = f"{broker_id}{'*' if broker_id == facts.view.controller_id else ''}"
        if broker is None:
            rows.append((name, "not in the cluster", "-", str(leaders), str(replicas), str(behind), "-", "-"))
            continue
        size = "-" if broker.error is not None else size_text(broker.size_bytes)
        software = "does not answer" if broker.error is not None else broker.software
        rows.append(
            (name, address_text(broker), broker.rack or "-", str(leaders), str(replicas), str(behind), size, software)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def description_lines(facts: ClusterFacts, broker_id: int) -> Iterator[str]:
    """One broker in detail."""
    broker = facts.brokers.get(broker_id)
    leaders, replicas, behind = counts(facts, broker_id)
    if broker is None:
        yield f"Broker: {broker_id}\tnot in the cluster"
    else:
        controller = "\tController" if broker_id == facts.view.controller_id else ""
        yield f"Broker: {broker_id}\tAddress: {address_text(broker)}\tRack: {broker.rack or 'none'}{controller}"
        if broker.error is not None:
            yield f"Does not answer: {broker.error}"
        else:
            yield f"Software: {version_text(broker)}"
    preferred = sum(each.replicas[:1] == (broker_id,) for each in facts.view.partitions.values())
    yield f"Replicas: {replicas}\tLeaders: {leaders}\tPreferredLeaders: {preferred}\tNotInSync: {behind}"
    for key, each in facts.on(broker_id).items():
        if broker_id not in each.isr and broker_id not in each.adding:
            yield f"\tTopic: {key.topic}\tPartition: {key.partition}\tLeader: {_leader(each.leader)}\tNot in sync"
        if broker_id in each.adding or broker_id in each.removing:
            what = "is being added" if broker_id in each.adding else "is being removed"
            yield f"\tTopic: {key.topic}\tPartition: {key.partition}\tLeader: {_leader(each.leader)}\tReplica {what}"
    if broker is None:
        return
    for log_dir in broker.log_dirs:
        future = f"\tFutureReplicas: {log_dir.future_replicas}" if log_dir.future_replicas else ""
        disk = (
            f"\tDisk: {size_text(log_dir.usable_bytes)} of {size_text(log_dir.total_bytes)} free"
            if log_dir.total_bytes > 0
            else ""
        )
        state = f"\tOffline: {log_dir.error}" if log_dir.error is not None else ""
        yield (
            f"LogDir: {log_dir.path}\tReplicas: {log_dir.replicas}{future}\tSize: {size_text(log_dir.size_bytes)}"
            f"{disk}{state}"
        )
    for name, value in broker.throttles.items():
        yield f"Throttle: {name}={value}"


def value(facts: ClusterFacts, broker_id: int) -> dict[str, Any]:
    """A broker for --json."""
    broker = facts.brokers.get(broker_id)
    leaders, replicas, behind = counts(facts, broker_id)
    found: dict[str, Any] = {
        "broker": broker_id,
        "live": broker is not None,
        "controller": broker_id == facts.view.controller_id,
        "leaders": leaders,
        "replicas": replicas,
        "not_in_sync": behind,
    }
    if broker is None:
        return found
    return {
        **found,
        "address": address_text(broker),
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


def counts(facts: ClusterFacts, broker_id: int) -> tuple[int, int, int]:
    """Leaders, replicas, and replicas that should be in the ISR and are not."""
    on = facts.on(broker_id).values()
    behind = sum(broker_id in each.origin and broker_id not in each.isr for each in on)
    return sum(each.leader == broker_id for each in on), len(on), behind


def address_text(broker: BrokerFacts) -> str:
    host, port = broker.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _leader(leader: int) -> str:
    return "none" if leader < 0 else str(leader)
