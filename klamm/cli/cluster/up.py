"""`klamm up`: a whole cluster on this machine: embedded ZooKeeper and brokers, each a process of its own.

The command keeps everything in one directory: `zookeeper/` and `broker-N/` hold the data, `NAME.log` each process's
log, `broker-N.properties` the properties with which `klamm broker` runs that broker by itself. Called again with the
same directory, the command starts the cluster with all its data.

What must stay true: a start that fails because of its options or of a port in use creates no directory.
"""

import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from klamm.access.properties import parse_pairs
from klamm.cli.cluster.cockpit import COCKPIT, COCKPIT_NAME
from klamm.cli.cluster.up_view import View, make_view
from klamm.cli.shared.clients import AsJson
from klamm.config.broker import BrokerConfig, unknown_key_problem
from klamm.config.definition import ConfigError
from klamm.config.listeners import Listener
from klamm.config.properties import format_properties
from klamm.processes.local_cluster import HOST, ZOOKEEPER, LocalCluster, Plan, listeners_of
from klamm.processes.supervisor import ServerFailed, ServerProcess
from klamm.processes.tool_errors import ToolError, describe_os_error

REFRESH_S = 1.0


def up(
    brokers: Annotated[int, typer.Option(min=1, max=1000, help="Number of brokers.")] = 3,
    directory: Annotated[Path, typer.Option("--dir", help="Directory of all data and logs.")] = Path("klamm-data"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the first broker, the others follow; 0 takes any free ports.")
    ] = 9092,
    zookeeper_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of ZooKeeper; 0 takes any free port.")
    ] = 0,
    override: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A broker property for all brokers; may be repeated.")
    ] = None,
    restart: Annotated[
        bool, typer.Option(help="Start a broker, or ZooKeeper, again when its process has died.")
    ] = False,
    control_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Accept faults for this cluster at this port of 127.0.0.1, from klamm faults or over HTTP;"
            " 0 takes any free port. By default there is no such port.",
        ),
    ] = None,
    cockpit: Annotated[
        bool, typer.Option(help="Serve a web page that shows the cluster and its controller at work.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a cluster until Ctrl-C; then stop it cleanly. Called again it continues with the same data."""
    started_at = time.monotonic()
    if port and port + brokers - 1 > 65535:
        raise typer.BadParameter(
            f"{brokers} brokers need the ports {port} to {port + brokers - 1}", param_hint="--port"
        )
    overrides = parse_pairs("--override", override or [])
    directory = directory.absolute()
    plan = Plan(directory, brokers, port, zookeeper_port, overrides=overrides)
    check_ports(check_overrides(plan), zookeeper_port, control_port)
    signal.signal(signal.SIGTERM, _interrupt)
    cluster, open_control = _make_cluster(plan, control_port)
    view = make_view(as_json)
    ready = False
    try:
        view.told("starting", brokers=brokers, directory=str(directory))
        controller = cluster.start(lambda server: _tell_ready(view, server, directory))
        ready = True
        view.told(
            "ready",
            bootstrap=cluster.bootstrap,
            zookeeper=cluster.zookeeper,
            controller=controller,
            seconds=round(time.monotonic() - started_at, 3),
        )
        if open_control is not None:
            url, file = open_control()
            view.told("control_ready", url=url, file=file)
        if cockpit:
            arguments = {"bootstrap": cluster.bootstrap, "zookeeper": cluster.zookeeper, "host": HOST, "port": 0}
            server = cluster.processes.start(COCKPIT_NAME, COCKPIT, arguments)
            server.wait_ready()
            _tell_ready(view, server, directory)
        with view.watching(cluster.bootstrap):
            watch(cluster, view, restart=restart)
    except ServerFailed as error:
        # The end of the server's log may follow.
        reason, *log = str(error).split("\n")
        raise ToolError(reason, details=log) from error
    except KeyboardInterrupt:
        # Ctrl-C is the usual end of a running cluster, and an interruption of a cluster that was not ready yet.
        if not ready:
            raise
        if died := cluster.died():
            raise ToolError(f"these servers had died: {_names(died)}") from None
    finally:
        try:
            view.told("stopping")
        finally:
            cluster.close()
        view.told("stopped")


def _make_cluster(plan: Plan, control_port: int | None) -> tuple[LocalCluster, Callable[[], tuple[str, str]] | None]:
    """The cluster, and the function that opens its control port, if it has one."""
    if control_port is None:
        return LocalCluster(plan), None
    # A cluster without a control port never imports faults.
    from klamm.cli.cluster.up_control import UpCluster

    cluster = UpCluster(plan)
    return cluster, partial(cluster.serve, control_port)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def check_overrides(plan: Plan) -> list[Listener]:
    """The listeners of all brokers. Raises ToolError for a bad override, before anything is started."""
    own = [key for key in ("broker.id", "zookeeper.connect", "log.dirs", "log.dir") if key in plan.overrides]
    if own:
        raise ToolError(f"{own[0]} cannot be overridden: klamm up sets it for each broker (use klamm broker instead)")
    listeners: list[Listener] = []
    for broker_id in range(plan.brokers):
        properties = plan.properties(broker_id, port=plan.port_of(broker_id), zookeeper=HOST)
        try:
            config = BrokerConfig.from_properties(properties)
        except ConfigError as error:
            raise ToolError(str(error)) from error
        listeners += config.listeners
    unknown = [key for key in plan.overrides if key in config.unknown_keys]
    if unknown:
        raise ToolError(unknown_key_problem(unknown[0]))
    if reasons := config.unsupported_reasons():
        raise ToolError("; ".join(reasons))
    return listeners


def check_ports(listeners: Iterable[Listener], zookeeper_port: int, control_port: int | None) -> None:
    """Raises ToolError for a port that is in use, before anything is started."""
    wanted = [(f"--zookeeper-port {zookeeper_port}", HOST, zookeeper_port)]
    if control_port is not None:
        wanted.append((f"--control-port {control_port}", HOST, control_port))
    wanted += [(f"listener {listener}", listener.host, listener.port) for listener in listeners]
    with ExitStack() as opened:
        for what, host, port in wanted:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                taken = opened.enter_context(socket.socket(family))
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind((host, port))
                taken.listen()
            except OSError as error:
                raise ToolError(f"{what}: {describe_os_error(error)}") from error


def metrics_url(broker: ServerProcess) -> str | None:
    """The URL of a ready broker's metrics; None when klamm.metrics.port=-1."""
    assert broker.details is not None
    port = broker.details["metrics_port"]
    return None if port is None else f"http://{listeners_of(broker)[0][0]}:{port}/metrics"


def file_of(broker: ServerProcess, directory: Path) -> Path:
    """The properties of a broker as a file, for `klamm broker`."""
    return directory / f"{broker.name}.properties"


def _tell_ready(view: View, server: ServerProcess, directory: Path) -> None:
    assert server.details is not None
    if "url" in server.details:
        view.told("cockpit_ready", url=server.details["url"], pid=server.pid)
        return
    if "broker_id" not in server.details:
        address = f"{server.details['host']}:{server.details['port']}"
        view.told("zookeeper_ready", address=address, pid=server.pid)
        return
    file_of(server, directory).write_bytes(
        format_properties(
            server.arguments["properties"],
            ["Each start of klamm up writes this file anew. klamm broker FILE runs the broker by itself."],
        )
    )
    view.told(
        "broker_ready",
        broker_id=server.details["broker_id"],
        address=":".join(map(str, listeners_of(server)[0])),
        pid=server.pid,
        metrics=metrics_url(server),
    )


def watch(cluster: LocalCluster, view: View, *, restart: bool) -> None:
    """Watches the cluster until Ctrl-C raises KeyboardInterrupt, and reports each server that dies.

    With `restart` a dead server is started again; a server that dies again before it is ready stays dead.

    Raises ServerFailed when the cluster cannot continue: ZooKeeper is gone, or the last broker.
    """
    servers = cluster.processes.servers
    told_ready = {server for server in servers.values() if server.details is not None}
    told_dead: set[ServerProcess] = set()

    def newly_ready() -> list[ServerProcess]:
        return [server for server in list(servers.values()) if server.details is not None and server not in told_ready]

    def newly_dead() -> list[ServerProcess]:
        return [server for server in cluster.died() if server not in told_dead]

    while True:
        view.refresh(
            brokers_up=sum(broker.running for broker in cluster.brokers),
            brokers_down=[broker.name for broker in cluster.brokers if not broker.running],
        )
        cluster.processes.wait(lambda: bool(newly_dead() or newly_ready()), REFRESH_S)
        for server in newly_ready():
            told_ready.add(server)
            _tell_ready(view, server, cluster.plan.directory)
        for server in newly_dead():
            told_dead.add(server)
            restarts = restart and server in told_ready
            may_return = server in cluster.brokers and any(broker.running for broker in cluster.brokers)
            file = file_of(server, cluster.plan.directory)
            view.told(
                "died",
                name=server.name,
                exit_code=server.exit_code,
                reason=server.obituary(),
                restarts=restarts,
                command=f"klamm broker {file}" if may_return and not restarts else None,
            )
            if restarts:
                cluster.processes.start(server.name, server.target, server.arguments)
        # Servers that the control port has ended can be started again.
        died = [server for server in cluster.died() if server in told_dead]
        if set(cluster.brokers) <= set(died) or any(server.name == ZOOKEEPER for server in died):
            raise ServerFailed(f"the cluster cannot continue without {_names(died)}")


def _names(servers: Iterable[ServerProcess]) -> str:
    return ", ".join(server.name for server in servers)
