"""`klamm controller`: shows which broker is the controller, its work and what blocks it, and forces a new election.

ZooKeeper holds the controller's id and the HTTP port of its status (`jmx_port` of its registration, see
klamm.metrics.port). A broker names ZooKeeper's address (its config zookeeper.connect). A controller of Apache Kafka has
no such port, so the commands show only what ZooKeeper holds about it.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.processes.errors import ToolError
from klamm.tools import interrupts
from klamm.tools.clients import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, CommandConfig, run_with_client
from klamm.tools.cluster_view import joined
from klamm.tools.http_reading import HTTP_TIMEOUT_S, WrongAnswer, http_address, read_body, read_lines
from klamm.tools.output import TABS, print_line, print_lines, stream_line
from klamm.tools.words import address_text
from klamm.tools.zookeeper_access import open_znodes
from klamm.visible import visible

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.znodes.store import KafkaZooKeeper

app = typer.Typer(help="Watch the controller, or move it.", no_args_is_help=True, rich_markup_mode=None)

ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper", metavar="HOST:PORT/CHROOT", help="ZooKeeper's address; by default a broker is asked for it."
    ),
]

ELECTION_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class ControllerAddress:
    """The controller as ZooKeeper knows it. `port` is None when the controller serves no status over HTTP.

    A controller that is not registered has died or lost its session, and /controller still names it. `addresses` holds
    host:port of each live broker's first listener, by broker id.
    """

    broker_id: int
    epoch: int
    since_ms: int
    host: str
    port: int | None
    registered: bool = True
    addresses: Mapping[int, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The base URL of the controller's status; callers append a path."""
        return f"http://{address_text(self.host, self.port or 0)}"


class NotKlamm(ToolError):
    """The program at the controller's status port is not klamm; Apache Kafka has its JMX there, for example."""


# -- the commands -----------------------------------------------------------------------------------------------------


