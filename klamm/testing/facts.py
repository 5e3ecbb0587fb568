"""Facts about a cluster that need no waiting, for threads and coroutines: addresses, servers, directories, logs."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from klamm.faults.commands import Server
from klamm.faults.local_cluster import ClusterUnderFaults
from klamm.faults.wire import FaultError
from klamm.processes.local_cluster import process_name
from klamm.processes.loop_thread import LoopEnded
from klamm.processes.readiness import NotReady
from klamm.processes.supervisor import ServerFailed, ServerProcess
from klamm.testing.cluster_errors import ClusterEnded, ClusterError

# A message shows at most this many lines of the history.
DESCRIBED_LINES = 20


@dataclass(frozen=True)
class Broker:
    """One broker at the moment of the call. `running`: it has a process, which may be `paused`."""

    id: int
    host: str
    port: int
    running: bool
    paused: bool
    pid: int | None
    data_directory: Path

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ClusterFacts(ABC):
    """The facts. Each of them raises ClusterEnded if the cluster does not run."""

    @property
    @abstractmethod
    def _local(self) -> ClusterUnderFaults: ...

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, running or not, for clients' `bootstrap.servers`."""
        return self._local.bootstrap

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string."""
        return self._local.zookeeper

    @property
    def control_url(self) -> str:
        """The URL at which a Cluster(control=True) accepts faults over HTTP. Raises ClusterError without such a
        port."""
        return self._port[0]

    @property
    def control_token(self) -> str:
        """The token for requests to `control_url`."""
        return self._port[1]

    @property
    def servers(self) -> list[Server]:
        """All servers that a test can kill, stop or pause: the brokers, and ZooKeeper if it is the cluster's own."""
        return self._local.servers

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return self._local.broker_ids

    @property
    def brokers(self) -> list[Broker]:
        """All brokers, running or not."""
        return [self.broker(broker) for broker in self.broker_ids]

    def broker(self, broker: int) -> Broker:
        """One broker as it is now."""
        process = self._process(broker)
        is_paused, pid = process.running and process.paused, process.pid if process.running else None
        directory = self.data_directory(broker)
        return Broker(broker, *self._local.addresses[broker], process.running, is_paused, pid, directory)

    @property
    def directory(self) -> Path:
        """The directory with the data directories and logs of all servers."""
        return self._local.plan.directory

    def data_directory(self, server: Server) -> Path:
        """A server's data directory, in Kafka's own format (a partition's directory is topic-0, for example)."""
        return self.directory / process_name(server)

    def log(self, server: Server, lines: int = 50) -> str:
        """The last lines of a server's log since its start."""
        return self._process(server).log_tail(lines)

    def describe(self, history_lines: int = DESCRIBED_LINES) -> str:
        """For messages: the state of each server, the end of the history, and the Python that repeats the faults."""
        lines = [_described(server) for server in self._local.processes.servers.values()]
        with told():
            history = self._local.recorded()
        if history:
            lines += ["what happened last:", history.report(history_lines)]
        if script := history.script():
            lines.append("what was done to the cluster c:")
            if len(script) > history_lines:
                lines.append(f"    # {len(script) - history_lines} earlier lines are in c.history.script()")
            lines += [f"    {line}" for line in script[-history_lines:]]
        return "\n".join(lines)

    def _process(self, server: Server) -> ServerProcess:
        with told():
            return self._local.process(server)

    @property
    def _port(self) -> tuple[str, str]:
        if self._local.port is None:
            raise ClusterError("the cluster has no control port: make it with Cluster(control=True)")
        return self._local.port


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turns errors of klamm.processes and klamm.faults into ClusterErrors."""
    try:
        yield
    except (ServerFailed, NotReady, FaultError) as error:
        raise ClusterError(str(error)) from error
    except LoopEnded:
        raise ClusterEnded("the cluster has ended") from None


def _described(server: ServerProcess) -> str:
    if server.running:
        return f"{server.name} {'is paused' if server.paused else 'runs'}"
    return f"{server.name} has been stopped or killed" if server.expected_end else server.obituary()
