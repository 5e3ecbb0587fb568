"""Batched writes: bounds, results per operation, the guard, and what happens when an answer is lost."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.system_environment import SystemEnvironment
from klamm.znodes import batches
from klamm.znodes.batches import ControllerMoved
from klamm.zookeeper import jute, keeper_exceptions, messages
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.messages import Check, Create, Delete, MultiOperation, MultiResult, OpCode, SetData
from klamm.zookeeper.server import ZooKeeperServer
from support.zookeeper.proxy import Proxy
from support.zookeeper.scenarios import Scene


@asynccontextmanager
async def playing(tmp_path: Path) -> AsyncIterator[Scene]:
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, str(tmp_path))
    await server.start()
    try:
        yield Scene(environment, "127.0.0.1", server.port, "")
    finally:
        await server.stop()
        environment.close()


def shown(results: list[batches.Result]) -> list[object]:
    """Errors as their class, successes as the version of the znode (None for a deletion, 0 for a creation)."""
    return [
        type(result)
        if isinstance(result, keeper_exceptions.ZooKeeperError)
        else result.stat.version
        if result.stat is not None
        else 0
        if result.op == OpCode.CREATE
        else None
        for result in results
    ]


operations = st.one_of(
    st.builds(Create, st.text("/ab", max_size=50), st.binary(max_size=5).map(lambda data: data * 40_000)),
    st.builds(Delete, st.text("/ab", max_size=50)),
    st.builds(SetData, st.text("/ab", max_size=50), st.none() | st.binary(max_size=50)),
)


@given(st.lists(operations, max_size=30), st.integers(0, 2))
def test_batches_are_bounded_and_keep_the_order(some: list[MultiOperation], repeat: int) -> None:
    many = some * (10**repeat)
    made = [list(batch) for batch in batches._batches(many)]
    assert [operation for batch in made for operation in batch] == many
    for batch in made:
        assert 0 < len(batch) < batches.MAX_BATCH_OPERATIONS
        size = len(jute.encode_request(1, messages.Multi((Check("/controller_epoch", 1), *batch))))
        assert size <= batches.MAX_BATCH_BYTES + 1000 or len(batch) == 1
    for batch, following in itertools.pairwise(made):
        joined = len(jute.encode_request(1, messages.Multi((*batch, following[0]))))
        assert len(batch) == batches.MAX_BATCH_OPERATIONS - 1 or joined > batches.MAX_BATCH_BYTES / 2


async def test_every_operation_has_its_result(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene, scene.client() as client:
        await client.create("/controller_epoch", b"1")
        await client.create("/there", b"")
        some: list[MultiOperation] = [
            Create("/new", b"1"),
            Create("/there", b"1"),
            SetData("/there", b"2", 0),
            SetData("/there", b"3", 0),
            SetData("/absent", b"4"),
            Delete("/absent"),
            Delete("/there"),
        ]
        results = await batches.write(client, some, 0)
        assert shown(results) == [
            0,
            keeper_exceptions.NodeExists,
            1,
            keeper_exceptions.BadVersion,
            keeper_exceptions.NoNode,
            keeper_exceptions.NoNode,
            None,
        ]
        assert str(results[1]) == "NODE_EXISTS for /there"
        assert await client.children("/") == ["controller_epoch", "new", "zookeeper"]
        assert await batches.write(client, [], 0) == []


async def test_what_is_too_large_is_not_sent_and_the_rest_is_done(tmp_path: Path) -> None:
    """Also where the paths are what makes a batch large."""
    async with playing(tmp_path) as scene:
        scene.chroot = "/" + "c" * 2_000
        async with scene.proxy() as proxy, scene.client(proxy.address) as client:
            some = [Create("/a", b"1"), Create("/b", bytes(1_048_000)), Create("/c", b"3")]
            assert shown(await batches.write(client, some)) == [0, keeper_exceptions.RequestTooLarge, 0]
            assert await client.children("/") == ["a", "c"]
            many = [Create(f"/{number}", b"") for number in range(1_500)]
            assert shown(await batches.write(client, many)) == [0] * 1_500
            assert proxy.connections_seen == 1


async def test_many_operations(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene, scene.client() as client:
        results = await batches.write(client, [Create(f"/{number}", b"x" * 300) for number in range(5000)])
        assert shown(results) == [0] * 5000
        assert [result.path for result in results if isinstance(result, MultiResult)] == [
            f"/{number}" for number in range(5000)
        ]
        results = await batches.write(client, [SetData(f"/{number}", b"", 0) for number in range(5001)])
        assert shown(results) == [1] * 5000 + [keeper_exceptions.NoNode]


async def test_nothing_is_written_under_an_old_epoch(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene, scene.client() as client:
        await client.create("/controller_epoch", b"1")
        await client.set("/controller_epoch", b"2")
        with pytest.raises(ControllerMoved):
            await batches.write(client, [Create("/a", b"")], 0)
        assert shown(await batches.write(client, [Create("/a", b"")], 1)) == [0]
        with pytest.raises(ControllerMoved):
            await batches.write(client, [Create("/a", b""), Delete("/a")], 0)
        await client.delete("/controller_epoch")
        with pytest.raises(keeper_exceptions.NoNode):
            await batches.write(client, [Delete("/a")], 1)
        assert await client.exists("/a") is not None


CASES: list[tuple[list[MultiOperation], list[object], list[object]]] = [
    # operations; results when they were done before the answer was lost; results when they were not done
    ([SetData("/one", b"a", 0), SetData("/two", b"b", 0)], [1, 1], [1, 1]),
    ([Create("/new", b"a"), SetData("/two", b"b")], [0, 1], [0, 1]),
    ([Create("/new", None), Create("/new/below", b"")], [0, 0], [0, 0]),
    ([SetData("/one", b"a", 0), Delete("/two")], [1, None], [1, None]),
    (
        [SetData("/one", b"a", 7), Delete("/two")],
        [keeper_exceptions.BadVersion, None],
        [keeper_exceptions.BadVersion, None],
    ),
    # Nothing tells whether it was done: a deletion done twice finds nothing.
    ([Delete("/one"), Delete("/two")], [keeper_exceptions.NoNode, keeper_exceptions.NoNode], [None, None]),
]


@pytest.mark.parametrize(("some", "when_done", "when_not_done"), CASES)
@pytest.mark.parametrize("done", [True, False])
async def test_a_lost_connection(
    some: list[MultiOperation], when_done: list[object], when_not_done: list[object], done: bool, tmp_path: Path
) -> None:
    async with playing(tmp_path) as scene, scene.proxy() as proxy, scene.client(proxy.address) as client:
        for path in ("/controller_epoch", "/one", "/two"):
            await client.create(path, b"")
        expected = when_done if done else when_not_done
        assert shown(await lost(proxy, client, some, done)) == expected
        for operation, result in zip(some, expected, strict=True):
            stat = await client.exists(operation.path)
            if isinstance(operation, Delete):
                assert stat is None
            elif isinstance(result, int):
                assert stat is not None
                assert stat.version == result


async def lost(proxy: Proxy, client: ZooKeeperClient, some: list[MultiOperation], done: bool) -> list[batches.Result]:
    """Writes while the connection is lost: after the server has answered (`done`), or before it has heard anything."""
    if done:
        proxy.hold_answers()
    else:
        proxy.lose_requests()
    writing = asyncio.ensure_future(batches.write(client, some, 0))
    await proxy.held.wait()
    proxy.cut()
    proxy.release()
    return await writing


async def test_a_znode_changed_by_another_since_a_lost_answer(tmp_path: Path) -> None:
    """The version handed back is that of our write, so that the next conditional write notices the change."""
    async with (
        playing(tmp_path) as scene,
        scene.proxy() as proxy,
        scene.client() as other,
        scene.client(proxy.address) as client,
    ):
        await client.create("/controller_epoch", b"")
        await client.create("/witness", b"")
        await client.create("/other", b"")
        proxy.hold_answers()
        some: list[MultiOperation] = [SetData("/witness", b"a", 0), SetData("/other", b"a", 0)]
        writing = asyncio.ensure_future(batches.write(client, some, 0))
        await proxy.held.wait()
        await other.set("/other", b"b")
        proxy.cut()
        proxy.release()
        assert shown(await writing) == [1, 1]
        assert (await client.get("/other"))[0] == b"b"


async def test_an_older_znode_with_the_same_content_is_no_witness(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene, scene.proxy() as proxy, scene.client(proxy.address) as client:
        for path in ("/controller_epoch", "/old"):
            await client.create(path, b"")
        assert shown(await lost(proxy, client, [Create("/old", b""), Create("/new", b"")], False)) == [
            keeper_exceptions.NodeExists,
            0,
        ]
        assert await client.exists("/new") is not None


async def test_a_lost_session_ends_the_write(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene, scene.proxy() as proxy, scene.client(proxy.address) as client:
        proxy.lose_requests()
        writing = asyncio.ensure_future(batches.write(client, [Create("/a", b"")]))
        await proxy.held.wait()
        proxy.release()
        async with scene.client(session=(client.session_id, client.session_password)):
            pass  # Takes the session over and ends it.
        with pytest.raises(keeper_exceptions.SessionExpired):
            await writing
