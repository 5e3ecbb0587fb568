"""The helper process: it forks servers for its owner (`klamm.processes.helper`).

The helper imports klamm once, before it has any thread or loop, and then forks a child for each server that its owner
requests: a child starts in milliseconds and shares the imported code's memory. The helper stays single-threaded and
holds no state but its children. It runs as
`python -m klamm.processes.fork_server COMMANDS EVENTS LIFELINE MODULE...` with three inherited descriptors:

- COMMANDS, a socket: JSON lines from the owner. `{"start": id, "target": "module:callable", "arguments": {...},
  "log": path}` forks a server. `{"signal": id, "number": n}` sends a signal. `{"remove": directory}` has the helper
  remove the directory when its owner is gone; `{"forget": directory}` cancels that. End of file means the owner is
  gone.
- EVENTS, a pipe shared with the children: JSON lines to the owner. Each line is one write shorter than PIPE_BUF, so
  lines never mix: `started` (pid), `ready` (the server's details), `failed` (reason), `paused`, `resumed`, `exited`
  (code).
- LIFELINE, a pipe without data: its end of file tells every child that the owner is gone.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from klamm.base.visible import visible
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_OK, ToolError

# After the owner is gone, its children have this long to stop before they are killed.
ORPHAN_GRACE_S = 15.0
REASON_LIMIT = 500


def main() -> None:
    commands, events, lifeline = map(int, sys.argv[1:4])
    for module in sys.argv[4:]:
        importlib.import_module(module)
    # Imported modules live for ever. The collector does not touch frozen objects, so their pages stay shared.
    gc.collect()
    gc.freeze()
    ForkServer(commands, events, lifeline).run()


class ForkServer:
    """Reads commands, forks and reaps."""

    def __init__(self, commands: int, events: int, lifeline: int) -> None:
        self._commands, self._events, self._lifeline = commands, events, lifeline
        self._unfinished_line = b""
        self._pids: dict[int, int] = {}
        self._logs: dict[int, str] = {}
        self._throwaway: list[str] = []
        self._child_ended, self._wakeup = os.pipe()

    def run(self) -> None:
        """Serves commands until the owner is gone, then ends the children."""
        for descriptor in (self._child_ended, self._wakeup):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        # The owner's descriptors may have numbers that are too large for select.
        poll = select.poll()
        for descriptor in (self._commands, self._child_ended):
            poll.register(descriptor, select.POLLIN)
        while True:
            readable = [descriptor for descriptor, _ in poll.poll()]
            if self._child_ended in readable:
                self._reap()
            if self._commands in readable and not self._read_commands():
                break
        self._end_orphans()

    def _read_commands(self) -> bool:
        """Carries out the commands that have arrived; False when the owner is gone."""
        try:
            received = os.read(self._commands, 65536)
        except ConnectionResetError:
            return False
        *lines, self._unfinished_line = (self._unfinished_line + received).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "start" in command:
                self._fork(command["start"], command["target"], command["arguments"], command["log"])
            elif "remove" in command:
                self._throwaway.append(command["remove"])
            elif "forget" in command:
                self._throwaway = [directory for directory in self._throwaway if directory != command["forget"]]
            elif command["signal"] in self._pids:
                os.kill(self._pids[command["signal"]], command["number"])
        return bool(received)

    def _fork(self, identifier: int, target: str, arguments: dict[str, Any], log: str) -> None:
        pid = os.fork()
        if pid == 0:
            self._be_child(identifier, target, arguments, log)
        self._pids[identifier], self._logs[identifier] = pid, log
        self._tell("started", identifier, pid=pid)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._child_ended, 4096)
        for identifier, pid in list(self._pids.items()):
            while (change := os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)) != (0, 0):
                _, status = change
                if os.WIFSTOPPED(status):
                    self._tell("paused", identifier)
                elif os.WIFCONTINUED(status):
                    self._tell("resumed", identifier)
                else:
                    del self._pids[identifier], self._logs[identifier]
                    self._tell("exited", identifier, code=os.waitstatus_to_exitcode(status))
                    break

    def _tell(self, event: str, identifier: int, **details: Any) -> None:
        line = json.dumps({"event": event, "id": identifier, **details}) + "\n"
        # An owner that is gone reads no events.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._events, line.encode())

    def _end_orphans(self) -> None:
        for identifier, pid in self._pids.items():
            # A server over a throwaway directory needs no clean stop. A paused child does not see the lifeline's end.
            thrown_away = os.path.dirname(self._logs[identifier]) in self._throwaway
            os.kill(pid, signal.SIGKILL if thrown_away else signal.SIGCONT)
        deadline = time.monotonic() + ORPHAN_GRACE_S
        while self._pids and (left := deadline - time.monotonic()) > 0:
            select.select([self._child_ended], [], [], left)
            self._reap()
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for directory in self._throwaway:
            shutil.rmtree(directory, ignore_errors=True)

    # -- in the child ---------------------------------------------------------------------------------------------

    def _be_child(self, identifier: int, target: str, arguments: dict[str, Any], log: str) -> NoReturn:
        code = EXIT_FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._commands, self._child_ended, self._wakeup):
                os.close(descriptor)
            _redirect_output(log)
            self._serve(identifier, target, arguments)
            code = EXIT_OK
        except ToolError as error:
            print(visible(f"klamm: {error}"), file=sys.stderr)  # noqa: T201
            self._tell("failed", identifier, reason=str(error)[:REASON_LIMIT])
        except BaseException as error:
            traceback.print_exc()
            self._tell("failed", identifier, reason=f"a fault of the program: {error!r}"[:REASON_LIMIT])
        finally:
            # Not sys.exit: the child must not run the helper's own exit handlers.
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(code)

    def _serve(self, identifier: int, target: str, arguments: dict[str, Any]) -> None:
        from klamm.processes.serving import configure_logging, run_server

        configure_logging()
        module, _, name = target.partition(":")
        server = getattr(importlib.import_module(module), name)(**arguments)
        run_server(server, lambda details: self._tell("ready", identifier, details=dict(details)), self._lifeline)


def _redirect_output(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(file)


if __name__ == "__main__":
    main()
