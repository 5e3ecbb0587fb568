"""The cluster in coroutines: the same methods, and a loop that is never blocked."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import pytest

from klamm.testing import AsyncCluster, Cluster, ClusterError, Helper, NotInTime
from klamm.testing.faults.answers import NarrowableAnswer
from klamm.testing.faults.asynchronous import (
    AsyncAnswer,
    AsyncClock,
    AsyncDisk,
    AsyncFaultHandle,
    AsyncFaults,
    AsyncNetwork,
)
from klamm.testing.faults.clock import Clock
from klamm.testing.faults.disk import Disk
from klamm.testing.faults.faults import FaultHandle, Faults
from klamm.testing.faults.network import Network


def public(kind: type) -> dict[str, object]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "coroutines"),
    [
        (Cluster, AsyncCluster),
        (Faults, AsyncFaults),
        (FaultHandle, AsyncFaultHandle),
        (NarrowableAnswer, AsyncAnswer),
        (Disk, AsyncDisk),
        (Clock, AsyncClock),
        (Network, AsyncNetwork),
    ],
)
def test_both_have_the_same_methods_and_parameters(blocking: type, coroutines: type) -> None:
    ours, theirs = public(blocking), public(coroutines)
    assert set(ours) - {"open", "close", "keeps_on_failure"} == set(theirs) - {"cluster"}
    for name in set(theirs) - {"cluster", "until"}:
        member, other = theirs[name], ours[name]
        assert isinstance(member, property) is isinstance(other, property)
        if not isinstance(member, property):
            assert callable(member) and callable(other)
            assert inspect.signature(member) == inspect.signature(other), name


async def test_a_cluster_in_coroutines(klamm_helper: Helper) -> None:
    async with Cluster(1, helper=klamm_helper) as c:
        directory = c.directory
        await c.create_topic("t", partitions=2)

        async def led() -> bool:
            return await c.leader("t", 1) == 0

        assert await c.until(led)
        assert await c.until(lambda: "not a coroutine") == "not a coroutine"
        assert_type(await c.leader("t"), int | None)
        assert_type(await c.network.cut("clients", 0, client_id="nobody"), AsyncFaultHandle)
        await c.faults.remove_all()
        assert await c.isr("t") == await c.replicas("t") == [0]
        await c.kill(0)
        assert not c.broker(0).running
        await c.start(0, wait=True)
        await c.restart(0)
        await c.pause(0)
        await c.resume(0)
        assert await c.controller_id() == 0
        assert await c.topics() == ["t"]
        assert await c.under_replicated() == []
        await c.delete_topic("t")

        async def gone() -> bool:
            return await c.leader("t") is None

        with pytest.raises(NotInTime, match="ClusterError: there is no topic t"):
            await c.until(gone, timeout=0)
    assert not directory.exists()


async def test_the_loop_goes_on_while_a_cluster_starts_and_stops() -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        async with Cluster(1):
            started = turns
            assert started > 100
        counting.cancel()
        return turns - started

    assert await main() > 0


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    cluster = Cluster(1)
    starting = asyncio.create_task(cluster.__aenter__())
    while not cluster._is_open:  # noqa: ASYNC110 - what is awaited happens in a thread
        await asyncio.sleep(0.001)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(ClusterError, match="use it inside"):
        _ = cluster.directory


async def test_an_error_in_the_block_is_passed_on(klamm_helper: Helper) -> None:
    async def main() -> None:
        async with Cluster(1, helper=klamm_helper):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await main()


@pytest.mark.parametrize(
    "call", [AsyncCluster.topics, lambda c: c.until(lambda: True), lambda c: c.cluster.__aenter__()]
)
def test_an_event_loop_that_is_not_asyncios(call: Callable[[AsyncCluster], Coroutine[Any, Any, Any]]) -> None:
    """Trio, for example, runs a coroutine without a loop of asyncio's."""
    with pytest.raises(ClusterError, match=r"^AsyncCluster needs asyncio's event loop: .* trio\.to_thread\.run_sync$"):
        call(AsyncCluster(Cluster(1))).send(None)
