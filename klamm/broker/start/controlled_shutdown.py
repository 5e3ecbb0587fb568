"""Before a broker stops: the controller moves its leaderships to other brokers (`KafkaServer.controlledShutdown`).

Every attempt looks up the controller in ZooKeeper, because the metadata cache may be behind. A broker whose partitions
have no other live replica stops without a further attempt: no other broker could take over.
"""

import asyncio
import logging
from typing import Any

from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.registration.registration import Registrar
from klamm.config.broker import BrokerConfig
from klamm.net.client import ClientError, ConnectionOptions, NotSent, connect
from klamm.protocol.apis.controlled_shutdown import ControlledShutdownRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import State
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

CONTROLLER_LOOKUP_BACK_OFF_MS = 50
# A reachable ZooKeeper answers in milliseconds.
LOOKUP_TIMEOUT_MS = 2_000

_log = logging.getLogger(__name__)


class ControlledShutdown:
    """Has one broker's leaderships moved to other brokers."""

    def __init__(
        self, config: BrokerConfig, broker_id: int, registrar: Registrar, metadata_cache: MetadataCache
    ) -> None:
        self._config = config
        self._broker_id = broker_id
        self._registrar = registrar
        self._metadata_cache = metadata_cache

    async def run(self, store: KafkaZooKeeper) -> bool:
        """Asks up to controlled.shutdown.max.retries times; returns whether all leaderships were moved.

        While no controller answers, as during an election, this looks for the controller again for as long as all
        backoffs could take, but not without ZooKeeper: no controller could move leaderships then. A controller may take
        controller.socket.timeout.ms to answer.
        """
        config, loop = self._config, asyncio.get_running_loop()
        attempts = config.controlled_shutdown_max_retries
        give_up = loop.time() + attempts * config.controlled_shutdown_retry_backoff_ms / 1000
        while attempts > 0 and self._others_are_alive():
            if store.client.state is not State.CONNECTED:
                return False
            try:
                response = await self._ask(store)
            except (ClientError, ZooKeeperError, ZnodeError, TimeoutError) as error:
                _log.info("controlled shutdown: %s", error)
                if loop.time() >= give_up:
                    return False
                await asyncio.sleep(CONTROLLER_LOOKUP_BACK_OFF_MS / 1000)
                continue
            attempts -= 1
            remaining = [(one.topic_name, one.partition_index) for one in response.remaining_partitions]
            if response.error_code == ErrorCode.NONE and not remaining:
                return True
            code = ErrorCode(response.error_code)
            _log.info("controlled shutdown: %s (%d), %d partitions are still led", code.name, code, len(remaining))
            if response.error_code == ErrorCode.NONE and not any(map(self._can_move, remaining)):
                return False
            if attempts > 0:
                await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
        return False

    async def _ask(self, store: KafkaZooKeeper) -> Any:
        """The answer of the controller that ZooKeeper names."""
        async with asyncio.timeout(LOOKUP_TIMEOUT_MS / 1000):
            controller_id = await store.controller_id()
            if controller_id is None:
                raise NotSent("there is no controller at the moment")
            live = (await store.live_brokers()).get(controller_id)
        endpoints = [] if live is None else live.registration.endpoints
        wanted = self._config.inter_broker_listener_name
        endpoint = next((each for each in endpoints if each.listener_name == wanted), None)
        if endpoint is None:
            raise NotSent(f"controller {controller_id} has no listener {wanted}")
        options = ConnectionOptions(
            client_id=str(self._broker_id),
            connect_timeout_ms=self._config.socket_connection_setup_timeout_ms,
            request_timeout_ms=self._config.controller_socket_timeout_ms,
            negotiate_versions=False,
        )
        connection = await connect(endpoint.host, endpoint.port, options)
        try:
            response = await connection.send(
                ApiKey.CONTROLLED_SHUTDOWN,
                lambda version: ControlledShutdownRequest(
                    broker_id=self._broker_id, broker_epoch=self._registrar.broker_epoch
                ),
                version=inter_broker_version(ApiKey.CONTROLLED_SHUTDOWN, self._config.inter_broker_protocol_version),
            )
        finally:
            connection.close()
        if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            raise NotSent(f"broker {controller_id} is no longer the controller, and its successor is not known yet")
        return response

    def _others_are_alive(self) -> bool:
        return any(broker_id != self._broker_id for broker_id in self._metadata_cache.snapshot.brokers)

    def _can_move(self, partition: PartitionKey) -> bool:
        """Whether another member of the in-sync replica set is alive."""
        snapshot = self._metadata_cache.snapshot
        state = snapshot.partition(*partition)
        return state is None or any(id != self._broker_id and id in snapshot.brokers for id in state.isr)
