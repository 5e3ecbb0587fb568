"""A cluster on this machine: embedded ZooKeeper and brokers, each a process of its own, with all data in one directory.

`klamm up` runs `LocalCluster`. `klamm.faults.local_cluster` adds faults, for a control port and for `klamm.testing`.

What must stay true:
- Ready means ready: when `start` returns, every broker serves clients and knows all the others.
- A server keeps its address while the cluster lives, even while the server is down. No other program gets a port that
  the cluster has chosen.
"""

import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

from klamm.processes.helper import PRELOAD, Helper
from klamm.processes.supervisor import (
    BROKER,
    EMBEDDED_ZOOKEEPER,
    READY_TIMEOUT_S,
    Processes,
    ServerFailed,
    ServerProcess,
)

T = TypeVar("T")

Server = int | Literal["zookeeper"]
"""A broker's id, or ZooKeeper."""
Address = tuple[str, int]

HOST: Final = "127.0.0.1"
ZOOKEEPER: Final = "zookeeper"


def process_name(server: Server) -> str:
    """The name of a server's process, and of its directory."""
    return ZOOKEEPER if server == ZOOKEEPER else f"broker-{server}"


def server_of(name: str) -> Server | None:
    """The server of a process; None for a process that is not a server of the cluster, such as the cockpit."""
    broker = name.removeprefix("broker-")
    return ZOOKEEPER if name == ZOOKEEPER else int(broker) if broker.isdecimal() else None


def listeners_of(broker: ServerProcess) -> list[Address]:
    """Host and port of a ready broker's listeners."""
    assert broker.details is not None
    return [(str(host or HOST), int(port)) for host, port in broker.details["listeners"].values()]


class ReservedPort:
    """A free port of `host`, chosen by the system.

    The socket is bound and never listens. So the system does not give the port to a program that asks for any free
    port, or to an outgoing connection. A server that names the port and sets SO_REUSEADDR, as servers do, gets it.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Gives the port back. Idempotent."""
        self._socket.close()


@dataclass(frozen=True)
class Plan:
    """The configuration of a cluster.

    - `brokers`: how many it starts with; their ids begin at 0.
    - `port`: the first broker's port; the other brokers have the next ports. 0 means any free port for each broker, and
      likewise for `zookeeper_port`.
    - `zookeeper`: the connect string of a ZooKeeper to use instead of one of its own.
    - `min_session_timeout_ms`: the shortest session timeout that the cluster's own ZooKeeper grants; None keeps the
      server's default.
    - `overrides`: properties of all brokers; `own`: properties of single brokers, by id. Both take precedence over the
      defaults in `properties()`.
    - `throwaway`: the directory is removed at the end; see `Processes`.
    - `timeout_s`: how long servers may take to become ready.
    """

    directory: Path
    brokers: int
    port: int = 0
    zookeeper_port: int = 0
    zookeeper: str | None = None
    min_session_timeout_ms: int | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    own: dict[int, dict[str, str]] = field(default_factory=dict)
    throwaway: bool = False
    timeout_s: float = READY_TIMEOUT_S

    def port_of(self, broker: int) -> int:
        """The port for a broker; 0 means any free port."""
        return self.port + broker if self.port else 0

    def properties(self, broker: int, *, port: int, zookeeper: str) -> dict[str, str]:
        """The properties of a broker."""
        replication_factor = str(min(3, self.brokers))
        return {
            "broker.id": str(broker),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(self.directory / process_name(broker)),
            "zookeeper.connect": zookeeper,
            # No topic can have more replicas than there are brokers.
            "default.replication.factor": replication_factor,
            "offsets.topic.replication.factor": replication_factor,
            "transaction.state.log.replication.factor": replication_factor,
            "transaction.state.log.min.isr": str(min(2, self.brokers)),
            "group.initial.rebalance.delay.ms": "0",
            "klamm.metrics.port": "0",
            **self.overrides,
            **self.own.get(broker, {}),
        }


