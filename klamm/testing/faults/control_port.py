"""The control port of a Cluster(control=True): its faults and servers for a test in another language."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from klamm.faults.chronicle import Chronicle
from klamm.faults.commands import Json, Server
from klamm.faults.control import Control
from klamm.faults.control_port import ControlPort
from klamm.faults.wire import FaultError
from klamm.testing.errors import ClusterError
from klamm.testing.threads import in_thread


class ControlledCluster(Protocol):
    """What the port needs of a `klamm.testing.Cluster`."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def zookeeper(self) -> str: ...
    @property
    def brokers(self) -> Sequence[Any]: ...
    def kill(self, server: Server) -> None: ...
    def stop(self, server: Server) -> None: ...
    def start(self, server: Server) -> None: ...
    def pause(self, server: Server) -> None: ...
    def resume(self, server: Server) -> None: ...
    def heal(self) -> None: ...


class ClusterBehindPort:
    """The cluster as its control port sees it. The port belongs to the cluster's loop; the methods of the cluster wait
    for that loop, so they run in threads."""

    def __init__(self, cluster: ControlledCluster) -> None:
        self._cluster = cluster

    def described(self) -> Json:
        cluster = self._cluster
        brokers = [
            {"server": broker.id, "address": broker.address, "running": broker.running, "paused": broker.paused}
            for broker in cluster.brokers
        ]
        return {"bootstrap": cluster.bootstrap, "zookeeper": cluster.zookeeper, "brokers": brokers}

    async def operate(self, server: Server, operation: str) -> None:
        methods = {
            "kill": self._cluster.kill,
            "stop": self._cluster.stop,
            "start": self._cluster.start,
            "pause": self._cluster.pause,
            "resume": self._cluster.resume,
        }
        await _in_thread(methods[operation], server)

    async def heal(self) -> None:
        await _in_thread(self._cluster.heal)


async def _in_thread(method: Callable[..., None], *arguments: Server) -> None:
    try:
        await in_thread(method, *arguments)
    except ClusterError as error:
        raise FaultError(str(error)) from error


async def open_port(cluster: ControlledCluster, control: Control, chronicle: Chronicle) -> tuple[ControlPort, str]:
    """The open port, and its token."""
    token = secrets.token_urlsafe(32)
    port = ControlPort(control, chronicle, ClusterBehindPort(cluster), token)
    await port.bind()
    await port.start()
    return port, token
