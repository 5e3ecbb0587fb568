"""Apache Kafka 2.8.2 and Apache ZooKeeper as oracles: their jars from Maven Central, and processes that run them.

Nothing here is a fixture; tests/interop/conftest.py wraps it for pytest, bench/ uses it directly.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from support.processes import ManagedProcess, ProcessFailed, free_port

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "klamm"

KAFKA_2_8 = (
    "org.apache.kafka:kafka_2.13:2.8.2",
    "org.apache.kafka:kafka-tools:2.8.2",
    "org.slf4j:slf4j-log4j12:1.7.30",
)
ZOOKEEPER_3_9 = (
    "org.apache.zookeeper:zookeeper:3.9.5",
    # What its server needs at run time, although its pom calls them provided or leaves them out.
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
    "ch.qos.logback:logback-classic:1.3.15",
)
KAFKA_4 = (
    "org.apache.kafka:kafka_2.13:4.3.0",
    "org.apache.kafka:kafka-tools:4.3.0",
    "org.slf4j:slf4j-simple:1.7.36",
)
KAFKA_CLIENTS_4 = ("org.apache.kafka:kafka-clients:4.4.0", "org.slf4j:slf4j-nop:1.7.36")
KAFKA_STREAMS_2_8 = ("org.apache.kafka:kafka-streams:2.8.2", "org.slf4j:slf4j-nop:1.7.30")
KAFKA_STREAMS_3_9 = ("org.apache.kafka:kafka-streams:3.9.1", "org.slf4j:slf4j-nop:1.7.36")
# Streaming queries of PySpark 4.3 need a connector later than 4.0, whose part for tokens has not changed since.
SPARK_KAFKA_4 = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
)

JMX_EXPORTER = "io.prometheus.jmx:jmx_prometheus_javaagent:0.20.0"

SMALL_HEAP = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Unavailable(Exception):
    """Something from outside that is not on this machine and could not be brought."""


def java_available() -> bool:
    return shutil.which("java") is not None


def bring_jars(name: str, coordinates: Sequence[str]) -> Path:
    """The directory with these Maven artifacts (group:artifact:version) and all that they depend on.

    Downloaded once into the user's cache; a lock keeps parallel test workers apart. Unavailable without Maven or
    network.
    """
    target = CACHE / name
    complete = target / ".complete"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists() and complete.read_text().split() == list(coordinates):
            return target
        if shutil.which("mvn") is None:
            raise Unavailable(f"{name} is not in {CACHE} and Maven (mvn) is not installed to bring it")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        pom = target / "pom.xml"
        pom.write_text(_pom(coordinates), encoding="utf-8")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Maven could not bring {name}:\n{done.stdout[-2000:]}")
        complete.write_text("\n".join(coordinates))
    return target


def _pom(coordinates: Iterable[str]) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *coordinate.split(":")
        )
        for coordinate in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>klamm</groupId><artifactId>oracles</artifactId><version>1</version>"
        # What is named here is not taken in the version, either, that something else names.
        f"<dependencyManagement><dependencies>{dependencies}</dependencies></dependencyManagement>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def kafka_jars() -> Path:
    """Apache Kafka 2.8.2 (Scala 2.13), its tools, and the ZooKeeper 3.5.9 that it is built with."""
    return bring_jars("kafka-2.8.2", KAFKA_2_8)


def kafka4_jars() -> Path:
    """Apache Kafka 4.3 (Scala 2.13) and its tools."""
    return bring_jars("kafka-4.3", KAFKA_4)


def zookeeper39_jars() -> Path:
    """Apache ZooKeeper 3.9, server and client."""
    return bring_jars("zookeeper-3.9", ZOOKEEPER_3_9)


def kafka_clients4_jars() -> Path:
    """The Java clients of Apache Kafka 4.4."""
    return bring_jars("kafka-clients-4.4", KAFKA_CLIENTS_4)


def kafka_streams_jars(version: str) -> Path:
    """Kafka Streams, version 2.8 or 3.9."""
    return bring_jars(f"kafka-streams-{version}", {"2.8": KAFKA_STREAMS_2_8, "3.9": KAFKA_STREAMS_3_9}[version])


def jmx_exporter_jar() -> Path:
    """Prometheus' JMX exporter as a Java agent."""
    [jar] = bring_jars("jmx-exporter-0.20", (JMX_EXPORTER,)).glob("jmx_prometheus_javaagent-*.jar")
    return jar


