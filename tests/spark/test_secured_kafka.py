"""Reading from and writing to Apache Kafka 2.8.2 over TLS and with SASL, and what a person is told when that fails."""

import asyncio
import json
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from klamm.cli import main
from klamm.config.properties import format_properties
from klamm.net.client import AuthenticationFailed, ConnectionOptions, connect
from klamm.net.sasl import authenticator
from klamm.net.security import SecurityError, security_options
from klamm.protocol.apis.metadata import MetadataRequest
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark import arrow
from klamm.spark.offset_commits import commit_offsets
from klamm.spark.options import read_options, write_options
from klamm.spark.read.partition_reader import read_range
from klamm.spark.settings import PartitionRange
from klamm.spark.write.writing import record_writer
from support.certificates import Authority, one_line
from support.long_rows import long
from support.oracles import RealKafka, RealZooKeeper, java_tool
from support.processes import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD = 'pass,=";word'
SCRAM_PASSWORD = "scram-secret"
SESSION_MS = 1_500

# Listener: its security protocol. MUTUAL wants a certificate of the client, ENDING ends sessions.
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "ENDING": "SASL_PLAINTEXT",
}


@dataclass(frozen=True)
class Secured:
    """A broker of Apache Kafka with all LISTENERS, and who signs the certificates."""

    broker: RealKafka
    ports: dict[str, int]
    authority: Authority
    client_pem: tuple[str, str]

    def at(self, listener: str, host: str = "localhost") -> str:
        return f"{host}:{self.ports[listener]}"


