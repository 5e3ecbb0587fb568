"""A real klamm cluster for a test: every broker and its ZooKeeper a process, ready in about a second, gone at the end.

    with Cluster(brokers=3) as c:
        c.create_topic("orders", partitions=3)
        c.kill(c.leader("orders", 0))
        c.until(lambda: c.leader("orders", 0) is not None)

What must stay true:
- Ready means ready: when a method that starts a server returns, every running broker knows that server.
- No process or temporary file is left behind, however the test ends; kill -9 of the test's process included.
- Addresses do not change while the cluster lives, and no other program gets its ports meanwhile.
"""

import contextlib
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from klamm.base.environment import SystemEnvironment
from klamm.client.admin.topics import NewTopic
from klamm.config.broker import config_key, unknown_key_problem
from klamm.diagnosis.partition_health import is_under_replicated
from klamm.faults.chronicle import Chronicle
from klamm.faults.commands import Server
from klamm.faults.control import Control
from klamm.faults.control_port import ControlPort
from klamm.faults.entries import BrokerAdded, ChronicleEntry
from klamm.faults.history import History, process_entry
from klamm.faults.servers import BROKER, PRELOAD, under_faults
from klamm.faults.wire import FaultError
from klamm.processes.helper import Helper
from klamm.processes.local_cluster import HOST, broker_arguments, broker_properties
from klamm.processes.loop_thread import LoopEnded, LoopThread
from klamm.processes.readiness import NotReady, wait_for_no_topic, wait_for_topic, wait_until_ready
from klamm.processes.supervisor import EMBEDDED_ZOOKEEPER, Processes, ServerFailed, ServerProcess
from klamm.protocol.vocabulary import NO_LEADER, NO_REPLICATION_FACTOR, PartitionKey
from klamm.recording.entries import Json
from klamm.recording.history import read_records, write_recording
from klamm.recording.spool import Spool
from klamm.testing.conditions import Wait, note
from klamm.testing.errors import ClusterEnded, ClusterError
from klamm.testing.faults.answers import AnswerFaults
from klamm.testing.faults.clock import Clock
from klamm.testing.faults.control_port import open_port
from klamm.testing.faults.disk import Disk
from klamm.testing.faults.faults import Faults
from klamm.testing.faults.network import Network
from klamm.testing.faults.servers import ServerFaults
from klamm.testing.observer import Observer, create_topic, delete_topic
from klamm.testing.ports import ReservedPort
from klamm.testing.recordings import note_recording
from klamm.testing.threads import in_thread
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.client.connect_string import parse_connect_string

if TYPE_CHECKING:
    from klamm.testing.async_cluster import AsyncCluster

T = TypeVar("T")

ZOOKEEPER: Final = "zookeeper"
TIMEOUT_S = 30.0
# A broker that does not answer for so long has no records in a recording.
RECORDS_TIMEOUT_S = 2.0
# A message has so many lines of the history.
DESCRIBED_LINES = 20
# The cluster sets these for each broker; other values would break it.
OWN_PROPERTIES = ("broker.id", "zookeeper.connect", "log.dirs", "log.dir", "listeners", "advertised.listeners")

# The running clusters of this process, and the last ones that have ended with an error, for the pytest plugin.
running_clusters: "weakref.WeakSet[Cluster]" = weakref.WeakSet()
failed_clusters: "deque[Cluster]" = deque(maxlen=4)


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


