"""`klamm up`: a whole cluster on this machine: embedded ZooKeeper and brokers, each a process of its own.

The command keeps everything in one directory: `zookeeper/` and `broker-N/` hold the data, `NAME.log` each process's
log, `broker-N.properties` the properties with which `klamm broker` runs that broker by itself. Called again with the
same directory, the command starts the cluster with all its data.

What must stay true: a start that fails because of its options or of a port in use creates no directory.
"""

import signal
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.access.properties import parse_pairs
from klamm.cli.cluster.cockpit import COCKPIT, COCKPIT_NAME
from klamm.cli.cluster.up_view import View, make_view
from klamm.cli.shared.clients import AsJson
from klamm.config.broker import BrokerConfig, unknown_key_problem
from klamm.config.definition import ConfigError
from klamm.config.listeners import Listener
from klamm.config.properties import format_properties
from klamm.processes.errors import ToolError, describe_os_error
from klamm.processes.local_cluster import HOST, address_of, broker_arguments, broker_properties
from klamm.processes.supervisor import (
    BROKER,
    EMBEDDED_ZOOKEEPER,
    READY_TIMEOUT_S,
    Processes,
    ServerFailed,
    ServerProcess,
)

if TYPE_CHECKING:
    from klamm.cli.cluster.up_control import UpControl

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
        list[str] | None,
        typer.Option("--override", metavar="KEY=VALUE", help="A broker property for all brokers; may be repeated."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a broker, or ZooKeeper, again when its process has died.")
    ] = False,
    control_port: Annotated[
        int | None,
        typer.Option(
            "--control-port",
            min=0,
            max=65535,
            help="Take faults for this cluster at this port of 127.0.0.1, from klamm faults or over HTTP;"
            " 0 takes any free port. By default there is no such port.",
        ),
    ] = None,
    cockpit: Annotated[
        bool, typer.Option("--cockpit", help="Serve a web page that shows the cluster and its controller at work.")
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
    check_ports(check_overrides(overrides, directory, brokers, port), zookeeper_port, control_port)
    signal.signal(signal.SIGTERM, _interrupt)
    control = None if control_port is None else _make_control(directory, control_port)
    processes = Processes(directory) if control is None else control.processes(directory)
    view = make_view(as_json)
    cluster = UpServers(processes, brokers, port, zookeeper_port, overrides, control)
    try:
        cluster.start(view)
        view.told(
            "ready",
            bootstrap=cluster.bootstrap,
            zookeeper=cluster.zookeeper_address,
            controller=cluster.controller_id,
            seconds=round(time.monotonic() - started_at, 3),
        )
        if control is not None:
            url, file = control.serve()
            view.told("control_ready", url=url, file=file)
        if cockpit:
            _tell_ready(view, cluster.start_cockpit())
        with view.watching(cluster.bootstrap):
            watch(cluster, view, restart=restart)
    except ServerFailed as error:
        # The end of the server's log may follow.
        reason, *log = str(error).split("\n")
        raise ToolError(reason, details=log) from error
    except KeyboardInterrupt:
        # Ctrl-C is the usual end of a running cluster, and an interruption of a cluster that was not ready yet.
        if not cluster.ready:
            raise
        if cluster.dead:
            raise ToolError("these servers had died: " + ", ".join(cluster.dead)) from None
    finally:
        try:
            view.told("stopping")
        finally:
            if control is not None:
                control.close()
            stop(cluster)
        view.told("stopped")


def _make_control(directory: Path, port: int) -> "UpControl":
    # A cluster without a control port never imports faults.
    from klamm.cli.cluster.up_control import UpControl

    return UpControl(directory, port)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class UpServers:
    """The servers of `klamm up`.

    `dead`: the servers that have ended for good. `restarting`: the servers that were started again and are not ready.
    """

    def __init__(
        self,
        processes: Processes,
        brokers: int,
        port: int,
        zookeeper_port: int,
        overrides: Mapping[str, str],
        control: "UpControl | None" = None,
    ) -> None:
        self.processes = processes
        self.brokers: list[ServerProcess] = []
        self.zookeeper_address = ""
        self.controller_id: int | None = None
        self.ready = False
        self.dead: dict[str, ServerProcess] = {}
        self.restarting: dict[str, ServerProcess] = {}
        self._control = control
        self._count, self._port, self._zookeeper_port = brokers, port, zookeeper_port
        self._overrides = overrides

    def start(self, view: View) -> None:
        """Returns when every broker serves clients and knows all the others. Raises ServerFailed."""
        directory = self.processes.directory
        view.told("starting", brokers=self._count, directory=str(directory))
        if self._control is not None:
            self._control.open(self)
        zookeeper = self.processes.start(
            "zookeeper",
            EMBEDDED_ZOOKEEPER,
            {"directory": str(directory / "zookeeper"), "host": HOST, "port": self._zookeeper_port},
        )
        details = zookeeper.wait_ready()
        # After a restart ZooKeeper must have the port that the brokers know.
        zookeeper.arguments["port"] = details["port"]
        self.zookeeper_address = f"{details['host']}:{details['port']}"
        _tell_ready(view, zookeeper)
        for broker_id in range(self._count):
            properties = broker_properties(
                broker_id,
                self._count,
                port=self._port + broker_id if self._port else 0,
                directory=directory / f"broker-{broker_id}",
                zookeeper=self.zookeeper_address,
                overrides=self._overrides,
            )
            target, arguments = BROKER, broker_arguments(properties, directory, broker_id)
            if self._control is not None:
                target, arguments = self._control.target(arguments, broker_id)
            self.brokers.append(self.processes.start(f"broker-{broker_id}", target, arguments))
        # Any of the brokers may fail first, so one wait covers all of them.
        self.processes.wait(
            lambda: (
                all(broker.details for broker in self.brokers) or not all(broker.running for broker in self.brokers)
            ),
            READY_TIMEOUT_S,
        )
        for broker in sorted(self.brokers, key=lambda broker: broker.running):
            broker.wait_ready(timeout_s=0)
        for broker in self.brokers:
            self._keep_port(broker)
            self.file_of(broker).write_bytes(
                format_properties(
                    broker.arguments["properties"],
                    ["Each start of klamm up writes this file anew. klamm broker FILE runs the broker by itself."],
                )
            )
            _tell_ready(view, broker)
        self.controller_id = self._wait_until_ready()
        self.ready = True

    def start_cockpit(self) -> ServerProcess:
        """The process of the web page, ready. Raises ServerFailed."""
        arguments = {"bootstrap": self.bootstrap, "zookeeper": self.zookeeper_address, "host": HOST, "port": 0}
        server = self.processes.start(COCKPIT_NAME, COCKPIT, arguments)
        server.wait_ready()
        return server

    def _wait_until_ready(self) -> int:
        import asyncio

        from klamm.processes.readiness import NotReady, wait_until_ready

        addresses = {broker_id: address_of(broker) for broker_id, broker in enumerate(self.brokers)}
        try:
            return asyncio.run(wait_until_ready(addresses, READY_TIMEOUT_S, self._check_alive))
        except NotReady as error:
            raise ServerFailed(str(error)) from error

    def _keep_port(self, broker: ServerProcess) -> None:
        """Makes a broker that took any free port take the same port after a restart."""
        if "listeners" not in self._overrides:
            broker.arguments["properties"]["listeners"] = f"PLAINTEXT://{text_of(broker)}"

    def file_of(self, broker: ServerProcess) -> Path:
        """The properties of a broker as a file, for `klamm broker`."""
        return self.processes.directory / f"{broker.name}.properties"

    def _check_alive(self) -> None:
        for broker in self.brokers:
            if not broker.running:
                raise ServerFailed(broker.obituary())

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(map(text_of, self.brokers))

    @property
    def servers(self) -> Mapping[str, ServerProcess]:
        """ZooKeeper and the brokers by their names."""
        return {name: server for name, server in self.processes.servers.items() if name != COCKPIT_NAME}

    def started_again(self, server: ServerProcess) -> None:
        """The control port has started this server again."""
        self.dead.pop(server.name, None)
        self.restarting[server.name] = server

    def newly_dead(self) -> list[ServerProcess]:
        """The servers that have ended and are not in `dead` yet; without those that the control port has ended."""
        return [
            server
            for server in self.processes.servers.values()
            if not server.running and not server.expected_end and server.name not in self.dead
        ]

    def ready_again(self) -> list[ServerProcess]:
        """The servers of `restarting` that have become ready."""
        return [server for server in list(self.restarting.values()) if server.details is not None]


def check_overrides(overrides: Mapping[str, str], directory: Path, brokers: int, port: int) -> list[Listener]:
    """The listeners of all brokers. Raises ToolError for a bad override, before anything is started."""
    own = [key for key in ("broker.id", "zookeeper.connect", "log.dirs", "log.dir") if key in overrides]
    if own:
        raise ToolError(f"{own[0]} cannot be overridden: klamm up sets it for each broker (use klamm broker instead)")
    listeners: list[Listener] = []
    for broker_id in range(brokers):
        properties = broker_properties(
            broker_id,
            brokers,
            port=port + broker_id if port else 0,
            directory=directory,
            zookeeper=HOST,
            overrides=overrides,
        )
        try:
            config = BrokerConfig.from_properties(properties)
        except ConfigError as error:
            raise ToolError(str(error)) from error
        listeners += config.listeners
    unknown = [key for key in overrides if key in config.unknown_keys]
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


def text_of(broker: ServerProcess) -> str:
    """The address of a ready broker, as clients take it."""
    host, port = address_of(broker)
    return f"{host}:{port}"


def metrics_url(broker: ServerProcess) -> str | None:
    """The URL of a ready broker's metrics; None when klamm.metrics.port=-1."""
    assert broker.details is not None
    port = broker.details["metrics_port"]
    return None if port is None else f"http://{address_of(broker)[0]}:{port}/metrics"


def _tell_ready(view: View, server: ServerProcess) -> None:
    assert server.details is not None
    if "url" in server.details:
        view.told("cockpit_ready", url=server.details["url"], pid=server.pid)
        return
    if "broker_id" not in server.details:
        address = f"{server.details['host']}:{server.details['port']}"
        view.told("zookeeper_ready", address=address, pid=server.pid)
        return
    view.told(
        "broker_ready",
        broker_id=server.details["broker_id"],
        address=text_of(server),
        pid=server.pid,
        metrics=metrics_url(server),
    )


def watch(cluster: UpServers, view: View, *, restart: bool) -> None:
    """Watches the cluster until Ctrl-C raises KeyboardInterrupt, and reports each server that dies.

    With `restart` a dead server is started again; a server that dies again before it is ready stays dead.

    Raises ServerFailed when the cluster cannot continue: ZooKeeper is gone, or the last broker.
    """
    while True:
        view.refresh(
            brokers_up=sum(broker.running for broker in cluster.brokers),
            brokers_down=[broker.name for broker in cluster.brokers if not broker.running],
        )
        cluster.processes.wait(lambda: bool(cluster.newly_dead() or cluster.ready_again()), REFRESH_S)
        for server in cluster.ready_again():
            del cluster.restarting[server.name]
            _tell_ready(view, server)
        for server in cluster.newly_dead():
            restarts = restart and server.name not in cluster.restarting
            may_return = server in cluster.brokers and any(broker.running for broker in cluster.brokers)
            view.told(
                "died",
                name=server.name,
                exit_code=server.exit_code,
                reason=server.obituary(),
                restarts=restarts,
                command=f"klamm broker {cluster.file_of(server)}" if may_return and not restarts else None,
            )
            if restarts:
                cluster.restarting[server.name] = server
                server.begin_again()
            else:
                cluster.dead[server.name] = server
        # Servers that the control port has ended can be started again.
        if "zookeeper" in cluster.dead or all(broker.name in cluster.dead for broker in cluster.brokers):
            raise ServerFailed("the cluster cannot continue without " + ", ".join(cluster.dead))


def stop(cluster: UpServers) -> None:
    """Stops the brokers together, then ZooKeeper. A second Ctrl-C kills the remaining ones."""
    try:
        cluster.processes.close(together=cluster.brokers)
    except KeyboardInterrupt:
        cluster.processes.kill()
        raise