@app.command(epilog="Example: klamm controller status --json")
def status(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show which broker is the controller, what it is doing, and what pending work is blocked on."""
    address = _require_controller(find_controller(zookeeper_address(zookeeper, bootstrap_server, command_config)))
    details, trouble = None, None
    try:
        details = read_status(address) if address.port is not None else None
    except NotKlamm:
        pass
    except ToolError as error:
        trouble = error
    if not address.registered:
        trouble = ToolError(f"broker {address.broker_id} is not registered: it has died, or lost its session")
    if as_json:
        print_line(json.dumps({**asdict(address), "status": details}))
    else:
        print_lines(status_lines(address, details, is_silent=trouble is not None), keep=TABS)
    if trouble is not None:
        raise trouble


@app.command(epilog="Example: klamm controller move --zookeeper 127.0.0.1:2181")
def move(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Make the controller resign, so that the brokers elect a new one (which may be the same broker)."""
    connect = zookeeper_address(zookeeper, bootstrap_server, command_config)
    import asyncio

    interrupts.from_now_on(look=("controller", "status"))
    before, after = asyncio.run(_move(connect))
    if as_json:
        print_line(json.dumps({"before": asdict(before), "after": asdict(after)}))
    else:
        same = ", again" if after.broker_id == before.broker_id else ""
        print_line(f"The controller was broker {before.broker_id} (epoch {before.epoch}).")
        print_line(f"The controller is broker {after.broker_id} (epoch {after.epoch}){same}.")


@app.command(epilog="Example: klamm controller events --follow")
def events(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until Ctrl-C, also across elections.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the controller's recent decisions and actions; with --follow also the new ones as they happen."""
    connect = zookeeper_address(zookeeper, bootstrap_server, command_config)
    for record in controller_records(connect, follow):
        stream_line(json.dumps(record) if as_json else record_line(record))


def controller_records(
    connect: str,
    follow: bool,
    warn: Callable[[str], object] = lambda text: print_line(f"klamm: {text}", file=sys.stderr),
) -> Iterator[dict[str, Any]]:
    """The records of the controller of the cluster at this ZooKeeper, each once; with `follow` without end, also across
    elections.

    Raises ToolError; after the first record of a follow `warn` gets the errors.
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


def record_text(record: Mapping[str, Any]) -> str:
    """What a record says, without time, controller and event."""
    match record["kind"]:
        case "event":
            times = f"{record['processing_time_ms']} ms, after {record['queue_time_ms']} ms in the queue"
            return f"{record['outcome']} in {times}"
        case "controller":
            return str(record["text"])
        case "request":
            led = f", to lead {record['led']}" if "led" in record else ""
            deletes = " to delete them" if record.get("delete") else ""
            return f"{record['api']} to broker {joined(record['brokers'])}, {record['size']} partitions{led}{deletes}"
    whose = f"{record['topic']}-{record['partition']}"
    if record["kind"] == "replica":
        whose = f"replica {record['replica']} of {whose}"
    failed = "FAILED " if record["failed"] else ""
    text = f"{failed}{whose} {record['from']} -> {record['to']}"
    if record["leader"] is not None:
        text += f", leader {record['leader']} epoch {record['leader_epoch']} isr {joined(record['isr'])}"
    return f"{text}: {record['why']}" if record["why"] else text


# -- where the controller is ------------------------------------------------------------------------------------------


def zookeeper_address(zookeeper: str | None, bootstrap_server: str, command_config: Any) -> str:
    """ZooKeeper's connect string: the option's value, or the brokers' own."""
    if zookeeper is not None:
        return zookeeper
    return run_with_client(bootstrap_server, command_config, zookeeper_of_brokers)


async def zookeeper_of_brokers(client: "ClusterClient") -> str:
    """The zookeeper.connect of a broker that answers.

    Raises KafkaError when no broker answers, and ToolError when no broker is known or it has no zookeeper.connect.
    """
    from klamm.client.cluster import RetryPolicy
    from klamm.client.configs import ConfigResource, describe_configs
    from klamm.protocol.errors import KafkaError
    from klamm.protocol.vocabulary import ConfigResourceType

    await client.refresh_metadata(())
    failures: list[KafkaError] = []
    for broker_id in client.brokers_to_ask():
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id))
        # A broker that hangs or has just died is not asked again: another one may answer.
        found = (await describe_configs(client, [resource], ["zookeeper.connect"], retry=RetryPolicy(0)))[resource]
        if isinstance(found, KafkaError):
            failures.append(found)
            continue
        address = found.get("zookeeper.connect")
        if address is None or not address.value:
            raise ToolError(f"broker {broker_id} has no zookeeper.connect: this command is for clusters with ZooKeeper")
        return address.value
    raise failures[0] if failures else ToolError("the cluster's metadata names no live broker")


def find_controller(connect: str, timeout_s: float | None = None) -> ControllerAddress | None:
    """The current controller of the cluster at this ZooKeeper, or None. Raises ToolError, and after the time too."""
    import asyncio

    try:
        return asyncio.run(asyncio.wait_for(_find_controller(connect), timeout_s))
    except TimeoutError as error:
        raise ToolError(f"ZooKeeper at {connect} does not answer within {timeout_s} s") from error


async def _find_controller(connect: str) -> ControllerAddress | None:
    async with open_znodes(connect) as store:
        found = await read_controller(store)
        return None if found is None else found[0]


def _require_controller(address: ControllerAddress | None) -> ControllerAddress:
    if address is None:
        raise ToolError("the cluster has no controller now")
    return address


async def read_controller(store: "KafkaZooKeeper") -> tuple[ControllerAddress, int] | None:
    """The controller, and the version of /controller_epoch at its election."""
    from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, decode_controller_epoch
    from klamm.zookeeper.errors import NoNode

    data, found = b"", b""
    while True:
        before = found
        try:
            found, epoch = await store.client.get(CONTROLLER_EPOCH_PATH)
            if found == before:
                break  # The epoch did not change, so everything read in between belongs to it.
            data, _ = await store.client.get(CONTROLLER_PATH)
        except NoNode:
            return None
    controller = Controller.decode(data)
    live = await store.live_brokers()
    broker = live.get(controller.broker_id)
    host, port = "", None
    if broker is not None:
        host, port = http_address(broker.registration)
    number = decode_controller_epoch(found)
    address = ControllerAddress(
        controller.broker_id,
        number,
        controller.timestamp_ms,
        host,
        port,
        registered=broker is not None,
        addresses={each: _first_address(found.registration.endpoints) for each, found in sorted(live.items())},
    )
    return address, epoch.version


