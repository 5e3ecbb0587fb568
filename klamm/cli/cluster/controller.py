"""`klamm controller`: shows which broker is the controller, its work and what blocks it, and forces a new election.

ZooKeeper holds the controller's id and the HTTP port of its status (`jmx_port` of its registration, see
klamm.metrics.port). A broker names ZooKeeper's address (its config zookeeper.connect). A controller of Apache Kafka has
no such port, so the commands show only what ZooKeeper holds about it.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from klamm.access.controller import (
    LOOK_EVERY_S,
    ControllerAddress,
    NotKlamm,
    _lines,
    _not_klamm,
    _object,
    _require_controller,
    find_controller,
    move_controller,
    read_status,
    zookeeper_of_brokers,
)
from klamm.access.zookeeper import open_znodes
from klamm.base.visible import visible
from klamm.cli.shared import interrupts
from klamm.cli.shared.options import ClusterOptions, Commands
from klamm.cli.shared.output import TABS, print_line, stream_line
from klamm.diagnosis.cluster_view import joined
from klamm.diagnosis.controller_records import record_text
from klamm.processes.tool_errors import ToolError

app = Commands("Watch the controller, or move it.")


@dataclass(frozen=True)
class ControllerOptions(ClusterOptions):
    """The cluster of a command that asks ZooKeeper for the controller."""

    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT/CHROOT", help="ZooKeeper's address; by default a broker is asked for it."),
    ] = None

    def zookeeper_address(self) -> str:
        """ZooKeeper's connect string: the option's value, or the brokers' own."""
        return self.call(zookeeper_of_brokers) if self.zookeeper is None else self.zookeeper


# -- the commands -----------------------------------------------------------------------------------------------------


@app.command(epilog="Example: klamm controller status --json")
def status(cluster: ControllerOptions) -> None:
    """Show which broker is the controller, what it is doing, and what pending work is blocked on."""
    address = _require_controller(find_controller(cluster.zookeeper_address()))
    details, trouble = None, None
    try:
        details = read_status(address) if address.port is not None else None
    except NotKlamm:
        pass
    except ToolError as error:
        trouble = error
    if not address.registered:
        trouble = ToolError(f"broker {address.broker_id} is not registered: it has died, or lost its session")
    cluster.show(
        {**asdict(address), "status": details}, status_lines(address, details, is_silent=trouble is not None), keep=TABS
    )
    if trouble is not None:
        raise trouble


@app.command(epilog="Example: klamm controller move --zookeeper 127.0.0.1:2181")
def move(cluster: ControllerOptions) -> None:
    """Make the controller resign, so that the brokers elect a new one (which may be the same broker)."""
    connect = cluster.zookeeper_address()
    import asyncio

    interrupts.from_now_on(look=("controller", "status"))
    before, after = asyncio.run(_move(connect))
    same = ", again" if after.broker_id == before.broker_id else ""
    lines = (
        f"The controller was broker {before.broker_id} (epoch {before.epoch}).",
        f"The controller is broker {after.broker_id} (epoch {after.epoch}){same}.",
    )
    cluster.show({"before": asdict(before), "after": asdict(after)}, lines)


@app.command(epilog="Example: klamm controller events --follow")
def events(
    cluster: ControllerOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until Ctrl-C, also across elections.")] = False,
) -> None:
    """Show the controller's recent decisions and actions; with --follow also the new ones as they happen."""
    connect = cluster.zookeeper_address()
    for record in controller_records(connect, follow):
        stream_line(json.dumps(record) if cluster.as_json else record_line(record))


def controller_records(
    connect: str,
    follow: bool,
    warn: Callable[[str], object] = lambda text: print_line(f"klamm: {text}", file=sys.stderr),
) -> Iterator[dict[str, Any]]:
    """The records of the controller of the cluster at this ZooKeeper, each once. With `follow` it never ends, and
    continues after an election.

    Raises ToolError. With `follow`, errors after the first record go to `warn` instead.
    """
    last = (-1, -1)
    while True:
        is_patient = follow and last > (-1, -1)
        try:
            address = find_controller(connect)
        except ToolError as error:
            if not is_patient:
                raise
            warn(f"{error}; trying again")
            address = None
        if address is None and is_patient:
            time.sleep(LOOK_EVERY_S)
            continue
        address = _require_controller(address)
        for record in _records(address, follow, warn, is_patient=is_patient):
            # Epochs only grow. Each epoch belongs to one run of one broker, which numbers its records.
            key = (record.get("epoch", last[0]), record.get("sequence", last[1]))
            if record["kind"] != "missed" and key <= last:
                continue
            last = key
            yield record
        if not follow:
            return
        time.sleep(LOOK_EVERY_S)


# -- output -----------------------------------------------------------------------------------------------------------


