"""klamm's servers as processes run them: built from JSON values, so that a helper process can fork them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import uvloop

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.start.broker import Broker, BrokerStartError
from klamm.config.broker import BrokerConfig
from klamm.config.definition import ConfigError
from klamm.processes.kafka_logs import open_kafka_logs
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, ZooKeeperError
from klamm.zookeeper.server import CorruptDataError, ZooKeeperServer

_log = logging.getLogger(__name__)


class BrokerServer:
    """One broker, built from its properties; `log.dirs` must be absolute.

    `logs_dir` (absolute) holds state-change.log and controller.log; None sends their lines to the common log.
    """

    def __init__(self, properties: Mapping[str, str], logs_dir: str | None = None) -> None:
        try:
            self._config = BrokerConfig.from_properties(properties)
        except ConfigError as error:
            raise ToolError(str(error)) from error
        self._logs_dir = logs_dir
        self.new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        self._environment = self._make_environment()
        self._broker = self._make_broker()

    def _make_environment(self) -> SystemEnvironment:
        return SystemEnvironment()

    def _make_broker(self) -> Broker:
        return Broker(self._config, self._environment)

    async def start(self) -> dict[str, Any]:
        if self._logs_dir is not None:
            open_kafka_logs(self._logs_dir)
        for key in self._config.unknown_keys:
            _log.warning("unknown configuration key: %s", key)
        try:
            await self._broker.start()
        except ConnectionLoss as error:
            raise ToolError(
                f"ZooKeeper at {self._config.zookeeper_connect} does not answer"
                f" (waited zookeeper.connection.timeout.ms={self._config.zookeeper_connection_timeout_ms})"
            ) from error
        except ZooKeeperError as error:
            raise ToolError(f"ZooKeeper at {self._config.zookeeper_connect}: {error}") from error
        except BrokerStartError as error:
            raise ToolError(str(error)) from error
        except KafkaError as error:
            raise ToolError(error.message or str(error)) from error
        return {
            "broker_id": self._broker.broker_id,
            "cluster_id": self._broker.cluster_id,
            "listeners": {name: list(address) for name, address in self._broker.endpoints.items()},
            "metrics_port": self._broker.metrics_port,
        }

    async def failed(self) -> BaseException:
        return await asyncio.shield(self._broker.failure)

    async def stop(self) -> None:
        await self._broker.stop()
        self._environment.close()


class EmbeddedZooKeeper:
    """The embedded ZooKeeper server over one directory (absolute); port 0 takes any free port.

    `min_session_timeout_ms`: the shortest session timeout that it grants; None keeps the server's default.
    """

    def __init__(self, directory: str, host: str, port: int, min_session_timeout_ms: int | None = None) -> None:
        self.new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        self._directory = directory
        self._environment = SystemEnvironment()
        self._server = ZooKeeperServer(
            self._environment, directory, host, port, min_session_timeout_ms=min_session_timeout_ms
        )
        self._started = False

    async def start(self) -> dict[str, Any]:
        try:
            await self._server.start()
        except CorruptDataError as error:
            raise ToolError(str(error)) from error
        except BlockingIOError as error:
            raise ToolError(f"{self._directory} is in use by another server") from error
        self._started = True
        return {"host": self._server.host, "port": self._server.port}

    async def failed(self) -> BaseException:
        try:
            await self._server.wait_closed()
        except Exception as error:
            return error
        return ToolError("the server has closed")

    async def stop(self) -> None:
        if self._started:
            await self._server.stop()
        self._environment.close()
