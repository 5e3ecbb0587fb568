"""Quotas, klamm beside Apache Kafka 2.8.2: the same answers, znodes and throttle times; Kafka's own ConfigCommand; the
rates and metrics of librdkafka and of Java's clients; and both programs in one cluster, where each acts on the quotas
that the other has stored.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient

from klamm.base import json_bytes
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import FINAL_EPOCH
from support.clusters import KlammBroker
from support.fetch_messages import fetch_request, to_fetch
from support.one_broker import Client, batch
from support.oracles import RealKafka, RealZooKeeper, java_tool

# A burst of two seconds, so that a test soon sees the rate.
PROPERTIES: dict[str, str | int] = {"quota.window.num": 3, "controller.quota.window.num": 2}
EXACT, DEFAULT, ANY = range(3)
ALICE: dict[str, str | None] = {"user": "CN=alice, O=a b/c*~"}

Entity = Mapping[str, str | None]
# What both programs are asked, one after another. Left out is where Kafka answers UNKNOWN_SERVER_ERROR (values that no
# broker could use, credentials), and IPv6 addresses, which Kafka refuses.
ALTERATIONS: list[tuple[Entity, dict[str, float | None]]] = [
    (ALICE, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
    (ALICE, {"producer_byte_rate": None, "controller_mutation_rate": 2e7}),
    ({**ALICE, "client-id": "c 1"}, {"consumer_byte_rate": 123456789012.0}),
    ({**ALICE, "client-id": None}, {"consumer_byte_rate": 0.0}),
    ({"user": None}, {"request_percentage": 1e-5}),
    ({"user": None, "client-id": None}, {"request_percentage": 100.0}),
    ({"user": None, "client-id": "c 1"}, {"request_percentage": 99.0}),
    ({"client-id": "<default>"}, {"producer_byte_rate": 1.0}),
    ({"client-id": None}, {"producer_byte_rate": 999.9999999}),
    ({"ip": "10.0.0.7"}, {"connection_creation_rate": 50.0}),
    ({"ip": "localhost"}, {"connection_creation_rate": 60.0}),
    ({"ip": None}, {"connection_creation_rate": 70.0}),
    (ALICE, {"shoe_size": 1.0}),
    (ALICE, {"connection_creation_rate": 1.0}),
    (ALICE, {"producer_byte_rate": 1.5}),
    (ALICE, {"shoe_size": None}),
    ({"ip": "10.0.0.7"}, {"producer_byte_rate": 1.0}),
    ({"ip": "no host"}, {"connection_creation_rate": 1.0}),
    ({"ip": "10.0.0.7", "user": "a"}, {"connection_creation_rate": 1.0}),
    ({}, {"producer_byte_rate": 1.0}),
    ({"user": ""}, {"producer_byte_rate": 1.0}),
    ({"shoe": "a"}, {"producer_byte_rate": 1.0}),
]
FILTERS: list[tuple[list[tuple[str, int, str | None]], bool]] = [
    ([], False),
    ([], True),
    ([("user", ANY, None)], False),
    ([("user", ANY, None)], True),
    ([("user", DEFAULT, None)], False),
    ([("user", DEFAULT, None)], True),
    ([("user", EXACT, ALICE["user"])], False),
    ([("user", EXACT, ALICE["user"])], True),
    ([("client-id", EXACT, "c 1")], False),
    ([("client-id", EXACT, "<default>")], True),
    ([("client-id", DEFAULT, None)], False),
    ([("client-id", ANY, None)], True),
    ([("user", EXACT, ALICE["user"]), ("client-id", ANY, None)], True),
    ([("user", ANY, None), ("client-id", EXACT, "c 1")], False),
    ([("user", EXACT, "nobody")], True),
    ([("ip", ANY, None)], False),
    ([("ip", EXACT, "10.0.0.7")], True),
    ([("ip", DEFAULT, None)], True),
    ([("ip", ANY, None), ("user", ANY, None)], False),
    ([("user", ANY, None), ("user", ANY, None)], False),
    ([("shoe", ANY, None)], False),
    ([("", ANY, None)], False),
]


async def connect(bootstrap: str) -> Client:
    host, _, port = bootstrap.partition(":")
    return Client(*await asyncio.open_connection(host, int(port)))


async def create_topic(client: Client, name: str) -> None:
    """Also waits until the broker is the controller and the topic has a leader."""
    while (answer := await client.create_topic(name)).error_code == ErrorCode.NOT_CONTROLLER:
        pass
    assert answer.error_code == ErrorCode.NONE


async def alter(client: Client, entity: Entity, quotas: Mapping[str, float | None]) -> tuple[int, str | None]:
    entry = messages.request_class(ApiKey.ALTER_CLIENT_QUOTAS).EntryData
    entries = [
        entry(
            entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
        )
    ]
    answer = await client.ask(ApiKey.ALTER_CLIENT_QUOTAS, entries=entries, validate_only=False)
    return answer.entries[0].error_code, answer.entries[0].error_message


async def describe(client: Client, components: list[tuple[str, int, str | None]], strict: bool) -> Any:
    component = messages.request_class(ApiKey.DESCRIBE_CLIENT_QUOTAS).ComponentData
    answer = await client.ask(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        components=[component(entity_type=kind, match_type=match, match=name) for kind, match, name in components],
        strict=strict,
    )
    if answer.error_code:
        return answer.error_code, answer.error_message
    entries = [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ]
    return sorted(entries, key=repr)


def quota_znodes(connect: str) -> tuple[dict[str, Any], list[Any]]:
    """What is stored for users, clients and addresses, and the notifications in their order."""
    zookeeper = KazooClient(connect)
    zookeeper.start()
    stored = {}

    def read(path: str) -> None:
        data, _ = zookeeper.get(f"/config/{path}")
        if data:
            stored[path] = json_bytes.decode(data)
        for child in zookeeper.get_children(f"/config/{path}"):
            read(f"{path}/{child}")

    try:
        for kind in ("users", "clients", "ips"):
            read(kind)
        changes = sorted(zookeeper.get_children("/config/changes"))
        return stored, [json_bytes.decode(zookeeper.get(f"/config/changes/{name}")[0]) for name in changes]
    finally:
        zookeeper.stop()
        zookeeper.close()


async def test_quotas_are_altered_stored_and_described_as_kafka_does(
    kafka: RealKafka, klamm: KlammBroker, real_zookeeper: RealZooKeeper, tmp_path: Path
) -> None:
    answers: list[list[Any]] = []
    for program in (kafka, klamm):
        client = await connect(program.bootstrap)
        answers.append([await alter(client, *alteration) for alteration in ALTERATIONS])
        answers[-1] += [await describe(client, *each) for each in FILTERS]
        await client.close()
    theirs, ours = answers
    for asked, their, our in zip([*ALTERATIONS, *FILTERS], theirs, ours, strict=True):
        if isinstance(their, tuple):
            assert our[0] == their[0], (asked, their, our)
        else:
            assert our == their, asked
    assert sum(isinstance(each, list) and bool(each) for each in ours) >= 12
    name = tmp_path.name
    znodes = quota_znodes(f"{real_zookeeper.connect}/{name}-klamm")
    assert znodes == quota_znodes(f"{real_zookeeper.connect}/{name}-kafka")
    assert len(znodes[0]) >= 10


def config_command(jars: Path, bootstrap: str, *arguments: str) -> list[str]:
    """What ConfigCommand prints, in no order; nor has Kafka one for the quotas of an entity."""
    output = java_tool(jars, "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *arguments).decode()
    lines = [line.partition(" are ") for line in output.splitlines()]
    return sorted(before + are + ", ".join(sorted(values.split(", "))) for before, are, values in lines)


@pytest.mark.long
async def test_kafkas_config_command_works_on_klamm(kafka_jars: Path, kafka: RealKafka, klamm: KlammBroker) -> None:
    user, client, ip = ("--entity-type", "users"), ("--entity-type", "clients"), ("--entity-type", "ips")
    alice, default = ("--entity-name", "alice"), ("--entity-default",)
    commands: list[tuple[str, ...]] = [
        (*user, *alice, *client, *default, "--alter", "--add-config", "producer_byte_rate=1024,request_percentage=50"),
        (*client, "--entity-name", "c", "--alter", "--add-config", "consumer_byte_rate=2048"),
        (*client, *default, "--alter", "--add-config", "controller_mutation_rate=3"),
        (*ip, *default, "--alter", "--add-config", "connection_creation_rate=1000"),
        (*client, "--entity-name", "c", "--alter", "--delete-config", "consumer_byte_rate"),
        (*user, *client, "--describe"),
        (*client, "--describe"),
        (*ip, "--describe"),
    ]
    theirs, ours = (
        [config_command(kafka_jars, program.bootstrap, *arguments) for arguments in commands]
        for program in (kafka, klamm)
    )
    assert ours == theirs
    assert ours[5] == [
        "Quota configs for user-principal 'alice', the default client-id are producer_byte_rate=1024.0,"
        " request_percentage=50.0"
    ]
    # Without SCRAM on klamm, the tool fails only for users alone, after their quotas.
    kept = config_command(kafka_jars, klamm.bootstrap, *user, *alice, "--alter", "--add-config", "producer_byte_rate=7")
    assert kept == ["Completed updating config for user alice."]


async def throttle_times(program: RealKafka | KlammBroker) -> dict[str, list[int]]:
    """What the program answers to requests that exceed their quotas."""
    client = await connect(program.bootstrap)
    await create_topic(client, "t")
    found: dict[str, list[int]] = {}
    quotas: list[tuple[Entity, dict[str, float | None]]] = [
        ({"client-id": "produces"}, {"producer_byte_rate": 10_000.0}),
        ({"client-id": "fetches"}, {"consumer_byte_rate": 50_000.0}),
        ({"client-id": "changes"}, {"controller_mutation_rate": 2.0}),
    ]
    for entity, values in quotas:
        assert (await alter(client, entity, values))[0] == 0
    await asyncio.sleep(2)  # Until the broker has heard of them, and of nothing before.

    async def produce(size_bytes: int, client_id: str) -> int:
        body = ProduceRequest.of(None, 1, 10_000, [("t", [(0, batch(bytes(size_bytes)))])])
        new = await connect(program.bootstrap)
        answer = await new.request(ApiKey.PRODUCE, 9, body, client_id=client_id)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await new.close()
        return int(answer.throttle_time_ms)

    found["produce"] = [await produce(size, "produces") for size in (15_000, 10_000, 30_000, 10)]

    async def fetch(version: int) -> Any:
        body = fetch_request(
            ("t", [to_fetch(0, 0)]), max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=FINAL_EPOCH
        )
        new = await connect(program.bootstrap)
        answer = await new.request(ApiKey.FETCH, version, body, client_id="fetches")
        await new.close()
        return answer

    # 55 KB are less than two seconds' worth; 110 KB are more.
    answers = [await fetch(version) for version in (12, 12, 4)]
    found["fetch"] = [answer.throttle_time_ms for answer in answers]
    sizes = [
        [len(partition.records or b"") for topic in answer.responses for partition in topic.partitions]
        for answer in answers
    ]
    found["fetched"] = [sum(each) for each in sizes]

    topic = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    codes: list[int] = []
    times: list[int] = []
    for version, counts in ((6, (3, 5, 1)), (5, (2,)), (7, (1,))):
        topics = [
            topic(name=f"c{version}-{number}", num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for number, count in enumerate(counts)
        ]
        new = await connect(program.bootstrap)
        body = messages.request_class(ApiKey.CREATE_TOPICS)(topics=topics, timeout_ms=10_000, validate_only=False)
        answer = await new.request(ApiKey.CREATE_TOPICS, version, body, client_id="changes")
        codes += [one.error_code for one in sorted(answer.topics, key=lambda one: one.name)]
        times.append(answer.throttle_time_ms)
        await new.close()
    found["codes"], found["changes"] = sorted(codes), times
    await client.close()
    return found


async def test_throttle_times_are_kafkas(kafka: RealKafka, klamm: KlammBroker) -> None:
    theirs, ours = await throttle_times(kafka), await throttle_times(klamm)
    print(f"{theirs=}\n{ours=}")
    assert ours["codes"] == theirs["codes"]
    assert ours["fetched"] == theirs["fetched"]
    for quota in ("produce", "fetch"):
        for their, our in zip(theirs[quota], ours[quota], strict=True):
            assert our == pytest.approx(their, abs=300), (quota, theirs, ours)
    # Of changes the time counts that the request itself has waited, which is longer in Kafka.
    for changes in (theirs["changes"], ours["changes"]):
        assert all(0 < found <= most for found, most in zip(changes, (2000, 3000, 3000), strict=True)), (theirs, ours)


class Throttled:
    """A client of librdkafka: its throttle times in ms, as its statistics show them."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def stats(self, text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            if broker["throttle"]["cnt"]:
                self.means.append(broker["throttle"]["avg"])


