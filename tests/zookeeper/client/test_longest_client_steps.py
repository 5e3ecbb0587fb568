"""No step of the client holds the loop for long, however much it reads, watches, or waits for.

As in `tests/broker/requests/test_longest_background_steps.py`, each work is done at two sizes, with slices as small as
they can be. The server's own steps are not counted (`support.opcodes.ELSEWHERE`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.simulation.machine.small_slices import small_slices
from klamm.zookeeper import keeper_exceptions
from klamm.zookeeper.client import State, ZooKeeperClient
from klamm.zookeeper.messages import Create, WatcherEvent
from klamm.zookeeper.server import ZooKeeperServer
from support.growing_work import LARGE_SIZES, Growing, Work, too_long

WORK: dict[str, Growing] = {}
# The shortest requests or replies that fit into the 256 KB that the loop reads at once.
MOST_AT_ONCE = 14_000


def work(most: int) -> Callable[[Any], Any]:
    """The largest size at which each step of this work must take less than 20 ms."""

    def register(function: Any) -> Any:
        WORK[function.__name__] = Growing(asynccontextmanager(function), most)
        return function

    return register


@asynccontextmanager
async def client_of(directory: Path, chroot: str = "/a") -> AsyncIterator[ZooKeeperClient]:
    server = ZooKeeperServer(SystemEnvironment(), str(directory / "zookeeper"))
    await server.start()
    client = ZooKeeperClient(SystemEnvironment(), f"127.0.0.1:{server.port}{chroot}")
    await client.start(30_000)
    await client.ensure_chroot()
    yield client
    await client.close()
    await server.stop()


async def create(client: ZooKeeperClient, size: int) -> list[str]:
    paths = [f"/{number:06}" for number in range(size)]
    for first in range(0, size, 1_000):
        await client.multi([Create(path, b"") for path in paths[first : first + 1_000]])
    return paths


def cut(client: ZooKeeperClient) -> None:
    assert client._connection is not None
    client._connection.abort("cut")


async def disconnected(client: ZooKeeperClient) -> None:
    """Cuts the connection; returns when the client has noticed."""
    left = asyncio.Event()
    client.add_listener(lambda state: left.set() if state is State.DISCONNECTED else None)
    cut(client)
    await left.wait()


async def all_of(answers: list["asyncio.Future[Any]"], error: type[Exception] | None = None) -> None:
    for answer in answers:
        await asyncio.sleep(0)
        try:
            await answer
            assert error is None
        except keeper_exceptions.ZooKeeperError as failure:
            assert error is not None and isinstance(failure, error), failure


@work(most=100_000)
async def children_are_listed(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        await create(client, size)

        async def children() -> None:
            found = await client.children("/")
            assert len(found) == size and found[-1] == f"{size - 1:06}"

        yield children


@work(most=38_000)  # operations in 1 MB
async def a_multi_is_answered(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        answers = [client.submit_multi([Create(f"/{number:06}", b"") for number in range(size)])]

        async def multi() -> None:
            await all_of(answers)

        yield multi


@work(most=MOST_AT_ONCE)
async def many_calls_are_answered_at_once(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        answers = [client.submit_exists("/") for _ in range(size)]

        async def answered() -> None:
            await all_of(answers)

        yield answered


@work(most=100_000)
async def watches_are_armed_again(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        fired: list[WatcherEvent] = []
        for path in (f"/{number:06}" for number in range(size)):
            await client.exists(path, fired.append)

        async def reconnect() -> None:
            await disconnected(client)
            assert await client.exists("/")
            await client.create(f"/{size - 1:06}")
            assert len(fired) == 1

        yield reconnect


@work(most=100_000)
async def pending_calls_fail_with_the_connection(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        answers = [client.submit_exists("/") for _ in range(size)]
        cut(client)

        async def fail() -> None:
            await all_of(answers, keeper_exceptions.ConnectionLoss)
            assert await client.exists("/")  # Whether it connects again in the meantime makes no difference.

        yield fail


@work(most=MOST_AT_ONCE)  # of which the server cuts the stream
async def calls_wait_for_a_connection(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        await disconnected(client)
        answers = [client.submit_exists("/") for _ in range(size)]

        async def connect() -> None:
            await all_of(answers)

        yield connect


@work(most=100_000)
async def calls_fail_with_the_session(directory: Path, size: int) -> AsyncIterator[Work]:
    async with client_of(directory) as client:
        await disconnected(client)
        answers = [client.submit_exists("/") for _ in range(size)]

        async def close() -> None:
            await client.close()
            assert all(answer.done() for answer in answers)
            await all_of(answers, keeper_exceptions.ClientClosed)

        yield close


@pytest.mark.parametrize("name", list(WORK))
async def test_no_step_grows_with_the_clients_work(tmp_path: Path, name: str) -> None:
    with small_slices():
        found = await too_long(WORK[name], tmp_path)
    assert found is None, found


@pytest.mark.long
@pytest.mark.parametrize("name", list(WORK))
async def test_no_step_of_the_client_grows_with_the_usual_slices(tmp_path: Path, name: str) -> None:
    found = await too_long(WORK[name], tmp_path, LARGE_SIZES)
    assert found is None, found
