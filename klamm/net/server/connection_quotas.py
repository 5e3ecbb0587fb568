"""The bounds on a broker's connections, over all of its listeners (Kafka's `ConnectionQuotas`).

| bound | key | a connection beyond it |
|---|---|---|
| connections of the broker, of a listener | `max.connections`, `listener.name.NAME.max.connections` | waits |
| new connections per second, of both | `max.connection.creation.rate`, with the same prefix | waits |
| new connections per second, of an address | `connection_creation_rate` in `/config/ips` | closed after a delay |
| connections of an address | `max.connections.per.ip`, and its overrides | closed |

A connection that waits is accepted but not read, and so are the connections behind it at the same listener
(`Acceptor`). Kafka does not accept them; clients see no difference.

What must stay true:
- Where brokers have a listener of their own, `max.connections` does not keep out its connections: the cluster continues
  when clients have used up that number. Each connection beyond it closes a connection of another listener: idle
  connections first, and among them the one that was silent the longest.
- At most `MAX_WAITING` connections wait at a listener, and at most `MAX_DELAYED` wait to be closed; more are closed at
  once, so that one client does not take the files of all.
- A connection counts from its admission to its end.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from klamm.base.rates import SampledRate

UNLIMITED = 2**31 - 1

# As many as the system lets wait for Kafka's brokers, whose listeners have Java's default backlog.
MAX_WAITING = 50
MAX_DELAYED = 500
CLOSED_PER_SLICE = 200
# Above this number of addresses, those without recent connections are forgotten.
MANY_ADDRESSES = 1_000


class Quotaed(Protocol):
    """A connection, as this module needs it."""

    peer_host: str
    last_active_s: float

    @property
    def is_answering(self) -> bool:
        """Whether a request has started and has not been answered."""

    def hold(self) -> None:
        """Stops reading until `admit`."""

    def admit(self) -> None: ...

    def close(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of one listener, or of a broker."""

    max_connections: int = UNLIMITED
    max_connection_creation_rate: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """All bounds except `connection_creation_rate`. `brokers_listener` is the listener that brokers use."""

    broker: ConnectionLimits = ConnectionLimits()
    listeners: Mapping[str, ConnectionLimits] = field(default_factory=dict)
    brokers_listener: str = ""
    max_connections_per_ip: int = UNLIMITED
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)


