"""Servers as processes of their own that can be started, killed, paused and restarted by name.

`Processes` starts one helper (`process_helper`) that imports klamm once and forks every server from there.

    with Processes(directory) as processes:
        zookeeper = processes.start("zookeeper", EMBEDDED_ZOOKEEPER, {"directory": ..., "host": ..., "port": 0})
        port = zookeeper.wait_ready()["port"]
        zookeeper.kill()
        zookeeper.restart()

What must stay true:
- No server outlives the process that started it, however that one ends (kill -9 included).
- A server that ends is noticed, with its exit code, its reason and the last lines of its log.
- Every method may be called from any thread.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BROKER = "klamm.tools.servers:BrokerServer"
EMBEDDED_ZOOKEEPER = "klamm.tools.servers:EmbeddedZooKeeper"

PRELOAD = ("klamm.tools.servers", "klamm.tools.serving")
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class ServerFailed(Exception):
    """A server did not become ready, or ended; the message holds its reason and the end of its log."""


class ServerProcess:
    """One server's process, past or present. Made by `Processes.start`.

    `details` is what the server told when it became ready (None before). `exit_code` is None while it runs, negative
    when a signal ended it. `expected_end` is True once it was told to end by `stop` or `kill`.
    """

    def __init__(self, processes: "Processes", name: str, target: str, arguments: Mapping[str, Any], log: Path) -> None:
        self.name = name
        self.log = log
        self.target = target
        self.arguments = dict(arguments)
        self._processes = processes
        self._begin()

    def _begin(self) -> None:
        self.pid: int | None = None
        self.details: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self.reason = ""
        self.paused = False
        self.expected_end = False
        self._log_start = self.log.stat().st_size if self.log.exists() else 0

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """What the server tells once it serves. Raises ServerFailed when it ends before, or takes too long."""
        self._processes.wait(lambda: self.details is not None or not self.running, timeout_s)
        if self.details is not None:
            return self.details
        raise ServerFailed(self.obituary() if not self.running else f"{self.name} is not ready after {timeout_s} s")

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Its exit code, once it has ended. Raises ServerFailed if it has not in time."""
        self._processes.wait(lambda: not self.running, timeout_s)
        if self.exit_code is None:
            raise ServerFailed(f"{self.name} (pid {self.pid}) has not ended after {timeout_s} s")
        return self.exit_code

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stops it cleanly and returns its exit code; nothing to do when it has ended."""
        self.end()
        return self.wait(timeout_s)

    def end(self) -> None:
        """Tells it to stop, without waiting."""
        if self.paused:
            self.resume()
        self.expected_end = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, and waits until it is gone. Works on a paused server."""
        self.expected_end = True
        self._signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """Stops it in its tracks (SIGSTOP); its connections stay open and silent."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Lets a paused server go on."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def restart(self, arguments: Mapping[str, Any] | None = None, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """Starts it again, stopping it first if it runs, and waits until it is ready; with new arguments if given."""
        self.stop()
        if arguments is not None:
            self.arguments = dict(arguments)
        self._begin()
        self._processes.launch(self)
        return self.wait_ready(timeout_s)

    def log_tail(self, lines: int = 10) -> str:
        """The last lines that it wrote since it was started."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self.log.stat().st_size - 65536))
                written = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(written.splitlines()[-lines:])

    def obituary(self) -> str:
        """How it ended: its reason if it gave one, else its exit code and the end of its log."""
        if self.reason:
            return f"{self.name}: {self.reason}"
        code = self.exit_code or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        tail = self.log_tail()
        return f"{self.name} {how}" + (f"; the end of {self.log}:\n{tail}" if tail else "")

    def _signal(self, number: int) -> None:
        self._processes.send_signal(self, number)


