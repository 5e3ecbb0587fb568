"""The agent of one server: obeys the cluster's owner, and reports strikes of faults.

The parts of the server that carry out faults and actions register with the agent before it connects:

    agent.installs(NetworkCut, network.cut)          # (fault, tally) -> the function that ends the fault
    agent.performs(ExpireSession, sessions.expire)   # async (action) -> a JSON value

What must stay true:
- `connect` returns when the cluster's active faults hold in this server, too.
- A failed command is answered with a sentence, and the agent continues. A programming error in a command is logged and
  answered; it does not stop the server.
- The memory for an owner that does not read is bounded: further events are dropped, and their number is reported.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from klamm.base.tasks import start_task
from klamm.faults.commands import Action, Command, Fault, Json, Server, from_json
from klamm.faults.tally import Tally
from klamm.faults.wire import MAX_LINE_BYTES, Elsewhere, FaultError, socket_path
from klamm.protocol.error_codes import KafkaError
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

F = TypeVar("F", bound=Fault)
A = TypeVar("A", bound=Action)
End = Callable[[], None]
"""Ends an installed fault."""

CONNECT_TIMEOUT_S = 30.0
# With more unread bytes, events are dropped.
MAX_UNREAD_BYTES = 8 * 1024 * 1024

_log = logging.getLogger(__name__)


class Agent:
    """The agent of `server`. `directory` holds the control's socket and the counts that servers share.

    `addresses` has the servers of the cluster by their listener addresses.
    """

    def __init__(self, server: Server, directory: str) -> None:
        self.server = server
        self.addresses: dict[tuple[str, int], Server] = {}
        self._directory = directory
        self._install: dict[type[Command], Callable[[Any, Tally], End]] = {}
        self._perform: dict[type[Command], Callable[[Any], Awaitable[Json]]] = {}
        self._installed: dict[int, tuple[End, Tally]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = asyncio.Event()
        self._unread_events = 0

    # -- for the parts that do harm -------------------------------------------------------------------------------

    def installs(self, kind: type[F], install: Callable[[F, Tally], End]) -> None:
        """`install(fault, tally)` begins a fault and returns a function that ends it. It may raise FaultError."""
        self._install[kind] = install

    def performs(self, kind: type[A], perform: Callable[[A], Awaitable[Json]]) -> None:
        """`perform(action)` carries out an action and returns its result. It may raise FaultError."""
        self._perform[kind] = perform

    def tell(self, event: str, **details: Json) -> None:
        """Reports an event of one of the kinds in `entries.REPORTED`."""
        writer = self._writer
        if writer is None or writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._unread_events += 1
            return
        if self._unread_events:
            self._send({"event": "events_missed", "count": self._unread_events})
            self._unread_events = 0
        self._send({"event": event, **details})

    # -- life -----------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connects to the owner. Returns when the active faults are installed. Raises FaultError."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                with socket_path(self._directory) as path:
                    reader, self._writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
                self.tell("hello", server=self.server)
                self._run(self._obey(reader))
                await self._begun.wait()
        except (TimeoutError, OSError) as error:
            raise FaultError(f"the owner of {self._directory} does not answer: {error}") from None
        if self._writer.is_closing():
            raise FaultError(f"the owner of {self._directory} has closed the connection")

    async def close(self) -> None:
        """Reports the last counts and ends the connection. Idempotent."""
        for task in list(self._tasks):
            task.cancel()
        for _, tally in self._installed.values():
            self.tell("counted", fault=tally.number, calls=tally.calls, hits=tally.hits)
            tally.close()
        self._installed.clear()
        if self._writer is not None:
            self._writer.close()

    # -- commands -------------------------------------------------------------------------------------------------

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        assert self._writer is not None
        try:
            while line := await reader.readline():
                self._obey_line(line)
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the commands of the cluster's owner end: %s", error)
        finally:
            # Without its owner this server stops by itself, as every server of a cluster does.
            self._writer.close()
            self._begun.set()

    def _obey_line(self, line: bytes) -> None:
        """Raises ValueError for a line that is not a command."""
        command = json.loads(line)
        if not isinstance(command, dict) or not isinstance(command.get("id"), int):
            raise ValueError(f"not a command: {line[:80]!r}")
        if command.get("command") == "perform":
            self._run(self._answer_performed(command))
        else:
            self._answer(command["id"], partial(self._carry_out, command))

    def _carry_out(self, command: Mapping[str, Any]) -> Json:
        match command:
            case {"command": "addresses", "of": addresses}:
                self.addresses = {(host, port): server for server, host, port in addresses}
            case {"command": "install", "fault": int(number), "of": fault, "instead_of": former}:
                return self._install_fault(number, from_json(fault), former)
            case {"command": "remove", "fault": int(number)}:
                return self._remove_fault(number)
            case {"command": "count"}:
                return [[number, tally.calls, tally.hits] for number, (_, tally) in self._installed.items()]
            case {"command": "begin"}:
                self._begun.set()
            case _:
                raise ValueError(f"no command: {str(command)[:80]}")
        return None

    def _install_fault(self, number: int, fault: Command, former: int | None) -> Json:
        install = self._install.get(type(fault))
        if install is None:
            raise FaultError(f"this server knows no fault {fault.kind}")
        counts = None if former is None else self._remove_fault(former)
        tally = Tally(number, self._directory, self._struck, self.server)
        self._installed[number] = (install(fault, tally), tally)
        return counts

    def _remove_fault(self, number: int) -> Json:
        """Ends a fault and returns its last counts, or None if this server does not have it."""
        if number not in self._installed:
            return None
        end, tally = self._installed.pop(number)
        end()
        tally.close()
        return [tally.calls, tally.hits]

    async def _answer_performed(self, command: Mapping[str, Any]) -> None:
        try:
            action = from_json(command.get("of"))
            perform = self._perform.get(type(action))
            if perform is None:
                raise FaultError(f"this server cannot perform {action.kind}")
            result = await perform(action)
        except Exception as error:
            elsewhere = {"elsewhere": True} if isinstance(error, Elsewhere) else {}
            self._send({"id": command["id"], "error": _sentence(error), **elsewhere})
        else:
            self._send({"id": command["id"], "result": result})

    def _answer(self, number: int, carry_out: Callable[[], Json]) -> None:
        try:
            answer = {"id": number, "result": carry_out()}
        except Exception as error:
            answer = {"id": number, "error": _sentence(error)}
        self._send(answer)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _struck(self, tally: Tally, details: Mapping[str, Json]) -> None:
        self.tell("struck", fault=tally.number, calls=tally.calls, hits=tally.hits, details=dict(details))

    def _send(self, value: Mapping[str, Json]) -> None:
        if self._writer is not None:
            # What a fault tells of its strikes must not fail the request that it strikes.
            self._writer.write(json.dumps(value, default=str).encode() + b"\n")

    def _run(self, work: Any) -> None:
        task = start_task(work, lambda error: _log.error("a fault of the program", exc_info=error))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _sentence(error: Exception) -> str:
    if isinstance(error, FaultError | ValueError | OSError | KafkaError | ZooKeeperError):
        return str(error) or type(error).__name__
    _log.error("a fault of the program in a command", exc_info=error)
    return f"a fault of the program: {error!r}"