class ConnectionQuotas:
    """All connections of a broker. `window_ms` and `samples` are those of client quotas (`quota.window...`)."""

    def __init__(self, settings: QuotaSettings | None = None, *, samples: int = 11, window_ms: float = 1000) -> None:
        self._settings = settings or QuotaSettings()
        self._samples = samples
        self._window_ms = window_ms
        self._rate = self._new_rate()
        # A listener whose address changes has two acceptors for a while.
        self._acceptors: dict[Acceptor, None] = {}
        self._count = 0
        self._counts_by_host: dict[str, int] = {}
        # New connections per second allowed for an address, and the default for other addresses.
        self._host_bounds: dict[str, int] = {}
        self._default_host_bound = UNLIMITED
        self._host_rates: dict[str, SampledRate] = {}

    @property
    def settings(self) -> QuotaSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: QuotaSettings) -> None:
        self._settings = settings
        self._close_excess()
        self._wake()

    def set_rate_of_host(self, host: str | None, per_second: int | None) -> None:
        """Sets the new connections per second allowed for an address, or by default; None removes the bound."""
        if host is None:
            self._default_host_bound = UNLIMITED if per_second is None else per_second
        elif per_second is None:
            self._host_bounds.pop(host, None)
        else:
            self._host_bounds[host] = per_second

    def acceptor(self, listener_name: str) -> "Acceptor":
        """The acceptor of a new listener. It must be closed with the listener."""
        acceptor = Acceptor(self, listener_name, self._new_rate())
        self._acceptors[acceptor] = None
        return acceptor

    # -- metrics ----------------------------------------------------------------------------------------------------

    def rate_of_broker(self) -> float:
        """New connections per second of the listeners to which the broker's bound applies."""
        return _per_second(self._rate, _now_ms())

    def rates_of_listeners(self) -> dict[str, float]:
        """New connections per second."""
        now_ms = _now_ms()
        return {acceptor.listener_name: _per_second(acceptor.rate, now_ms) for acceptor in self._acceptors}

    def rates_of_hosts(self) -> dict[str, float]:
        """New connections per second of each address that has a bound and has used it lately."""
        now_ms = _now_ms()
        rates = {host: _per_second(rate, now_ms) for host, rate in self._host_rates.items()}
        return {host: rate for host, rate in rates.items() if rate}

    # -- for acceptors ----------------------------------------------------------------------------------------------

    def forget(self, acceptor: "Acceptor") -> None:
        if acceptor in self._acceptors:
            del self._acceptors[acceptor]
            self._wake()

    def limits_of(self, acceptor: "Acceptor") -> ConnectionLimits:
        return self._settings.listeners.get(acceptor.listener_name, self._settings.broker)

    def delay_ms(self, acceptor: "Acceptor") -> float:
        """Counts a new connection; returns how long it waits for its listener's and the broker's rate."""
        now_ms = _now_ms()
        bounds = [(acceptor.rate, self.limits_of(acceptor).max_connection_creation_rate)]
        if not self._is_protected(acceptor):
            bounds.append((self._rate, self._settings.broker.max_connection_creation_rate))
        for rate, _ in bounds:
            rate.forget_old(now_ms)
            rate.record(1, now_ms)
        return min(max(_excess_ms(rate, bound, now_ms) for rate, bound in bounds), self._window_ms)

    def has_slot(self, acceptor: "Acceptor") -> bool:
        if len(acceptor.connections) >= self.limits_of(acceptor).max_connections:
            return False
        return self._is_protected(acceptor) or self._count < self._settings.broker.max_connections

    def host_delay_ms(self, acceptor: "Acceptor", host: str) -> float:
        """Counts a connection of an address; returns 0 if it is admitted. If the address opens too many connections,
        returns the delay before this one is closed, and counts it in no rate."""
        bound = self._host_bounds.get(host, self._default_host_bound)
        if bound >= UNLIMITED:
            return 0.0
        now_ms = _now_ms()
        rate = self._rate_of_host(host, now_ms)
        rate.forget_old(now_ms)
        rate.record(1, now_ms)
        delay_ms = min(_excess_ms(rate, bound, now_ms), self._window_ms)
        if delay_ms > 0:
            rate.record(-1, now_ms)
            acceptor.rate.record(-1, now_ms)
            if not self._is_protected(acceptor):
                self._rate.record(-1, now_ms)
        return delay_ms

    def max_connections_of(self, host: str) -> int:
        settings = self._settings
        return settings.max_connections_per_ip_overrides.get(host, settings.max_connections_per_ip)

    def count_of(self, host: str) -> int:
        return self._counts_by_host.get(host, 0)

    def opened(self, host: str) -> None:
        self._count += 1
        self._counts_by_host[host] = self.count_of(host) + 1
        self._close_excess()

    def closed(self, host: str) -> None:
        self._count -= 1
        count = self._counts_by_host.pop(host) - 1
        if count:
            self._counts_by_host[host] = count
        self._wake()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _new_rate(self) -> SampledRate:
        return SampledRate(samples=self._samples, window_ms=self._window_ms)

    def _rate_of_host(self, host: str, now_ms: float) -> SampledRate:
        rate = self._host_rates.get(host)
        if rate is None:
            if len(self._host_rates) >= MANY_ADDRESSES:
                self._forget_hosts(now_ms)
            rate = self._host_rates[host] = self._new_rate()
        return rate

    def _forget_hosts(self, now_ms: float) -> None:
        for rate in self._host_rates.values():
            rate.forget_old(now_ms)
        self._host_rates = {host: rate for host, rate in self._host_rates.items() if rate.total}

    def _is_protected(self, acceptor: "Acceptor") -> bool:
        name = acceptor.listener_name
        return name == self._settings.brokers_listener and any(other.listener_name != name for other in self._acceptors)

    def _close_excess(self) -> None:
        """Closes clients' connections beyond `max.connections`: idle ones first, in the order of their silence."""
        excess = self._count - self._settings.broker.max_connections
        if excess <= 0:
            return
        of_clients = [
            connection
            for acceptor in self._acceptors
            if not self._is_protected(acceptor)
            for connection in acceptor.connections
        ]
        of_clients.sort(key=lambda connection: (connection.is_answering, connection.last_active_s))
        self._close_in_slices(of_clients[:excess], f"over max.connections={self._settings.broker.max_connections}")

    def _close_in_slices(self, connections: list[Quotaed], reason: str) -> None:
        for connection in connections[:CLOSED_PER_SLICE]:
            connection.close(reason)
        if rest := connections[CLOSED_PER_SLICE:]:
            asyncio.get_running_loop().call_soon(self._close_in_slices, rest, reason)

    def _wake(self) -> None:
        for acceptor in list(self._acceptors):
            acceptor.look_again()


