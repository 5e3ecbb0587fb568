"""Which connections a broker takes, keeps waiting, or closes: by number, by address, by second."""

import asyncio

import pytest

from klamm.net.server.connection_quotas import (
    MAX_WAITING,
    Acceptor,
    ConnectionLimits,
    ConnectionQuotas,
    Quotaed,
    QuotaSettings,
)

pytestmark = pytest.mark.loop("virtual")


class Peer(Quotaed):
    """A connection that notes what becomes of it."""

    is_answering = False

    def __init__(self, host: str = "h", last_active_s: float = 0.0, is_answering: bool = False) -> None:
        self.peer_host = host
        self.last_active_s = last_active_s
        self.is_answering = is_answering
        self.state = "new"

    def hold(self) -> None:
        self.state = "waits"

    def admit(self) -> None:
        self.state = "admitted"

    def close(self, reason: str) -> None:
        self.state = reason


def opened(acceptor: Acceptor, *hosts: str) -> list[Peer]:
    peers = [Peer(host, last_active_s=number) for number, host in enumerate(hosts)]
    for peer in peers:
        acceptor.opened(peer)
    return peers


def states(peers: list[Peer]) -> list[str]:
    return [peer.state for peer in peers]


async def test_those_beyond_the_brokers_number_wait_at_all_listeners_until_another_ends() -> None:
    quotas = ConnectionQuotas(QuotaSettings(broker=ConnectionLimits(max_connections=2)))
    a, b = quotas.acceptor("A"), quotas.acceptor("B")
    first, second = opened(a, "h"), opened(b, "h", "h", "h")
    assert states(first + second) == ["admitted", "admitted", "waits", "waits"]
    a.closed(first[0])
    assert states(second) == ["admitted", "admitted", "waits"]
    b.closed(second[2])  # It has given up.
    b.closed(second[0])
    (late,) = opened(a, "h")
    assert late.state == "admitted"
    quotas.settings = QuotaSettings()
    assert states(opened(b, *"hhh")) == ["admitted"] * 3


async def test_a_listener_that_moves_still_admits_those_that_wait_at_its_former_address() -> None:
    quotas = ConnectionQuotas(QuotaSettings(broker=ConnectionLimits(max_connections=1)))
    former = quotas.acceptor("A")
    first, second = opened(former, "h", "h")
    moved = quotas.acceptor("A")
    former.closed(first)
    assert states([first, second]) == ["admitted", "admitted"]
    (third,) = opened(moved, "h")
    former.close()
    former.closed(second)
    assert third.state == "admitted"


async def test_a_listener_has_its_own_number() -> None:
    limits = {"A": ConnectionLimits(max_connections=1)}
    quotas = ConnectionQuotas(QuotaSettings(listeners=limits))
    assert states(opened(quotas.acceptor("A"), "h", "h")) == ["admitted", "waits"]
    assert states(opened(quotas.acceptor("B"), "h", "h")) == ["admitted", "admitted"]


async def test_brokers_are_let_in_and_the_longest_silent_idle_client_ends() -> None:
    settings = QuotaSettings(
        broker=ConnectionLimits(max_connections=3),
        listeners={"BROKERS": ConnectionLimits(max_connections=2)},
        brokers_listener="BROKERS",
    )
    quotas = ConnectionQuotas(settings)
    clients, brokers = quotas.acceptor("CLIENTS"), quotas.acceptor("BROKERS")
    busy = Peer(is_answering=True)
    clients.opened(busy)
    idle = opened(clients, "h", "h", "h")
    assert states(idle) == ["admitted", "admitted", "waits"]
    assert states(opened(brokers, "h", "h", "h")) == ["admitted", "admitted", "waits"]
    assert states([busy, *idle]) == ["admitted", "over max.connections=3", "over max.connections=3", "waits"]


async def test_fewer_connections_from_now_on_close_those_beyond() -> None:
    quotas = ConnectionQuotas()
    peers = opened(quotas.acceptor("A"), "h", "h", "h")
    quotas.settings = QuotaSettings(broker=ConnectionLimits(max_connections=1))
    assert states(peers) == ["over max.connections=1", "over max.connections=1", "admitted"]


async def test_thousands_beyond_are_closed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.net.server.connection_quotas.CLOSED_PER_SLICE", 2)
    quotas = ConnectionQuotas()
    peers = opened(quotas.acceptor("A"), *"hhhhhh")
    quotas.settings = QuotaSettings(broker=ConnectionLimits(max_connections=1))
    closed = []
    for _ in range(3):
        closed.append(states(peers).count("over max.connections=1"))
        await asyncio.sleep(0)
    assert closed == [2, 4, 5]