def produced_rate(bootstrap: str, seconds: float) -> tuple[float, float]:
    """Bytes per second that a producer without pause gets acknowledged, and its mean throttle time."""
    throttled, acknowledged = Throttled(), [0]

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        acknowledged[0] += len(message.value())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "rdkafka",
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 50_000,
            "queue.buffering.max.messages": 2000,
            "statistics.interval.ms": 1000,
            "stats_cb": throttled.stats,
        }
    )
    value, began, counted = bytes(1000), time.monotonic(), 0
    first = 3.0  # The burst is used up.
    while (passed := time.monotonic() - began) < first + seconds:
        if passed < first:
            counted = acknowledged[0]
        try:
            producer.produce("rates", value, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    rate = (acknowledged[0] - counted) / seconds
    producer.purge()
    return rate, sum(throttled.means) / max(len(throttled.means), 1)


def consumed_rate(bootstrap: str, seconds: float) -> tuple[float, float]:
    throttled = Throttled()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "rdkafka",
            "group.id": "rates",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 100_000,
            "queued.max.messages.kbytes": 200,
            "statistics.interval.ms": 1000,
            "stats_cb": throttled.stats,
        }
    )
    consumer.assign([TopicPartition("rates", 0, 0)])
    got, began = 0, time.monotonic()
    first = 4.0  # The burst is used up.
    while (passed := time.monotonic() - began) < first + seconds:
        message = consumer.poll(0.1)
        if message is None:
            continue
        assert message.error() is None, message.error()
        if passed >= first:
            got += len(message.value())
    consumer.close()
    return got / seconds, sum(throttled.means) / max(len(throttled.means), 1)