def spark_kafka_jars() -> list[Path]:
    """Spark's own Kafka connector, and what it needs that Spark does not have."""
    directory = bring_jars("spark-kafka-4.2.0", SPARK_KAFKA_4)
    needed = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    return sorted(jar for jar in directory.glob("*.jar") if jar.name.startswith(needed))


def java_command(jars: Path, main: str, *arguments: str | Path, options: Sequence[str] = SMALL_HEAP) -> list[str]:
    return ["java", *options, "-cp", f"{jars}/*", main, *map(str, arguments)]


def java_tool(
    jars: Path, main: str, *arguments: str | Path, stdin: bytes | None = None, timeout_s: float = 600
) -> bytes:
    """Runs a Java program to its end; returns its stdout. ProcessFailed with its output if it exits with an error.

    Example: `java_tool(jars, "kafka.tools.DumpLogSegments", "--files", segment, "--print-data-log")`.
    """
    done = subprocess.run(
        java_command(jars, main, *arguments), input=stdin or b"", capture_output=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        output = (done.stdout[-4000:] + b"\n" + done.stderr[-4000:]).decode(errors="replace")
        raise ProcessFailed(f"{main} {' '.join(map(str, arguments))} exited with {done.returncode}:\n{output}")
    return done.stdout


class JavaTools:
    """Kafka's tools in one process, which starts once for many calls: `tools.run(main, *arguments)` is `java_tool`
    without stdin. Those that keep something for their next call, as StateChangeLogMerger does, need a process each."""

    def __init__(self, jars: Path, directory: Path) -> None:
        log4j = directory / "log4j.properties"
        log4j.write_text(
            "log4j.rootLogger=WARN, stderr\n"
            "log4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.stderr.target=System.err\n"
            "log4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.stderr.layout.ConversionPattern=%p: %m%n\n",
            encoding="utf-8",
        )
        options = (*SMALL_HEAP, f"-Dlog4j.configuration=file:{log4j}")
        self._command = java_command(jars, str(Path(__file__).with_name("JavaTools.java")), options=options)
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, main: str, *arguments: str | Path) -> bytes:
        code, out, err = self.outcome(main, *arguments)
        if code != 0:
            output = (out[-4000:] + b"\n" + err[-4000:]).decode(errors="replace")
            raise ProcessFailed(f"{main} {' '.join(map(str, arguments))} exited with {code}:\n{output}")
        return out

    def outcome(self, main: str, *arguments: str | Path) -> tuple[int, bytes, bytes]:
        """The exit code, stdout and stderr. ProcessFailed if the tool ends the process, which then starts anew."""
        call = "\t".join([main, *map(str, arguments)])
        if self._process.poll() is not None:
            self._process = self._start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(call.encode() + b"\n")
            stdin.flush()
            code, out_bytes, err_bytes = map(int, stdout.readline().split())
            return code, stdout.read(out_bytes), stdout.read(err_bytes)
        except (OSError, ValueError):
            self._kill()
            raise ProcessFailed(f"{call!r} has ended the process of the tools") from None
        except BaseException:
            # A test whose time is over. The answer would be taken for that to the next call.
            self._kill()
            raise

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        try:
            self._process.communicate(timeout=120)
        finally:
            self._kill()


def java_source_command(jars: Sequence[Path], source: Path) -> list[str]:
    """Runs a Java program from its source, with the jars of several directories: the first that has a class wins."""
    class_path = os.pathsep.join(f"{directory}/*" for directory in jars)
    return ["java", *SMALL_HEAP, "-cp", class_path, str(source)]


