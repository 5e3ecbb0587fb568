"""Listens for changed configurations (Kafka's `DynamicConfigManager` and `ZkNodeChangeNotificationListener`).

A change of an entity's configuration adds a notification to /config/changes, which every broker watches. A notification
only names the entity: its configuration is read when the notification is processed.

What must stay true:
- Notifications are processed once, in the order of their numbers. Only the last one about an entity counts.
- A broken notification does not stop the processing of later ones.
- No change is missed: a new session reads everything again, because notifications are removed after 15 minutes, and
  this broker may have been without a session for longer.
- A watch is set before the watched znode is read.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from klamm.base.tasks import OnFailure, start_task
from klamm.znodes.configs import decode_config_change
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.keeper_exceptions import NoNode, ZooKeeperError

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
RETRY_BACK_OFF_MS = 1_000
_NAME = re.compile(r"config_change_([0-9]{1,19})")

_log = logging.getLogger(__name__)


class ConfigChangeListener:
    """Listens from `start` to `stop`. `zookeeper()` is the store of the current session, `now_ms()` the wall clock.

    `changed(entity_path)` reads and applies the entity's configuration, `reload()` all configurations that this broker
    uses. Both may raise ZooKeeperError, and are then called again.
    """

    def __init__(
        self,
        zookeeper: Callable[[], KafkaZooKeeper],
        now_ms: Callable[[], int],
        changed: Callable[[str], Awaitable[None]],
        reload: Callable[[], Awaitable[None]],
        on_failure: OnFailure,
    ) -> None:
        self._zookeeper = zookeeper
        self._now_ms = now_ms
        self._changed = changed
        self._reload = reload
        self._on_failure = on_failure
        self._has_news = asyncio.Event()
        # Sessions are counted from 0; all configurations were last read in this session or a later one.
        self._session = self._read_in_session = 0
        self._last_executed = -1
        # The creation time of each notification that still exists.
        self._created_ms: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Processes the existing notifications, and then each new one."""
        self._has_news.set()
        self._task = start_task(self._run(), self._on_failure)

    def new_session(self) -> None:
        """Starts again in a new session, which has no watch yet."""
        self._session += 1
        self._has_news.set()

    async def stop(self) -> None:
        """Stops listening. No change is applied after this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                await self._process()
            except ZooKeeperError as error:
                _log.warning("changed configs are not known yet: %s", error)
                await asyncio.sleep(RETRY_BACK_OFF_MS / 1000)
                self._has_news.set()

    async def _process(self) -> None:
        store, session = self._zookeeper(), self._session
        try:
            names = await store.configs.changes(self._has_news.set)
        except NoNode:
            # The parent znode was removed. When it is recreated, numbers restart at 0.
            self._last_executed, self._created_ms = -1, {}
            raise
        if self._read_in_session < session:
            await self._reload()
            self._read_in_session = session
        await self._apply(store, names)
        await self._purge(store, names)

    async def _apply(self, store: KafkaZooKeeper, names: list[str]) -> None:
        new = [name for name in names if name not in self._created_ms or _number(name) > self._last_executed]
        found = await store.configs.read_changes(new)
        self._created_ms.update((name, created_ms) for name, (_, created_ms) in found.items())
        last_of: dict[str, int] = {}
        for number, name in sorted((_number(name), name) for name in found):
            if number <= self._last_executed:
                continue
            try:
                entity_path = decode_config_change(name, found[name][0])
            except ZnodeError as error:
                _log.error("ignored a notification of a changed config: %s", error)
                continue
            last_of.pop(entity_path, None)
            last_of[entity_path] = number
        for entity_path, number in last_of.items():
            await self._changed(entity_path)
            self._last_executed = number
        self._last_executed = max([self._last_executed, *map(_number, found)])

    async def _purge(self, store: KafkaZooKeeper, names: list[str]) -> None:
        self._created_ms = {name: self._created_ms[name] for name in names if name in self._created_ms}
        oldest_ms = self._now_ms() - CHANGE_EXPIRATION_MS
        await store.configs.delete_changes([name for name, created in self._created_ms.items() if created < oldest_ms])


def _number(name: str) -> int:
    """The notification's number; -1, which is never new, for any other znode."""
    match = _NAME.fullmatch(name)
    return -1 if match is None else int(match.group(1))
