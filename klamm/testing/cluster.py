"""A real klamm cluster for a test: each broker and ZooKeeper is a process, ready in about a second, gone at the end.

    with Cluster(brokers=3) as c:
        c.create_topic("orders", partitions=3)
        c.kill(c.leader("orders", 0))
        c.until(lambda: c.leader("orders", 0) is not None)

What must stay true:
- Ready means ready: when a method that starts a server returns, every running broker knows that server.
- No process or temporary file is left behind, however the test ends; kill -9 of the test's process included.
- Addresses do not change while the cluster lives, and no other program gets its ports meanwhile.
"""

import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from klamm.client.admin.topics import NewTopic
from klamm.config.broker import config_key, unknown_key_problem
from klamm.diagnosis.partition_health import is_under_replicated
from klamm.faults.commands import Server
from klamm.faults.history import History
from klamm.faults.local_cluster import ClusterUnderFaults
from klamm.faults.wire import FaultError
from klamm.processes.helper import Helper
from klamm.processes.local_cluster import HOST, ZOOKEEPER, Plan, process_name, server_of
from klamm.processes.readiness import wait_for_no_topic, wait_for_topic
from klamm.processes.supervisor import ServerProcess
from klamm.protocol.vocabulary import NO_LEADER, NO_REPLICATION_FACTOR, PartitionKey
from klamm.recording.entries import Json
from klamm.recording.history import read_records, write_recording
from klamm.recording.spool import Spool
from klamm.testing.cluster_errors import ClusterEnded, ClusterError
from klamm.testing.conditions import Wait, note
from klamm.testing.facts import ClusterFacts, told
from klamm.testing.faults.answers import AnswerFaults
from klamm.testing.faults.clock import Clock
from klamm.testing.faults.disk import Disk
from klamm.testing.faults.faults import Faults
from klamm.testing.faults.network import Network
from klamm.testing.faults.servers import ServerFaults
from klamm.testing.observer import Observer, create_topic, delete_topic
from klamm.testing.recordings import note_recording
from klamm.testing.threads import in_thread
from klamm.znodes.topics import LeaderAndIsr

if TYPE_CHECKING:
    from klamm.testing.async_cluster import AsyncCluster

T = TypeVar("T")

TIMEOUT_S = 30.0
# A recording leaves out the records of a broker that does not answer within this time.
RECORDS_TIMEOUT_S = 2.0
# The cluster sets these for each broker; other values would break it.
OWN_PROPERTIES = ("broker.id", "zookeeper.connect", "log.dirs", "log.dir", "listeners", "advertised.listeners")

# The running clusters of this process, and the last ones that have ended with an error, for the pytest plugin.
running_clusters: "weakref.WeakSet[Cluster]" = weakref.WeakSet()
failed_clusters: "deque[Cluster]" = deque(maxlen=4)