class Acceptor:
    """Admits the connections of one listener, in the order in which they come."""

    def __init__(self, quotas: ConnectionQuotas, listener_name: str, rate: SampledRate) -> None:
        self.listener_name = listener_name
        self.rate = rate
        # The admitted connections. They count until they are closed.
        self.connections: dict[Quotaed, None] = {}
        self._quotas = quotas
        self._waiting: deque[Quotaed] = deque()
        # Whether the first waiting connection is counted in the rates, and the timer until the rates admit it.
        self._is_first_counted = False
        self._timer: asyncio.TimerHandle | None = None
        # Connections over their address's `connection_creation_rate`, until they are closed.
        self._delayed: dict[Quotaed, asyncio.TimerHandle] = {}

    def opened(self, connection: Quotaed) -> None:
        """Admits the connection now or later, or closes it."""
        self._waiting.append(connection)
        if len(self._waiting) > 1:
            connection.hold()
        self.look_again()
        if len(self._waiting) > MAX_WAITING and self._waiting[-1] is connection:
            connection.close(
                f"{MAX_WAITING} connections wait already because of max.connections or the rate of new ones"
            )

    def closed(self, connection: Quotaed) -> None:
        """The connection has ended."""
        if connection in self.connections:
            del self.connections[connection]
            self._quotas.closed(connection.peer_host)
        elif (timer := self._delayed.pop(connection, None)) is not None:
            timer.cancel()
        elif connection in self._waiting:
            # If it was the first, the next connection takes over its count in the rates and its timer.
            self._waiting.remove(connection)

    def close(self) -> None:
        """The listener has ended."""
        self._stop_timer()
        for timer in self._delayed.values():
            timer.cancel()
        self._quotas.forget(self)

    def look_again(self) -> None:
        """Admits waiting connections as far as the bounds allow."""
        while self._waiting and self._timer is None:
            if not self._is_first_counted:
                self._is_first_counted = True
                delay_ms = self._quotas.delay_ms(self)
                if delay_ms > 0:
                    self._waiting[0].hold()
                    self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._delay_is_over)
                    return
            if not self._quotas.has_slot(self):
                self._waiting[0].hold()
                return
            self._is_first_counted = False
            self._admit(self._waiting.popleft())

    def _delay_is_over(self) -> None:
        self._timer = None
        self.look_again()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _admit(self, connection: Quotaed) -> None:
        host, quotas = connection.peer_host, self._quotas
        delay_ms = quotas.host_delay_ms(self, host)
        if delay_ms > 0 and len(self._delayed) >= MAX_DELAYED:
            connection.close(f"over connection_creation_rate of {host}")
        elif delay_ms > 0:
            connection.hold()
            self._delayed[connection] = asyncio.get_running_loop().call_later(
                delay_ms / 1000, connection.close, f"over connection_creation_rate of {host}"
            )
        elif quotas.count_of(host) >= (allowed := quotas.max_connections_of(host)):
            connection.close(f"over max.connections.per.ip={allowed}")
        else:
            self.connections[connection] = None
            connection.admit()
            quotas.opened(host)


def _excess_ms(rate: SampledRate, bound_per_second: int, now_ms: float) -> float:
    """How long until the rate is down to its bound; 0 if it is already."""
    rate.forget_old(now_ms)
    span_ms = rate.full_span_ms(now_ms)
    excess = rate.total * 1000 / span_ms - bound_per_second
    if excess <= 0:
        return 0.0
    return excess / bound_per_second * span_ms if bound_per_second else float("inf")


def _per_second(rate: SampledRate, now_ms: float) -> float:
    rate.forget_old(now_ms)
    return rate.total * 1000 / rate.full_span_ms(now_ms)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
