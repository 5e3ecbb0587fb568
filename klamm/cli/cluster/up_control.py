"""The control port of `klamm up --control-port`: faults for the cluster, and its servers killed and started again.

`control.json` in the cluster's directory has the port's address and token, for `klamm faults`; only the user who
started the cluster can read it. It is removed when the cluster stops.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from klamm.base.environment import SystemEnvironment
from klamm.cli.cluster.cockpit import COCKPIT_NAME
from klamm.faults.chronicle import Chronicle
from klamm.faults.commands import Json, Server
from klamm.faults.control import Control
from klamm.faults.control_port import ControlPort
from klamm.faults.history import process_entry
from klamm.faults.servers import BROKER, PRELOAD, under_faults
from klamm.faults.wire import FaultError
from klamm.processes.errors import ToolError, describe_os_error
from klamm.processes.local_cluster import HOST, address_of
from klamm.processes.loop_thread import LoopThread
from klamm.processes.supervisor import Processes, ServerFailed, ServerProcess

CONTROL_FILE = "control.json"
# Of the session that watches ZooKeeper for the history.
SESSION_TIMEOUT_MS = 18_000


class UpCluster(Protocol):
    """What the port needs of the cluster of `klamm up`."""

    zookeeper_address: str

    @property
    def bootstrap(self) -> str: ...
    @property
    def servers(self) -> Mapping[str, ServerProcess]: ...
    def started_again(self, server: ServerProcess) -> None:
        """Tells when the server, which was started just now, is ready."""


class UpControl:
    """The control port of one cluster. `open` before its brokers start, `serve` when they are ready."""

    def __init__(self, directory: Path, port: int) -> None:
        self._cluster: UpCluster
        self._file = directory / CONTROL_FILE
        self._wanted_port = port
        self._environment = SystemEnvironment(blocking_workers=1)
        self._loop = LoopThread("klamm-control")
        self._control = Control(directory / "faults", self._environment.now_ms, self._is_paused)
        self._chronicle: Chronicle | None = None
        self._port: ControlPort | None = None

    def open(self, cluster: UpCluster) -> None:
        """The brokers of this cluster may start."""
        self._cluster = cluster
        self._loop.run(self._control.open())

    def processes(self, directory: Path) -> Processes:
        """The servers, whose changes stand in the history."""
        return Processes(directory, on_change=self._process_changed, preload=PRELOAD)

    def _process_changed(self, process: ServerProcess, change: str) -> None:
        """Writes a change of a server's process into the history. Called in another thread."""
        if process.name == COCKPIT_NAME:
            return  # It is no part of the cluster.
        entry = process_entry(_server(process.name), process, change)
        if entry is not None:
            self._loop.call_soon(self._control.history.add, entry)

    def target(self, arguments: Mapping[str, Any], broker_id: int) -> tuple[str, dict[str, Any]]:
        """The target and the arguments of a broker that obeys the port."""
        return BROKER, under_faults(arguments, self._control.directory, broker_id)

    def serve(self) -> tuple[str, str]:
        """Opens the port, and writes the file; returns the URL and the file's path. Raises ToolError."""
        try:
            url, token = self._loop.run(self._serve())
        except OSError as error:
            raise ToolError(f"--control-port {self._wanted_port}: {describe_os_error(error)}") from error
        with suppress(FileNotFoundError):
            self._file.unlink()
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"url": url, "token": token}, file)
        return url, str(self._file)

    async def _serve(self) -> tuple[str, str]:
        await self._control.set_addresses(self._addresses())
        zookeeper = self._cluster.zookeeper_address
        self._chronicle = Chronicle(self._control, self._environment, zookeeper, SESSION_TIMEOUT_MS)
        await self._chronicle.start()
        token = secrets.token_urlsafe(32)
        self._port = ControlPort(self._control, self._chronicle, self, token, self._wanted_port)
        await self._port.bind()
        await self._port.start()
        return self._port.url, token

    def close(self) -> None:
        """Closes the port. Idempotent."""
        with suppress(FileNotFoundError):
            self._file.unlink()
        self._loop.run(self._close())
        self._loop.close()
        self._environment.close()

    async def _close(self) -> None:
        if self._port is not None:
            self._port.stop()
        if self._chronicle is not None:
            await self._chronicle.close()
        await self._control.close()

    # -- for the port -----------------------------------------------------------------------------------------------

    def described(self) -> Json:
        """The addresses of the cluster, and its brokers."""
        brokers = [
            {
                "server": server,
                "address": ":".join(map(str, address_of(process))),
                "running": process.running,
                "paused": process.running and process.paused,
            }
            for server, process in self._brokers()
        ]
        return {"bootstrap": self._cluster.bootstrap, "zookeeper": self._cluster.zookeeper_address, "brokers": brokers}

    async def operate(self, server: Server, operation: str) -> None:
        """Does one of `control_port.OPERATIONS`. Raises FaultError."""
        process = self._cluster.servers.get(_name(server))
        if process is None:
            raise FaultError(f"this cluster has no {_name(server)}; it has {', '.join(self._cluster.servers)}")
        if process.running == (operation == "start"):
            raise FaultError(f"{process.name} {'runs' if process.running else 'does not run'}")
        if operation in ("kill", "pause"):
            await self._control.count_if_answered()
        try:
            await asyncio.to_thread(self._operate, process, operation)
        except ServerFailed as error:
            raise FaultError(str(error)) from error

    async def heal(self) -> None:
        """Removes all faults, and resumes and starts all servers. Raises FaultError."""
        await self._control.remove_all()
        for name, process in self._cluster.servers.items():
            if not process.running:
                await self.operate(_server(name), "start")
            elif process.paused:
                await self.operate(_server(name), "resume")

    def _operate(self, process: ServerProcess, operation: str) -> None:
        if operation == "start":
            process.begin_again()
            self._cluster.started_again(process)
            process.wait_ready()
        else:
            methods: Mapping[str, Callable[[], object]] = {
                "kill": process.kill,
                "stop": process.stop,
                "pause": process.pause,
                "resume": process.resume,
            }
            methods[operation]()

    def _brokers(self) -> list[tuple[int, ServerProcess]]:
        return [
            (server, process)
            for name, process in self._cluster.servers.items()
            if isinstance(server := _server(name), int)
        ]

    def _addresses(self) -> list[tuple[Server, str, int]]:
        addresses: list[tuple[Server, str, int]] = []
        for server, process in self._brokers():
            details = process.wait_ready()
            addresses += [(server, host or HOST, port) for host, port in details["listeners"].values()]
        host, port = self._cluster.zookeeper_address.rsplit(":", 1)
        return [*addresses, ("zookeeper", host, int(port))]

    def _is_paused(self, server: Server) -> bool:
        return self._cluster.servers[_name(server)].paused


def _server(name: str) -> Server:
    return "zookeeper" if name == "zookeeper" else int(name.removeprefix("broker-"))


def _name(server: Server) -> str:
    return "zookeeper" if server == "zookeeper" else f"broker-{server}"
