"""The broker's ZooKeeper sessions, one after another.

A client object ends with its session. The ephemeral znodes of an expired session are gone: this module makes the next
client and has the broker set itself up again.

What must stay true:
- `store` is always the current session's. While ZooKeeper is unreachable its calls wait or fail with ConnectionLoss,
  and the data path is not affected.
- `on_expired` is called as soon as the end of a session is known, and before the next session begins.
- `on_session` runs once for each session (again when ZooKeeper fails it), and never twice at a time.
- A session that expires before `keep` fails the broker's start, like every call that was made in it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from klamm.base.environment import Environment
from klamm.base.metrics import MetricName, Metrics
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import State, ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

RENEWAL_BACK_OFF_MS = 100

# The calls in flight where zookeeper.max.in.flight.requests is not set. This many keep a server busy; the answers to
# more at once would hold the loop for longer than ten milliseconds.
MAX_IN_FLIGHT = 500

_log = logging.getLogger(__name__)


class ZooKeeperSession:
    """Call `start`, then `keep` once the broker is set up, and `stop` at the end.

    `on_failure` gets the exception of an `on_session` that has failed for another reason than ZooKeeper.
    """

    store: KafkaZooKeeper

    def __init__(self, environment: Environment, config: BrokerConfig, on_failure: OnFailure) -> None:
        self._environment = environment
        self._config = config
        self._on_failure = on_failure
        self._client: ZooKeeperClient | None = None
        self._renewal: asyncio.Task[None] | None = None
        # How often each state was entered.
        self._states: Counter[State] = Counter()
        # Sets the broker up in a new session; None before `keep` and after `stop`.
        self._renew: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def start(self) -> None:
        """Opens the first session. Raises ConnectionLoss after zookeeper.connection.timeout.ms."""
        await self._open(self._config.zookeeper_connection_timeout_ms)

    def keep(self, on_expired: Callable[[], None], on_session: Callable[[KafkaZooKeeper], Awaitable[None]]) -> None:
        """From now on, opens a new session after each expired session.

        `on_expired()` is called when the ephemeral znodes are gone; `on_session(store)` sets the broker up in the new
        session.
        """
        self._renew = lambda: self._open_next(on_expired, on_session)
        self._check_session()

    async def stop(self) -> None:
        """Ends the session, and with it the broker's registration."""
        self._renew = None
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _open(self, timeout_ms: int | None) -> None:
        # Kept at once, so that `stop` also ends a client that is still looking for a server.
        self._client = client = ZooKeeperClient(
            self._environment,
            self._config.zookeeper_connect,
            session_timeout_ms=self._config.zookeeper_session_timeout_ms,
            max_in_flight=self._config.zookeeper_max_in_flight_requests or MAX_IN_FLIGHT,
        )
        client.add_listener(self._state_changed)
        await client.start(timeout_ms)
        self.store = KafkaZooKeeper(client)

    def register(self, metrics: Metrics) -> None:
        """Under Kafka's names."""
        for name, documentation, state in (
            ("ZooKeeperSyncConnectsPerSec", "Connections to ZooKeeper.", State.CONNECTED),
            ("ZooKeeperDisconnectsPerSec", "Lost connections to ZooKeeper.", State.DISCONNECTED),
            ("ZooKeeperExpiresPerSec", "ZooKeeper sessions that have expired.", State.EXPIRED),
            ("ZooKeeperAuthFailuresPerSec", "Refused authentications at ZooKeeper.", State.AUTH_FAILED),
        ):
            metrics.meter(
                MetricName("kafka.server", "SessionExpireListener", name),
                documentation,
                lambda state=state: self._states[state],  # type: ignore[misc]
            )

    def _state_changed(self, state: State) -> None:
        self._states[state] += 1
        self._check_session()

    @property
    def _has_expired(self) -> bool:
        return self._client is not None and self._client.state is State.EXPIRED

    def _check_session(self) -> None:
        if self._has_expired and self._renew is not None and (self._renewal is None or self._renewal.done()):
            _log.warning("the ZooKeeper session has expired; opening a new one")
            self._renewal = start_task(self._renew(), self._on_failure)

    async def _open_next(
        self, on_expired: Callable[[], None], on_session: Callable[[KafkaZooKeeper], Awaitable[None]]
    ) -> None:
        is_set_up = False
        while not is_set_up:
            try:
                if self._has_expired:
                    on_expired()
                    await self._open(None)
                await on_session(self.store)
                is_set_up = not self._has_expired
            except ZooKeeperError as error:
                _log.warning("setting the broker up in a new ZooKeeper session failed: %s", error)
                await asyncio.sleep(RENEWAL_BACK_OFF_MS / 1000)
