"""Servers as processes of their own, which can be started, killed, paused and restarted.

`Processes` holds the servers of one cluster, forked by a helper (`helper.Helper`) that has imported klamm once.

    with Processes(directory) as processes:
        zookeeper = processes.start("zookeeper", EMBEDDED_ZOOKEEPER, {"directory": ..., "host": ..., "port": 0})
        port = zookeeper.wait_ready()["port"]
        zookeeper.kill()
        zookeeper.restart()

What must stay true:
- No server outlives the process that started it, however that process ends (kill -9 included).
- The end of a server is noticed, with its exit code, its reason and the last lines of its log.
- Every method may be called from any thread.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from klamm.processes.helper import PRELOAD, Helper, HelperGone

BROKER = "klamm.processes.servers:BrokerServer"
EMBEDDED_ZOOKEEPER = "klamm.processes.servers:EmbeddedZooKeeper"

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


OnChange = Callable[["ServerProcess", str], None]


class ServerFailed(Exception):
    """A server did not become ready, or ended; the message holds its reason and the end of its log."""


class ServerProcess:
    """One server's process, past or present. Made by `Processes.start`.

    `details` holds the values that the server sent when it became ready (None before). `exit_code` is None while the
    process runs, negative when a signal ended it. `paused`: SIGSTOP has stopped the process. `expected_end` is True
    after `stop`, `end` or `kill`.
    """

    def __init__(
        self,
        helper: Helper,
        name: str,
        target: str,
        arguments: Mapping[str, Any],
        log: Path,
        on_change: OnChange | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.target = target
        self.arguments = dict(arguments)
        self._helper = helper
        self._on_change = on_change
        self._begin()

    def _begin(self) -> None:
        self.pid: int | None = None
        self.details: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self.reason = ""
        self.paused = False
        self.expected_end = False
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        command = {"target": self.target, "arguments": self.arguments, "log": str(self.log)}
        try:
            self._number = self._helper.start(command, self._on_event)
        except HelperGone as error:
            self.exit_code = -signal.SIGKILL
            self.reason = str(error)
            raise ServerFailed(str(error)) from error

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """Waits until the server is ready; returns its details. Raises ServerFailed if it ends or takes too long."""
        self._helper.wait(lambda: self.details is not None or not self.running, timeout_s)
        if self.details is not None:
            return self.details
        raise ServerFailed(self.obituary() if not self.running else f"{self.name} is not ready after {timeout_s} s")

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Waits for the end of the process; returns its exit code. Raises ServerFailed on timeout."""
        self._helper.wait(lambda: not self.running, timeout_s)
        if self.exit_code is None:
            raise ServerFailed(f"{self.name} (pid {self.pid}) has not ended after {timeout_s} s")
        return self.exit_code

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stops the server cleanly and returns its exit code. A server that has ended stays as it is."""
        self.end()
        return self.wait(timeout_s)

    def end(self) -> None:
        """Tells a running server to stop, without waiting."""
        if self.paused:
            self.resume()
        self.expected_end = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9; waits until the process is gone. Works on a paused server."""
        self.kill_soon()
        self.wait()

    def kill_soon(self) -> None:
        """kill -9, without waiting."""
        self.expected_end = True
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Stops the process with SIGSTOP and waits for that; its connections stay open and silent."""
        self._signal(signal.SIGSTOP)
        self._helper.wait(lambda: self.paused or not self.running, STOP_TIMEOUT_S)

    def resume(self) -> None:
        """Continues a paused server."""
        self._signal(signal.SIGCONT)
        self._helper.wait(lambda: not self.paused or not self.running, STOP_TIMEOUT_S)

    def restart(self, arguments: Mapping[str, Any] | None = None, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """Stops the server if it runs, starts it with the new arguments, if any, and waits until it is ready."""
        self.stop()
        if arguments is not None:
            self.arguments = dict(arguments)
        self._begin()
        return self.wait_ready(timeout_s)

    def log_tail(self, lines: int = 10) -> str:
        """The last lines of the server's log since its start."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self.log.stat().st_size - 65536))
                written = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(written.splitlines()[-lines:])

    def obituary(self) -> str:
        """How the server ended: its own reason if it gave one, else its exit code and the end of its log."""
        if self.reason:
            return f"{self.name}: {self.reason}"
        code = self.exit_code or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        tail = self.log_tail()
        return f"{self.name} {how}" + (f"; the end of {self.log}:\n{tail}" if tail else "")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(HelperGone):
            self._helper.send_signal(self._number, number)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = event["pid"]
            case "ready":
                self.details = event["details"]
            case "failed":
                self.reason = event["reason"]
            case "paused":
                self.paused = True
            case "resumed":
                self.paused = False
            case "exited":
                self.exit_code = event["code"]
            case "lost":
                # Without the helper there are no more events of this server.
                if self.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)
                self.exit_code = -signal.SIGKILL
                self.reason = "the helper process has ended"
        if self._on_change is not None:
            self._on_change(self, event["event"])


class Processes:
    """The servers of one cluster. `directory` (made if absent) holds the log of each server as NAME.log.

    A given `helper` is shared and outlives this object; without one, these servers get a helper of their own, which has
    imported `preload`. A `throwaway` directory is removed at the end. If this process is killed, the helper kills the
    servers of a throwaway directory and removes it. `on_change` is called in another thread with each server that has
    changed and the name of the change: started, ready, failed, paused, resumed, exited, or lost, which means exited
    with the helper.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        helper: Helper | None = None,
        throwaway: bool = False,
        on_change: OnChange | None = None,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.throwaway = throwaway
        self.servers: dict[str, ServerProcess] = {}
        self._on_change = on_change
        self._owns_helper = helper is None
        self._helper = helper or Helper(preload)
        if throwaway:
            self._helper.remove_when_orphaned(str(self.directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, target: str, arguments: Mapping[str, Any]) -> ServerProcess:
        """Forks a server and returns at once. `target` ("module:callable") makes the server from `arguments`, which are
        JSON values. Raises ServerFailed when the helper has ended.
        """
        log = self.directory / f"{name}.log"
        server = ServerProcess(self._helper, name, target, arguments, log, self._on_change)
        self.servers[name] = server
        return server

    def wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until the condition is true, and checks it when a server's state changes. Returns False on timeout."""
        return self._helper.wait(condition, timeout_s)

    def close(self, timeout_s: float = STOP_TIMEOUT_S, *, together: Sequence[ServerProcess] = ()) -> None:
        """Stops all servers: those of `together` at once, then the others, the last started first. Idempotent.

        A server that does not stop within `timeout_s` is killed.
        """
        for server in together:
            server.end()
        self.wait(lambda: not any(server.running for server in together), timeout_s)
        for server in together:
            server.kill()
        for server in reversed(list(self.servers.values())):
            if server.running:
                try:
                    server.stop(timeout_s)
                except ServerFailed:
                    server.kill()
        self._close()

    def kill(self) -> None:
        """Kills all servers at once. Idempotent."""
        for server in self.servers.values():
            server.kill_soon()
        for server in self.servers.values():
            server.wait()
        self._close()

    def _close(self) -> None:
        if self.throwaway:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._helper.forget(str(self.directory))
        if self._owns_helper:
            self._helper.close()