class LocalCluster:
    """The servers of one cluster, until `close`. A given `helper` is shared and outlives the cluster.

    `processes` may also hold servers that are not part of the cluster; they end with it.
    """

    preload: ClassVar[tuple[str, ...]] = PRELOAD

    def __init__(self, plan: Plan, helper: Helper | None = None) -> None:
        self.plan = plan
        # Where clients reach each server, whether it runs or not.
        self.addresses: dict[Server, Address] = {}
        self._reserved = ExitStack()
        self.processes = Processes(
            plan.directory, helper=helper, throwaway=plan.throwaway, on_change=self._changed, preload=self.preload
        )

    def start(self, ready: Callable[[ServerProcess], object] = lambda server: None) -> int:
        """Starts all servers; returns the controller's id. `ready` is called with each server that serves.

        Raises ServerFailed.
        """
        if self.plan.zookeeper is None:
            self.reserve(ZOOKEEPER, self.plan.zookeeper_port)
            self.launch(ZOOKEEPER)
            self.wait_started(ZOOKEEPER)
            ready(self.process(ZOOKEEPER))
        for broker in range(self.plan.brokers):
            self.reserve(broker, self.plan.port_of(broker))
        for broker in self.broker_ids:
            self.launch(broker)
        self.wait_started(*self.broker_ids)
        for broker in self.broker_ids:
            ready(self.process(broker))
        return self.wait_ready({broker: self.addresses[broker] for broker in self.broker_ids})

    def close(self, *, kill: bool = False) -> None:
        """Stops all brokers at once, then ZooKeeper. With `kill`, or on an interrupt, kills all. Idempotent."""
        try:
            if kill:
                self.processes.kill()
            else:
                self.processes.close(together=self.brokers)
        except KeyboardInterrupt:
            self.processes.kill()
            raise
        finally:
            self._reserved.close()

    # -- the servers ----------------------------------------------------------------------------------------------

    @property
    def servers(self) -> list[Server]:
        """ZooKeeper, if it is the cluster's own, and the brokers, running or not."""
        return list(self.addresses)

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return [server for server in self.addresses if server != ZOOKEEPER]

    @property
    def brokers(self) -> list[ServerProcess]:
        """The current or last process of each broker that has been launched."""
        names = map(process_name, self.broker_ids)
        return [self.processes.servers[name] for name in names if name in self.processes.servers]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, running or not."""
        return ",".join(self._text(broker) for broker in self.broker_ids)

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string."""
        return self._text(ZOOKEEPER) if self.plan.zookeeper is None else self.plan.zookeeper

    def process(self, server: Server) -> ServerProcess:
        """The current or last process of a server. Raises ServerFailed if the cluster has no such server."""
        process = self.processes.servers.get(process_name(server)) if server in self.addresses else None
        if process is None:
            raise ServerFailed(f"this cluster has no server {server!r}; allowed: {', '.join(map(repr, self.servers))}")
        return process

    def reachable(self) -> dict[int, Address]:
        """The addresses of the brokers that can answer."""
        running = [each.name for each in self.brokers if each.running and not each.paused]
        return {broker: self.addresses[broker] for broker in self.broker_ids if process_name(broker) in running}

    def died(self) -> list[ServerProcess]:
        """The processes that have ended by themselves."""
        return [each for each in list(self.processes.servers.values()) if not each.running and not each.expected_end]

    # -- starting -------------------------------------------------------------------------------------------------

    def reserve(self, server: Server, port: int = 0) -> None:
        """Adds a server, with this port or any free one."""
        if port == 0:
            reserved = ReservedPort(HOST)
            self._reserved.callback(reserved.release)
            port = reserved.number
        self.addresses[server] = (HOST, port)

    def launch(self, server: Server) -> None:
        """Starts the process of a server that does not run, with its data, and returns at once. Raises ServerFailed."""
        target, arguments = self._zookeeper_server() if server == ZOOKEEPER else self.broker_server(server)
        self.processes.start(process_name(server), target, arguments)

    def broker_server(self, broker: int) -> tuple[str, dict[str, Any]]:
        """The target and arguments of a broker's process."""
        properties = self.plan.properties(broker, port=self.addresses[broker][1], zookeeper=self.zookeeper)
        return BROKER, {
            "properties": properties,
            "logs_dir": str(self.plan.directory / "logs" / process_name(broker)),
        }

    def _zookeeper_server(self) -> tuple[str, dict[str, Any]]:
        host, port = self.addresses[ZOOKEEPER]
        return EMBEDDED_ZOOKEEPER, {
            "directory": str(self.plan.directory / ZOOKEEPER),
            "host": host,
            "port": port,
            "min_session_timeout_ms": self.plan.min_session_timeout_ms,
        }

    def wait_started(self, *servers: Server) -> None:
        """Waits until these servers serve; the first that fails ends the wait. Raises ServerFailed."""
        processes = [self.process(server) for server in servers]
        self.processes.wait(
            lambda: (
                all(process.details is not None for process in processes)
                or not all(process.running for process in processes)
            ),
            self.plan.timeout_s,
        )
        for process in sorted(processes, key=lambda process: process.running):
            if process.details is None:
                late = f"{process.name} is not ready after {self.plan.timeout_s:g} s"
                raise ServerFailed(late if process.running else process.obituary())
        for server in servers:
            if server != ZOOKEEPER:
                # An override may have named other listeners.
                self.addresses[server] = listeners_of(self.process(server))[0]

    def wait_ready(self, brokers: Mapping[int, Address]) -> int:
        """Returns the controller's id once every one of these brokers knows all of them. Raises ServerFailed."""
        # Imported here, like asyncio below, because every command imports this module.
        from klamm.processes.readiness import NotReady, wait_until_ready

        try:
            return self.run(wait_until_ready(brokers, self.plan.timeout_s, self.check_alive(brokers)))
        except NotReady as error:
            raise ServerFailed(str(error)) from error

    def check_alive(self, brokers: Iterable[int]) -> Callable[[], None]:
        """A check that raises ServerFailed when one of these brokers has died."""
        processes = [self.process(broker) for broker in brokers]

        def check() -> None:
            for process in processes:
                if not process.running:
                    raise ServerFailed(process.obituary())

        return check

    # -- for subclasses -------------------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine for the cluster and returns its result."""
        import asyncio

        return asyncio.run(coroutine)

    def _changed(self, process: ServerProcess, change: str) -> None:
        """Called in another thread with each change of a process; see `Processes`."""

    def _text(self, server: Server) -> str:
        host, port = self.addresses[server]
        return f"{host}:{port}"
