"""The embedded ZooKeeper server as a process of its own, for tests that kill it or let foreign clients use it."""

import sys
from pathlib import Path

from support.processes import ManagedProcess, free_port

_PROGRAM = """
import asyncio, signal, sys, uvloop
from klamm.base.system_environment import SystemEnvironment
from klamm.zookeeper.server import ZooKeeperServer

async def serve():
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, sys.argv[1], port=int(sys.argv[2]), snapshot_every=int(sys.argv[3]))
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(server.stop()))
    print("ready", flush=True)
    await server.wait_closed()
    environment.close()

uvloop.run(serve())
"""


class EmbeddedZooKeeper:
    """A server on 127.0.0.1 with its data below `directory`; it keeps its port over restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.process: ManagedProcess | None = None

    @property
    def connect(self) -> str:
        """The connect string for clients."""
        return f"127.0.0.1:{self.port}"

    def launch(self, snapshot_every: int = 100_000) -> ManagedProcess:
        """Starts the process without waiting until it serves."""
        data = self.directory / "data"
        command = [sys.executable, "-c", _PROGRAM, str(data), str(self.port), str(snapshot_every)]
        self.process = ManagedProcess("zookeeper", command, self.directory / "server.log")
        return self.process

    def start(self, snapshot_every: int = 100_000) -> None:
        self.launch(snapshot_every).wait_for("^ready$")

    def stop(self) -> None:
        """An orderly end."""
        if self.process is not None:
            assert self.process.stop() == 0

    def kill(self) -> None:
        """kill -9. Idempotent."""
        if self.process is not None:
            self.process.kill()