def metric(output: str, name: str) -> float:
    """A metric of Java's performance tools, of the client as a whole."""
    [line] = [each for each in output.splitlines() if each.startswith(name) and "client-id" in each.split(":")[2]][:1]
    return float(line.rsplit(":", 1)[1])


def java_rates(jars: Path, bootstrap: str) -> dict[str, float]:
    produced = java_tool(
        jars, "org.apache.kafka.tools.ProducerPerformance", "--topic", "rates", "--num-records", "9000",
        "--record-size", "1000", "--throughput", "-1", "--print-metrics", "--producer-props",
        f"bootstrap.servers={bootstrap}", "client.id=java", "acks=all",
    ).decode()  # fmt: skip
    return {
        "produced": _records_per_second(produced) * 1000,
        "produce-throttle-time-avg": metric(produced, "producer-metrics:produce-throttle-time-avg"),
        "produce-throttle-time-max": metric(produced, "producer-metrics:produce-throttle-time-max"),
    }


def _records_per_second(output: str) -> float:
    """From the last summary: `9000 records sent, 1234.5 records/sec`."""
    [last] = [line for line in output.splitlines() if "95th" in line][-1:]
    return float(last.split(" records/sec")[0].rsplit(" ", 1)[1])


@pytest.mark.long
async def test_clients_get_the_rate_of_their_quota_and_see_the_same_throttle_times(
    kafka_jars: Path, kafka: RealKafka, klamm: KlammBroker
) -> None:
    quota = 1_000_000.0
    found: dict[str, dict[str, float]] = {}
    for program in (kafka, klamm):
        client = await connect(program.bootstrap)
        await create_topic(client, "rates")
        for name in ("rdkafka", "java"):
            quotas = {"producer_byte_rate": quota, "consumer_byte_rate": quota}
            assert (await alter(client, {"client-id": name}, quotas))[0] == 0
        await client.close()
        await asyncio.sleep(1)
        rates = found[type(program).__name__] = {}
        rates["produced"], rates["produce throttle"] = produced_rate(program.bootstrap, 10)
        rates["consumed"], rates["fetch throttle"] = consumed_rate(program.bootstrap, 7)
        rates.update({f"java {key}": value for key, value in java_rates(kafka_jars, program.bootstrap).items()})
    print(json.dumps(found, indent=1))
    theirs, ours = found["RealKafka"], found["KlammBroker"]
    for rate in ("produced", "consumed", "java produced"):
        # With three windows both differ from the quota, and from run to run.
        assert abs(ours[rate] - quota) <= abs(theirs[rate] - quota) + 0.1 * quota, (rate, found)
        assert ours[rate] == pytest.approx(quota, rel=0.25), (rate, found)
    assert ours["java produce-throttle-time-max"] == pytest.approx(theirs["java produce-throttle-time-max"], rel=0.5)
    assert ours["produce throttle"] and ours["fetch throttle"] and ours["java produce-throttle-time-avg"], found


