"""The owner's side: the active faults of a cluster, and a channel to the agent of each server.

    control = Control(directory, environment.now_ms)
    await control.open()                          # before the servers start; each of them dials this socket
    number = await control.install(Cut(...))      # returns when the fault holds in every server that it concerns
    await control.wait_struck(number, hits=1, timeout_s=10)
    await control.remove(number)

What must stay true:
- An installed fault holds in every server that it concerns: running servers confirm it, and servers that start later
  get it before they do anything. A paused server obeys when it is resumed.
- A server's death ends a wait for its answer.
- Call all methods on the loop that has called `open`. `faults` and `active` may be read from any thread.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from klamm.faults.commands import Action, Command, Fault, Json, Server
from klamm.faults.entries import (
    REPORTED,
    ActionPerformed,
    ControllerElected,
    FaultInstalled,
    FaultRefused,
    FaultRemoved,
    FaultStruck,
    name_of,
)
from klamm.faults.history import HistoryLog
from klamm.faults.tally import wish_path
from klamm.faults.wire import MAX_LINE_BYTES, Elsewhere, FaultError, socket_path

ANSWER_TIMEOUT_S = 10.0
# Actions take long: they wait for an election or an expired session.
ACTION_TIMEOUT_S = 60.0
# How long a server has to report its counts before it is killed or paused.
LAST_COUNTS_TIMEOUT_S = 1.0
# With more faults, the counts of the oldest removed faults are forgotten.
MAX_KNOWN_FAULTS = 10_000
# How long to look for a server that can perform an action, and the pause between rounds.
SOMEWHERE_TIMEOUT_S = 30.0
ASK_AGAIN_S = 0.05


class ServerGone(FaultError):
    """The server has ended or does not exist, so it does not answer."""


@dataclass
class Installed:
    """An installed fault with the servers' counts, which it keeps after its removal. They are final once it `is_over`.

    `past` are the calls and hits of servers that have ended.
    """

    number: int
    fault: Fault
    counts: dict["_Channel", tuple[int, int]] = field(default_factory=dict)
    past: tuple[int, int] = (0, 0)
    removed: bool = False
    is_over: bool = False

    @property
    def calls(self) -> int:
        return self.past[0] + sum(calls for calls, _ in self.counts.values())

    @property
    def hits(self) -> int:
        return self.past[1] + sum(hits for _, hits in self.counts.values())


class Control:
    """`directory` is created with mode 0700, for the socket and the files that servers share. `now_ms` is the wall
    clock.

    `is_paused` tells whether a server is paused, so that it answers later.
    """

    def __init__(
        self, directory: str | Path, now_ms: Callable[[], int], is_paused: Callable[[Server], bool] = lambda _: False
    ) -> None:
        self.directory = Path(directory)
        self.history = HistoryLog(now_ms)
        self.faults: dict[int, Installed] = {}
        self._is_paused = is_paused
        self._addresses: list[tuple[Server, str, int]] = []
        self._channels: dict[Server, _Channel] = {}
        self._numbers = itertools.count(1)
        self._listening: asyncio.Server | None = None
        self._struck = asyncio.Condition()

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Listens for the servers of the cluster. Raises FaultError."""
        try:
            await self._listen()
        except OSError as error:
            raise FaultError(
                f"no socket for faults can be opened in {self.directory}: {error.strerror or error}"
            ) from error

    async def _listen(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        with socket_path(self.directory) as path:
            if await _is_served(path):
                raise FaultError(f"another cluster runs in {self.directory.parent}")
            for left in self.directory.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            # The directory keeps other users out as soon as the socket exists.
            self._listening = await asyncio.start_unix_server(self._serve, path, limit=MAX_LINE_BYTES)
            os.chmod(path, 0o600)

    async def close(self) -> None:
        """Ends all channels. Idempotent."""
        if self._listening is not None:
            self._listening.close()
        for channel in list(self._channels.values()):
            channel.close()

    # -- faults ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[Installed]:
        """The installed faults, oldest first."""
        return [installed for installed in list(self.faults.values()) if not installed.removed]

    async def install(self, fault: Fault, instead_of: int | None = None) -> int:
        """Installs a fault and returns its number.

        The brokers that the fault names must be brokers of the cluster, whether they run or not. The fault replaces the
        fault `instead_of`, if any, without a gap in servers that both concern. After a FaultError neither of the two
        holds anywhere.
        """
        self._check_brokers(fault)
        former = None if instead_of is None else self._installed(instead_of)
        number = next(self._numbers)
        self.faults[number] = Installed(number, fault)
        wish = wish_path(self._directory_of(number))
        wish.parent.mkdir(parents=True)
        wish.touch()
        self.history.add(FaultInstalled(number, fault, instead_of))
        try:
            answers = await self._ask_all(self._concerned(fault), _install_command(number, fault, instead_of))
        except FaultError:
            for failed in (number, instead_of):
                if failed is not None:
                    await self.remove(failed)
            raise
        if former is not None:
            self._count_all(former, answers)
            await self.remove(former.number)
        return number

    async def remove(self, number: int) -> None:
        """Ends a fault. Returns when no server has it. Idempotent. Raises FaultError for an unknown number."""
        installed = self._installed(number)
        if installed.removed:
            return
        installed.removed = True
        wish_path(self._directory_of(number)).unlink(missing_ok=True)
        command = {"command": "remove", "fault": number}
        try:
            self._count_all(installed, await self._ask_all(self._concerned(installed.fault), command))
        finally:
            installed.is_over = True
            self.history.add(FaultRemoved(number, installed.calls, installed.hits))
            await self._tell_waits()
            self._forget(number)

    async def remove_all(self) -> None:
        """Ends all faults, in the order in which they were installed."""
        await asyncio.gather(*(self.remove(installed.number) for installed in self.active))

    async def count(self) -> None:
        """Updates the counts of all faults with everything that servers did before this call."""
        running = [channel for server, channel in self._channels.items() if not self._is_paused(server)]
        answers = await self._ask_all(running, {"command": "count"})
        for channel, counts in answers.items():
            for number, calls, hits in counts:
                self._counted(channel, number, calls, hits)

    async def count_if_answered(self) -> None:
        """Like `count`, before servers are killed or paused. A server that does not answer soon keeps its old
        counts."""
        if self.active:
            with contextlib.suppress(TimeoutError, FaultError):
                async with asyncio.timeout(LAST_COUNTS_TIMEOUT_S):
                    await self.count()

    async def wait_struck(self, number: int, hits: int, timeout_s: float) -> None:
        """Returns when the fault has this many hits. Raises TimeoutError, or FaultError when the fault is removed."""
        installed = self._installed(number)
        async with asyncio.timeout(timeout_s), self._struck:
            await self._struck.wait_for(lambda: installed.hits >= hits or installed.is_over)
        if installed.hits < hits:
            raise FaultError(f"fault {number} was removed after {installed.hits} of {hits} hits: {installed.fault}")

    async def perform(self, server: Server | None, action: Action) -> Json:
        """Has a server carry out an action; returns the result. Without `server`, a server that can, such as the
        controller, does it. Raises FaultError.
        """
        self._check_brokers(action)
        if server is None:
            return await self._perform_somewhere(action)
        channel = self._channels.get(server)
        if channel is None:
            raise ServerGone(f"{name_of(server)} does not run")
        result = await channel.ask({"command": "perform", "of": action.to_json()}, ACTION_TIMEOUT_S)
        await self.performed(server, action, result)
        return result

    async def performed(self, server: Server, action: Action, result: Json) -> None:
        """Adds to the history an action that the server has carried out, or that was done to a stopped server's
        files."""
        self.history.add(ActionPerformed(server, action, result))

    async def _perform_somewhere(self, action: Action) -> Json:
        """Asks one server after another, repeatedly, because there may be no controller for a while.

        The newest controller is asked first: a replaced controller that is cut off from ZooKeeper would not answer.
        """
        deadline_s = asyncio.get_running_loop().time() + SOMEWHERE_TIMEOUT_S
        reason = f"no running server, paused ones apart, can perform {action.kind}"
        while True:
            servers = [server for server in self._channels if action.concerns(server) and not self._is_paused(server)]
            controller = self.history.newest(ControllerElected)
            servers.sort(key=lambda server: controller is None or server != controller.broker)
            for server in servers:
                try:
                    return await self.perform(server, action)
                except (Elsewhere, ServerGone) as error:
                    reason = str(error)
            if not servers or asyncio.get_running_loop().time() > deadline_s:
                raise FaultError(reason)
            await asyncio.sleep(ASK_AGAIN_S)

    async def set_addresses(self, addresses: Iterable[tuple[Server, str, int]]) -> None:
        """Tells all servers the addresses of each server."""
        self._addresses = list(addresses)
        await self._ask_all(list(self._channels.values()), {"command": "addresses", "of": self._addresses})

    # -- inside ---------------------------------------------------------------------------------------------------

    def _count_all(self, ended: Installed, answers: "Mapping[_Channel, Json]") -> None:
        """Takes the last counts of a fault from the answers of servers that have ended it."""
        for channel, counts in answers.items():
            if counts is not None:
                self._counted(channel, ended.number, *counts)

    def _forget(self, number: int) -> None:
        """Removes the shared files of a fault, and the counts of very old faults."""
        shutil.rmtree(self._directory_of(number), ignore_errors=True)
        while len(self.faults) > MAX_KNOWN_FAULTS and (oldest := next(iter(self.faults.values()))).removed:
            del self.faults[oldest.number]

    def _directory_of(self, number: int) -> Path:
        return self.directory / str(number)

    def _check_brokers(self, command: Command) -> None:
        """Raises FaultError for a broker that the cluster does not have."""
        known = sorted({server for server, *_ in self._addresses if server != "zookeeper"})
        for broker in command.named_brokers():
            if known and broker not in known:
                allowed = ", ".join(map(str, known))
                raise FaultError(f"{command.kind}: broker {broker} is not in this cluster; allowed: {allowed}")

    def _installed(self, number: int) -> Installed:
        try:
            return self.faults[number]
        except KeyError:
            raise FaultError(f"there is no fault {number}") from None

    def _concerned(self, fault: Fault) -> "list[_Channel]":
        return [channel for server, channel in self._channels.items() if fault.concerns(server)]

    async def _ask_all(self, channels: "list[_Channel]", command: Mapping[str, Json]) -> "dict[_Channel, Json]":
        """Sends a command to all these servers at once and returns their answers.

        A server that is paused, or ends meanwhile, has no answer. Raises the first FaultError.
        """
        asked = [channel.send(command) for channel in channels]
        answers: dict[_Channel, Json] = {}
        errors: list[FaultError] = []
        for channel, answer in zip(channels, asked, strict=True):
            if self._is_paused(channel.server):
                continue
            try:
                answers[channel] = await channel.answered(answer, ANSWER_TIMEOUT_S)
            except ServerGone:
                continue
            except FaultError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    # -- the servers' channels ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one channel until its server ends. A peer that sends invalid lines is disconnected."""
        channel = _Channel(writer)
        try:
            hello = _parsed(await reader.readline())
            if hello.get("event") != "hello" or not _is_server(hello.get("server")):
                return
            channel.server = hello["server"]
            self._channels[channel.server] = channel
            self._welcome(channel)
            while line := await reader.readline():
                await self._received(channel, _parsed(line))
        except (OSError, ValueError, RecursionError):
            pass
        finally:
            self._ended(channel)

    def _welcome(self, channel: "_Channel") -> None:
        """Sends a starting server the addresses and faults of the other servers, and lets it start."""
        channel.send({"command": "addresses", "of": self._addresses})
        for installed in self.active:
            if installed.fault.concerns(channel.server):
                command = _install_command(installed.number, installed.fault)
                channel.send(command).add_done_callback(
                    partial(self._installed_at_start, installed.number, channel.server)
                )
        channel.send({"command": "begin"})

    def _installed_at_start(self, number: int, server: Server, answer: "asyncio.Future[Json]") -> None:
        error = None if answer.cancelled() else answer.exception()
        if error is not None and not isinstance(error, ServerGone):
            self.history.add(FaultRefused(number, server, str(error)))

    async def _received(self, channel: "_Channel", line: dict[str, Any]) -> None:
        """Raises ValueError for a line that no agent sends."""
        if "event" not in line:
            channel.received(line)
            return
        match line:
            case {
                "event": "struck",
                "fault": int(number),
                "calls": int(calls),
                "hits": int(hits),
                "details": dict(details),
            }:
                self._counted(channel, number, calls, hits)
                self.history.add(FaultStruck(number, channel.server, hits, details))
                await self._tell_waits()
            case {"event": "counted", "fault": int(number), "calls": int(calls), "hits": int(hits)}:
                self._counted(channel, number, calls, hits)
            case {"event": str(kind), **values} if kind in REPORTED:
                try:
                    self.history.add(REPORTED[kind](server=channel.server, **values))
                except TypeError as error:
                    raise ValueError(f"not an event: {error}") from error
            case _:
                raise ValueError(f"not an event: {line}")

    async def _tell_waits(self) -> None:
        async with self._struck:
            self._struck.notify_all()

    def _counted(self, channel: "_Channel", number: int, calls: int, hits: int) -> None:
        if number in self.faults:
            # An answer may be handled after events that came later.
            counts = self.faults[number].counts
            known_calls, known_hits = counts.get(channel, (0, 0))
            counts[channel] = (max(calls, known_calls), max(hits, known_hits))

    def _ended(self, channel: "_Channel") -> None:
        channel.close()
        if self._channels.get(channel.server) is channel:
            del self._channels[channel.server]
        for installed in self.faults.values():
            calls, hits = installed.counts.pop(channel, (0, 0))
            installed.past = (installed.past[0] + calls, installed.past[1] + hits)


class _Channel:
    """The connection of one run of a server."""

    server: Server = -1

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Json]] = {}

    def send(self, command: Mapping[str, Json]) -> "asyncio.Future[Json]":
        """Sends a command; the future gets its answer."""
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_look_at)  # Not every answer is awaited.
        if self._writer.is_closing():
            answer.set_exception(self._gone())
            return answer
        number = next(self._numbers)
        self._asked[number] = answer
        self._writer.write(json.dumps({"id": number, **command}).encode() + b"\n")
        return answer

    async def answered(self, answer: "asyncio.Future[Json]", timeout_s: float) -> Json:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise FaultError(f"{name_of(self.server)} has not answered for {timeout_s:g} s") from None

    async def ask(self, command: Mapping[str, Json], timeout_s: float) -> Json:
        return await self.answered(self.send(command), timeout_s)

    def received(self, line: dict[str, Any]) -> None:
        """Raises ValueError for a line that is not an answer."""
        if type(line.get("id")) is not int:
            raise ValueError(f"not an answer: {line}")
        answer = self._asked.pop(line["id"], None)
        if answer is None or answer.done():
            return
        if "error" in line:
            kind = Elsewhere if line.get("elsewhere") else FaultError
            answer.set_exception(kind(f"{name_of(self.server)}: {line['error']}"))
        else:
            answer.set_result(line.get("result"))

    def close(self) -> None:
        """Ends the connection and all waits for answers. Idempotent."""
        self._writer.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._gone())
        self._asked.clear()

    def _gone(self) -> ServerGone:
        return ServerGone(f"{name_of(self.server)} has ended")


def _install_command(number: int, fault: Fault, instead_of: int | None = None) -> dict[str, Json]:
    return {"command": "install", "fault": number, "of": fault.to_json(), "instead_of": instead_of}


def _look_at(answer: "asyncio.Future[Json]") -> None:
    """Marks the answer's error as seen, so that the loop does not report it."""
    with contextlib.suppress(asyncio.CancelledError):
        answer.exception()


def _parsed(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


async def _is_served(path: str) -> bool:
    """Whether another process listens on this socket."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


def _is_server(value: object) -> bool:
    return type(value) is int or value == "zookeeper"
