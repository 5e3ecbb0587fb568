"""Processes that tests start: their output is watched as it appears, and none outlives the test run.

Shared by the tests with Java's programs (tests/support/oracles.py), the tests of clients, and bench/.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

_given_ports: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now, for a program that cannot choose one itself (port 0).

    Each port is given once: the system may choose the same one again before the first program uses it.
    """
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given_ports:
            _given_ports.add(port)
            return port


class ProcessFailed(AssertionError):
    """A process ended, or said nothing of what was awaited; the message holds the end of its output."""


class ManagedProcess:
    """A child process in a group of its own, its output (stdout and stderr together) in `log`.

    The kernel kills it when this process dies (setpriv --pdeathsig), so that even a killed test run leaves none behind;
    for the kernel that is the thread which made this object, so make it in one that stays.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.name, self.log = name, log
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self.popen = subprocess.Popen(
            [*guard, *map(str, command)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **env} if env else None,
        )
        self._reader = threading.Thread(target=self._read_output, name=f"output of {name}", daemon=True)
        self._reader.start()

    def _read_output(self) -> None:
        assert self.popen.stdout is not None
        with self.log.open("a", encoding="utf-8") as log, self.popen.stdout as output:
            for line in output:
                log.write(line)
                log.flush()
                self._take(line)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, line: str) -> None:
        """A line of the output, in the thread that reads it."""
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, pattern: str, timeout_s: float = 120) -> re.Match[str]:
        """Waits until a line of the output matches; ProcessFailed when the process ends or time runs out before."""
        expression = re.compile(pattern)
        seen = 0
        found: re.Match[str] | None = None

        def matched() -> bool:
            nonlocal seen, found
            while found is None and seen < len(self._lines):
                found = expression.search(self._lines[seen])
                seen += 1
            return found is not None or self._ended

        with self._changed:
            self._changed.wait_for(matched, timeout_s)
        if found is None:
            reason = "ended" if self._ended else f"was silent for {timeout_s} s"
            raise ProcessFailed(f"{self.name} {reason} before {pattern!r}:\n{self.tail()}")
        return found

    def tail(self, lines: int = 40) -> str:
        with self._changed:
            return "".join(self._lines[-lines:])

    def alive(self) -> bool:
        return self.popen.poll() is None

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process and all its children; nothing when they are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

    def wait(self, timeout_s: float = 120) -> int:
        """The exit code, when the process has ended by itself."""
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"{self.name} did not end within {timeout_s} s:\n{self.tail()}") from None
        self._reader.join(5)
        return code

    def stop(self, timeout_s: float = 120, number: int = signal.SIGTERM) -> int:
        """Asks the process to end (SIGTERM to it alone) and waits; returns its exit code."""
        if self.alive():
            self.popen.send_signal(number)
        code = self.wait(timeout_s)
        self.kill()
        return code

    def kill(self) -> None:
        """kill -9 for the whole group. Idempotent."""
        self.signal_group(signal.SIGKILL)
        self.popen.wait()
        self._reader.join(5)