class JavaServer(ABC):
    """A Java server on a data directory that can be stopped, killed and started again."""

    name: str

    def __init__(self, jars: Path, directory: Path, port: int | None, options: Sequence[str]) -> None:
        self.jars, self.directory, self.options = jars, directory, tuple(options)
        self.port = port or free_port()
        self.process: ManagedProcess | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @abstractmethod
    def _command(self) -> list[str]: ...

    def launch(self) -> None:
        """Starts the process without waiting until it is ready."""
        assert self.process is None or not self.process.alive(), f"{self.name} is running already"
        self.process = ManagedProcess(self.name, self._command(), self.log)

    def start(self, timeout_s: float = 120) -> None:
        """Starts the process and returns when it serves."""
        self.launch()
        self.wait_ready(timeout_s)

    @abstractmethod
    def wait_ready(self, timeout_s: float = 120) -> None: ...

    def stop(self) -> None:
        """An orderly end (SIGTERM). Idempotent."""
        if self.process is not None:
            self.process.stop()

    def kill(self) -> None:
        """kill -9. Idempotent."""
        if self.process is not None:
            self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: alive but silent."""
        assert self.process is not None
        self.process.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.signal_group(signal.SIGCONT)

    def output(self) -> str:
        """What the present process has printed so far."""
        return self.process.output() if self.process is not None else ""


class RealZooKeeper(JavaServer):
    """One standalone Apache ZooKeeper server on 127.0.0.1: 3.5.9 with `kafka_jars()`, 3.9 with `zookeeper39_jars()`."""

    name = "zookeeper"

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str | int] | None = None,
        options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        super().__init__(jars, directory, port, options)
        self.properties = {
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **(properties or {}),
        }

    @property
    def connect(self) -> str:
        """The connect string for clients."""
        return self.address

    def wait_ready(self, timeout_s: float = 120) -> None:
        # What the log says differs between versions; that a client gets a session does not.
        self._client(timeout_s).stop()

    def _client(self, timeout_s: float) -> KazooClient:
        client = KazooClient(self.address)
        try:
            client.start(timeout_s)
        except client.handler.timeout_exception:
            tail = self.process.tail() if self.process else ""
            raise ProcessFailed(f"no session with ZooKeeper at {self.address} within {timeout_s} s\n{tail}") from None
        return client

    def words(self, command: str) -> str:
        """The answer to one of ZooKeeper's four-letter words."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(command.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def forget_broker(self, chroot: str, broker_id: int = 0) -> None:
        """Deletes what the session of a killed broker holds, so that nobody waits until it expires. A session that
        expires soon would also expire while its broker runs on a busy machine."""
        client = self._client(120)
        try:
            for path in (f"{chroot}/brokers/ids/{broker_id}", f"{chroot}/controller"):
                with suppress(NoNodeError):
                    client.delete(path)
        finally:
            client.stop()

    def _command(self) -> list[str]:
        config = self.directory / "zoo.cfg"
        settings = {
            **self.properties,
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        options = (*self.options, *_logging(self.directory))
        return java_command(self.jars, "org.apache.zookeeper.server.ZooKeeperServerMain", config, options=options)


class EnsembleMember(RealZooKeeper):
    """One server of a `RealEnsemble`."""

    def _command(self) -> list[str]:
        return [
            part.replace("server.ZooKeeperServerMain", "server.quorum.QuorumPeerMain") for part in super()._command()
        ]

    @property
    def is_leader(self) -> bool:
        return "Mode: leader" in self.words("srvr")


class RealEnsemble:
    """Three Apache ZooKeeper servers on 127.0.0.1 that elect one of them their leader."""

    SIZE = 3

    def __init__(self, jars: Path, directory: Path) -> None:
        servers = {f"server.{id_}": f"127.0.0.1:{free_port()}:{free_port()}" for id_ in range(1, self.SIZE + 1)}
        # A member that is paused for less than `syncLimit` ticks (10 s) stays one.
        properties: dict[str, str | int] = {"initLimit": 40, "syncLimit": 20, **servers}
        self.members = [
            EnsembleMember(jars, directory / str(id_), properties=properties) for id_ in range(1, self.SIZE + 1)
        ]
        for id_, member in enumerate(self.members, 1):
            (member.directory / "data").mkdir()
            (member.directory / "data" / "myid").write_text(f"{id_}\n")

    def start(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_ready()

    def kill(self) -> None:
        """kill -9 for all. Idempotent."""
        for member in self.members:
            member.kill()

    @property
    def leader(self) -> EnsembleMember:
        [leader] = [member for member in self.members if member.is_leader]
        return leader

    @property
    def followers(self) -> list[EnsembleMember]:
        return [member for member in self.members if not member.is_leader]


class RealKafka(JavaServer):
    """One Apache Kafka 2.8.2 broker on 127.0.0.1, with the given ZooKeeper connect string and data directory.

    `properties` are added to (and replace) the defaults below, which are a single broker's.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        zookeeper_connect: str,
        *,
        broker_id: int = 0,
        port: int | None = None,
        properties: Mapping[str, str | int] | None = None,
        options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        self.name = f"kafka-{broker_id}"
        super().__init__(jars, directory, port, options)
        self.data_directory = directory / "data"
        self.properties: dict[str, str | int | Path] = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": self.data_directory,
            "zookeeper.connect": zookeeper_connect,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **(properties or {}),
        }

    @property
    def bootstrap(self) -> str:
        """The bootstrap address for clients."""
        return self.address

    def wait_ready(self, timeout_s: float = 120) -> None:
        assert self.process is not None
        self.process.wait_for(r"started \(kafka\.server\.KafkaServer\)", timeout_s)
        # Kafka says so before its controller has told it of any broker. librdkafka, told then that there is no
        # controller, would not ask again for minutes; so each look is a new client's.
        deadline_s = time.monotonic() + timeout_s
        while True:
            metadata = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=timeout_s)
            if metadata.controller_id >= 0 and self.properties["broker.id"] in metadata.brokers:
                return
            if time.monotonic() > deadline_s:
                raise ProcessFailed(f"{self.name} knows of no controller after {timeout_s} s")
            time.sleep(0.05)

    def _command(self) -> list[str]:
        config = self.directory / f"server-{self.properties['broker.id']}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()), encoding="utf-8")
        options = (*self.options, *_logging(self.directory))
        return java_command(self.jars, "kafka.Kafka", config, options=options)


class RealKraft:
    """Brokers of Apache Kafka 4.3 in KRaft mode, on 127.0.0.1: `size` processes, of which the first is the controller
    too. Broker ids begin with 1.

    `properties` are added to (and replace) the defaults below; `of_broker` adds those of single brokers, by id.
    """

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        size: int = 1,
        properties: Mapping[str, str | int] | None = None,
        of_broker: Mapping[int, Mapping[str, str | int]] | None = None,
        options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        controller_port = free_port()
        self.brokers = [
            _KraftBroker(
                jars,
                directory / str(broker_id),
                broker_id,
                controller_port,
                {**(properties or {}), **(of_broker or {}).get(broker_id, {})},
                options,
            )
            for broker_id in range(1, size + 1)
        ]

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses for clients."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, broker_id: int) -> "_KraftBroker":
        return self.brokers[broker_id - 1]

    def start(self, timeout_s: float = 120) -> None:
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready(timeout_s)

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()


class _KraftBroker(JavaServer):
    """One broker of `RealKraft`."""

    CLUSTER_ID = "a2xhbW0ta3JhZnQtdGVzdA"

    def __init__(
        self,
        jars: Path,
        directory: Path,
        broker_id: int,
        controller_port: int,
        properties: Mapping[str, str | int],
        options: Sequence[str],
    ) -> None:
        self.name, self.broker_id = f"kraft-{broker_id}", broker_id
        super().__init__(jars, directory, None, options)
        self.data_directory = directory / "data"
        is_controller = broker_id == 1
        listeners = f"PLAINTEXT://{self.address}"
        controller = f"127.0.0.1:{controller_port}"
        self.properties: dict[str, str | int | Path] = {
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": broker_id,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listeners},CONTROLLER://{controller}" if is_controller else listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.data_directory,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **properties,
        }

    def wait_ready(self, timeout_s: float = 120) -> None:
        assert self.process is not None
        self.process.wait_for(r"Transition from STARTING to STARTED", timeout_s)
        deadline_s = time.monotonic() + timeout_s
        while self.broker_id not in AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=120).brokers:
            if time.monotonic() > deadline_s:
                raise ProcessFailed(f"{self.name} is not in its own metadata after {timeout_s} s")
            time.sleep(0.05)

    def _command(self) -> list[str]:
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()), encoding="utf-8")
        quiet = (
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server.BrokerServer=info",
        )
        if not self.data_directory.exists():
            java_tool(
                self.jars, "kafka.tools.StorageTool", "format", "--config", config, "--cluster-id", self.CLUSTER_ID
            )
        return java_command(self.jars, "kafka.Kafka", config, options=(*self.options, *quiet))


def _logging(directory: Path) -> list[str]:
    """Log4j 1 and logback on the console, quiet but for the lines that say that a server is ready, what its log
    cleaner does, and how long groups load."""
    log4j = directory / "log4j.properties"
    log4j.write_text(
        "log4j.rootLogger=WARN, stdout\n"
        "log4j.appender.stdout=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stdout.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        "log4j.logger.kafka.server.KafkaServer=INFO\n"
        "log4j.logger.kafka.log.LogCleaner=INFO\n"
        "log4j.logger.kafka.coordinator.group.GroupMetadataManager=INFO\n",
        encoding="utf-8",
    )
    logback = directory / "logback.xml"
    logback.write_text(
        '<configuration><appender name="C" class="ch.qos.logback.core.ConsoleAppender"><encoder>'
        "<pattern>[%d] %p %m \\(%c\\)%n</pattern></encoder></appender>"
        '<root level="WARN"><appender-ref ref="C"/></root></configuration>',
        encoding="utf-8",
    )
    return [f"-Dlog4j.configuration=file:{log4j}", f"-Dlogback.configurationFile={logback}"]
