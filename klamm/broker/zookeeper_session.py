"""The broker's ZooKeeper session, one after another.

A client object ends with its session. When the server says that a session has expired, everything ephemeral is gone:
this module makes the next client and lets the broker set itself up anew.

What must stay true:
- `store` is always the current session's; while ZooKeeper is away its calls wait or fail with ConnectionLoss, and the
  data path does not notice.
- `on_session` runs once for each session, and for the next only after the last has ended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from klamm.config.broker import BrokerConfig
from klamm.environment import Environment
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import State, ZooKeeperClient
from klamm.zookeeper.errors import ZooKeeperError

RENEWAL_BACK_OFF_MS = 100

_log = logging.getLogger(__name__)


class ZooKeeperSession:
    """Keeps a session from `start` to `stop`. `on_session(store)` sets the broker up in each but the first.

    `on_failure` hears of an `on_session` that failed for another reason than ZooKeeper.
    """

    store: KafkaZooKeeper

    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        on_session: Callable[[KafkaZooKeeper], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._environment = environment
        self._config = config
        self._on_session = on_session
        self._on_failure = on_failure
        self._client: ZooKeeperClient | None = None
        self._expired = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._session_id = 0
        # The session before this one; 0 if there was none. What it owned may outlive it for a moment.
        self.previous_session_id = 0

    async def start(self) -> None:
        """Opens the first session. Raises ConnectionLoss after zookeeper.connection.timeout.ms."""
        await self._open(self._config.zookeeper_connection_timeout_ms)
        self._task = asyncio.ensure_future(self._renew())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Ends the session, and with it the broker's registration."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _open(self, timeout_ms: int | None) -> None:
        client = ZooKeeperClient(
            self._environment,
            self._config.zookeeper_connect,
            session_timeout_ms=self._config.zookeeper_session_timeout_ms,
        )
        await client.start(timeout_ms)
        client.add_listener(self._state_changed)
        self._client = client
        self.store = KafkaZooKeeper(client)
        self.previous_session_id, self._session_id = self._session_id, client.session_id

    def _state_changed(self, state: State) -> None:
        if state is State.EXPIRED:
            self._expired.set()

    async def _renew(self) -> None:
        """The one task that replaces sessions, one after another."""
        while True:
            await self._expired.wait()
            self._expired.clear()
            _log.warning("the ZooKeeper session has expired; opening a new one")
            try:
                await self._open(None)
                await self._on_session(self.store)
            except ZooKeeperError as error:
                # The broker is not set up in the new session, so that session must end, too.
                _log.warning("the new ZooKeeper session cannot be used: %s", error)
                if self._client is not None:
                    await self._client.close()
                await asyncio.sleep(RENEWAL_BACK_OFF_MS / 1000)
                self._expired.set()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
