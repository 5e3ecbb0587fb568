"""Registers this broker in ZooKeeper, which gives it its broker epoch (KIP-380).

What must stay true:
- The session that owns the registration is recorded (`session_file`) before the registration is made.
- A former session's registration is replaced only if no write to the disk can have been lost since.
- `broker_epoch` is that of the newest registration. A controller's request with an older epoch was meant for this
  broker before its restart, and is refused.
"""

from collections.abc import Mapping

from klamm.base.environment import Environment
from klamm.broker.metadata.metadata_cache import Endpoint
from klamm.broker.registration.session_file import read_sessions, write_sessions
from klamm.config.versions import ApiVersion
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.znodes import brokers as znodes
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.store import KafkaZooKeeper

NO_PORT = -1


class BrokerStartError(Exception):
    """The broker cannot join or stay in its cluster; the message says why and what is needed."""


class Registrar:
    """Registers one broker, once for each ZooKeeper session. `features` are its supported features. They are left out
    if inter.broker.protocol.version (`protocol`) is too old for features."""

    def __init__(
        self,
        environment: Environment,
        broker_id: int,
        rack: str | None,
        features: Mapping[str, znodes.SupportedVersions],
        protocol: ApiVersion,
    ) -> None:
        self._environment = environment
        self._broker_id = broker_id
        self._rack = rack
        self._features = features
        self._version = znodes.FEATURES_SINCE if protocol >= ApiVersion.V2_7_IV0 else znodes.FEATURES_SINCE - 1
        self._session_ids: list[int] = []
        self.broker_epoch = NO_EPOCH
        self.metrics_port = NO_PORT
        """The HTTP port for metrics and status. Kafka's brokers register their JMX port in its place."""

    def require_broker_epoch(self, broker_epoch: int) -> None:
        """Raises KafkaError STALE_BROKER_EPOCH for a request that was meant for this broker before its restart.

        A newer epoch is accepted: the registration has happened, but its answer has not arrived here yet.
        """
        if broker_epoch != NO_EPOCH and broker_epoch < self.broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"broker epoch {broker_epoch}, this broker's is {self.broker_epoch}"
            )

    async def register(self, store: KafkaZooKeeper, endpoints: Mapping[str, Endpoint], directory: str) -> None:
        """Registers this broker with these endpoints. `directory` is a log directory that it has locked.

        Raises BrokerStartError if its id or an address belongs to another broker, or its rack is too long for a
        request.
        """
        if self._rack is not None and len(self._rack.encode()) > znodes.MAX_TEXT_BYTES:
            raise BrokerStartError(
                f"broker.rack is {len(self._rack.encode())} bytes long; allowed are up to {znodes.MAX_TEXT_BYTES}"
            )
        registration = await self._registration(store, endpoints)
        try:
            replaceable = await self._note_session(store, directory)
            await store.delete_leftover_controller(replaceable)
            self.broker_epoch = await store.register_broker(registration, replaceable)
        except KafkaError as error:
            raise BrokerStartError(error.message) from None

    async def update(self, store: KafkaZooKeeper, endpoints: Mapping[str, Endpoint]) -> None:
        """Changes the endpoints of the existing registration; the broker epoch stays.

        Raises BrokerStartError if an address belongs to another broker, ZooKeeperError as long as there is no
        registration.
        """
        await store.update_broker(await self._registration(store, endpoints))

    async def _registration(self, store: KafkaZooKeeper, endpoints: Mapping[str, Endpoint]) -> BrokerRegistration:
        addresses = {(endpoint.host, endpoint.port) for endpoint in endpoints.values()}
        for other, live in (await store.live_brokers()).items():
            if other == self._broker_id:
                continue
            for endpoint in live.registration.endpoints:
                if (endpoint.host, endpoint.port) in addresses:
                    raise BrokerStartError(
                        f"advertised.listeners: {endpoint.host}:{endpoint.port} belongs to broker {other} already"
                    )
        return BrokerRegistration(
            self._broker_id,
            tuple(
                znodes.Endpoint(name, endpoint.host, endpoint.port, endpoint.security_protocol)
                for name, endpoint in endpoints.items()
            ),
            self._rack,
            self._features,
            jmx_port=self.metrics_port,
            timestamp_ms=self._environment.now_ms(),
            version=self._version,
        )

    async def _note_session(self, store: KafkaZooKeeper, directory: str) -> list[int]:
        """Records the session as this broker's. Returns the former sessions whose registration may be replaced: those
        of this process and of earlier processes since the machine's boot. Waits for the expiry of older sessions."""
        file_system, run_blocking = self._environment.file_system, self._environment.run_blocking
        boot_id, session_id = self._environment.boot_id(), store.client.session_id
        noted = await run_blocking(read_sessions, file_system, directory, boot_id)
        own = dict.fromkeys([*self._session_ids, *(noted.ids if noted.are_of_this_boot else ())])
        # Before the file drops the older sessions: this start may be killed while it waits, or wait in vain.
        await store.wait_for_expiry(self._broker_id, [other for other in noted.ids if other not in own])
        replaceable = [other for other in own if other != session_id]
        self._session_ids = [session_id, *replaceable[:1]]
        await run_blocking(write_sessions, file_system, directory, boot_id, self._session_ids)
        return replaceable