class Cluster(ClusterFacts, AnswerFaults, ServerFaults):
    """A cluster with `brokers` brokers (ids from 0) for the time of a `with` block.

    - `properties`: properties of all brokers, by Kafka's names; `broker_properties`: properties of single brokers, by
      id. An unknown property raises ValueError.
    - `zookeeper`: the connect string of a ZooKeeper to use instead of one of its own.
    - `zookeeper_session_timeout_ms`: how soon a killed or paused broker counts as dead. Kafka's default is 18,000.
    - `directory`: where data and logs are kept, instead of a temporary directory that is removed. A cluster that starts
      in the directory of an earlier cluster has its data.
    - `keep_on_failure`: a temporary directory stays when the block ends with an error; the error names the directory.
    - `helper`: a helper process that several clusters share; each of them then starts half a second faster.
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
        self._wants_port = control
        # The current or last cluster. `_observer` is set once the cluster is ready.
        self._cluster: ClusterUnderFaults | None = None
        self._is_open = False
        self._observer: Observer | None = None
        self._spool = Spool()
        # The controllers' records, read when the cluster ends with an error.
        self._last_records: list[Json] = []

    def __deepcopy__(self, memo: object) -> Self:
        # Django copies the objects of setUpTestData for each test, but the processes behind this object exist only
        # once.
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
        if self._is_open:
            raise ClusterError("the cluster is open already")
        plan = Plan(
            self._wanted_directory or Path(tempfile.mkdtemp(prefix="klamm-cluster-")),
            self._initial_brokers,
            zookeeper=self._external_zookeeper,
            min_session_timeout_ms=min(self._session_timeout_ms, 4_000),
            overrides={
                "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
                # Leaders move only when the test moves them: the controller's own check would run 5 s after the start.
                "auto.leader.rebalance.enable": "false",
                **self._properties,
            },
            own=self._broker_properties,
            throwaway=self._wanted_directory is None,
            timeout_s=TIMEOUT_S,
        )
        cluster = ClusterUnderFaults(
            plan, self._helper, session_timeout_ms=self._session_timeout_ms, seen=self._spool.add
        )
        self._cluster, self._is_open, self._observer = cluster, True, None
        running_clusters.add(self)
        try:
            with told():
                cluster.start()
                self._observer = Observer(cluster.zookeeper, self._session_timeout_ms)
                if self._wants_port:
                    cluster.open_port(self._operate)
        except BaseException as error:
            self.close(error)
            raise

    def close(self, error: BaseException | None = None) -> None:
        """Ends the cluster; `error` is the test's own failure. Idempotent.

        Raises ClusterError when a server has died by itself and the test has no failure of its own. A death that a disk
        fault has caused does not count.
        """
        if not self._is_open:
            return
        cluster, observer = self._local, self._observer
        died = [server.obituary() for server in self._died()]
        if error is not None and observer is not None:
            self._last_records = self._read_records()
            failed_clusters.append(self)
        self._is_open = False
        running_clusters.discard(self)
        if error is not None and cluster.processes.throwaway and self.keeps_on_failure:
            cluster.processes.throwaway = False
            error.add_note(f"klamm: data and logs of the cluster are in {cluster.plan.directory}")
        if observer is not None:
            cluster.run(observer.close())
        # If files or znodes outlive this cluster, its brokers stop cleanly.
        cluster.close(kill=self._wanted_directory is None and self._external_zookeeper is None)
        if died and error is None:
            raise ClusterError("died by itself: " + "; ".join(died))

    # -- its state ------------------------------------------------------------------------------------------------

    def record(self, path: str | Path) -> Path:
        """Writes what has happened so far into a file for `klamm cockpit FILE`, and returns its path.

        A cluster that has ended with an error can be recorded, too. Raises ClusterError when the file cannot be
        written.
        """
        records = self._read_records() if self._is_open else self._last_records
        history = self.history
        assert self._cluster is not None
        path, now_ms = Path(path), self._cluster.environment.now_ms()
        try:
            write_recording(path, "a klamm.testing.Cluster", self._spool, history, records, now_ms)
        except OSError as error:
            raise ClusterError(f"{path} cannot be written: {error.strerror}") from None
        return path

    def _read_records(self) -> list[Json]:
        """The newest records of the controllers, as far as their brokers answer."""
        found: list[Json] = []
        for server in self._local.processes.servers.values():
            port = (server.details or {}).get("metrics_port")
            if server.running and not server.paused and port:
                found += read_records(HOST, port, RECORDS_TIMEOUT_S)
        return found

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
        """The in-sync replicas of a partition, in the controller's order. Raises like `leader`."""
        state = self._state(topic, partition)
        answer = [] if state is None else list(state.isr)
        note("isr", topic, partition, answer=answer)
        return answer

    def replicas(self, topic: str, partition: int = 0) -> list[int]:
        """The brokers that a partition is assigned to, the preferred leader first. Raises like `leader`."""
        found = self._run(self._observing.replicas(topic))
        answer = _of(found, topic, partition)
        note("replicas", topic, partition, answer=answer)
        return answer

    def followers(self, topic: str, partition: int = 0) -> list[int]:
        """The replicas of a partition that do not lead it, in sync or not. Raises like `leader`."""
        leader = self.leader(topic, partition)
        return [broker for broker in self.replicas(topic, partition) if broker != leader]

    def under_replicated(self) -> list[PartitionKey]:
        """The partitions of all topics with a replica that is not in sync. Replicas that a reassignment adds do not
        count.

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

        None as `replication_factor` means the brokers' default.replication.factor, which is min(3, brokers) here.
        Raises KafkaError when the controller refuses.
        """
        factor = NO_REPLICATION_FACTOR if replication_factor is None else replication_factor
        topic = NewTopic(name, partitions, factor, configs=dict(_texts(configs or {})))
        self._run(create_topic(self._local.reachable(), topic))
        brokers = self._local.reachable()
        self._run(wait_for_topic(brokers, name, TIMEOUT_S, self._local.check_alive(brokers)))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and returns when neither ZooKeeper nor a running broker has the topic.

        Every broker with a replica of the topic must run. Raises KafkaError.
        """
        self._run(delete_topic(self._local.reachable(), name))
        brokers = self._local.reachable()
        self._run(wait_for_no_topic(brokers, name, TIMEOUT_S, self._local.check_alive(brokers)))
        self.until(lambda: name not in self.topics())

    # -- faults -----------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> Faults:
        """The faults that are injected into this cluster."""
        return Faults(self._local.control, self._run)

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

        It includes everything that an earlier call to this cluster, or a client, could have seen.
        """
        if self._cluster is None:
            return History()
        if not self._is_open:
            return self._cluster.control.history.after()
        with told():
            return self._cluster.history()

    @property
    def network(self) -> Network:
        """The network between brokers, ZooKeeper and clients: cuts, delays, resets."""
        return Network(self.faults, lambda: self.brokers)

    def kill(self, server: Server) -> None:
        """kill -9; returns when the process is gone. The other brokers notice when its ZooKeeper session expires."""
        with told():
            self._local.kill(server)

    def stop(self, server: Server) -> None:
        """A clean stop: a broker hands its leaderships over first. Returns when the process is gone."""
        with told():
            self._local.stop(server)

    def start(self, server: Server, properties: Mapping[str, object] | None = None, *, wait: bool = True) -> None:
        """Starts a stopped or killed server at its old address, with its data; returns when it is ready.

        `properties` are added to those that the broker had. With `wait=False` the method returns as soon as the process
        exists: for a server that faults keep from becoming ready.
        """
        if self._process(server).running:
            raise ClusterError(f"{process_name(server)} is running")
        if server != ZOOKEEPER:
            own = self._broker_properties.setdefault(server, {})
            own.update(_broker_texts(properties or {}))
        with told():
            if wait:
                self._local.start_server(server)
                self._wait_ready()
            else:
                self._local.launch(server)

    def restart(self, server: Server, properties: Mapping[str, object] | None = None) -> None:
        """Stops a server cleanly and starts it again."""
        self.stop(server)
        self.start(server, properties)

    def pause(self, server: Server) -> None:
        """Stops the process with SIGSTOP; its connections stay open and silent."""
        self._require_running(server)
        with told():
            self._local.pause(server)

    def resume(self, server: Server) -> None:
        """Continues a paused server; returns when a broker has received the faults that were installed meanwhile."""
        self._require_running(server)
        with told():
            self._local.resume(server)

    def heal(self) -> None:
        """Removes all faults, resumes and starts all servers; returns when every replica is in sync.

        The leaders stay where they are. Raises ClusterError for a server that has died by itself, unless a disk fault
        has caused that.
        """
        died = self._died()
        self.faults.remove_all()
        if died:
            raise ClusterError(died[0].obituary())
        with told():
            self._local.heal()
            self._wait_ready()
        self.until(lambda: not self.under_replicated())

    def add_broker(self, properties: Mapping[str, object] | None = None) -> int:
        """Starts one more broker and returns its id when it is ready."""
        own = _broker_texts(properties or {})
        with told():
            return self._local.add_broker(own)

    # -- waiting ----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], timeout: float = TIMEOUT_S) -> T:
        """Waits until `condition()` is true (in Python's sense: broker id 0 is false), and returns its value.

        A condition that raises AssertionError or ClusterError counts as false. Raises NotInTime after `timeout`
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
    def _local(self) -> ClusterUnderFaults:
        if self._cluster is None or not self._is_open:
            raise ClusterEnded("the cluster is not running: use it inside `with Cluster(...) as c:`")
        return self._cluster

    @property
    def _observing(self) -> Observer:
        _ = self._local
        assert self._observer is not None
        return self._observer

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the cluster's loop. After the end of the cluster it raises ClusterEnded."""
        assert self._cluster is not None
        with told():
            return self._cluster.run(coroutine)

    def _died(self) -> list[ServerProcess]:
        """The servers that have ended by themselves, except those that a disk fault has ended."""
        ended = self._local.died()
        history = self.history if ended else History()
        return [
            process
            for process in ended
            if (server := server_of(process.name)) is None or not history.was_struck_down(server)
        ]

    def _require_running(self, server: Server) -> None:
        process = self._process(server)
        if not process.running:
            raise ClusterError(process.obituary())

    def _wait_ready(self) -> None:
        """Waits until every broker that can answer, if any, knows all such brokers and the controller."""
        if brokers := self._local.reachable():
            self._local.wait_ready(brokers)

    def _operate(self, operation: str, *servers: Server) -> None:
        """Carries out an operation for the control port; see `klamm.faults.local_cluster.Operate`."""
        try:
            getattr(self, operation)(*servers)
        except ClusterError as error:
            raise FaultError(str(error)) from error


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
