"""The history of a cluster: what happened, in order, to assert on and to print when a test fails.

`HistoryLog` is written while the cluster runs. Users get a `History` from it: a list of entries (`entries.py`).

What must stay true:
- Entries have the order in which the owner learned of them. The reports of one server keep their order, and so do the
  changes in ZooKeeper. A broker may report that it leads before the election has been read from ZooKeeper.
- The log keeps the newest MAX_STRIKES strikes and MAX_ENTRIES other entries, so a fault that strikes all the time does
  not drop elections and actions. The entries' numbers tell how many entries were dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby, takewhile
from typing import TypeVar

from klamm.faults.commands import Fault, Server
from klamm.faults.commands.disk import DiskFault
from klamm.faults.commands.network import NetworkFault
from klamm.faults.entries import (
    ActionPerformed,
    BecameFollower,
    BecameLeader,
    BrokerAdded,
    ChronicleEntry,
    FaultInstalled,
    FaultRemoved,
    FaultStruck,
    IsrChanged,
    LeaderElected,
    ServerEnded,
    ServerPaused,
    ServerResumed,
    ServerStarted,
)
from klamm.processes.supervisor import ServerProcess

E = TypeVar("E", bound=ChronicleEntry)

MAX_ENTRIES = 100_000
MAX_STRIKES = 50_000
# A report shows at most this many similar lines in a row.
SIMILAR_LINES = 4


class History(list[ChronicleEntry]):
    """Entries, oldest first. `str(history)` has one line for each entry, with the seconds since the first."""

    def of(self, *kinds: type[E]) -> list[E]:
        """The entries of these classes."""
        return [entry for entry in self if isinstance(entry, kinds)]

    def was_struck_down(self, server: Server) -> bool:
        """Whether a fault explains the server's end: in its last run, a disk fault has struck, or a network fault
        before it was ready."""
        faults = {entry.fault: entry.what for entry in self.of(FaultInstalled)}
        struck_by: list[Fault | None] = []
        ends = 0
        for entry in reversed(self):
            match entry:
                case FaultStruck(server=struck, fault=number) if struck == server:
                    struck_by.append(faults.get(number))
                case ServerStarted(server=started) if started == server:
                    return any(isinstance(fault, DiskFault) for fault in struck_by)
                case ServerEnded(server=ended) if ended == server:
                    ends += 1
                    if ends == 2:
                        break
        return any(isinstance(fault, DiskFault | NetworkFault) for fault in struck_by)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The lines of a report. For many similar entries in a row, such as the first leaders of a topic, a report
        has the first and the number of the rest."""
        began_ms = self[0].time_ms if self else 0
        for _, group in groupby(self, _likeness):
            similar = list(group)
            shown = similar if len(similar) <= SIMILAR_LINES + 1 else similar[:SIMILAR_LINES]
            for entry in shown:
                yield f"{(entry.time_ms - began_ms) / 1000:9.3f} s  {entry}"
            if len(shown) < len(similar):
                yield f"{'':12}and {len(similar) - len(shown)} more like these"

    def report(self, most_lines: int) -> str:
        """At most this many of the newest lines, and how many lines are left out."""
        lines = list(self.lines())
        earlier = [f"{'':12}{len(lines) - most_lines} earlier lines are left out"] if len(lines) > most_lines else []
        return "\n".join([*earlier, *lines[-most_lines:]])

    def script(self) -> list[str]:
        """The lines of Python that repeat the faults, the actions and the operations on servers in a cluster `c`."""
        replaced = {entry.instead_of for entry in self.of(FaultInstalled)}
        ended: set[Server] = set()
        lines = []
        for entry in self:
            line = _line_of(entry, ended)
            if line is not None and not (isinstance(entry, FaultInstalled | FaultRemoved) and entry.fault in replaced):
                lines.append(line)
        return lines


def _likeness(entry: ChronicleEntry) -> object:
    """A value that is equal for similar entries."""
    match entry:
        case BecameLeader(topic=topic) | BecameFollower(topic=topic):
            return topic
        case LeaderElected(topic=topic) | IsrChanged(topic=topic):
            return entry.kind, topic
        case FaultStruck(fault=fault, server=server):
            return entry.kind, fault, server
    return entry.number


def _line_of(entry: ChronicleEntry, ended: "set[Server]") -> str | None:
    """The line that repeats this entry. `ended` are the servers that have ended; only the test starts these again."""
    match entry:
        case FaultInstalled(fault=number, what=fault):
            return f"fault_{number} = {fault.python()}"
        case FaultRemoved(fault=number):
            return f"fault_{number}.remove()"
        case ActionPerformed(server=server, what=action):
            return action.python(server)
        case BrokerAdded():
            return "c.add_broker()"
        case ServerEnded(server=server) if server in ended:
            return f"c.start({server!r}, wait=False)"  # The server ended before it was ready.
        case ServerEnded(server=server, how=how):
            ended.add(server)
            return f"c.{'stop' if how == 'stopped' else 'kill'}({server!r})"
        case ServerStarted(server=server) if server in ended:
            ended.remove(server)
            return f"c.start({server!r})"
        case ServerPaused(server=server):
            return f"c.pause({server!r})"
        case ServerResumed(server=server):
            return f"c.resume({server!r})"
    return None


class HistoryLog:
    """The entries of a running cluster. Call all methods on one loop. `now_ms` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: deque[ChronicleEntry] = deque(maxlen=MAX_ENTRIES)
        self._strikes: deque[ChronicleEntry] = deque(maxlen=MAX_STRIKES)
        self._count = 0
        self._grown = asyncio.Event()

    def add(self, entry: ChronicleEntry) -> None:
        """Appends an entry, with its number and the time."""
        self._count += 1
        kept = self._strikes if isinstance(entry, FaultStruck) else self._entries
        kept.append(replace(entry, number=self._count, time_ms=self._now_ms()))
        self._grown.set()

    def after(self, number: int = 0) -> History:
        """The entries after the entry with this number."""
        newer = [
            entry
            for kept in (self._strikes, self._entries)
            for entry in takewhile(lambda entry: entry.number > number, reversed(kept))
        ]
        return History(sorted(newer, key=lambda entry: entry.number))

    def newest(self, kind: type[E]) -> E | None:
        """The newest entry of this class."""
        return next((entry for entry in reversed(self._entries) if isinstance(entry, kind)), None)

    async def wait_after(self, number: int, timeout_s: float) -> History:
        """Like `after`, but waits up to `timeout_s` for an entry."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._count <= number:
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            pass
        return self.after(number)


def process_entry(server: Server, process: ServerProcess, change: str) -> ChronicleEntry | None:
    """The entry for a change of a server's process, as `Processes` reports it; None for a change without an entry."""
    match change:
        case "ready":
            return ServerStarted(server)
        case "paused":
            return ServerPaused(server)
        case "resumed":
            return ServerResumed(server)
        case "exited" | "lost" if not process.expected_end:
            return ServerEnded(server, process.obituary())
        case "exited" | "lost":
            return ServerEnded(server, "stopped" if process.exit_code == 0 else "killed")
    return None
