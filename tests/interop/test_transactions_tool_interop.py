"""`klamm transactions` beside kafka-transactions of Kafka 4.3: with brokers of 4.3 and of klamm, and of 2.8.2 as far as
these can."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.base.system_environment import SystemEnvironment
from klamm.cli.main import run
from klamm.client import threads
from klamm.client.admin.configs import ConfigResource, incremental_alter_configs
from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.batches import Identity
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.sender import produce_request
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import TransactionManager
from klamm.client.properties import parse_addresses
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType
from support.oracles import JavaTools

TOOL = "org.apache.kafka.tools.TransactionsCommand"


class Tool:
    """`klamm transactions` and Kafka's own, with one cluster."""

    def __init__(self, bootstrap: str, tools: JavaTools, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._tools, self._capsys = tools, capsys

    def ours(self, command: str, *arguments: str, code: int = 0) -> str:
        assert run(["transactions", command, "--bootstrap-server", self.bootstrap, *arguments]) == code
        text, self.errors = self._capsys.readouterr()
        return text

    def values(self, command: str, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.ours(command, *arguments, "--json", code=code))

    def theirs(self, *arguments: str) -> str:
        return self._tools.run(TOOL, "--bootstrap-server", self.bootstrap, *arguments).decode()


@pytest.fixture
def tool(request: pytest.FixtureRequest, kafka4_tools: JavaTools, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(request.getfixturevalue(request.param).bootstrap, kafka4_tools, capsys)


SERVERS = ["klamm_cluster", pytest.param("real_kraft", marks=pytest.mark.long)]
WITH_LISTS = pytest.mark.parametrize("tool", SERVERS, indirect=True)
ALL = pytest.mark.parametrize("tool", ["real_kafka", *SERVERS], indirect=True)


@pytest.fixture
def topic(tool: Tool, request: pytest.FixtureRequest) -> str:
    name = f"tool-{request.node.originalname.removeprefix('test_')[:40]}"
    admin = AdminClient({"bootstrap.servers": tool.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(120)
    return name


def call(tool: Tool, work: Any) -> Any:
    return threads.call(ClientOptions(parse_addresses("bootstrap.servers", tool.bootstrap)), work)


def open_transaction(tool: Tool, topic: str) -> TransactionalProducer:
    """A transaction with a record in each partition, not ended."""

    async def begin(client: ClusterClient) -> TransactionalProducer:
        options = ProducerOptions(ClientOptions(()), CompressionType.NONE, transactional_id=topic)
        producer = TransactionalProducer(client, options, SystemEnvironment())
        await producer.init()
        producer.begin()
        for partition in (0, 1):
            await producer.send(ProducerRecord(topic, b"v", partition=partition))
        await producer.prepare()
        return producer

    producer: TransactionalProducer = call(tool, begin)
    return producer


def hang(tool: Tool, topic: str) -> Identity:
    """Writes a transactional record of which the coordinator does not know."""

    async def write(client: ClusterClient) -> Identity:
        identity = await TransactionManager(client, f"{topic}-hanging", 60_000).init()
        now_ms = SystemEnvironment().now_ms()
        batch = build_batch(
            [Record(None, b"v", now_ms, ())],
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        request = produce_request((topic, 1), batch, acks=-1, timeout_ms=10_000, transactional_id=f"{topic}-hanging")
        async with asyncio.timeout(120):
            while True:
                response = await client.send_to_leader(topic, 1, ApiKey.PRODUCE, lambda version: request)
                if response.responses[0].partition_responses[0].error_code == 0:
                    return identity
                # Brokers that verify learn in a moment that they are not to.
                await asyncio.sleep(0.1)

    identity: Identity = call(tool, write)
    return identity


@contextmanager
def without_verification(tool: Tool, *, is_kraft: bool) -> Iterator[None]:
    """Kafka from 3.6 on refuses records of which the coordinator does not know (KIP-890), unless told otherwise."""

    def verify(value: str) -> None:
        brokers = ConfigResource(ConfigResourceType.BROKER, "")
        change = AlterConfigOp("transaction.partition.verification.enable", value, OpType.SET)
        assert call(tool, lambda client: incremental_alter_configs(client, {brokers: [change]})) == {brokers: None}

    if not is_kraft:
        yield
        return
    verify("false")
    try:
        yield
    finally:
        verify("true")


@WITH_LISTS
def test_each_line_is_that_of_kafkas_tool(tool: Tool, topic: str) -> None:
    producer = open_transaction(tool, topic)
    assert sorted(tool.ours("list").splitlines()) == sorted(tool.theirs("list").splitlines())
    described = ("--transactional-id", topic)

    def without_duration(text: str) -> list[list[str]]:
        rows = [line.split("\t") for line in text.splitlines()]
        return [[cell for number, cell in enumerate(row) if number != 7] for row in rows]

    ours, theirs = tool.ours("describe", *described), tool.theirs("describe", *described)
    assert without_duration(ours.replace(f"{topic}-0,{topic}-1", "both")) == without_duration(
        re.sub(f"{topic}-[01],{topic}-[01]", "both", theirs)
    )
    partition = ("--topic", topic, "--partition", "0")
    assert tool.ours("describe-producers", *partition) == tool.theirs("describe-producers", *partition)
    assert tool.ours("find-hanging", "--topic", topic) == tool.theirs("find-hanging", "--topic", topic)
    this_one = ("--transactional-id-pattern", re.escape(topic))
    (listing,) = tool.values("list", *this_one)
    assert (listing["transactional_id"], listing["state"]) == (topic, "Ongoing")
    assert tool.values("list", "--duration-filter", "3600000", *this_one) == []
    (description,) = tool.values("describe", *described)
    assert description["partitions"] == [{"topic": topic, "partition": number} for number in (0, 1)]
    call(tool, lambda client: producer.commit())
    assert tool.values("describe", *described)[0]["start_time_ms"] is None


@WITH_LISTS
def test_a_hanging_transaction_is_found_and_ended(tool: Tool, topic: str, request: pytest.FixtureRequest) -> None:
    producer = open_transaction(tool, topic)
    with without_verification(tool, is_kraft="real_kraft" in request.node.name):
        identity = hang(tool, topic)
    search = ("--topic", topic, "--max-transaction-timeout", "0")
    ours = tool.ours("find-hanging", *search, code=1)
    assert ours == tool.theirs("find-hanging", *search)
    assert "1 hanging transaction. To end the first: klamm transactions abort" in tool.errors
    (hanging,) = tool.values("find-hanging", *search, code=1)
    assert (hanging["topic"], hanging["partition"]) == (topic, 1)
    assert (hanging["producer_id"], hanging["transaction_start_offset"]) == (identity.producer_id, 1)

    target = ("--topic", topic, "--partition", "1", "--start-offset")
    tool.ours("abort", *target, "0", "--yes", code=1)
    assert f"the transaction does not hang: the coordinator of {topic} will end it" in tool.errors
    tool.ours("abort", *target, "7", "--yes", code=1)
    assert f"no transaction is open on {topic}-1 from offset 7 on" in tool.errors
    tool.ours("abort", *target, "1", code=1)
    assert "Nothing was changed: say --yes" in tool.errors
    assert "Aborted the transaction of producer id" in tool.ours("abort", *target, "1", "--yes")
    assert tool.values("find-hanging", *search) == []
    call(tool, lambda client: producer.abort())


@ALL
def test_a_transaction_is_terminated_and_its_producer_fenced(tool: Tool, topic: str) -> None:
    producer = open_transaction(tool, topic)
    answer = tool.values("force-terminate", "--transactional-id", topic, "--yes")
    assert answer["transactional_id"] == topic
    for number in ("0", "1"):
        states = tool.values("describe-producers", "--topic", topic, "--partition", number)
        assert [state["transaction_start_offset"] for state in states] == [None]
    with pytest.raises(Exception, match="PRODUCER_FENCED"):
        call(tool, lambda client: producer.commit())


@pytest.mark.parametrize("tool", ["real_kafka"], indirect=True)
def test_brokers_of_2_8_describe_producers_and_take_markers_but_list_nothing(tool: Tool, topic: str) -> None:
    identity = hang(tool, topic)
    partition = ("--topic", topic, "--partition", "1")
    (state,) = tool.values("describe-producers", *partition)
    assert (state["producer_id"], state["transaction_start_offset"]) == (identity.producer_id, 0)
    for command in (
        ("list",),
        ("describe", "--transactional-id", topic),
        ("find-hanging", "--max-transaction-timeout", "0"),
    ):
        tool.ours(*command, code=1)
        assert "is not served by this broker" in tool.errors
    tool.ours("abort", *partition, "--start-offset", "0", "--yes")
    assert tool.values("describe-producers", *partition)[0]["transaction_start_offset"] is None
    identity = hang(tool, topic)
    epochs = ("--producer-epoch", str(identity.producer_epoch), "--coordinator-epoch", "0")
    tool.ours("abort", *partition, "--producer-id", str(identity.producer_id), *epochs, "--yes")
    states = tool.values("describe-producers", *partition)
    assert [state["transaction_start_offset"] for state in states] == [None] * len(states)


@ALL
def test_what_does_not_exist_is_named(tool: Tool, topic: str) -> None:
    tool.ours("describe-producers", "--topic", "nowhere", "--partition", "0", code=1)
    assert "there is no partition nowhere-0" in tool.errors
    tool.ours("find-hanging", "--topic", "nowhere", code=1)
    assert "there is no topic nowhere" in tool.errors
    tool.ours("find-hanging", "--topic", topic, "--broker-id", "77", code=1)
    assert "broker 77 is not in the cluster; live are" in tool.errors
    tool.ours("find-hanging", "--topic", topic, "--partition", "5", code=1)
    assert f"there is no {topic}-5" in tool.errors


@WITH_LISTS
def test_an_unknown_transactional_id_is_not_created(tool: Tool, topic: str) -> None:
    for command in ("describe", "force-terminate"):
        tool.ours(command, "--transactional-id", "unknown", *(["--yes"] if command != "describe" else []), code=1)
        assert "TRANSACTIONAL_ID_NOT_FOUND (105): transactional id unknown" in tool.errors
