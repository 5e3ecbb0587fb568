"""`klamm configs` beside kafka-configs, on Apache Kafka 2.8.2 and on Kafka 4.3 in KRaft mode: what one tool writes the
other describes, with the same lines."""

import contextlib
import io
import json
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from klamm.cli import main
from support.long_rows import long
from support.oracles import JavaTools, RealKafka, RealKraft
from support.waiting import until

KAFKA_CONFIGS = "kafka.admin.ConfigCommand"


class Oracle(NamedTuple):
    """A cluster of Apache Kafka, one of its brokers, and its tools."""

    bootstrap: str
    broker: str
    tools: JavaTools


@pytest.fixture(scope="module", params=long("real_kafka", "real_kraft"))
def oracle(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    if request.param == "real_kafka":
        kafka: RealKafka = request.getfixturevalue(request.param)
        yield Oracle(kafka.bootstrap, "0", request.getfixturevalue("kafka_tools"))
    else:
        kraft: RealKraft = request.getfixturevalue(request.param)
        yield Oracle(kraft.bootstrap, "1", request.getfixturevalue("kafka4_tools"))


def ours(where: str, arguments: str, *, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = main.run(["configs", *shlex.split(arguments), *shlex.split(where)])
    assert ended == code, err.getvalue() + out.getvalue()
    return err.getvalue() if code else out.getvalue()


def lines(text: str) -> list[str]:
    """Lines in any order, with the pairs of a line in any order: Kafka's tool has none."""
    ignored = ("Warning: --zookeeper is deprecated", "Use --bootstrap-server instead", "[", "SLF4J")
    kept = [line for line in text.splitlines() if line and not line.startswith(ignored)]
    return sorted(
        before + are + ",".join(sorted(each.strip() for each in after.split(",")))
        for before, are, after in (line.partition(" are ") for line in kept)
    )


def test_both_tools_describe_what_each_has_set(oracle: Oracle) -> None:
    server = f"--bootstrap-server {oracle.bootstrap}"
    admin = AdminClient({"bootstrap.servers": oracle.bootstrap})
    admin.create_topics([NewTopic("configs-tool", 1, 1)])["configs-tool"].result(120)

    def theirs(arguments: str) -> str:
        return oracle.tools.run(KAFKA_CONFIGS, *shlex.split(arguments), *shlex.split(server)).decode()

    def agree(options: str, *told: str) -> None:
        """A broker hears of a change after it has been acknowledged."""

        def are_alike() -> bool:
            mine = ours(server, f"describe {options}")
            return all(part in mine for part in told) and lines(mine) == lines(theirs(f"--describe {options}"))

        until(are_alike)

    ours(server, "alter --topic configs-tool --add-config retention.ms=1000,cleanup.policy=[compact,delete] --yes")
    agree("--topic configs-tool", "retention.ms=1000")
    done = theirs("--alter --topic configs-tool --add-config segment.ms=5 --delete-config retention.ms")
    assert done.splitlines()[-1] == ours(server, "alter --topic configs-tool --add-config segment.ms=5 --yes").strip()
    agree("--topic configs-tool", "cleanup.policy=compact,delete", "segment.ms=5")
    agree("--topic configs-tool --all")

    ours(server, f"alter --broker {oracle.broker} --add-config log.cleaner.threads=2 --yes")
    ours(server, "alter --broker-defaults --add-config log.cleaner.threads=1 --yes")
    of_broker = f"Dynamic configs for broker {oracle.broker} are:\n  log.cleaner.threads=2"
    agree("--entity-type brokers", of_broker, "DYNAMIC_DEFAULT_BROKER_CONFIG:log.cleaner.threads=1")
    ours(server, f"alter --broker {oracle.broker} --delete-config log.cleaner.threads --yes")
    ours(server, "alter --broker-defaults --delete-config log.cleaner.threads --yes")

    # Kafka 4 knows the loggers of log4j 2, which its tests run without.
    if loggers := ours(server, f"describe --broker-logger {oracle.broker}").splitlines()[1:]:
        logger = loggers[0].strip().partition("=")[0]
        ours(server, f"alter --broker-logger {oracle.broker} --add-config {logger}=DEBUG --yes")
        agree(f"--broker-logger {oracle.broker}", f"  {logger}=DEBUG sensitive=false synonyms={{}}")
    unknown = ours(server, f"alter --broker-logger {oracle.broker} --add-config no.logger=DEBUG --yes", code=1)
    assert unknown == "klamm: Invalid broker logger(s): no.logger\n"

    ours(server, "alter --user alice --client c1 --add-config producer_byte_rate=20000000,request_percentage=50 --yes")
    ours(server, "alter --client-defaults --add-config consumer_byte_rate=1000 --yes")
    ours(server, "alter --ip 127.0.0.9 --add-config connection_creation_rate=7 --yes")
    ours(server, "alter --user alice --add-config SCRAM-SHA-256=[iterations=8192,password=pw] --yes")
    agree("--user alice --client c1", "producer_byte_rate=2.0E7")
    agree("--client-defaults", "the default client-id")
    agree("--entity-type users --entity-type clients")
    agree("--entity-type ips", "127.0.0.9")
    credential = "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192\n"
    agree("--user alice", credential)
    assert ours(server, "describe --user alice") == credential
    ours(server, "alter --user alice --delete-config SCRAM-SHA-256 --yes")
    ours(server, "alter --user alice --client c1 --delete-config producer_byte_rate,request_percentage --yes")
    # Other tests use these brokers.
    ours(server, "alter --client-defaults --delete-config consumer_byte_rate --yes")
    ours(server, "alter --ip 127.0.0.9 --delete-config connection_creation_rate --yes")
    until(lambda: ours(server, "describe --user alice") == "")


def test_kafkas_errors_are_one_line(oracle: Oracle) -> None:
    server = f"--bootstrap-server {oracle.bootstrap}"
    unknown = ours(server, "alter --broker-defaults --add-config log.cleaner.threads=many --yes", code=1)
    assert unknown.startswith("klamm: ") and "log.cleaner.threads" in unknown and unknown.count("\n") == 1
    missing = ours(server, "alter --client nobody --delete-config producer_byte_rate --yes", code=1)
    assert missing.startswith("klamm: Invalid config(s): producer_byte_rate")


def test_what_one_tool_writes_in_zookeeper_the_other_describes(real_kafka: RealKafka, kafka_tools: JavaTools) -> None:
    zookeeper = str(real_kafka.properties["zookeeper.connect"])
    where = f"--zookeeper {zookeeper}"

    def theirs(arguments: str) -> str:
        return kafka_tools.run(KAFKA_CONFIGS, *shlex.split(arguments), *shlex.split(where)).decode()

    ours(where, "alter --user 'CN=a b*~,O=x/y' --client-defaults --add-config consumer_byte_rate=1 --yes")
    ours(where, "alter --user zoe --add-config SCRAM-SHA-512=[password=pw],producer_byte_rate=5 --yes")
    theirs("--alter --entity-type users --entity-name 'CN=b c*~' --add-config request_percentage=10.5")
    for options in ("--entity-type users", "--entity-type users --entity-type clients"):
        assert lines(ours(where, f"describe {options}")) == lines(theirs(f"--describe {options}")), options


def test_both_tools_notify_brokers_of_a_change_in_zookeeper(real_kafka: RealKafka, kafka_tools: JavaTools) -> None:
    connect = str(real_kafka.properties["zookeeper.connect"])
    alter = "--alter --entity-type users --entity-name 'y z' --add-config SCRAM-SHA-256=[password=pw]"
    client = KazooClient(connect)
    client.start(120)

    def newest() -> tuple[dict[str, object], list[str]]:
        """The last notification, and the parts of the credential that is stored."""
        last = max(client.get_children("/config/changes"))
        config = json.loads(client.get("/config/users/y%20z")[0])["config"]["SCRAM-SHA-256"]
        parts = [part.partition("=")[0] for part in config.split(",")]
        return json.loads(client.get(f"/config/changes/{last}")[0]), parts

    try:
        kafka_tools.run(KAFKA_CONFIGS, *shlex.split(alter), "--zookeeper", connect)
        theirs = newest()
        ours(f"--zookeeper {connect}", "alter --user 'y z' --add-config SCRAM-SHA-256=[password=pw] --yes")
        assert newest() == theirs
    finally:
        client.stop()