def _first_address(endpoints: Sequence[Any]) -> str:
    """The host:port of the first listener; brokers before Kafka 0.9 register no listeners."""
    if not endpoints:
        return "unknown"
    host = endpoints[0].host
    return f"[{host}]:{endpoints[0].port}" if ":" in host else f"{host}:{endpoints[0].port}"


async def _move(connect: str) -> tuple[ControllerAddress, ControllerAddress]:
    async with open_znodes(connect) as store:
        return await move_controller(store)


async def move_controller(
    store: "KafkaZooKeeper", epoch: int | None = None
) -> tuple[ControllerAddress, ControllerAddress]:
    """Makes the controller resign; returns it and the one that is elected. Raises ToolError.

    With `epoch` only the controller of this epoch: a later one stays.
    """
    import asyncio

    from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
    from klamm.zookeeper.errors import BadVersion, NoNode
    from klamm.zookeeper.messages import Check, Delete

    found = await read_controller(store)
    before = _require_controller(None if found is None else found[0])
    assert found is not None
    if epoch is not None and before.epoch != epoch:
        raise ToolError(f"the controller is broker {before.broker_id} with epoch {before.epoch} meanwhile")
    # If the old controller resigns by itself first, the check of the version protects its successor.
    with contextlib.suppress(NoNode, BadVersion):
        await store.client.multi([Check(CONTROLLER_EPOCH_PATH, found[1]), Delete(CONTROLLER_PATH)])
    deadline = time.monotonic() + ELECTION_TIMEOUT_S
    while True:
        found = await read_controller(store)
        if found is not None and found[0].epoch > before.epoch:
            return before, found[0]
        if time.monotonic() > deadline:
            raise ToolError(f"no controller was elected within {ELECTION_TIMEOUT_S:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


# -- the controller's HTTP port ---------------------------------------------------------------------------------------


def _records(
    address: ControllerAddress, follow: bool, warn: Callable[[str], object], *, is_patient: bool
) -> Iterator[dict[str, Any]]:
    """The controller's records. Raises ToolError.

    When `is_patient`, or after the first record of a follow, `warn` gets an error. The controller sends a
    follower something every few seconds, so silence means that the controller is gone.
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


def _lines(address: ControllerAddress, path: str, timeout_s: float = HTTP_TIMEOUT_S) -> Iterator[bytes]:
    try:
        yield from read_lines(f"{address.url}{path}", f"broker {address.broker_id}", timeout_s)
    except WrongAnswer as error:
        raise _not_klamm(address) from error


def read_events(address: ControllerAddress, timeout_s: float = HTTP_TIMEOUT_S) -> list[dict[str, Any]]:
    """The newest records of a broker that is or was the controller. Raises ToolError, and NotKlamm."""
    return [_object(address, line) for line in _lines(address, "/controller/events", timeout_s)]


def read_status(address: ControllerAddress, timeout_s: float = HTTP_TIMEOUT_S) -> dict[str, Any]:
    """What the controller says of itself. Raises ToolError, and NotKlamm."""
    try:
        return _object(address, read_body(f"{address.url}/controller", f"broker {address.broker_id}", timeout_s))
    except WrongAnswer as error:
        raise _not_klamm(address) from error


def _object(address: ControllerAddress, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _not_klamm(address)
    return found


def _not_klamm(address: ControllerAddress) -> NotKlamm:
    return NotKlamm(f"port {address.port} of broker {address.broker_id} is not klamm's status port")
