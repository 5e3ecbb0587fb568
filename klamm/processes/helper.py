"""The owner's side of `fork_server`: it starts the helper, sends it commands, and receives its events.

One helper can serve several `supervisor.Processes`, one after another or at once: importing klamm takes half a second,
forking a server takes milliseconds. Every method may be called from any thread.
"""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

PRELOAD = (
    "klamm.processes.servers",
    "klamm.processes.serving",
    # A broker imports these while it starts; all brokers of a local cluster have a port for metrics.
    "klamm.broker.metrics.metrics_endpoint",
    "encodings.idna",
)

OnEvent = Callable[[Mapping[str, Any]], None]


class HelperGone(Exception):
    """The helper process has ended, so it can start no further server."""


class Helper:
    """A helper process that has imported `preload`. It ends with `close`, or with the process that created it."""

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._changed = threading.Condition()
        self._on_event: dict[int, OnEvent] = {}
        self._next_id = 0
        self._gone = False
        self._commands, helper_commands = socket.socketpair()
        self._events, helper_events = os.pipe()
        helper_lifeline, self._lifeline = os.pipe()
        descriptors = (helper_commands.fileno(), helper_events, helper_lifeline)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "klamm.processes.fork_server", *map(str, descriptors), *preload],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            # Ctrl-C in a terminal reaches only this process, which then stops the servers in order.
            start_new_session=True,
        )
        helper_commands.close()
        os.close(helper_events)
        os.close(helper_lifeline)
        self._reader = threading.Thread(target=self._read_events, name="klamm-helper", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, command: Mapping[str, Any], on_event: OnEvent) -> int:
        """Makes the helper fork a server (see `fork_server`) and returns the server's number, for `send_signal`.

        `on_event` receives the server's events, in the reader's thread and under the lock of `wait`. The event "lost"
        means that the helper has ended before the server. Raises HelperGone.
        """
        with self._changed:
            self._next_id += 1
            # The server is registered before the command is sent: Ctrl-C may come right after.
            self._on_event[self._next_id] = on_event
            self._send({"start": self._next_id, **command})
            return self._next_id

    def send_signal(self, server: int, number: int) -> None:
        """Sends a signal to a server that still runs. Only the helper knows whether the server still has its pid."""
        with self._changed:
            if server in self._on_event:
                self._send({"signal": server, "number": number})

    def remove_when_orphaned(self, directory: str) -> None:
        """If this process dies, the helper removes the directory and kills the servers whose logs are in it."""
        self._send({"remove": directory})

    def forget(self, directory: str) -> None:
        """Cancels `remove_when_orphaned`."""
        with contextlib.suppress(HelperGone):
            self._send({"forget": directory})

    def wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until the condition is true, and checks it when a server's state changes. Returns False on timeout."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def close(self) -> None:
        """Ends the helper; servers that still run stop. Idempotent."""
        with self._changed:
            lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            with contextlib.suppress(OSError):
                self._commands.shutdown(socket.SHUT_WR)
            os.close(lifeline)
        self.process.wait()
        self._reader.join()
        self._commands.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        with self._changed:
            if self._gone:
                raise HelperGone("the helper process has ended")
            self._commands.sendall(json.dumps(command).encode() + b"\n")

    # -- in the reader's thread -----------------------------------------------------------------------------------

    def _read_events(self) -> None:
        """Passes the events on until the helper and all servers have ended."""
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
                            self._pass_on(json.loads(line))
                        self._changed.notify_all()
                    if not received:
                        break
                else:
                    # The helper never sends on this socket, so it has ended, and all its events have been read.
                    break
        with self._changed:
            self._gone = True
            for on_event in self._on_event.values():
                on_event({"event": "lost"})
            self._on_event.clear()
            self._changed.notify_all()
        os.close(self._events)

    def _pass_on(self, event: dict[str, Any]) -> None:
        self._on_event[event["id"]](event)
        if event["event"] == "exited":
            del self._on_event[event["id"]]