def status_lines(
    address: ControllerAddress, status: Mapping[str, Any] | None, *, is_silent: bool = False
) -> Iterator[str]:
    """The status as text. `is_silent`: the controller should have sent its status, and did not."""
    where = visible(address.addresses.get(address.broker_id, address.host))
    yield f"Controller: broker {address.broker_id}{' at ' if where else ''}{where}, epoch {address.epoch}"
    yield f"Since: {_moment(address.since_ms)} {_time_zone(address.since_ms)}"
    if address.port is not None:
        yield f"Status port: {address.port} ({address.url}/controller)"
    if is_silent:
        return
    if status is None:
        yield "No further status: the broker runs Apache Kafka, or its klamm.metrics.port is -1."
        return
    if not status["active"]:
        yield "ZooKeeper names this broker, but it is not active: it is taking over, or has lost its session."
        return
    doing = f"{status['event']} for {status['event_for_ms']} ms" if status["event"] else "nothing"
    yield f"State: {status['state']} (doing {doing})"
    waits = f", the first for {status['event_waits_ms']} ms" if status["event_queue_size"] else ""
    yield f"Event queue: {status['event_queue_size']} events{waits}"
    yield (
        f"Cluster: {len(status['brokers'])} brokers, {status['topics']} topics, {status['partitions']} partitions,"
        f" {status['preferred_replica_imbalance']} not led by their preferred replica"
    )
    for broker in status["brokers"]:
        listens = visible(address.addresses.get(broker["broker_id"], "unknown"))
        yield f"\tBroker: {broker['broker_id']}\tAddress: {listens}\tEpoch: {broker['epoch']}\t{_send_queue(broker)}"
    for title, key, line in (
        ("Offline partitions", "offline_partitions", _partition_line),
        ("Under-replicated partitions", "under_replicated_partitions", _partition_line),
        ("Deletions in progress", "deletions", _deletion_line),
        ("Reassignments in progress", "reassignments", _reassignment_line),
    ):
        yield from _list_lines(title, status[key], line)


def _moment(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1000))


def _time_zone(time_ms: int) -> str:
    """The time zone of `_moment`: its name and its offset from UTC."""
    local = time.localtime(time_ms / 1000)
    return f"{local.tm_zone} ({time.strftime('%z', local)})"


def _send_queue(broker: Mapping[str, Any]) -> str:
    parts = [f"Queue: {broker['queue_size']}"]
    if broker["sending"]:
        parts.append(f"Sending: {visible(broker['sending'])} for {broker['sending_for_ms']} ms")
    if broker["offline_replicas"]:
        parts.append(f"OfflineReplicas: {broker['offline_replicas']}")
    if broker["shutting_down"]:
        parts.append("shutting down")
    if broker["trouble"]:
        parts.append(f"Trouble: {visible(broker['trouble'])}")
    return "\t".join(parts)


def _list_lines(title: str, listed: Mapping[str, Any], line: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
    yield f"{title}: {listed['count']}"
    for item in listed["first"]:
        yield f"\t{line(item)}"
    left = listed["count"] - len(listed["first"])
    if left:
        yield f"\t... and {left} more"


def _partition_line(item: Mapping[str, Any]) -> str:
    leader = "none" if item["leader"] < 0 else item["leader"]
    return (
        f"Topic: {visible(item['topic'])}\tPartition: {item['partition']}\tLeader: {leader}"
        f"\tReplicas: {joined(item['replicas'])}\tIsr: {joined(item['isr'])}\tWhy: {visible(item['why'])}"
    )


def _deletion_line(item: Mapping[str, Any]) -> str:
    deleted = f"Deleted: {item['deleted']} of {item['replicas']} replicas"
    return f"Topic: {visible(item['topic'])}\t{deleted}\tWaits for: {visible(item['waits_for'])}"


def _reassignment_line(item: Mapping[str, Any]) -> str:
    return (
        f"Topic: {visible(item['topic'])}\tPartition: {item['partition']}\tReplicas: {joined(item['replicas'])}"
        f"\tAddingReplicas: {joined(item['adding_replicas'])}\tRemovingReplicas: {joined(item['removing_replicas'])}"
        f"\tIsr: {joined(item['isr'])}\tWaits for: {visible(item['waits_for'])}"
    )


def record_line(record: Mapping[str, Any]) -> str:
    """A record as one line of text."""
    if record["kind"] == "missed":
        return f"... {record['records']} records are missing: the controller wrote them faster than klamm read them"
    milliseconds = record["time_ms"] % 1000
    when = f"{_moment(record['time_ms'])},{milliseconds:03} controller {record['controller']} epoch {record['epoch']}"
    return f"{when} {record['event'] or '-'}: {record_text(record)}"


# -- where the controller is ------------------------------------------------------------------------------------------


async def _move(connect: str) -> tuple[ControllerAddress, ControllerAddress]:
    async with open_znodes(connect) as store:
        return await move_controller(store)


# -- the controller's HTTP port ---------------------------------------------------------------------------------------


def _records(
    address: ControllerAddress, follow: bool, warn: Callable[[str], object], *, is_patient: bool
) -> Iterator[dict[str, Any]]:
    """The controller's records. Raises ToolError.

    If `is_patient`, and after the first record of a follow, an error goes to `warn` instead. A controller that is
    followed sends something every few seconds, so silence means that it is gone.
    """
    if address.port is None:
        raise ToolError(
            f"broker {address.broker_id} serves no events: it runs Apache Kafka, or its klamm.metrics.port is -1"
        )
    try:
        for line in _lines(address, "/controller/events?follow" if follow else "/controller/events"):
            if not line.endswith(b"\n"):
                raise ToolError(f"broker {address.broker_id} has stopped in the middle of a record")
            record = _object(address, line)
            if "kind" not in record:
                raise _not_klamm(address)
            if record["kind"] != "idle":
                yield record
            is_patient = follow
    except ToolError as error:
        if not is_patient:
            raise
        warn(f"{error}; looking for the controller")
