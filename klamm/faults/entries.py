"""The entries of a cluster's history: one frozen dataclass for each kind of entry.

`time_ms` is the wall clock of the cluster's owner when it learned of the entry, so times never contradict the order of
the history. `str(entry)` is the line that a report prints.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from klamm.faults.commands import Action, Command, Fault, Json, Server

E = TypeVar("E", bound="ChronicleEntry")

# The kinds of entries that servers report, by the names of their events.
REPORTED: "dict[str, Callable[..., ChronicleEntry]]" = {}
KINDS: "dict[str, type[ChronicleEntry]]" = {}


@dataclass(frozen=True)
class ChronicleEntry:
    """An event in the history. `number` counts the entries of a cluster from 1 on."""

    kind: ClassVar[str]
    number: int = field(default=0, kw_only=True, compare=False, repr=False)
    time_ms: int = field(default=0, kw_only=True, compare=False, repr=False)

    def to_json(self) -> dict[str, Json]:
        """The JSON form: the kind and all fields."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"kind": self.kind} | {name: _json(value) for name, value in values.items()}


def _json(value: Any) -> Json:
    if isinstance(value, Command):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _entry(kind: str, *, is_reported: bool = False) -> Callable[[type[E]], type[E]]:
    """Names a kind of entry. Reported kinds are made from the events of servers."""

    def register(cls: type[E]) -> type[E]:
        cls.kind = kind
        KINDS[kind] = cls
        if is_reported:
            REPORTED[kind] = cls
        return cls

    return register


def name_of(server: Server) -> str:
    """The name of a server in a sentence."""
    return f"broker {server}" if isinstance(server, int) else "ZooKeeper"


# -- servers ----------------------------------------------------------------------------------------------------------


@_entry("server_started")
@dataclass(frozen=True)
class ServerStarted(ChronicleEntry):
    """The server is ready."""

    server: Server

    def __str__(self) -> str:
        return f"{name_of(self.server)} is ready"


@_entry("broker_added")
@dataclass(frozen=True)
class BrokerAdded(ChronicleEntry):
    """The cluster has one more broker, which starts."""

    server: Server

    def __str__(self) -> str:
        return f"{name_of(self.server)} is added"


@_entry("server_ended")
@dataclass(frozen=True)
class ServerEnded(ChronicleEntry):
    """The server's process has ended. `how`: "stopped", "killed", or the reason why it died by itself."""

    server: Server
    how: str

    def __str__(self) -> str:
        return f"{name_of(self.server)} was {self.how}" if self.how in ("stopped", "killed") else self.how


@_entry("server_paused")
@dataclass(frozen=True)
class ServerPaused(ChronicleEntry):
    """SIGSTOP has stopped the server."""

    server: Server

    def __str__(self) -> str:
        return f"{name_of(self.server)} is paused"


@_entry("server_resumed")
@dataclass(frozen=True)
class ServerResumed(ChronicleEntry):
    """A paused server runs again."""

    server: Server

    def __str__(self) -> str:
        return f"{name_of(self.server)} runs again"


# -- changes in ZooKeeper ---------------------------------------------------------------------------------------------


class MetadataChange(ChronicleEntry):
    """An entry that `MetadataChanges` makes from versions of znodes."""


@_entry("broker_registered")
@dataclass(frozen=True)
class BrokerRegistered(MetadataChange):
    """A broker has registered in ZooKeeper: it started, or has a new session."""

    broker: int
    broker_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker} is registered, broker epoch {self.broker_epoch}"


@_entry("broker_unregistered")
@dataclass(frozen=True)
class BrokerUnregistered(MetadataChange):
    """A broker's session has ended, so the broker counts as dead."""

    broker: int

    def __str__(self) -> str:
        return f"broker {self.broker} is no longer registered"


@_entry("controller_elected")
@dataclass(frozen=True)
class ControllerElected(MetadataChange):
    """A broker has become the controller."""

    broker: int
    controller_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker} is the controller, controller epoch {self.controller_epoch}"


@_entry("controller_gone")
@dataclass(frozen=True)
class ControllerGone(MetadataChange):
    """The cluster has no controller; the last one was `broker`."""

    broker: int

    def __str__(self) -> str:
        return f"broker {self.broker} is no longer the controller"


@_entry("topic_created")
@dataclass(frozen=True)
class TopicCreated(MetadataChange):
    """A topic exists."""

    topic: str
    partitions: int

    def __str__(self) -> str:
        return f"topic {self.topic} has {self.partitions} partitions"


@_entry("topic_deleted")
@dataclass(frozen=True)
class TopicDeleted(MetadataChange):
    """The topic is deleted from ZooKeeper."""

    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} is deleted"