async def test_an_address_has_its_number_and_some_have_another() -> None:
    settings = QuotaSettings(max_connections_per_ip=1, max_connections_per_ip_overrides={"two": 2, "none": 0})
    quotas = ConnectionQuotas(settings)
    a, b = quotas.acceptor("A"), quotas.acceptor("B")
    assert states(opened(a, "one", "one", "two", "two", "none")) == [
        "admitted",
        "over max.connections.per.ip=1",
        "admitted",
        "admitted",
        "over max.connections.per.ip=0",
    ]
    assert states(opened(b, "one", "two")) == ["over max.connections.per.ip=1", "over max.connections.per.ip=2"]


@pytest.mark.parametrize("whose", ["broker", "listener"])
async def test_new_connections_wait_for_the_rate_one_behind_the_other(whose: str) -> None:
    slow = ConnectionLimits(max_connection_creation_rate=5)
    settings = QuotaSettings(broker=slow) if whose == "broker" else QuotaSettings(listeners={"A": slow})
    quotas = ConnectionQuotas(settings, samples=2, window_ms=1000)
    a, b = quotas.acceptor("A"), quotas.acceptor("B")
    peers = opened(a, *"hhhhhhh")
    assert states(peers) == ["admitted"] * 5 + ["waits"] * 2
    # 6 in the second that has begun, where 5 are allowed: a fifth of a second more.
    await asyncio.sleep(0.199)
    assert states(peers[5:]) == ["waits"] * 2
    await asyncio.sleep(0.002)
    assert states(peers[5:]) == ["admitted", "waits"]
    assert states(opened(b, "h")) == (["waits"] if whose == "broker" else ["admitted"])
    await asyncio.sleep(5)
    assert states(peers) == ["admitted"] * 7


async def test_only_so_many_wait() -> None:
    quotas = ConnectionQuotas(QuotaSettings(broker=ConnectionLimits(max_connections=0)))
    peers = opened(quotas.acceptor("A"), *["h"] * (MAX_WAITING + 1))
    assert states(peers[:-1]) == ["waits"] * MAX_WAITING
    assert peers[-1].state.startswith("50 connections wait already")


async def test_an_address_that_opens_too_many_is_closed_after_a_delay_and_holds_nobody_up() -> None:
    quotas = ConnectionQuotas(samples=2, window_ms=1000)
    acceptor = quotas.acceptor("A")
    quotas.set_rate_of_host(None, 2)
    quotas.set_rate_of_host("fast", 4)
    slow, fast = opened(acceptor, *["slow"] * 3), opened(acceptor, *["fast"] * 4)
    assert states(slow + fast) == ["admitted", "admitted", "waits"] + ["admitted"] * 4
    await asyncio.sleep(0.6)
    assert slow[2].state == "over connection_creation_rate of slow"
    quotas.set_rate_of_host(None, None)
    assert states(opened(acceptor, *["slow"] * 9)) == ["admitted"] * 9


async def test_only_so_many_wait_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.net.server.connection_quotas.MAX_DELAYED", 1)
    quotas = ConnectionQuotas(samples=2, window_ms=1000)
    quotas.set_rate_of_host(None, 1)
    assert states(opened(quotas.acceptor("A"), "h", "h", "h")) == [
        "admitted",
        "waits",
        "over connection_creation_rate of h",
    ]


async def test_addresses_that_have_come_to_rest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.net.server.connection_quotas.MANY_ADDRESSES", 3)
    quotas = ConnectionQuotas(samples=2, window_ms=1000)
    quotas.set_rate_of_host(None, 1)
    acceptor = quotas.acceptor("A")
    opened(acceptor, "a", "b", "c")
    await asyncio.sleep(3)
    opened(acceptor, "d", "e")
    assert sorted(quotas._host_rates) == ["d", "e"]


async def test_a_listener_that_ends_forgets_those_that_wait() -> None:
    quotas = ConnectionQuotas(QuotaSettings(broker=ConnectionLimits(max_connections=1)))
    a, b = quotas.acceptor("A"), quotas.acceptor("B")
    served, waiting = opened(a, "h", "h")
    (other,) = opened(b, "h")
    a.close()
    a.closed(waiting)
    a.closed(served)
    assert (waiting.state, other.state) == ("waits", "admitted")
