"""Puts changed listeners into effect while the broker runs (Kafka's `DynamicListenerConfig`).

    1  new listeners open
    2  the registration names the listeners that are open, and the controller tells brokers and clients
    3  removed listeners close, once their pending requests are answered

So clients always know an address that answers, unless a new listener takes the port of a removed one, which then closes
first. A listener whose address changes is a removed and a new listener.

What must stay true: after a failure every step is tried again, until open sockets, registration and configuration
agree.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from klamm.base.tasks import OnFailure, start_task
from klamm.broker.metadata.metadata_cache import Endpoint
from klamm.broker.registration.registration import BrokerStartError, Registrar
from klamm.broker.start.listeners import Listeners
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

RETRY_BACK_OFF_MS = 1_000

_log = logging.getLogger(__name__)


class ListenerChanges:
    """Call `start` once the broker is registered and its listeners accept, and `stop` before the listeners stop."""

    def __init__(
        self,
        config: CurrentConfig,
        listeners: Listeners,
        registrar: Registrar,
        zookeeper: Callable[[], KafkaZooKeeper],
        on_failure: OnFailure,
    ) -> None:
        self._listeners = listeners
        self._registrar = registrar
        self._zookeeper = zookeeper
        self._on_failure = on_failure
        self._has_news = asyncio.Event()
        self._registered: Mapping[str, Endpoint] = {}
        self._task: asyncio.Task[None] | None = None
        config.subscribe(self._config_changed)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints that a session registers. A refused change is not included: it would stop the broker."""
        return self._listeners.advertised_endpoints() if self._task is None else self._registered

    def start(self) -> None:
        self._registered = self.endpoints
        self._task = start_task(self._run(), self._on_failure)

    async def stop(self) -> None:
        """Stops the changes. No listener opens after this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _config_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        if _what_listeners_depend_on(old) != _what_listeners_depend_on(new):
            self._has_news.set()

    async def _run(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                await self._change_listeners()
            except BrokerStartError as error:
                _log.error("the changed listeners are not registered, none is closed; change them again: %s", error)
            except ZooKeeperError as error:
                _log.warning("the changed listeners are not registered yet: %s", error)
                await asyncio.sleep(RETRY_BACK_OFF_MS / 1000)
                self._has_news.set()
            # Last, because the system may take long to look up a host.
            await self._listeners.resolve_overrides()

    async def _change_listeners(self) -> None:
        await self._listeners.open_new()
        endpoints = self._listeners.advertised_endpoints()
        if endpoints != self._registered:
            await self._registrar.update(self._zookeeper(), endpoints)
            self._registered = endpoints
        await self._listeners.close_removed()


def _what_listeners_depend_on(config: BrokerConfig) -> tuple[object, ...]:
    return config.listeners, config.advertised_listeners, config.max_connections_per_ip_overrides
