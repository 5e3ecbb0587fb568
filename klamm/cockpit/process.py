"""The cockpit as one of the processes of `klamm up`."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from klamm.access.clients import cluster_errors, command_options, reach_cluster
from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import make_client
from klamm.cockpit.live.cluster import LiveCluster, open_cluster
from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.server import Failure, WebServer


class CockpitServer:
    """Serves the page of the cluster with these addresses. `start` returns the page's address as `url`."""

    def __init__(self, bootstrap: str, zookeeper: str, host: str, port: int) -> None:
        self.new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        self._bootstrap, self._zookeeper = bootstrap, zookeeper
        self._host, self._port = host, port
        self._cluster: LiveCluster | None = None
        self._server: WebServer | None = None

    async def start(self) -> dict[str, Any]:
        self._failure = Failure()
        self._server = WebServer(self._host, self._port, self._failure.report)
        await self._server.open()
        with cluster_errors():
            options = command_options(self._bootstrap, None)
            client = make_client(options, SystemEnvironment().random)
            await reach_cluster(client, options)
            self._cluster = await open_cluster(client, self._zookeeper, self._failure.report)
        reach = ("--bootstrap-server", self._bootstrap)
        await self._server.show(Cockpit(self._cluster, False, reach, ("--zookeeper", self._zookeeper)))
        return {"url": self._server.urls[0]}

    async def failed(self) -> BaseException:
        return await self._failure.wait()

    async def stop(self) -> None:
        if self._server is not None and self._cluster is not None:
            await self._server.end(self._cluster.close)