@_entry("leader_elected")
@dataclass(frozen=True)
class LeaderElected(MetadataChange):
    """A partition has a new leader, or the same leader with a new leader epoch.

    `leader` is None if the partition has no leader. `isr_before` is None if the partition is new. The election was
    `unclean` if the leader was not in the ISR before, so that records may be lost. Without a leader this means that no
    replica of the ISR was in the ISR before.
    """

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    leader_before: int | None
    isr_before: tuple[int, ...] | None

    @property
    def unclean(self) -> bool:
        if self.isr_before is None:
            return False
        in_sync = self.isr if self.leader is None else (self.leader,)
        return not set(in_sync) & set(self.isr_before)

    def __str__(self) -> str:
        leader = "no leader" if self.leader is None else f"leader {self.leader}"
        unclean = ", an unclean election" if self.unclean else ""
        return (
            f"{self.topic}-{self.partition} has {leader} in epoch {self.leader_epoch}, the ISR is"
            f" {list(self.isr)}{unclean}"
        )


@_entry("isr_changed")
@dataclass(frozen=True)
class IsrChanged(MetadataChange):
    """The leader has changed the ISR."""

    topic: str
    partition: int
    isr: tuple[int, ...]
    isr_before: tuple[int, ...]
    leader_epoch: int

    @property
    def is_shrunk(self) -> bool:
        return not set(self.isr_before) <= set(self.isr)

    def __str__(self) -> str:
        return f"the ISR of {self.topic}-{self.partition} is {list(self.isr)}, was {list(self.isr_before)}"


# -- what brokers report ----------------------------------------------------------------------------------------------


@_entry("became_leader", is_reported=True)
@dataclass(frozen=True)
class BecameLeader(ChronicleEntry):
    """The broker leads the partition; its epoch starts at `start_offset`."""

    server: Server
    topic: str
    partition: int
    leader_epoch: int
    start_offset: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"{name_of(self.server)} leads {self.topic}-{self.partition} in epoch {self.leader_epoch} from offset"
            f" {self.start_offset} on, high watermark {self.high_watermark}"
        )


@_entry("became_follower", is_reported=True)
@dataclass(frozen=True)
class BecameFollower(ChronicleEntry):
    """The broker follows `leader`; its log ends at `log_end_offset`."""

    server: Server
    topic: str
    partition: int
    leader_epoch: int
    leader: int
    log_end_offset: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"{name_of(self.server)} follows {self.leader} for {self.topic}-{self.partition} in epoch"
            f" {self.leader_epoch}, its log ends at {self.log_end_offset}, high watermark {self.high_watermark}"
        )


@_entry("truncated", is_reported=True)
@dataclass(frozen=True)
class Truncated(ChronicleEntry):
    """The broker has removed the records from `to_offset` on; its log ended at `from_offset`."""

    server: Server
    topic: str
    partition: int
    leader_epoch: int
    from_offset: int
    to_offset: int

    def __str__(self) -> str:
        return (
            f"{name_of(self.server)} truncated {self.topic}-{self.partition} from offset {self.from_offset} to"
            f" {self.to_offset}"
        )


@_entry("events_missed", is_reported=True)
@dataclass(frozen=True)
class EventsMissed(ChronicleEntry):
    """The server dropped events because its owner did not read them in time."""

    server: Server
    count: int

    def __str__(self) -> str:
        return f"{self.count} events of {name_of(self.server)} are missing here"


# -- faults -----------------------------------------------------------------------------------------------------------


@_entry("fault_installed")
@dataclass(frozen=True)
class FaultInstalled(ChronicleEntry):
    """A fault holds from now on. It replaces the fault `instead_of`, if any."""

    fault: int
    what: Fault
    instead_of: int | None = None

    def __str__(self) -> str:
        instead = "" if self.instead_of is None else f" instead of fault {self.instead_of}"
        return f"fault {self.fault}{instead}: {self.what.python()}"


@_entry("fault_struck")
@dataclass(frozen=True)
class FaultStruck(ChronicleEntry):
    """A fault has struck in a server. `hit` counts its hits in this run of the server."""

    fault: int
    server: Server
    hit: int
    details: Mapping[str, Json]

    def __str__(self) -> str:
        details = "".join(f", {name} {value}" for name, value in self.details.items())
        return f"fault {self.fault} struck in {name_of(self.server)}{details}"


@_entry("fault_removed")
@dataclass(frozen=True)
class FaultRemoved(ChronicleEntry):
    """A fault has ended, with these numbers of calls and hits."""

    fault: int
    calls: int
    hits: int

    def __str__(self) -> str:
        return f"fault {self.fault} is removed; it struck {self.hits} times"


@_entry("fault_refused")
@dataclass(frozen=True)
class FaultRefused(ChronicleEntry):
    """A starting server could not install an active fault."""

    fault: int
    server: Server
    why: str

    def __str__(self) -> str:
        return f"fault {self.fault} does not hold: {self.why}"


@_entry("action_performed")
@dataclass(frozen=True)
class ActionPerformed(ChronicleEntry):
    """A server has carried out an action, with this result."""

    server: Server
    what: Action
    result: Json

    def __str__(self) -> str:
        result = "" if self.result is None else f" with the result {self.result}"
        return f"{name_of(self.server)} performed {self.what}{result}"
