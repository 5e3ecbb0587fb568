"""A local cluster under faults: its servers obey a control, it keeps its history, and a port may take faults.

`klamm up --control-port` and `klamm.testing` run their clusters with it.

What must stay true:
- The servers' counts of faults are asked for before a server is killed or paused, and before the cluster ends.
- The history has each change of the servers' processes.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from klamm.base.system_environment import SystemEnvironment
from klamm.faults.chronicle import Chronicle
from klamm.faults.commands import Json, Server
from klamm.faults.control import Control
from klamm.faults.control_port import ControlPort
from klamm.faults.entries import BrokerAdded
from klamm.faults.history import History, process_entry
from klamm.faults.servers import BROKER, PRELOAD, under_faults
from klamm.faults.wire import FaultError
from klamm.processes.helper import Helper
from klamm.processes.local_cluster import ZOOKEEPER, LocalCluster, Plan, listeners_of, process_name, server_of
from klamm.processes.loop_thread import LoopThread
from klamm.processes.supervisor import ServerFailed, ServerProcess
from klamm.znodes.watch import Znode
from klamm.zookeeper.client.connect_string import parse_connect_string

T = TypeVar("T")

# The timeout of the session that watches ZooKeeper for the history.
SESSION_TIMEOUT_MS = 18_000

# Called in a thread with an operation of the control port and its server; "heal" has no server. Raises FaultError.
Operate = Callable[..., None]


class ClusterUnderFaults(LocalCluster):
    """`seen` is called on the cluster's loop with the time and each version of a znode of the cluster's state.

    The methods block, so do not call them on that loop. They raise ServerFailed, and FaultError for the control's part.
    """

    preload = PRELOAD

    def __init__(
        self,
        plan: Plan,
        helper: Helper | None = None,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        seen: Callable[[int, Znode], None] = lambda now_ms, znode: None,
    ) -> None:
        super().__init__(plan, helper)
        self.environment = SystemEnvironment(blocking_workers=1)
        self.control = Control(plan.directory / "faults", self.environment.now_ms, self._is_paused)
        self._session_timeout_ms = session_timeout_ms
        self._seen = seen
        self._chronicle: Chronicle | None = None
        # URL and token of the control port, once it is open.
        self.port: tuple[str, str] | None = None
        self._control_port: ControlPort | None = None
        self._loop = LoopThread("klamm-cluster")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the cluster's loop. Raises LoopEnded."""
        return self._loop.run(coroutine)

    def start(self, ready: Callable[[ServerProcess], object] = lambda server: None) -> int:
        try:
            self.run(self.control.open())
        except FaultError as error:
            raise ServerFailed(str(error)) from error
        controller = super().start(ready)
        self.run(self._follow())
        return controller

    async def _follow(self) -> None:
        await self.control.set_addresses(self._listeners())
        now_ms = self.environment.now_ms
        self._chronicle = Chronicle(
            self.control,
            self.environment,
            self.zookeeper,
            self._session_timeout_ms,
            lambda znode: self._seen(now_ms(), znode),
        )
        await self._chronicle.start()

    def open_port(self, operate: Operate | None = None, port: int = 0) -> tuple[str, str]:
        """Takes faults over HTTP; returns the URL and the token. Raises OSError."""
        self.port = self.run(self._open_port(operate or self.operate, port))
        return self.port

    async def _open_port(self, operate: Operate, port: int) -> tuple[str, str]:
        assert self._chronicle is not None
        token = secrets.token_urlsafe(32)
        self._control_port = ControlPort(self.control, self._chronicle, _Owner(self, operate), token, port)
        await self._control_port.bind()
        await self._control_port.start()
        return self._control_port.url, token

    def close(self, *, kill: bool = False) -> None:
        self.run(self._close_control())
        super().close(kill=kill)
        self._loop.close()
        self.environment.close()

    async def _close_control(self) -> None:
        if self._control_port is not None:
            self._control_port.stop()
        if self._chronicle is not None:
            await self._chronicle.close()
        await self.control.count_if_answered()
        await self.control.close()

    def history(self) -> History:
        """The history, with everything that a client could see before this call."""
        if self._chronicle is None:
            return self.recorded()
        return self.run(self._chronicle.catch_up())

    def recorded(self) -> History:
        """The history so far, without asking the servers."""

        async def recorded() -> History:
            return self.control.history.after()

        return self.run(recorded())

    # -- servers --------------------------------------------------------------------------------------------------

    def kill(self, server: Server) -> None:
        """Kills the server (kill -9); returns when the process has ended."""
        process = self.process(server)
        self.run(self.control.count_if_answered())
        process.kill()

    def stop(self, server: Server) -> None:
        """Stops the server cleanly; returns when the process has ended."""
        self.process(server).stop()

    def start_server(self, server: Server) -> None:
        """Starts a stopped server; returns when it is ready."""
        self.launch(server)
        self.wait_started(server)

    def pause(self, server: Server) -> None:
        """Stops the process with SIGSTOP; its connections stay open and silent."""
        process = self.process(server)
        self.run(self.control.count_if_answered())
        process.pause()

    def resume(self, server: Server) -> None:
        """Continues a paused server; returns when the broker has the faults that were installed meanwhile."""
        self.process(server).resume()
        self.run(self.control.count())

    def heal(self) -> None:
        """Removes all faults, and resumes and starts all servers."""
        self.run(self.control.remove_all())
        for server in self.servers:
            process = self.process(server)
            if not process.running:
                self.start_server(server)
            elif process.paused:
                self.resume(server)

    def add_broker(self, own: dict[str, str]) -> int:
        """Starts one more broker with properties of its own; returns its id when every broker knows it."""
        broker = max(self.broker_ids) + 1
        self.plan.own[broker] = own
        self.reserve(broker)
        self.run(self._added(broker))
        self.start_server(broker)
        self.wait_ready(self.reachable())
        return broker

    async def _added(self, broker: int) -> None:
        await self.control.set_addresses(self._listeners())
        self.control.history.add(BrokerAdded(broker))

    def operate(self, operation: str, server: Server | None = None) -> None:
        """Carries out an operation of the control port. Without `server` it heals. Raises FaultError."""
        try:
            if server is None:
                self.heal()
                return
            if server not in self.servers:
                known = ", ".join(map(process_name, self.servers))
                raise FaultError(f"this cluster has no {process_name(server)}; it has {known}")
            if self.process(server).running == (operation == "start"):
                raise FaultError(f"{process_name(server)} {'runs' if operation == 'start' else 'does not run'}")
            operations: dict[str, Callable[[Server], None]] = {
                "kill": self.kill,
                "stop": self.stop,
                "start": self.start_server,
                "pause": self.pause,
                "resume": self.resume,
            }
            operations[operation](server)
        except ServerFailed as error:
            raise FaultError(str(error)) from error

    # -- for the control ------------------------------------------------------------------------------------------

    def broker_server(self, broker: int) -> tuple[str, dict[str, Any]]:
        _, arguments = super().broker_server(broker)
        return BROKER, under_faults(arguments, self.control.directory, broker)

    def _listeners(self) -> list[tuple[Server, str, int]]:
        """The addresses of each server."""
        listeners: list[tuple[Server, str, int]] = [
            (ZOOKEEPER, host, port) for host, port in parse_connect_string(self.zookeeper).servers
        ]
        for broker in self.broker_ids:
            process = self.processes.servers.get(process_name(broker))
            has_listened = process is not None and process.details is not None
            addresses = listeners_of(process) if process and has_listened else [self.addresses[broker]]
            listeners += [(broker, host, port) for host, port in addresses]
        return listeners

    def _is_paused(self, server: Server) -> bool:
        process = self.processes.servers.get(process_name(server))
        return process is not None and process.paused

    def _changed(self, process: ServerProcess, change: str) -> None:
        server = server_of(process.name)
        entry = None if server is None else process_entry(server, process, change)
        if entry is not None:
            self._loop.call_soon(self.control.history.add, entry)


class _Owner:
    """The cluster for its control port. The port runs on the cluster's loop. Operations wait for that loop, so they run
    in threads."""

    def __init__(self, cluster: ClusterUnderFaults, operate: Operate) -> None:
        self._cluster = cluster
        self._operate = operate

    def described(self) -> Json:
        cluster = self._cluster
        brokers = [
            {
                "server": broker,
                "address": ":".join(map(str, cluster.addresses[broker])),
                "running": cluster.process(broker).running,
                "paused": cluster.process(broker).running and cluster.process(broker).paused,
            }
            for broker in cluster.broker_ids
        ]
        return {"bootstrap": cluster.bootstrap, "zookeeper": cluster.zookeeper, "brokers": brokers}

    async def operate(self, server: Server, operation: str) -> None:
        await asyncio.to_thread(self._operate, operation, server)

    async def heal(self) -> None:
        await asyncio.to_thread(self._operate, "heal")