class Cluster(AnswerFaults, ServerFaults):
    """A cluster with `brokers` brokers (ids from 0) for the time of a `with` block.

    - `properties`: broker properties for all brokers, by Kafka's names; `broker_properties`: for single brokers, by id.
      An unknown property raises ValueError.
    - `zookeeper`: the connect string of a ZooKeeper to use instead of one of its own.
    - `zookeeper_session_timeout_ms`: how soon a killed or paused broker counts as dead. Kafka's default is 18,000.
    - `directory`: where data and logs are kept, instead of a temporary directory that is removed. A cluster that starts
      in the directory of an earlier cluster has its data.
    - `keep_on_failure`: a temporary directory stays when the block ends with an error; the error names the directory.
    - `helper`: shared by several clusters; each of them then starts half a second faster.
    - `control`: opens a port for faults from other languages, at `control_url` with `control_token` (docs/faults.md).

    `async with Cluster(...) as c` gives an AsyncCluster: the same methods as coroutines.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        properties: Mapping[str, object] | None = None,
        broker_properties: Mapping[int, Mapping[str, object]] | None = None,
        zookeeper: str | None = None,
        zookeeper_session_timeout_ms: int = 3_000,
        directory: str | Path | None = None,
        keep_on_failure: bool = False,
        helper: Helper | None = None,
        control: bool = False,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers} is not allowed; allowed: at least 1")
        self._initial_brokers = brokers
        self._properties = _broker_texts(properties or {})
        self._broker_properties = {broker: _broker_texts(own) for broker, own in (broker_properties or {}).items()}
        self._external_zookeeper = zookeeper
        self._session_timeout_ms = zookeeper_session_timeout_ms
        self._wanted_directory = None if directory is None else Path(directory).absolute()
        self.keeps_on_failure = keep_on_failure or directory is not None
        self._helper = helper
        self._ports: dict[Server, ReservedPort] = {}
        self._processes: Processes | None = None
        self._loop: LoopThread | None = None
        self._environment: SystemEnvironment | None = None
        self._control: Control | None = None
        self._chronicle: Chronicle | None = None
        self._wants_port = control
        self._port_and_token: tuple[ControlPort, str] | None = None
        self._observer: Observer | None = None
        self._spool = Spool()
        # The controllers' records, read at the end of a cluster with an error.
        self._last_records: list[Json] = []

    def __deepcopy__(self, memo: object) -> Self:
        # For each test, Django copies what setUpTestData has kept. The processes behind this object exist once.
        return self

    # -- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)
        if error is not None:
            note_recording(error, self.record)

    async def __aenter__(self) -> "AsyncCluster":
        from klamm.testing.async_cluster import open_in_thread

        return await open_in_thread(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from klamm.testing.async_cluster import close_in_thread

        await close_in_thread(self, error)
        if error is not None:
            await in_thread(note_recording, error, self.record)

    def open(self) -> None:
        """Starts the cluster and returns when it is ready, as `with` does. Raises ClusterError."""
        if self._processes is not None:
            raise ClusterError("the cluster is open already")
        directory = self._wanted_directory or Path(tempfile.mkdtemp(prefix="klamm-cluster-"))
        self._environment = SystemEnvironment(blocking_workers=1)
        self._control = Control(directory / "faults", self._environment.now_ms, self._is_paused)
        self._processes = Processes(
            directory,
            helper=self._helper,
            throwaway=self._wanted_directory is None,
            on_change=self._process_changed,
            preload=PRELOAD,
        )
        running_clusters.add(self)
        try:
            self._loop = LoopThread("klamm-testing")
            self._run(self._control.open())
            self._start_all()
            now_ms, spool = self._environment.now_ms, self._spool
            self._chronicle = Chronicle(
                self._control,
                self._environment,
                self.zookeeper,
                self._session_timeout_ms,
                lambda znode: spool.add(now_ms(), znode),
            )
            self._run(self._chronicle.start())
            if self._wants_port:
                self._port_and_token = self._run(open_port(self, self._control, self._chronicle))
        except BaseException as error:
            self.close(error)
            raise

    def _start_all(self) -> None:
        if self._external_zookeeper is None:
            self._reserve(ZOOKEEPER)
            self._launch(ZOOKEEPER)
            self._wait_started(ZOOKEEPER)
        self._observer = Observer(self.zookeeper, self._session_timeout_ms)
        for broker in range(self._initial_brokers):
            self._reserve(broker)
        self._tell_addresses()
        for broker in self.broker_ids:
            self._launch(broker)
        for broker in self.broker_ids:
            self._wait_started(broker)
        self._wait_ready()

    def close(self, error: BaseException | None = None) -> None:
        """Ends the cluster; `error` is the test's own failure. Idempotent.

        Raises ClusterError when a server had died by itself, and not because a fault had struck its disk, and the test
        has no failure of its own.
        """
        if self._processes is None:
            return
        died = [server.obituary() for server in self._died()]
        if error is not None and self._chronicle is not None:
            self._last_records = self._read_records()
            failed_clusters.append(self)
        processes, self._processes = self._processes, None
        running_clusters.discard(self)
        if error is not None and processes.throwaway and self.keeps_on_failure:
            processes.throwaway = False
            error.add_note(f"klamm: data and logs of the cluster are in {processes.directory}")
        if self._loop is not None and self._observer is not None:
            self._loop.run(self._observer.close())
        if self._loop is not None:
            self._loop.run(self._close_control())
        if self._wanted_directory is None and self._external_zookeeper is None:
            processes.kill()
        else:
            # Files or znodes outlive this cluster, so its brokers stop cleanly.
            brokers = [server for name, server in processes.servers.items() if name != ZOOKEEPER]
            processes.close(together=brokers)
        if self._loop is not None:
            self._loop.close()
        if self._environment is not None:
            self._environment.close()
        for port in self._ports.values():
            port.release()
        self._ports.clear()
        if died and error is None:
            raise ClusterError("died by itself: " + "; ".join(died))

    # -- servers ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, running or not, for clients' `bootstrap.servers`."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string."""
        if self._external_zookeeper is not None:
            return self._external_zookeeper
        return f"{HOST}:{self._port(ZOOKEEPER)}"

    @property
    def control_url(self) -> str:
        """Where a Cluster(control=True) takes faults over HTTP. Raises ClusterError without such a port."""
        return self._open_port[0].url

    @property
    def control_token(self) -> str:
        """The token for requests to `control_url`."""
        return self._open_port[1]

    @property
    def servers(self) -> list[Server]:
        """All servers that a test can kill, stop or pause: the brokers, and ZooKeeper if it is the cluster's own."""
        return list(self._ports)

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        self._require_open()
        return [server for server in self._ports if server != ZOOKEEPER]

    @property
    def brokers(self) -> list[Broker]:
        """All brokers, running or not."""
        return [self.broker(broker) for broker in self.broker_ids]

    def broker(self, broker: int) -> Broker:
        """One broker as it is now."""
        server = self._server(broker)
        return Broker(
            broker,
            HOST,
            self._port(broker),
            server.running,
            server.running and server.paused,
            server.pid if server.running else None,
            self.data_directory(broker),
        )

    @property
    def directory(self) -> Path:
        """Where the data directories and logs of all servers are."""
        return self._open.directory

    def data_directory(self, server: Server) -> Path:
        """A server's data directory, in Kafka's own format (a partition's directory is topic-0, for example)."""
        return self.directory / _name(server)

    def log(self, server: Server, lines: int = 50) -> str:
        """The last lines of a server's log since its start."""
        return self._server(server).log_tail(lines)

    def describe(self, history_lines: int = DESCRIBED_LINES) -> str:
        """For messages: the state of each server, the end of the history, and the Python that repeats the faults."""
        lines = [_described(server) for server in self._open.servers.values()]
        history = self._run(self._recorded())
        if history:
            lines += ["what happened last:", history.report(history_lines)]
        if script := history.script():
            lines.append("what was done to the cluster c:")
            if len(script) > history_lines:
                lines.append(f"    # {len(script) - history_lines} earlier lines are in c.history.script()")
            lines += [f"    {line}" for line in script[-history_lines:]]
        return "\n".join(lines)

    def record(self, path: str | Path) -> Path:
        """Writes what has happened so far into a file for `klamm cockpit FILE`, and returns its path.

        A cluster that has ended with an error can be recorded, too. Raises ClusterError when the file cannot be
        written.
        """
        records = self._last_records if self._processes is None else self._read_records()
        history = self.history
        assert self._environment is not None
        path = Path(path)
        try:
            write_recording(path, "a klamm.testing.Cluster", self._spool, history, records, self._environment.now_ms())
        except OSError as error:
            raise ClusterError(f"{path} cannot be written: {error.strerror}") from None
        return path

    def _read_records(self) -> list[Json]:
        """The newest records of the controllers, as far as their brokers answer."""
        found: list[Json] = []
        for server in self._open.servers.values():
            port = (server.details or {}).get("metrics_port")
            if server.running and not server.paused and port:
                found += read_records(HOST, port, RECORDS_TIMEOUT_S)
        return found

    # -- its state ------------------------------------------------------------------------------------------------

    def controller_id(self) -> int | None:
        """The id of the controller, None when the cluster has no controller."""
        answer = self._run(self._observing.controller_id())
        note("controller_id", answer=answer)
        return answer

    def topics(self) -> list[str]:
        """The names of all topics."""
        answer = self._run(self._observing.topics())
        note("topics", answer=answer)
        return answer

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The leader of a partition, None when it has no leader. Raises ClusterError for an unknown partition."""
        state = self._state(topic, partition)
        answer = None if state is None or state.leader == NO_LEADER else state.leader
        note("leader", topic, partition, answer=answer)
        return answer

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        """The in-sync replicas of a partition, in the controller's order. Like `leader`."""
        state = self._state(topic, partition)
        answer = [] if state is None else list(state.isr)
        note("isr", topic, partition, answer=answer)
        return answer

    def replicas(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers that a partition is assigned to, the preferred leader first. Like `leader`."""
        found = self._run(self._observing.replicas(topic))
        answer = _of(found, topic, partition)
        note("replicas", topic, partition, answer=answer)
        return answer

    def followers(self, topic: str, partition: int = 0) -> list[int]:
        """The replicas of a partition that do not lead it, in sync or not. Like `leader`."""
        leader = self.leader(topic, partition)
        return [broker for broker in self.replicas(topic, partition) if broker != leader]

    def under_replicated(self) -> list[PartitionKey]:
        """The partitions of all topics with a replica that is not in sync. Those that a reassignment adds do not count.

        Raises ClusterError for a partition whose state cannot be read.
        """
        partitions = self._run(self._observing.view()).partitions
        answer: list[PartitionKey] = [(*key,) for key, each in partitions.items() if is_under_replicated(each)]
        note("under_replicated", answer=answer)
        return answer

    def _state(self, topic: str, partition: int) -> LeaderAndIsr | None:
        return _of(self._run(self._observing.states(topic)), topic, partition)

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Creates a topic and returns when every running broker knows a leader for each partition.

        `replication_factor` None: the brokers' default.replication.factor, which is min(3, brokers) here. Raises
        KafkaError when the controller refuses.
        """
        factor = NO_REPLICATION_FACTOR if replication_factor is None else replication_factor
        topic = NewTopic(name, partitions, factor, configs=dict(_texts(configs or {})))
        self._run(create_topic(self._reachable(), topic))
        brokers = self._reachable()
        self._run(wait_for_topic(brokers, name, TIMEOUT_S, self._alive(brokers)))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and returns when neither ZooKeeper nor a running broker has the topic.

        Every broker with a replica of the topic must run. Raises KafkaError.
        """
        self._run(delete_topic(self._reachable(), name))
        brokers = self._reachable()
        self._run(wait_for_no_topic(brokers, name, TIMEOUT_S, self._alive(brokers)))
        self.until(lambda: name not in self.topics())

    # -- faults -----------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> Faults:
        """The faults that are injected into this cluster."""
        return Faults(self._controlling, self._run)

    @property
    def disk(self) -> Disk:
        """Makes the disks of brokers slow, full, or fail."""
        return Disk(self.faults)

    @property
    def clock(self) -> Clock:
        """Makes the wall clocks of brokers wrong."""
        return Clock(self.faults)

    @property
    def history(self) -> History:
        """What has happened since the cluster began to start, in order: elections, ISR changes, truncations, faults ...

        What a call to this cluster or a client could see before is in it.
        """
        if self._processes is None:
            return History() if self._control is None else self._control.history.after()
        if self._chronicle is None:
            return self._run(self._recorded())
        return self._run(self._chronicle.catch_up())

    @property
    def network(self) -> Network:
        """The network between brokers, ZooKeeper and clients: cuts, delays, resets."""
        return Network(self.faults, lambda: self.brokers)

    def kill(self, server: Server) -> None:
        """kill -9; returns when the process is gone. The others notice when its ZooKeeper session expires."""
        process = self._server(server)
        self._run(self._controlling.count_if_answered())
        process.kill()

    def stop(self, server: Server) -> None:
        """A clean stop: a broker hands its leaderships over first. Returns when the process is gone."""
        with _told():
            self._server(server).stop(TIMEOUT_S)

    def start(self, server: Server, properties: Mapping[str, object] | None = None, *, wait: bool = True) -> None:
        """Starts a stopped or killed server at its old address, with its data; returns when it is ready.

        `properties` are set in addition to those that a broker had. With `wait=False` the method returns when the
        process is there, for a server that faults keep from being ready.
        """
        if self._server(server).running:
            raise ClusterError(f"{_name(server)} is running")
        if server != ZOOKEEPER:
            own = self._broker_properties.setdefault(server, {})
            own.update(_broker_texts(properties or {}))
        self._launch(server)
        if wait:
            self._wait_started(server)
            self._wait_ready()

    def restart(self, server: Server, properties: Mapping[str, object] | None = None) -> None:
        """Stops a server cleanly and starts it again."""
        self.stop(server)
        self.start(server, properties)

    def pause(self, server: Server) -> None:
        """Stops the process with SIGSTOP; its connections stay open and silent."""
        process = self._running(server)
        self._run(self._controlling.count_if_answered())
        process.pause()

    def resume(self, server: Server) -> None:
        """Continues a paused server; returns when a broker has the faults of the meantime."""
        self._running(server).resume()
        self._run(self._controlling.count())

    def heal(self) -> None:
        """Removes all faults, resumes and starts all servers; returns when every replica is in sync.

        The leaders stay where they are. Raises ClusterError for a server that has died by itself, and not because a
        fault has struck its disk.
        """
        died = self._died()
        self.faults.remove_all()
        for server in self.servers:
            process = self._server(server)
            if process in died:
                raise ClusterError(process.obituary())
            if not process.running:
                self.start(server)
            elif process.paused:
                self.resume(server)
        self._wait_ready()
        self.until(lambda: not self.under_replicated())

    def add_broker(self, properties: Mapping[str, object] | None = None) -> int:
        """Starts one more broker and returns its id when it is ready."""
        broker = max(self.broker_ids) + 1
        self._broker_properties[broker] = _broker_texts(properties or {})
        self._reserve(broker)
        self._tell_addresses()
        self._run(self._noted(BrokerAdded(broker)))
        self._launch(broker)
        self._wait_started(broker)
        self._wait_ready()
        return broker

    # -- waiting ----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], timeout: float = TIMEOUT_S) -> T:
        """Waits until `condition()` is true (in Python's sense: broker id 0 is not), and returns its value.

        A condition that raises AssertionError or ClusterError is not true yet. Raises NotInTime after `timeout`
        seconds; its message says what was seen last.
        """
        wait = Wait(condition, timeout, self.describe)
        while True:
            with wait.look() as look:
                look.value = condition()
            if look.value:
                value: T = look.value
                return value
            time.sleep(wait.pause_s())

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> Processes:
        if self._processes is None:
            raise ClusterEnded("the cluster is not running: use it inside `with Cluster(...) as c:`")
        return self._processes

    @property
    def _observing(self) -> Observer:
        self._require_open()
        assert self._observer is not None
        return self._observer

    @property
    def _controlling(self) -> Control:
        self._require_open()
        assert self._control is not None
        return self._control

    async def _noted(self, entry: ChronicleEntry) -> None:
        self._controlling.history.add(entry)

    async def _recorded(self) -> History:
        """The history as far as it is known here."""
        return self._controlling.history.after()

    def _died(self) -> list[ServerProcess]:
        """The servers that have ended by themselves, and not because a fault had struck their disk."""
        ended = [server for server in self._open.servers.values() if not server.running and not server.expected_end]
        history = self.history if ended and self._loop is not None else History()
        return [server for server in ended if not history.was_struck_down(_server(server.name))]

    def _process_changed(self, process: ServerProcess, change: str) -> None:
        """Called in another thread."""
        entry = process_entry(_server(process.name), process, change)
        if entry is not None and self._loop is not None and self._control is not None:
            self._loop.call_soon(self._control.history.add, entry)

    @property
    def _open_port(self) -> tuple[ControlPort, str]:
        self._require_open()
        if self._port_and_token is None:
            raise ClusterError("the cluster has no control port: make it with Cluster(control=True)")
        return self._port_and_token

    async def _close_control(self) -> None:
        if self._port_and_token is not None:
            self._port_and_token[0].stop()
        if self._chronicle is not None:
            await self._chronicle.close()
        if self._control is not None:
            await self._control.count_if_answered()
            await self._control.close()

    def _tell_addresses(self) -> None:
        """Tells all servers on which address each of them listens."""
        addresses = [(server, HOST, port.number) for server, port in self._ports.items()]
        if self._external_zookeeper is not None:
            servers = parse_connect_string(self._external_zookeeper).servers
            addresses += [(ZOOKEEPER, host, port) for host, port in servers]
        self._run(self._controlling.set_addresses(addresses))

    def _is_paused(self, server: Server) -> bool:
        process = None if self._processes is None else self._processes.servers.get(_name(server))
        return process is not None and process.paused

    def _require_open(self) -> None:
        _ = self._open

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        with _told():
            try:
                return self._loop.run(coroutine)
            except LoopEnded:
                raise ClusterEnded("the cluster has ended") from None

    def _server(self, server: Server) -> ServerProcess:
        self._require_open()
        if server not in self._ports:
            allowed = ", ".join(map(repr, self._ports))
            raise ClusterError(f"this cluster has no server {server!r}; allowed: {allowed}")
        return self._open.servers[_name(server)]

    def _running(self, server: Server) -> ServerProcess:
        process = self._server(server)
        if not process.running:
            raise ClusterError(process.obituary())
        return process

    def _reserve(self, server: Server) -> None:
        self._ports[server] = ReservedPort(HOST)

    def _port(self, server: Server) -> int:
        self._require_open()
        return self._ports[server].number

    def _launch(self, server: Server) -> None:
        processes = self._open
        name = _name(server)
        with _told():
            if server == ZOOKEEPER:
                target, arguments = EMBEDDED_ZOOKEEPER, self._zookeeper_arguments()
            else:
                arguments = broker_arguments(self._properties_of(server), self.directory, server)
                target, arguments = BROKER, under_faults(arguments, self._controlling.directory, server)
            processes.start(name, target, arguments)

    def _zookeeper_arguments(self) -> dict[str, Any]:
        return {
            "directory": str(self.data_directory(ZOOKEEPER)),
            "host": HOST,
            "port": self._port(ZOOKEEPER),
            "min_session_timeout_ms": min(self._session_timeout_ms, 4_000),
        }

    def _properties_of(self, broker: int) -> dict[str, str]:
        return broker_properties(
            broker,
            self._initial_brokers,
            port=self._port(broker),
            directory=self.data_directory(broker),
            zookeeper=self.zookeeper,
            overrides={
                "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
                # Leaders move only when the test moves them: the controller's own check would run 5 s after the start.
                "auto.leader.rebalance.enable": "false",
                **self._properties,
                **self._broker_properties.get(broker, {}),
            },
        )

    def _wait_started(self, server: Server) -> None:
        with _told():
            self._server(server).wait_ready(TIMEOUT_S)

    def _reachable(self) -> dict[int, tuple[str, int]]:
        """The addresses of the brokers that can answer."""
        return {
            broker.id: (broker.host, broker.port) for broker in self.brokers if broker.running and not broker.paused
        }

    def _alive(self, brokers: Iterable[int]) -> Callable[[], None]:
        """A check that raises ServerFailed when one of these brokers has died."""
        servers = [self._server(broker) for broker in brokers]

        def check() -> None:
            for server in servers:
                if not server.running:
                    raise ServerFailed(server.obituary())

        return check

    def _wait_ready(self) -> None:
        """Waits until every broker that can answer knows all such brokers and the controller; else not at all."""
        if brokers := self._reachable():
            self._run(wait_until_ready(brokers, TIMEOUT_S, self._alive(brokers)))


def _broker_texts(properties: Mapping[str, object]) -> dict[str, str]:
    """Properties of a broker, as text for a properties file.

    Raises ValueError for a property that the cluster sets itself, and for an unknown property.
    """
    own = [key for key in OWN_PROPERTIES if key in properties]
    if own:
        raise ValueError(f"{own[0]} cannot be set: the cluster sets it for each broker")
    unknown = [key for key in properties if config_key(key) is None]
    if unknown:
        raise ValueError(unknown_key_problem(unknown[0]))
    return _texts(properties)


def _texts(properties: Mapping[str, object]) -> dict[str, str]:
    """Properties as text for a properties file."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in properties.items()}


def _of(found: Mapping[PartitionKey, T], topic: str, partition: int) -> T:
    if not found:
        raise ClusterError(f"there is no topic {topic}")
    if (topic, partition) not in found:
        raise ClusterError(f"topic {topic} has {len(found)} partitions, not {partition}")
    return found[topic, partition]


def _name(server: Server) -> str:
    return ZOOKEEPER if server == ZOOKEEPER else f"broker-{server}"


def _server(name: str) -> Server:
    return ZOOKEEPER if name == ZOOKEEPER else int(name.removeprefix("broker-"))


def _described(server: ServerProcess) -> str:
    if server.running:
        return f"{server.name} {'is paused' if server.paused else 'runs'}"
    return f"{server.name} has been stopped or killed" if server.expected_end else server.obituary()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turns errors of the packages below into ClusterErrors."""
    try:
        yield
    except (ServerFailed, NotReady, FaultError) as error:
        raise ClusterError(str(error)) from error
