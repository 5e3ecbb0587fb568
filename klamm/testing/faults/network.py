"""The network of a cluster under test: `c.network`.

    c.network.partition({0}, {1, 2})
    c.network.cut(0, "zookeeper")
    c.network.cut(0, 1, one_way=True)
    c.network.delay("clients", "brokers", ms=100, jitter_ms=20, client_id="slow", seed=7)
    c.network.heal()

A place is the id of a broker, "zookeeper", "clients", or "brokers" for all of them, and several places may be given as
a set or a list. `client_id` narrows "clients" to those with this client id. The cluster's own requests (to create a
topic, for example) always pass.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from klamm.faults.commands.network import (
    CutLinks,
    DelayLinks,
    HalfOpenConnections,
    LinkFault,
    NetworkFault,
    Place,
    ResetConnections,
    SlowLinks,
)
from klamm.testing.cluster_errors import ClusterError
from klamm.testing.faults.faults import FaultHandle, Faults

Places = Place | Iterable[Place]


class _Broker(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def paused(self) -> bool: ...


class Network:
    """Each method returns when its fault holds. The handle's `remove` ends the fault, `heal` ends all of them."""

    def __init__(self, faults: Faults, brokers: Callable[[], "Iterable[_Broker]"]) -> None:
        self._faults = faults
        self._brokers = brokers

    def partition(self, one: Places, other: Places) -> FaultHandle:
        """Cuts the servers of `one` off from those of `other`. Servers that are in neither reach both."""
        return self.cut(one, other)

    def cut(
        self, one: Places, other: Places, *, one_way: bool = False, refuse: bool = False, client_id: str | None = None
    ) -> FaultHandle:
        """No bytes pass until the fault ends. Then the held bytes pass in order, as when TCP sends them again.

        With `one_way` only the bytes from `one` to `other` are held. A new connection needs both ways; it hangs, or
        with `refuse` is refused. A client's new connection is opened and then silent, or with `refuse` reset.
        """
        return self._install(
            CutLinks(
                one=self._places(one), other=self._places(other), one_way=one_way, refuse=refuse, client_id=client_id
            )
        )

    def delay(
        self,
        one: Places,
        other: Places,
        *,
        ms: float,
        jitter_ms: float = 0.0,
        seed: int = 0,
        one_way: bool = False,
        client_id: str | None = None,
    ) -> FaultHandle:
        """Bytes arrive `ms` later, give or take at most `jitter_ms`, drawn by `seed`. Their order is kept."""
        return self._install(
            DelayLinks(
                one=self._places(one),
                other=self._places(other),
                ms=ms,
                jitter_ms=jitter_ms,
                seed=seed,
                one_way=one_way,
                client_id=client_id,
            )
        )

    def rate(
        self, one: Places, other: Places, *, bytes_per_s: int, one_way: bool = False, client_id: str | None = None
    ) -> FaultHandle:
        """Each connection carries at most `bytes_per_s` in each direction."""
        return self._install(
            SlowLinks(
                one=self._places(one),
                other=self._places(other),
                bytes_per_s=bytes_per_s,
                one_way=one_way,
                client_id=client_id,
            )
        )

    def reset(self, one: Places, other: Places, *, client_id: str | None = None) -> FaultHandle:
        """Resets the open connections, once. The handle's `hits` is the number of connections.

        Raises ClusterError when there is no such connection. A paused broker resets its connections when it is resumed.
        """
        handle = self._install(ResetConnections(one=self._places(one), other=self._places(other), client_id=client_id))
        handle.remove()
        return self._that_strikes(handle)

    def half_open(
        self, one: Places = "brokers", other: Places = "clients", *, client_id: str | None = None
    ) -> FaultHandle:
        """`one` sees its open connections reset. `other` still believes that they are open, and gets no answer until
        the fault ends; then they are reset at `other` too.

        Raises ClusterError when there is no such connection. A paused broker has the fault when it is resumed.
        """
        return self._that_strikes(
            self._install(HalfOpenConnections(one=self._places(one), other=self._places(other), client_id=client_id))
        )

    def heal(self) -> None:
        """Ends all faults of the network."""
        for handle in self._faults.active:
            if isinstance(handle.fault, NetworkFault):
                handle.remove()

    def _install(self, fault: LinkFault) -> FaultHandle:
        return self._faults.install(fault)

    def _that_strikes(self, handle: FaultHandle) -> FaultHandle:
        """Returns the handle. Raises ClusterError if no connection was struck and no paused broker may have one."""
        fault = handle.fault
        assert isinstance(fault, LinkFault)
        if handle.hits or any(broker.paused and fault.concerns(broker.id) for broker in self._brokers()):
            return handle
        handle.remove()
        whose = "" if fault.client_id is None else f" of client {fault.client_id!r}"
        raise ClusterError(f"no connection{whose} is open between {_named(fault.one)} and {_named(fault.other)}")

    def _places(self, places: Places) -> tuple[Place, ...]:
        several = [places] if isinstance(places, int | str) else list(places)
        for place in several:
            if isinstance(place, int) and place not in (ids := [broker.id for broker in self._brokers()]):
                known = ", ".join(map(str, ids))
                raise ValueError(f"broker {place} is not in this cluster; allowed: {known}")
        return tuple(sorted(set(several), key=lambda place: (isinstance(place, str), place)))


def _named(places: tuple[Place, ...]) -> str:
    return ", ".join(place if isinstance(place, str) else f"broker {place}" for place in places)
