"""Faults of the network: between brokers, ZooKeeper and clients.

Each fault names the two ends of its connections as places: `one` and `other`. A place is the id of a broker,
"zookeeper", "clients", or "brokers" for all brokers. Connections from a place to itself are excluded, so `one=(0,),
other=("brokers",)` means broker 0 and every other broker. `client_id` narrows "clients" to those with this client id.
Requests of the cluster's owner are never concerned.
"""

from dataclasses import dataclass
from typing import Literal

from klamm.faults.commands.codec import Fault, command
from klamm.processes.local_cluster import Server

End = Server | Literal["clients"]
"""One end of a connection."""

Place = int | Literal["zookeeper", "clients", "brokers"]

MAX_DELAY_MS = 24 * 60 * 60 * 1000
MAX_BYTES_PER_S = 2**40


class NetworkFault(Fault):
    """A fault that `heal` removes."""


@dataclass(frozen=True, kw_only=True)
class LinkFault(NetworkFault):
    """A fault of the connections between `one` and `other`."""

    one: tuple[Place, ...]
    other: tuple[Place, ...]
    client_id: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, places in (("one", self.one), ("other", self.other)):
            self._check(name, bool(places), "at least one place")
            self._check(
                name, all(not isinstance(place, int) or place >= 0 for place in places), "ids of brokers from 0"
            )
        both = f"one={self.one!r}, other={self.other!r}"
        if not any(_are_ends(one, other) for one in self.one for other in self.other):
            raise ValueError(f"{self.kind}: {both} are not the two ends of a connection; one of them must be a broker")
        if self.client_id is not None and "clients" not in (*self.one, *self.other):
            raise ValueError(f'{self.kind}: client_id={self.client_id!r} needs the place "clients"; {both}')

    def concerns(self, server: Server) -> bool:
        """Brokers disturb their connections. Between two brokers, the one that has opened the connection does."""
        return isinstance(server, int) and (_is_at(server, self.one) or _is_at(server, self.other))

    def named_brokers(self) -> tuple[int, ...]:
        return tuple(place for place in (*self.one, *self.other) if isinstance(place, int))

    def covers(self, source: End, target: End) -> bool:
        """Whether bytes from `source` to `target` are concerned."""
        return self.leads(source, target) or self.leads(target, source)

    def leads(self, source: End, target: End) -> bool:
        """Whether a connection from `source` to `target` is one from `one` to `other`."""
        return source != target and _is_at(source, self.one) and _is_at(target, self.other)

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"{self.kind}: {name}={getattr(self, name)!r} is not allowed; allowed: {allowed}")


@dataclass(frozen=True, kw_only=True)
class DirectedFault(LinkFault):
    """With `one_way`, only the bytes from `one` to `other` are concerned."""

    one_way: bool = False

    def covers(self, source: End, target: End) -> bool:
        """Whether bytes from `source` to `target` are concerned."""
        return self.leads(source, target) or (not self.one_way and self.leads(target, source))


@command("network.cut")
@dataclass(frozen=True, kw_only=True)
class CutLinks(DirectedFault):
    """No bytes pass. They pass when the link is whole again, as TCP sends them again.

    New connections hang, or with `refuse` are refused: those of clients are reset at their first request.
    """

    method = "network.cut"

    refuse: bool = False


@command("network.delay")
@dataclass(frozen=True, kw_only=True)
class DelayLinks(DirectedFault):
    """Bytes arrive `ms` later, `jitter_ms` more or less; the delays of a connection are drawn by `seed`."""

    method = "network.delay"

    ms: float
    jitter_ms: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("ms", 0 <= self.ms <= MAX_DELAY_MS, f"0 to {MAX_DELAY_MS:,}")
        self._check("jitter_ms", 0 <= self.jitter_ms <= self.ms, f"0 to ms={self.ms:g}")


@command("network.rate")
@dataclass(frozen=True, kw_only=True)
class SlowLinks(DirectedFault):
    """Each connection carries at most so many bytes a second in each direction."""

    method = "network.rate"

    bytes_per_s: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("bytes_per_s", 1 <= self.bytes_per_s <= MAX_BYTES_PER_S, f"1 to {MAX_BYTES_PER_S:,}")


@command("network.reset")
@dataclass(frozen=True, kw_only=True)
class ResetConnections(LinkFault):
    """The open connections are reset, once: both ends see it. Connections that open later are not concerned."""

    method = "network.reset"


@command("network.half_open")
@dataclass(frozen=True, kw_only=True)
class HalfOpenConnections(LinkFault):
    """`one` has lost the open connections, and `other` believes in them until the fault is removed.

    Connections that open later are not concerned.
    """

    method = "network.half_open"


def _is_at(end: End, places: tuple[Place, ...]) -> bool:
    return end in places or (isinstance(end, int) and "brokers" in places)


def _are_ends(one: Place, other: Place) -> bool:
    """Whether a connection may have these two ends."""
    if isinstance(one, int) and isinstance(other, int):
        return one != other
    return any(isinstance(place, int) or place == "brokers" for place in (one, other))