@pytest.fixture(scope="module")
def secured(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured-kafka")
    authority = Authority(directory / "authority")
    server_certificate, server_key = authority.certificate("server", "DNS:localhost")
    zookeeper = RealZooKeeper(kafka_jars, directory)
    zookeeper.start()
    java_tool(
        kafka_jars, "kafka.admin.ConfigCommand", "--zookeeper", zookeeper.connect, "--alter", "--entity-type", "users",
        "--entity-name", "alice", "--add-config",
        f"SCRAM-SHA-256=[iterations=4096,password={SCRAM_PASSWORD}],SCRAM-SHA-512=[iterations=8192,password={SCRAM_PASSWORD}]",
    )  # fmt: skip
    ports = {listener: free_port() for listener in LISTENERS}
    escaped = PASSWORD.replace('"', '\\\\"')
    plain = f'{PLAIN_MODULE} required user_alice="{escaped}";'
    properties: dict[str, str | int] = {
        "listeners": ",".join(
            f"{name}://{'127.0.0.1' if name == 'PLAINTEXT' else 'localhost'}:{port}" for name, port in ports.items()
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.ending.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.ending.plain.connections.max.reauth.ms": SESSION_MS,
        "listener.name.ending.scram-sha-256.connections.max.reauth.ms": SESSION_MS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": one_line(server_certificate),
        "ssl.keystore.key": one_line(server_key),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        "listener.name.mutual.ssl.client.auth": "required",
        "offsets.topic.num.partitions": 1,
        "num.partitions": 2,
    }
    for listener in ("sasl_plaintext", "sasl_ssl", "ending"):
        properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            properties[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = f"{SCRAM_MODULE} required;"
    broker = RealKafka(kafka_jars, directory, zookeeper.connect, port=ports["PLAINTEXT"], properties=properties)
    try:
        broker.start()
        Authority(directory / "stranger")
        yield Secured(broker, ports, authority, authority.certificate("client", "DNS:client"))
    finally:
        broker.kill()
        zookeeper.kill()


# -- reading and writing ----------------------------------------------------------------------------------------------


def trusting(secured: Secured) -> dict[str, str]:
    return {"kafka.ssl.truststore.location": str(secured.authority.path)}


def login(protocol: str, mechanism: str, username: str = "alice", password: str | None = None) -> dict[str, str]:
    if password is None:
        password = PASSWORD if mechanism == "PLAIN" else SCRAM_PASSWORD
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    quoted = password.replace('"', '\\"')
    return {
        "kafka.security.protocol": protocol,
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="{username}" password="{quoted}";',
    }


def ways(secured: Secured) -> dict[str, dict[str, str]]:
    """Options of readers and writers that are let in, by what they try."""
    directory = secured.broker.directory
    certificate, key = secured.client_pem
    (directory / "client.pem").write_text(certificate + key)
    tls = {"kafka.security.protocol": "SSL", **trusting(secured)}
    return {
        "SSL": {"kafka.bootstrap.servers": secured.at("SSL"), **tls},
        "SSL as text": {
            "kafka.bootstrap.servers": secured.at("SSL"),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.certificates": one_line(secured.authority.path.read_text()),
            "kafka.ssl.enabled.protocols": "TLSv1.2",
        },
        "SSL of any host": {
            "kafka.bootstrap.servers": secured.at("SSL", "127.0.0.1"),
            **tls,
            "kafka.ssl.endpoint.identification.algorithm": "",
        },
        "MUTUAL": {
            "kafka.bootstrap.servers": secured.at("MUTUAL"),
            **tls,
            "kafka.ssl.keystore.location": str(directory / "client.pem"),
        },
        "MUTUAL as text": {
            "kafka.bootstrap.servers": secured.at("MUTUAL"),
            **tls,
            "kafka.ssl.keystore.certificate.chain": one_line(certificate),
            "kafka.ssl.keystore.key": one_line(key),
        },
        **{
            f"SASL_PLAINTEXT {mechanism}": {
                "kafka.bootstrap.servers": secured.at("SASL_PLAINTEXT"),
                **login("SASL_PLAINTEXT", mechanism),
            }
            for mechanism in ("PLAIN", "SCRAM-SHA-256")
        },
        **{
            f"SASL_SSL {mechanism}": {
                "kafka.bootstrap.servers": secured.at("SASL_SSL"),
                **login("SASL_SSL", mechanism),
                **trusting(secured),
            }
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        },
    }


def write(options: dict[str, str], topic: str, values: list[bytes]) -> None:
    with record_writer(write_options({**options, "topic": topic})) as writer:
        partitions = pa.array([number % 2 for number in range(len(values))], pa.int32())
        writer.write(pa.record_batch({"value": pa.array(values, pa.binary()), "partition": partitions}))
        writer.flush()


def read(options: dict[str, str], topic: str) -> list[bytes]:
    servers = options["kafka.bootstrap.servers"]
    more = {name: value for name, value in options.items() if name != "kafka.bootstrap.servers"}
    return sorted(arrow.read(servers, subscribe=topic, columns=["value"], options=more).read_all()["value"].to_pylist())


@pytest.mark.parametrize(
    "way",
    [
        "SSL of any host",
        "MUTUAL as text",
        "SASL_PLAINTEXT PLAIN",
        "SASL_SSL SCRAM-SHA-512",
        *long(
            "SSL",
            "SSL as text",
            "MUTUAL",
            "SASL_PLAINTEXT SCRAM-SHA-256",
            "SASL_SSL PLAIN",
            "SASL_SSL SCRAM-SHA-256",
        ),
    ],
)
def test_what_is_written_is_read(secured: Secured, way: str) -> None:
    options, topic = ways(secured)[way], way.replace(" ", "-")
    values = sorted([b"%d" % number * 10 for number in range(20_000)] + [b"x" * 900_000] * 3)
    write(options, topic, values)
    assert read(options, topic) == values
    plain = {"kafka.bootstrap.servers": secured.broker.bootstrap}
    assert read(plain, topic) == values


# -- who is not let in ------------------------------------------------------------------------------------------------

# If one of these repeated anything, the test would not end.
PATIENT = {
    "kafka.default.api.timeout.ms": str(2**31 - 1),
    "kafka.delivery.timeout.ms": str(2**31 - 1),
    "kafkaConsumer.pollTimeoutMs": str(2**31 - 1),
}
REFUSED_AT_ONCE = [
    ("SASL_PLAINTEXT PLAIN", {"alice": "bob"}, "PLAIN: the broker refuses user name and password; see sasl.jaas"),
    (
        "SASL_SSL SCRAM-SHA-256",
        {"secret": "guess"},
        "SCRAM-SHA-256: the broker refuses user name and password; see sas",
    ),
    ("SASL_SSL SCRAM-SHA-512", {"alice": "bob"}, "SCRAM-SHA-512: the broker refuses user name and password; see sasl"),
    (
        "SASL_PLAINTEXT SCRAM-SHA-256",
        {"SHA-256": "SHA-512"},
        "has no SCRAM-SHA-512; see sasl.mechanism, it has: 'PLAIN'",
    ),
    (
        "SSL",
        {"authority/authority.crt": "stranger/authority.crt"},
        "the broker's certificate is not trusted: .*; see ssl.truststore",
    ),
    ("SSL", {"localhost": "127.0.0.1"}, "the broker's certificate is not of 127.0.0.1: .*identification.algorithm"),
    ("SSL", {"{SSL}": "{PLAINTEXT}"}, "the broker does not speak TLS at this port; see security.protocol"),
    ("SSL", {"{SSL}": "{SASL_PLAINTEXT}"}, "the broker does not speak TLS at this port; see security.protocol"),
    ("SSL", {"{SSL}": "{MUTUAL}"}, "most likely the broker wants a certificate of the client, .* ssl.keystore"),
    (
        "SASL_PLAINTEXT PLAIN",
        {"{SASL_PLAINTEXT}": "{SSL}"},
        "the broker speaks TLS at this port; see security.protocol",
    ),
    (
        "SASL_PLAINTEXT PLAIN",
        {"{SASL_PLAINTEXT}": "{PLAINTEXT}"},
        "the broker wants no SASL at this port; see security",
    ),
    ("SASL_SSL PLAIN", {"{SASL_SSL}": "{SSL}"}, "the broker wants no SASL at this port; see security.protocol"),
]


@pytest.mark.parametrize(("way", "changes", "told"), REFUSED_AT_ONCE)
def test_who_is_refused_learns_it_at_once(secured: Secured, way: str, changes: dict[str, str], told: str) -> None:
    options = {**ways(secured)[way], **PATIENT}
    for old, new in changes.items():
        old, new = (text.format(**secured.ports) for text in (str(old), str(new)))
        assert any(old in value for value in options.values())
        options = {name: value.replace(old, new) for name, value in options.items()}
    message = f"localhost:.*{told}|127.0.0.1:.*{told}"
    with pytest.raises(AuthenticationFailed, match=message):
        write(options, "refused", [b"x"])
    with pytest.raises(AuthenticationFailed, match=message):
        read(options, "refused")
    client = read_options({**options, "subscribe": "refused"}, streaming=True).fetch
    with pytest.raises(AuthenticationFailed, match=message):
        next(read_range(client, PartitionRange("refused", 0, 0, 1), ["value"]))
    with pytest.raises(AuthenticationFailed, match=message):
        commit_offsets(client.client, "group", {TopicPartition("refused", 0): 1})


def test_a_client_without_tls_learns_it_at_once(secured: Secured) -> None:
    for listener in ("SSL", "MUTUAL", "SASL_SSL"):
        with pytest.raises(AuthenticationFailed, match=r"speaks TLS at this port; see security\.protocol"):
            read({"kafka.bootstrap.servers": secured.at(listener), **PATIENT}, "refused")


def test_a_client_without_sasl_learns_it_at_once(secured: Secured) -> None:
    told = r"wants SASL at this port; see security\.protocol and sasl\.mechanism, it has: .*SCRAM-SHA-256"
    with pytest.raises(AuthenticationFailed, match=told):
        read({"kafka.bootstrap.servers": secured.at("SASL_PLAINTEXT"), **PATIENT}, "refused")
    options = {**ways(secured)["SSL"], "kafka.bootstrap.servers": secured.at("SASL_SSL"), **PATIENT}
    for use in (read, lambda options, topic: write(options, topic, [b"x"])):
        with pytest.raises(AuthenticationFailed, match=told):
            use(options, "refused")


# -- sessions that end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*long("PLAIN"), "SCRAM-SHA-256"])
async def test_a_connection_outlives_its_session(secured: Secured, mechanism: str) -> None:
    """Without a renewal the broker would close the connection with the first request after SESSION_MS."""

    def all_topics(version: int) -> MetadataRequest:
        return MetadataRequest(topics=None)

    given = login("SASL_PLAINTEXT", mechanism)
    sasl = security_options({name.removeprefix("kafka."): value for name, value in given.items()}).sasl
    assert sasl is not None
    options = ConnectionOptions(authenticate=authenticator(sasl, random.Random()))
    connection = await connect("localhost", secured.ports["ENDING"], options)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() < began + 2.5 * SESSION_MS / 1000:
        await asyncio.gather(*(connection.send(ApiKey.METADATA, all_topics) for _ in range(5)))
        await asyncio.sleep(0.01)
    # One that nobody used meanwhile.
    await asyncio.sleep(1.5 * SESSION_MS / 1000)
    await connection.send(ApiKey.METADATA, all_topics)
    connection.close()


def test_no_record_is_lost_or_written_twice_when_sessions_end(secured: Secured) -> None:
    options = {"kafka.bootstrap.servers": secured.at("ENDING"), **login("SASL_PLAINTEXT", "SCRAM-SHA-256")}
    ends_at = time.monotonic() + 2.5 * SESSION_MS / 1000
    written = []
    with record_writer(write_options({**options, "topic": "sessions"})) as writer:
        while time.monotonic() < ends_at or len(written) < 50:
            value = b"%06d" % len(written)
            partition = pa.array([len(written) % 2], pa.int32())
            writer.write(pa.record_batch({"value": pa.array([value]), "partition": partition}))
            writer.flush()
            written.append(value)
            time.sleep(0.005)
    assert read({"kafka.bootstrap.servers": secured.broker.bootstrap}, "sessions") == written
    # Some time for each batch, so that sessions end between fetches.
    pause_s = 2.5 * SESSION_MS / 1000 / 50
    last = json.dumps({"sessions": {"0": 25, "1": 25}})
    more = {name: value for name, value in options.items() if name != "kafka.bootstrap.servers"}
    more |= {"kafka.fetch.max.bytes": "1", "endingOffsets": last}
    found = []
    for batch in arrow.read(options["kafka.bootstrap.servers"], subscribe="sessions", options=more):
        found += [(row["partition"], row["offset"], row["value"]) for row in batch.to_pylist()]
        time.sleep(pause_s)
    assert found == [(part, offset, b"%06d" % (2 * offset + part)) for part in (0, 1) for offset in range(25)]


# -- stores and Spark -------------------------------------------------------------------------------------------------


def test_the_way_from_javas_store_to_pem(secured: Secured, tmp_path: Path) -> None:
    store = tmp_path / "truststore.jks"
    keytool = [
        "keytool",
        "-importcert",
        "-noprompt",
        "-storetype",
        "JKS",
        "-storepass",
        "secret",
        "-alias",
        "authority",
    ]
    subprocess.run([*keytool, "-file", secured.authority.path, "-keystore", store], check=True, capture_output=True)
    options = {**ways(secured)["SSL"], "kafka.ssl.truststore.location": str(store)}
    with pytest.raises(SecurityError) as caught:
        read(options, "SSL")
    command = str(caught.value).rpartition("with: ")[2]
    assert command == "keytool -list -rfc -keystore STORE > truststore.pem"
    command = command.replace("STORE", str(store))
    subprocess.run(command, shell=True, check=True, capture_output=True, input=b"secret\n", cwd=tmp_path)
    write(options | {"kafka.ssl.truststore.location": str(tmp_path / "truststore.pem")}, "converted", [b"x"])


def test_a_query_of_spark(spark: "SparkSession", secured: Secured) -> None:
    options = ways(secured)["SASL_SSL SCRAM-SHA-512"]
    rows = spark.range(1_000).selectExpr("cast(id as string) as value")
    rows.write.format("klamm").mode("append").options(**options, topic="of-spark").save()
    found = spark.read.format("klamm").options(**options, subscribe="of-spark").load()
    assert found.selectExpr("sum(cast(cast(value as string) as int)) as total").collect()[0]["total"] == 499_500
    plan = found._jdf.queryExecution().toString()
    assert "klamm" in plan
    assert SCRAM_PASSWORD not in plan
    refused = {
        **options,
        "kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace("secret", "guess"),
        **PATIENT,
    }
    with pytest.raises(Exception, match="SCRAM-SHA-512: the broker refuses user name and password") as caught:
        spark.read.format("klamm").options(**refused, subscribe="of-spark").load().count()
    assert "scram-guess" not in str(caught.value)


# -- commands ---------------------------------------------------------------------------------------------------------


# So long that a command which waits for one of them is told from a command on a slow machine.
LONG_TIMEOUTS = {
    "default.api.timeout.ms": "120000",
    "request.timeout.ms": "120000",
    "socket.connection.setup.timeout.ms": "120000",
    "socket.connection.setup.timeout.max.ms": "120000",
}
AT_ONCE_S = 60


def command(secured: Secured, way: str, *arguments: str, **changes: str) -> list[str]:
    """A command line with a file of these properties, in which `changes` are made."""
    options = ways(secured)[way]
    properties = {name.removeprefix("kafka."): value for name, value in options.items()} | changes
    servers = properties.pop("bootstrap.servers")
    file = secured.broker.directory / "command.properties"
    file.write_bytes(format_properties(properties))
    return [*arguments, "--bootstrap-server", servers, "--command-config", str(file)]


@pytest.mark.parametrize(
    "way", ["SASL_SSL SCRAM-SHA-512", "MUTUAL", *long("SASL_SSL PLAIN", "SASL_PLAINTEXT SCRAM-SHA-256")]
)
def test_commands_take_the_properties_of_javas_clients(
    secured: Secured, capsys: pytest.CaptureFixture[str], tmp_path: Path, way: str
) -> None:
    topic = f"command-{way.replace(' ', '-')}"

    def klamm(*arguments: str) -> str:
        capsys.readouterr()
        code = main.run(command(secured, way, *arguments))
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    records = tmp_path / "records"
    records.write_text("one\ntwo\n")
    assert klamm("topics", "create", "--topic", topic, "--config", "retention.ms=-1") == f"Created topic {topic}.\n"
    assert topic in klamm("topics", "list").split()
    assert "Configs: retention.ms=-1" in klamm("topics", "describe", "--topic", topic)
    klamm("produce", "--topic", topic, "--file", str(records), "--json")
    group = ("--group", topic)
    read = klamm("consume", "--topic", topic, *group, "--from-beginning", "--max-messages", "2")
    assert sorted(read.split()) == ["one", "two"]
    klamm("groups", "reset-offsets", *group, "--topic", topic, "--to-earliest", "--execute")
    assert topic in klamm("groups", "list").split()
    assert klamm("groups", "describe", *group).count(topic) == 4, "a group and a topic, in two lines"
    assert "was successful" in klamm("groups", "delete", *group)
    assert "Controller: broker" in klamm("controller", "status")


@pytest.mark.parametrize(
    ("way", "changes", "told"),
    [
        ("SASL_SSL PLAIN", {"sasl.jaas.config": "alice"}, "sasl.jaas.config, "),
        ("SASL_SSL PLAIN", {"ssl.truststore.location": "/no/such.pem"}, "ssl.truststore.location: /no/such.pem cannot"),
        ("SASL_SSL PLAIN", {"ssl.truststore.type": "JKS"}, "ssl.truststore.type is 'JKS'; allowed: PEM. A JKS or "),
        ("SASL_SSL PLAIN", {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is 'GSSAPI'; allowed: PLAIN, SCRAM-SHA-256"),
        ("SASL_SSL PLAIN", {"security.protocol": "SSL"}, "sasl.mechanism has no effect with security.protocol=SSL"),
        ("SASL_SSL PLAIN", {"ssl.ca.location": "x"}, "ssl.ca.location is not a property of Java's clients: the name"),
        (
            "SASL_SSL PLAIN",
            {"sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="guess";'},
            "PLAIN: the broker refuses user name and password; see sasl.jaas.config",
        ),
    ],
)
def test_a_command_tells_what_is_wrong_with_its_properties(
    secured: Secured, capsys: pytest.CaptureFixture[str], way: str, changes: dict[str, str], told: str
) -> None:
    began = time.monotonic()
    assert main.run(command(secured, way, "topics", "list", **LONG_TIMEOUTS, **changes)) == 1
    message = capsys.readouterr().err
    assert message.startswith("klamm: ") and told in message
    assert message.count("\n") == 1
    assert "guess" not in message
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.parametrize("arguments", ["topics list", "groups list", "groups describe --group g", "controller status"])
@pytest.mark.parametrize(("listener", "told"), [("SASL_PLAINTEXT", "the broker wants SASL"), ("SSL", "speaks TLS at")])
def test_a_command_without_properties_of_security_learns_at_once_what_the_broker_wants(
    secured: Secured, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, listener: str, told: str
) -> None:
    patient = tmp_path / "patient.properties"
    patient.write_bytes(format_properties(LONG_TIMEOUTS))
    where = ["--bootstrap-server", secured.at(listener), "--command-config", str(patient)]
    began = time.monotonic()
    assert main.run([*arguments.split(), *where]) == 1
    message = capsys.readouterr().err
    assert told in message and "see security.protocol" in message
    assert time.monotonic() - began < AT_ONCE_S
