"""Which brokers answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from klamm.client.metadata import ClusterMetadata
from klamm.cockpit.live import pulse
from klamm.cockpit.live.pulse import SILENT_S, Pulse
from klamm.net.client import ConnectFailed

ADDRESS = ("b", 1)


class Connection:
    closed = False

    def close(self) -> None:
        self.closed = True


class Brokers:
    """The client of a broker that answers, hangs or is refused; `hangs` is shared by its connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_refused = False
        self.connections: list[Connection] = []
        monkeypatch.setattr(pulse, "metadata_of", self.metadata_of)

    async def own_connection(self, address: tuple[str, int]) -> Connection:
        assert address == ADDRESS
        if self.is_refused:
            raise ConnectFailed("connection refused")
        await self.answers.wait()
        self.connections.append(Connection())
        return self.connections[-1]

    async def metadata_of(self, _connection: Any, topics: list[str]) -> ClusterMetadata:
        assert topics == []
        await self.answers.wait()
        return ClusterMetadata(controller_id=7)


Changes = list[dict[int, str]]


def pulse_of(brokers: Brokers) -> tuple[Pulse, Changes]:
    changes: Changes = []
    made: Pulse = Pulse(brokers, lambda: {1: ADDRESS}, lambda: changes.append(made.silent), pytest.fail)  # type: ignore[arg-type]
    return made, changes


async def kept(made: Pulse, during: Callable[[], Awaitable[None]]) -> None:
    keeping = asyncio.create_task(made.keep())
    try:
        await during()
    finally:
        keeping.cancel()
        await asyncio.sleep(1)


@pytest.mark.loop("virtual")
async def test_a_broker_that_hangs_is_silent_after_some_seconds_and_heard_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(monkeypatch)
    made, changes = pulse_of(brokers)

    async def during() -> None:
        await asyncio.sleep(2.5)
        assert (made.heard[1].why_not, made.heard[1].controller_id, changes) == (None, 7, [{}])
        answered_ms = made.heard[1].at_ms
        brokers.answers.clear()
        await asyncio.sleep(SILENT_S + 1.1)
        assert changes[1:] == [{1: "it does not answer within 5 s"}]
        assert made.heard[1].at_ms == answered_ms
        assert all(each.closed for each in brokers.connections)
        await asyncio.sleep(20)
        assert len(changes) == 2
        brokers.answers.set()
        await asyncio.sleep(1.1)
        assert changes[2:] == [{}]

    await kept(made, during)


@pytest.mark.loop("virtual")
async def test_a_broker_that_has_died_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch)
    brokers.is_refused = True
    made, changes = pulse_of(brokers)
    await made.ask_once()
    assert changes == [{1: "connection refused"}]
    assert made.heard[1].at_ms is None
    brokers.is_refused = False
    await made.ask_once()
    assert changes[1:] == [{}]


async def test_a_process_that_was_suspended_takes_no_broker_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "STEP_S", 0.01)
    monkeypatch.setattr(pulse, "SILENT_S", 0.2)
    brokers = Brokers(monkeypatch)
    brokers.answers.clear()
    made, changes = pulse_of(brokers)
    asking = asyncio.create_task(made.ask_once())
    await asyncio.sleep(0.02)
    # The loop stands still for longer than a broker may take, which answers meanwhile.
    brokers.answers.set()
    time.sleep(0.5)
    await asking
    assert (changes, made.heard[1].why_not) == ([{}], None)