@pytest.mark.long
async def test_each_program_acts_on_the_quotas_that_the_other_has_stored(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> None:
    connect_string = f"{real_zookeeper.connect}/quotas-mixed"
    kafka = running(RealKafka(kafka_jars, tmp_path / "kafka", connect_string, broker_id=0))
    klamm = running(KlammBroker(tmp_path / "klamm", connect_string, broker_id=1))
    kafka.start()
    klamm.start()
    async with asyncio.timeout(120):
        clients = {0: await connect(kafka.bootstrap), 1: await connect(klamm.bootstrap)}

        async def throttle_time_ms(broker: int, client_id: str) -> int:
            """Of a request on a connection of its own, for an older client without an error of its own."""
            new = await connect((kafka if broker == 0 else klamm).bootstrap)
            body = messages.request_class(ApiKey.METADATA)(topics=[])
            answer = await new.request(ApiKey.METADATA, 9, body, client_id=client_id)
            await new.close()
            return int(answer.throttle_time_ms)

        for altering in (0, 1):
            client_id = f"of {altering}"
            entity: Entity = {"user": "ANONYMOUS", "client-id": client_id}
            assert await throttle_time_ms(1 - altering, client_id) == 0
            assert (await alter(clients[altering], entity, {"request_percentage": 0.001}))[0] == 0
            for broker in (0, 1):
                while not await throttle_time_ms(broker, client_id):
                    pass
                assert await describe(clients[broker], [("client-id", EXACT, client_id)], False) == [
                    (entity, {"request_percentage": 0.001})
                ]
            assert (await alter(clients[altering], entity, {"request_percentage": None}))[0] == 0
            for broker in (0, 1):
                while await throttle_time_ms(broker, client_id):
                    pass
        for client in clients.values():
            await client.close()
