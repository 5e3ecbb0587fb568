"""Members of consumer groups as a test sees them: what they are told, and what has happened to them.

The clients run in processes (members.py, GroupMembers.java), each of which hosts any number of members.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from support.oracles import SMALL_HEAP
from support.processes import ManagedProcess, ProcessFailed

T = TypeVar("T")
Partition = tuple[str, int]

HERE = Path(__file__).parent
TIMEOUT_S = 120.0
# Longer than any wait of a test, so that no member is ever expelled for being slow, and a member that is gone has left.
SESSION_MS = 60_000

EAGER = ("range", "roundrobin", "sticky")


@dataclass(frozen=True)
class Client:
    """What a client can do. docs/clients.md has the same as a table."""

    assignors: tuple[str, ...]
    commits_async: str = "fails without a retry"
    tells_lost: bool = True
    commits_in_callbacks: bool = True
    java: str | None = None


CLIENTS = {
    "librdkafka": Client(("range", "roundrobin", "cooperative-sticky"), commits_async="is retried too"),
    "kafka-python": Client((*EAGER, "cooperative-sticky"), commits_in_callbacks=False),
    "aiokafka": Client(EAGER, commits_async="-", tells_lost=False),
    "java-2.8": Client((*EAGER, "cooperative-sticky"), java="kafka_jars"),
    "java-4.4": Client((*EAGER, "cooperative-sticky"), java="kafka_clients4_jars"),
}
# klamm's own member shares groups with all of them. It has no automatic commits and no patterns.
MEMBERS = {**CLIENTS, "klamm": Client(("range", "roundrobin"), commits_async="-")}


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: str


@dataclass
class Member:
    """One member: everything that its client has said so far."""

    name: str
    host: "Host"
    events: list[tuple[str, ...]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    owned: set[Partition] = field(default_factory=set)

    def say(self, verb: str, *arguments: str) -> None:
        self.host.say(" ".join((self.name, verb, *arguments)))

    def happened(self, event: str, *arguments: str) -> None:
        """Notes an event, in the thread that reads the host's output."""
        if event == "record":
            topic, partition, offset, value = arguments
            self.records.append(Record(topic, int(partition), int(offset), value))
            return
        self.events.append((event, *arguments))
        if event == "assigned":
            self.owned |= partitions(arguments[0])
        elif event in ("revoked", "lost"):
            self.owned -= partitions(arguments[0])
        elif event == "closed":
            self.owned.clear()

    def rebalances(self) -> list[tuple[str, set[Partition]]]:
        """What its listener has been called with, in order."""
        calls = ("assigned", "revoked", "lost")
        return [(event[0], partitions(event[1])) for event in self.events if event[0] in calls]

    def answers(self, event: str) -> list[str]:
        return [" ".join(arguments) for kind, *arguments in self.events if kind == event]

    def ask(self, verb: str, answer: str) -> str:
        """Sends a command and returns the next answer of that kind."""
        before = len(self.answers(answer))
        self.say(verb)
        return self.host.world.until(lambda: self.answers(answer)[before:], f"{self.name}: {answer}")[0]

    def close(self) -> None:
        self.ask("close", "closed")


def partitions(text: str) -> set[Partition]:
    pairs = (partition.rsplit(":", 1) for partition in text.split(",") if partition != "-")
    return {(topic, int(number)) for topic, number in pairs}


class Host(ManagedProcess):
    """A process with members of one client."""

    def __init__(self, world: "World", client: str, command: Sequence[str | Path], log: Path) -> None:
        self.world, self.client = world, client
        self.members: dict[str, Member] = {}
        super().__init__(client, command, log, stdin=subprocess.PIPE)

    def say(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def _take(self, line: str) -> None:
        super()._take(line)
        if line.startswith("@ "):
            _, name, *event = line.split()
            with self.world.changed:
                self.members[name].happened(*event)
                self.world.changed.notify_all()


class World:
    """All hosts of a test session: one of each client as members, more to be killed."""

    def __init__(self, directory: Path, jars: Callable[[str], Path]) -> None:
        self.changed = threading.Condition()
        self._directory, self._jars = directory, jars
        self._hosts: list[Host] = []
        self._shared: dict[str, Host] = {}
        self._count = 0

    def start(self, client: str) -> Host:
        """A process of its own."""
        if java := MEMBERS[client].java:
            command = ["java", *SMALL_HEAP, "-cp", f"{self._jars(java)}/*", str(HERE / "GroupMembers.java")]
        else:
            command = [sys.executable, str(HERE / "members.py"), client]
        host = Host(self, client, command, self._directory / f"{client}.log")
        self._hosts.append(host)
        return host

    def open(
        self, client: str | Host, bootstrap: str, group: str, topics: str, config: Mapping[str, Any] | None = None
    ) -> Member:
        """A new member of a group, in the shared process of a client or in that one."""
        if isinstance(client, str):
            if client not in self._shared:
                self._shared[client] = self.start(client)
            host = self._shared[client]
        else:
            host = client
        self._count += 1
        member = Member(f"{host.client}-{self._count}", host)
        host.members[member.name] = member
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": member.name,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            **(config or {}),
        }
        member.say("open", topics, *(f"{key}={value}" for key, value in settings.items()))
        return member

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Waits until events have made a condition true; returns its value."""
        with self.changed:
            found = self.changed.wait_for(lambda: self._failed() or condition(), TIMEOUT_S)
            failed = self._failed()
        if failed or not found:
            said = "\n".join(f"{m.name}: {m.events[-8:]}" for h in self._hosts for m in h.members.values() if m.events)
            tails = "\n".join(f"-- {host.name}\n{host.tail(15)}" for host in self._hosts)
            raise ProcessFailed(f"not in time: {what} {failed}\n{said}\n{tails}")
        assert not isinstance(found, list) or found
        return found  # type: ignore[return-value]  # not a failure, so the condition's own value

    def forget(self) -> None:
        """Ends what a test has left behind: members, and processes of its own."""
        for host in self._hosts:
            if host not in self._shared.values():
                host.kill()
        self._hosts = list(self._shared.values())
        for host in self._hosts:
            for member in host.members.values():
                if not member.answers("closed") and not member.answers("failed"):
                    member.close()
            host.members.clear()

    def close(self) -> None:
        for host in self._hosts:
            host.kill()

    def _failed(self) -> list[str]:
        members = (member for host in self._hosts for member in host.members.values())
        return [f"{member.name}: {failure}" for member in members for failure in member.answers("failed")]