class Processes:
    """The servers of one cluster. `directory` (made if absent) gets the log of each as NAME.log.

    `preload` are the modules that the helper imports before it forks.
    """

    def __init__(self, directory: str | Path, preload: Sequence[str] = PRELOAD) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.servers: dict[str, ServerProcess] = {}
        self._changed = threading.Condition()
        self._by_id: dict[int, ServerProcess] = {}
        self._next_id = 0
        self._helper_gone = False
        self._commands, helper_commands = socket.socketpair()
        self._events, helper_events = os.pipe()
        helper_lifeline, self._lifeline = os.pipe()
        descriptors = (helper_commands.fileno(), helper_events, helper_lifeline)
        self._helper = subprocess.Popen(
            [sys.executable, "-P", "-m", "klamm.tools.process_helper", *map(str, descriptors), *preload],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            # Ctrl-C in a terminal goes to this process alone, which then stops the servers in order.
            start_new_session=True,
        )
        helper_commands.close()
        os.close(helper_events)
        os.close(helper_lifeline)
        self._reader = threading.Thread(target=self._read_events, name="klamm-processes", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, target: str, arguments: Mapping[str, Any]) -> ServerProcess:
        """Forks a server and returns at once. `target` ("module:callable") makes it from `arguments` (JSON values)."""
        server = ServerProcess(self, name, target, arguments, self.directory / f"{name}.log")
        self.launch(server)
        self.servers[name] = server
        return server

    def launch(self, server: ServerProcess) -> None:
        """Has a server forked that is not running. Raises ServerFailed when there is no helper any more."""
        with self._changed:
            self._next_id += 1
            command = {
                "start": self._next_id,
                "target": server.target,
                "arguments": server.arguments,
                "log": str(server.log),
            }
            # Known before it is asked for: Ctrl-C may come right after.
            self._by_id[self._next_id] = server
            self._send(command)

    def send_signal(self, server: ServerProcess, number: int) -> None:
        """Sends a signal to a server; nothing when it has ended."""
        with self._changed:
            running = [identifier for identifier, each in self._by_id.items() if each is server]
        for identifier in running:
            # Only the helper knows for certain that the pid is still this server's.
            self._send({"signal": identifier, "number": number})

    def wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until the condition, looked at whenever a server's state has changed, is true; False when it is not."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops all servers, the last started first, then the helper. Idempotent.

        A server that does not stop within `timeout_s` is killed.
        """
        for server in reversed(list(self.servers.values())):
            if server.running:
                try:
                    server.stop(timeout_s)
                except ServerFailed:
                    server.kill()
        if self._lifeline >= 0:
            self._commands.shutdown(socket.SHUT_WR)
            os.close(self._lifeline)
            self._lifeline = -1
        self._helper.wait()
        self._reader.join()
        self._commands.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        with self._changed:
            if self._helper_gone:
                raise ServerFailed("the helper process has ended")
            self._commands.sendall(json.dumps(command).encode() + b"\n")

    # -- in the reader's thread -----------------------------------------------------------------------------------

    def _read_events(self) -> None:
        """Keeps the servers' states until the helper and all servers have ended."""
        unfinished = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._commands, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if self._events in ready:
                    received = os.read(self._events, 65536)
                    *lines, unfinished = (unfinished + received).split(b"\n")
                    with self._changed:
                        for line in lines:
                            self._take(json.loads(line))
                        self._changed.notify_all()
                    if not received:
                        break
                else:
                    # The helper sends nothing on this socket: it has ended, and everything it told has been read.
                    break
        self._lose_helper()
        os.close(self._events)

    def _take(self, event: dict[str, Any]) -> None:
        server = self._by_id[event["id"]]
        match event["event"]:
            case "started":
                server.pid = event["pid"]
            case "ready":
                server.details = event["details"]
            case "failed":
                server.reason = event["reason"]
            case "exited":
                server.exit_code = event["code"]
                del self._by_id[event["id"]]

    def _lose_helper(self) -> None:
        """Without the helper nobody could tell of the servers any more: those that are left are killed."""
        with self._changed:
            self._helper_gone = True
            for server in self._by_id.values():
                if server.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(server.pid, signal.SIGKILL)
                server.exit_code = -signal.SIGKILL
                server.reason = "the helper process has ended"
            self._by_id.clear()
            self._changed.notify_all()
