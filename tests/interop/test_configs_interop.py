"""Altered configurations, klamm beside Apache Kafka 2.8.2: the same answers, the same znodes, the same descriptions;
Kafka's own ConfigCommand; and both programs in one cluster, where each acts on what the other has stored.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from klamm.base import json_bytes
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from support.clusters import KlammBroker
from support.one_broker import Client
from support.oracles import RealKafka, RealZooKeeper, java_tool
from support.processes import ProcessFailed

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER = 2, 4, 8
DEFAULT = ""
PROPERTIES: dict[str, str | int] = {"log.retention.ms": 99999, "log.cleanup.policy": "compact", "num.io.threads": 4}

Change = tuple[str, int, str | None]
Entry = tuple[str, str | None]
# What both programs are asked, one after another: IncrementalAlterConfigs or AlterConfigs. Left out is where Kafka
# answers UNKNOWN_SERVER_ERROR (null in AlterConfigs, lists of unknown keys), and where it adds an empty element to an
# empty list.
ALTERATIONS: list[tuple[int, str, Sequence[Change] | Sequence[Entry]]] = [
    (TOPIC, "t", [("retention.ms", SET, "12345"), ("cleanup.policy", APPEND, "delete")]),
    (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete"), ("segment.bytes", SET, "5000")]),
    (TOPIC, "t", [("cleanup.policy", APPEND, "compact"), ("segment.bytes", DELETE, None)]),
    (TOPIC, "t", [("follower.replication.throttled.replicas", SET, "0:0"), ("retention.ms", DELETE, "ignored")]),
    (TOPIC, "t", [("follower.replication.throttled.replicas", APPEND, "1:0,2:0")]),
    (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]),
    (TOPIC, "t", [("retention.ms", SET, None)]),
    (TOPIC, "t", [("retention.ms", APPEND, "1")]),
    (TOPIC, "t", [("retention.ms", SET, "-2")]),
    (TOPIC, "t", [("retention.ms", SET, "soon")]),
    (TOPIC, "t", [("nobody.knows", SET, "1")]),
    (TOPIC, "t", [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")]),
    (TOPIC, "absent", [("retention.ms", SET, "1")]),
    (TOPIC, "u", [("retention.ms", "1"), ("min.insync.replicas", "2"), ("unclean.leader.election.enable", "true")]),
    (TOPIC, "u", [("flush.ms", "7"), ("max.message.bytes", " 77 ")]),
    (TOPIC, "u", [("nobody.knows", "1")]),
    (TOPIC, "absent", [("retention.ms", "1")]),
    (BROKER, "0", [("log.retention.ms", SET, "777"), ("leader.replication.throttled.rate", SET, "1000")]),
    (BROKER, "0", [("nobody.knows", SET, "1"), ("log.cleanup.policy", APPEND, "compact")]),
    (BROKER, "0", [("num.io.threads", SET, "8"), ("listener.name.plaintext.max.connections", SET, "50")]),
    (BROKER, "0", [("num.io.threads", SET, "99")]),
    (BROKER, "0", [("min.insync.replicas", SET, "0")]),
    (BROKER, "0", [("broker.id", SET, "7")]),
    (BROKER, "0", [("ssl.keystore.location", SET, "/file")]),
    (BROKER, "0", [("log.cleaner.dedupe.buffer.size", SET, "1")]),
    (BROKER, "7", [("min.insync.replicas", SET, "1")]),
    (BROKER, "all", [("min.insync.replicas", SET, "1")]),
    (BROKER, DEFAULT, [("min.insync.replicas", SET, "2"), ("unclean.leader.election.enable", SET, "true")]),
    (BROKER, DEFAULT, [("log.segment.bytes", SET, "6000"), ("message.max.bytes", SET, "123456")]),
    (BROKER, DEFAULT, [("listeners", SET, "PLAINTEXT://:1")]),
    (BROKER, DEFAULT, [("listener.name.plaintext.ssl.keystore.location", SET, "/file")]),
    (BROKER, DEFAULT, [("log.retention.hours", SET, "1")]),
    (BROKER, DEFAULT, [("message.max.bytes", DELETE, None)]),
    (0, "t", [("retention.ms", SET, "1")]),
    (0, "t", [("retention.ms", "1")]),
    (LOGGER, "0", [("root", "DEBUG")]),
]


async def connect(bootstrap: str) -> Client:
    host, _, port = bootstrap.partition(":")
    return Client(*await asyncio.open_connection(host, int(port)))


async def create_topics(client: Client, *names: str) -> None:
    """Also waits until the broker is the controller and the topics have leaders."""
    for name in names:
        while (answer := await client.create_topic(name)).error_code == ErrorCode.NOT_CONTROLLER:
            pass
        assert answer.error_code == ErrorCode.NONE


async def alter(
    client: Client, kind: int, name: str, entries: Sequence[Change] | Sequence[Entry], validate_only: bool
) -> int:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS if len(entries[0]) == 3 else ApiKey.ALTER_CONFIGS
    request = messages.request_class(key).AlterConfigsResource
    fields = ("name", "config_operation", "value") if len(entries[0]) == 3 else ("name", "value")
    configs = [request.AlterableConfig(**dict(zip(fields, entry, strict=True))) for entry in entries]
    resource = request(resource_type=kind, resource_name=name, configs=configs)
    response = await client.ask(key, resources=[resource], validate_only=validate_only)
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return int(answer.error_code)


Described = dict[str, tuple[Any, ...]]


async def describe(client: Client, kind: int, name: str) -> Described:
    request = messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    response = await client.ask(
        ApiKey.DESCRIBE_CONFIGS,
        resources=[request(resource_type=kind, resource_name=name, configuration_keys=None)],
        include_synonyms=True,
        include_documentation=False,
    )
    (result,) = response.results
    assert result.error_code == ErrorCode.NONE
    return {
        entry.name: (
            entry.value,
            entry.config_source,
            entry.read_only,
            entry.is_sensitive,
            entry.config_type,
            [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms],
        )
        for entry in result.configs
    }


# The last things to come into effect: then all has.
LAST = ((BROKER, "0", "listener.name.plaintext.max.connections"), (BROKER, DEFAULT, "log.segment.bytes"))


async def altered(bootstrap: str) -> tuple[list[str], dict[tuple[int, str], Described]]:
    """The answers to all alterations, and what is then described."""
    client = await connect(bootstrap)
    try:
        await create_topics(client, "t", "u")
        answers = []
        for kind, name, entries in ALTERATIONS:
            validated = await alter(client, kind, name, entries, validate_only=True)
            code = await alter(client, kind, name, entries, validate_only=False)
            answers.append(f"{ErrorCode(validated).name}, {ErrorCode(code).name}")
        async with asyncio.timeout(120):
            for kind, name, key in LAST:
                while key not in await describe(client, kind, name):
                    pass
            while "message.max.bytes" in await describe(client, BROKER, DEFAULT):
                pass
        resources = ((TOPIC, "t"), (TOPIC, "u"), (BROKER, "0"), (BROKER, DEFAULT))
        return answers, {resource: await describe(client, *resource) for resource in resources}
    finally:
        await client.close()


def config_znodes(connect: str) -> tuple[dict[str, Any], list[Any]]:
    """What is stored for topics and brokers, and the notifications in their order."""
    zookeeper = KazooClient(connect)
    zookeeper.start()
    try:
        stored = {
            f"{kind}/{name}": json_bytes.decode(zookeeper.get(f"/config/{kind}/{name}")[0])
            for kind in ("topics", "brokers")
            for name in zookeeper.get_children(f"/config/{kind}")
        }
        changes = sorted(zookeeper.get_children("/config/changes"))
        return stored, [json_bytes.decode(zookeeper.get(f"/config/changes/{name}")[0]) for name in changes]
    finally:
        zookeeper.stop()


# Where the two brokers are set up differently, or klamm can do more.
OTHERWISE = {
    "listeners", "log.dirs", "zookeeper.connect", "transaction.state.log.min.isr", "group.initial.rebalance.delay.ms",
    "transaction.state.log.replication.factor", "offsets.topic.replication.factor",
}  # fmt: skip
CHANGES_WHILE_KLAMM_RUNS = {
    "auto.leader.rebalance.enable",
    "leader.imbalance.per.broker.percentage",
    "leader.imbalance.check.interval.seconds",
}


async def test_alterations_are_answered_stored_and_described_as_kafka_does(
    kafka: RealKafka, klamm: KlammBroker, real_zookeeper: RealZooKeeper, tmp_path: Path
) -> None:
    theirs, described_by_kafka = await altered(kafka.bootstrap)
    ours, described_by_klamm = await altered(klamm.bootstrap)
    differing = {
        str(alteration): (our, their)
        for alteration, our, their in zip(ALTERATIONS, ours, theirs, strict=True)
        if our != their
    }
    assert differing == {}
    codes = ("NONE", "INVALID_REQUEST", "INVALID_CONFIG", "UNKNOWN_TOPIC_OR_PARTITION")
    assert set(theirs) == {f"{code}, {code}" for code in codes}
    assert config_znodes(f"{real_zookeeper.connect}/{tmp_path.name}-klamm") == config_znodes(
        f"{real_zookeeper.connect}/{tmp_path.name}-kafka"
    )
    for resource, their in described_by_kafka.items():
        our = described_by_klamm[resource]
        names = (set(our) & set(their)) - OTHERWISE - CHANGES_WHILE_KLAMM_RUNS
        assert {name: (our[name], their[name]) for name in sorted(names) if our[name] != their[name]} == {}, resource
        if resource != (BROKER, "0"):
            assert set(our) == set(their), resource


def config_command(jars: Path, bootstrap: str, *arguments: str) -> list[str]:
    """What ConfigCommand prints, in no order; what it says when it fails."""
    try:
        output = java_tool(jars, "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *arguments)
    except ProcessFailed as error:
        return [word for word in str(error).split() if word.endswith("Exception:")][:2]
    return sorted(output.decode().splitlines())


@pytest.mark.long
async def test_kafkas_config_command_works_on_klamm(
    kafka_jars: Path, kafka: RealKafka, klamm: KlammBroker, real_zookeeper: RealZooKeeper, tmp_path: Path
) -> None:
    topic, broker = (
        ("--entity-type", "topics", "--entity-name", "t"),
        ("--entity-type", "brokers", "--entity-name", "0"),
    )
    default = ("--entity-type", "brokers", "--entity-default")
    commands = [
        (*topic, "--alter", "--add-config", "retention.ms=1234,cleanup.policy=[compact,delete],segment.bytes=5000"),
        (*topic, "--alter", "--delete-config", "segment.bytes"),
        (*broker, "--alter", "--add-config", "log.retention.ms=777"),
        (*default, "--alter", "--add-config", "min.insync.replicas=2"),
        (*topic, "--alter", "--add-config", "retention.ms=-7"),
        (*broker, "--alter", "--add-config", "broker.id=3"),
        (*topic, "--describe"),
        (*broker, "--describe"),
        (*default, "--describe"),
    ]
    printed: dict[str, list[list[str]]] = {}
    for program in (kafka, klamm):

        async def prepare(bootstrap: str) -> None:
            client = await connect(bootstrap)
            await create_topics(client, "t")
            await client.close()

        await prepare(program.bootstrap)
        printed[type(program).__name__] = [
            config_command(kafka_jars, program.bootstrap, *arguments) for arguments in commands
        ]
    ours, theirs = printed["KlammBroker"], printed["RealKafka"]
    assert ours == theirs
    assert theirs[4] and "Exception:" in theirs[4][0]
    assert any("cleanup.policy=compact,delete sensitive=false" in line for line in theirs[6])
    assert any("log.retention.ms=777" in line for line in theirs[7])
    assert config_znodes(f"{real_zookeeper.connect}/{tmp_path.name}-klamm") == config_znodes(
        f"{real_zookeeper.connect}/{tmp_path.name}-kafka"
    )


async def test_each_program_acts_on_what_the_other_has_stored(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> None:
    connect_string = f"{real_zookeeper.connect}/configs-mixed"
    kafka = running(RealKafka(kafka_jars, tmp_path / "kafka", connect_string, broker_id=0))
    klamm = running(KlammBroker(tmp_path / "klamm", connect_string, broker_id=1))
    kafka.start()
    klamm.start()

    async def scenario() -> None:
        brokers = {0: await connect(kafka.bootstrap), 1: await connect(klamm.bootstrap)}
        for altering, other, value in ((0, 1, "5000"), (1, 0, "6000")):
            change: list[Change] = [("log.segment.bytes", SET, value)]
            assert await alter(brokers[altering], BROKER, DEFAULT, change, validate_only=False) == ErrorCode.NONE
            for id in (altering, other):
                while (await describe(brokers[id], BROKER, str(id)))["log.segment.bytes"][:2] != (value, 3):
                    pass
        # What only klamm can change while it runs stops no Kafka broker.
        change = [("auto.leader.rebalance.enable", SET, "false"), ("log.segment.bytes", SET, "7000")]
        assert await alter(brokers[1], BROKER, DEFAULT, change, validate_only=False) == ErrorCode.NONE
        for id in (0, 1):
            while (await describe(brokers[id], BROKER, str(id)))["log.segment.bytes"][0] != "7000":
                pass
        rebalance = [(await describe(brokers[id], BROKER, str(id)))["auto.leader.rebalance.enable"][0] for id in (0, 1)]
        assert rebalance == ["true", "false"]
        for client in brokers.values():
            await client.close()

    async with asyncio.timeout(120):
        await scenario()
