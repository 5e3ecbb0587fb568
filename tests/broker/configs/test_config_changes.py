"""Notifications of changed configurations: in order, once, whatever they hold, and over the end of a session."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.configs.change_listener import CHANGE_EXPIRATION_MS, ConfigChangeListener
from klamm.znodes.configs import CONFIG_CHANGE_PREFIX, CONFIG_CHANGES_PATH
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import SessionExpired
from klamm.zookeeper.server import ZooKeeperServer
from support.one_broker import until


class Scene:
    """A listener under test with a session of its own, and another client who leaves notifications."""

    store: KafkaZooKeeper
    mine: KafkaZooKeeper

    def __init__(self) -> None:
        self.environment = SystemEnvironment()
        self.later_ms = 0
        self.applied: list[str] = []
        self.expected: asyncio.Event = asyncio.Event()
        self.failures: list[BaseException] = []
        self.failing = 0
        self.reading: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.changes = ConfigChangeListener(
            lambda: self.mine,
            lambda: self.environment.now_ms() + self.later_ms,
            self._changed,
            self._reload,
            self.failures.append,
        )

    async def _changed(self, entity_path: str) -> None:
        if self.failing:
            self.failing -= 1
            raise SessionExpired
        self.applied.append(entity_path)
        if entity_path == "topics/last":
            self.expected.set()

    async def _reload(self) -> None:
        await self.reading()
        self.applied.append("all")

    async def notify(self, data: bytes) -> str:
        path, _ = await self.store.client.create(CONFIG_CHANGE_PREFIX, data, sequential=True)
        return path

    async def change(self, entity_path: str) -> None:
        await self.store.configs.update(entity_path, lambda stored: {**stored, "k": stored.get("k", "") + "v"})

    async def until_last(self) -> list[str]:
        """What was applied until `topics/last`, which is notified now."""
        self.expected.clear()
        await self.change("topics/last")
        await self.expected.wait()
        applied, self.applied = self.applied, []
        assert self.failures == []
        return applied[:-1] if applied[-1] == "topics/last" else applied


@asynccontextmanager
async def playing(tmp_path: Path) -> AsyncIterator[Scene]:
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        scene = Scene()
        server = ZooKeeperServer(scene.environment, str(tmp_path))
        await server.start()
        stack.push_async_callback(server.stop)

        async def session() -> KafkaZooKeeper:
            client = ZooKeeperClient(scene.environment, f"127.0.0.1:{server.port}")
            await client.start(5_000)
            stack.push_async_callback(client.close)
            return KafkaZooKeeper(client)

        scene.store, scene.mine = await session(), await session()
        await scene.store.create_persistent_paths()
        stack.push_async_callback(scene.changes.stop)
        yield scene


async def test_changes_are_applied_in_order_and_once(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        for entity_path in ("topics/b", "brokers/<default>", "topics/a", "topics/b"):
            await scene.change(entity_path)
        scene.changes.start()
        # Of two about one entity the later one counts: its configuration is read when it is applied.
        assert await scene.until_last() == ["brokers/<default>", "topics/a", "topics/b"]
        await scene.change("users/u/clients/c")
        assert await scene.until_last() == ["users/u/clients/c"]
        assert await scene.until_last() == []


async def test_both_versions_of_notifications_are_understood(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.notify(b'{"version":1,"entity_type":"topics","entity_name":"old"}')
        await scene.notify(b'{"version":2,"entity_path":"topics/new"}')
        scene.changes.start()
        assert await scene.until_last() == ["topics/old", "topics/new"]


GARBAGE = [
    b"",
    b"\xff",
    b"not JSON",
    b"[]",
    b'{"version":2}',
    b'{"version":2,"entity_path":7}',
    b'{"version":1,"entity_type":"users","entity_name":"u"}',
    b'{"version":"x","entity_path":"topics/t"}',
]


@pytest.mark.parametrize("data", GARBAGE)
async def test_garbage_does_not_keep_the_changes_after_it(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(tmp_path) as scene:
        scene.changes.start()
        await scene.until_last()
        await scene.notify(data)
        await scene.change("topics/t")
        assert await scene.until_last() == ["topics/t"]
    assert re.search(r"ignored a notification .*config_change_0000000001", caplog.text)


async def test_a_znode_that_is_no_notification_is_left_alone_until_it_is_old(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        for name in ("hello", "config_change_", "config_change_1x", "config_change_99999999999999999999"):
            await scene.store.client.create(f"{CONFIG_CHANGES_PATH}/{name}", b"{}")
        scene.changes.start()
        await scene.change("topics/t")
        assert await scene.until_last() == ["topics/t"]


async def test_notifications_are_removed_after_a_quarter_of_an_hour(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.store.client.create(f"{CONFIG_CHANGES_PATH}/hello", b"")
        await scene.store.client.create(f"{CONFIG_CHANGES_PATH}/hello/there", b"")
        await scene.change("topics/t")
        scene.changes.start()
        await scene.until_last()
        scene.later_ms = CHANGE_EXPIRATION_MS - 60_000
        await scene.until_last()
        old = await scene.store.configs.changes()
        assert len(old) == 4
        scene.later_ms = CHANGE_EXPIRATION_MS + 60_000
        await scene.until_last()
        await scene.until_last()  # What comes next is looked at when the old ones have gone.
        assert not set(old) & set(await scene.store.configs.changes())
        # The numbers go on.
        assert await scene.until_last() == []


async def test_what_could_not_be_applied_is_applied_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.broker.configs.change_listener.RETRY_BACK_OFF_MS", 1)
    async with playing(tmp_path) as scene:
        scene.failing = 3
        await scene.change("topics/a")
        await scene.change("topics/b")
        scene.changes.start()
        assert await scene.until_last() == ["topics/a", "topics/b"]


async def test_all_is_read_again_in_a_new_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.broker.configs.change_listener.RETRY_BACK_OFF_MS", 1)
    async with playing(tmp_path) as scene:
        scene.changes.start()
        await scene.until_last()
        await scene.mine.client.close()
        await scene.change("topics/t")
        scene.mine = scene.store
        scene.changes.new_session()
        assert await scene.until_last() == ["all", "topics/t"]


async def test_a_session_that_ends_while_all_is_read_again(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        is_reading, may_go_on = asyncio.Event(), asyncio.Event()

        async def reading() -> None:
            is_reading.set()
            await may_go_on.wait()

        scene.reading = reading
        scene.changes.start()
        await scene.until_last()
        scene.changes.new_session()
        await is_reading.wait()
        scene.changes.new_session()
        may_go_on.set()
        applied = await scene.until_last()
        # Whether the second is read before or after `topics/last` does not matter.
        assert (applied + await scene.until_last()).count("all") == 2


async def test_somebody_removes_all_notifications_and_the_znode_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next change makes it again, and its number is 0 again."""
    monkeypatch.setattr("klamm.broker.configs.change_listener.RETRY_BACK_OFF_MS", 1)
    async with playing(tmp_path) as scene:
        scene.changes.start()
        await scene.until_last()
        await scene.store.client.delete_recursive(CONFIG_CHANGES_PATH)
        await until(lambda: "not known yet" in caplog.text)
        await scene.change("topics/t")
        assert await scene.until_last() == ["topics/t"]
        assert len(await scene.store.configs.changes()) == 2


async def test_changes_come_to_rest(tmp_path: Path) -> None:
    """After `stop` no change is applied."""
    async with playing(tmp_path) as scene:
        scene.changes.start()
        await scene.until_last()
        await scene.changes.stop()
        told = asyncio.Event()
        await scene.store.configs.changes(told.set)
        await scene.change("topics/t")
        await told.wait()
        await scene.mine.configs.changes()
        assert scene.applied == []
