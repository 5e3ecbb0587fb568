"""Policies and replica selectors that a broker loads by the names in its properties."""

import asyncio
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.metadata import policies
from klamm.broker.start.broker import Broker, BrokerStartError
from klamm.config.broker import BrokerConfig
from klamm.plugins.policies import AlterConfigRequest, NewTopicRequest
from klamm.protocol import messages
from klamm.protocol.error_codes import MAX_MESSAGE_LENGTH, ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from support import plugins
from support.one_broker import Client, OneBroker, running
from support.paths import ROOT
from support.present import present

CREATE, ALTER = "create.topic.policy.class.name", "alter.config.policy.class.name"
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
BOTH: dict[str, Any] = {CREATE: "support.plugins:AtMostThreePartitions", ALTER: "support.plugins:KeepsADay"}


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    plugins.asked.clear()
    plugins.may_answer.clear()


def with_policies(directory: Path, **properties: Any) -> AbstractAsyncContextManager[tuple[OneBroker, Client]]:
    return running(directory, **{key.replace(".", "_"): value for key, value in BOTH.items()}, **properties)


def new_topics() -> list[NewTopicRequest]:
    """What policies were asked, which was only about topics."""
    asked = [each for each in plugins.asked if isinstance(each, NewTopicRequest)]
    assert asked == plugins.asked
    return asked


async def create(client: Client, name: str, *, validate_only: bool = False, **fields: object) -> tuple[int, str | None]:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} | fields
    request = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic(name=name, **topic)
    response = await client.ask(ApiKey.CREATE_TOPICS, topics=[request], timeout_ms=10_000, validate_only=validate_only)
    return response.topics[0].error_code, response.topics[0].error_message


async def change(
    client: Client, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    resource = messages.request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    configs = [resource.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    response = await client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        resources=[resource(resource_type=kind, resource_name=name, configs=configs)],
        validate_only=validate_only,
    )
    return response.responses[0].error_code, response.responses[0].error_message


async def replace(client: Client, kind: int, name: str, **configs: str) -> tuple[int, str | None]:
    resource = messages.request_class(ApiKey.ALTER_CONFIGS).AlterConfigsResource
    entries = [resource.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    response = await client.ask(
        ApiKey.ALTER_CONFIGS,
        resources=[resource(resource_type=kind, resource_name=name, configs=entries)],
        validate_only=False,
    )
    return response.responses[0].error_code, response.responses[0].error_message


async def topics(client: Client) -> set[str]:
    response = await client.ask(ApiKey.METADATA, topics=None)
    return {topic.name for topic in response.topics}


async def test_a_policy_refuses_a_topic_with_its_message(tmp_path: Path) -> None:
    async with with_policies(tmp_path) as (_, client):
        refused = (ErrorCode.POLICY_VIOLATION, "wide has 4 partitions; allowed are 3")
        assert await create(client, "wide", num_partitions=4) == refused
        assert await create(client, "wide", num_partitions=4, validate_only=True) == refused
        assert await create(client, "narrow", num_partitions=3, validate_only=True) == (ErrorCode.NONE, None)
        assert await create(client, "narrow", num_partitions=3) == (ErrorCode.NONE, None)
        assert await topics(client) == {"narrow"}


async def test_a_policy_is_asked_what_kafkas_is_asked(tmp_path: Path) -> None:
    async with with_policies(tmp_path, num_partitions=2) as (_, client):
        request = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic
        config = request.CreatableTopicConfig(name="retention.ms", value="1000")
        await create(client, "t", num_partitions=-1, configs=[config])
        assignment = request.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])
        await create(client, "assigned", num_partitions=-1, replication_factor=-1, assignments=[assignment])
        # What is refused anyway, a policy is not asked about.
        await create(client, "t")
        await create(client, "not a topic's name")
        assert plugins.asked == [
            NewTopicRequest("t", 2, 1, None, {"retention.ms": "1000"}),
            NewTopicRequest("assigned", None, None, {0: [0]}, {}),
        ]


async def test_a_policy_is_asked_about_topics_that_brokers_create_by_themselves(tmp_path: Path) -> None:
    async with with_policies(tmp_path, num_partitions=4, offsets_topic_replication_factor=1) as (_, client):
        topic = messages.request_class(ApiKey.METADATA).MetadataRequestTopic
        response = await client.ask(ApiKey.METADATA, topics=[topic(name="auto")], allow_auto_topic_creation=True)
        assert [each.error_code for each in response.topics] == [ErrorCode.POLICY_VIOLATION]
        await client.ask(ApiKey.FIND_COORDINATOR, key="g", key_type=0)
        assert [(each.topic, each.partitions) for each in new_topics()] == [("auto", 4), ("__consumer_offsets", 50)]
        assert await topics(client) == set()


async def test_a_policy_refuses_a_change_of_configurations_with_its_message(tmp_path: Path) -> None:
    async with with_policies(tmp_path) as (_, client):
        await client.create_topic("t")
        plugins.asked.clear()
        violation = ErrorCode.POLICY_VIOLATION
        short = ("retention.ms", SET, "1000")
        assert await change(client, TOPIC, "t", short) == (violation, "retention.ms of t is less than a day")
        assert await change(client, TOPIC, "t", short, validate_only=True) == (
            violation,
            "retention.ms of t is less than a day",
        )
        assert await replace(client, TOPIC, "t", retention_ms="1000") == (
            violation,
            "retention.ms of t is less than a day",
        )
        shorter = ("log.retention.ms", SET, "1000")
        assert await change(client, BROKER, "", shorter) == (violation, "log.retention.ms of  is less than a day")
        assert await change(client, BROKER, "0", shorter) == (violation, "log.retention.ms of 0 is less than a day")
        assert await change(client, TOPIC, "t", ("retention.ms", SET, "no number")) == (
            ErrorCode.INVALID_REQUEST,
            "Invalid config value: retention.ms=no number is not a long (a whole number from -9223372036854775808 to"
            " 9223372036854775807); allowed: at least -1",
        )
        assert await change(client, TOPIC, "t", ("retention.ms", DELETE, None), ("flush.ms", SET, "5")) == (0, None)
        assert plugins.asked == [
            *[AlterConfigRequest("TOPIC", "t", {"retention.ms": "1000"})] * 3,
            AlterConfigRequest("BROKER", "", {"log.retention.ms": "1000"}),
            AlterConfigRequest("BROKER", "0", {"log.retention.ms": "1000"}),
            AlterConfigRequest("TOPIC", "t", {"retention.ms": None, "flush.ms": "5"}),
        ]


async def test_a_policy_with_a_fault_refuses_and_does_not_hurt_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_policies(tmp_path) as (_, client):
        failed = f"the policy of {CREATE} has failed; see the broker's log"
        for name in ("raises", "exits"):
            assert await create(client, name) == (ErrorCode.UNKNOWN_SERVER_ERROR, failed)
        assert await create(client, "good") == (ErrorCode.NONE, None)
        assert await topics(client) == {"good"}
        assert "ZeroDivisionError: the policy has a fault" in caplog.text


async def test_a_refusal_with_an_endless_or_faulty_message_reaches_the_client(tmp_path: Path) -> None:
    async with with_policies(tmp_path) as (_, client):
        code, refusal = await create(client, "verbose")
        message = present(refusal)
        assert (code, message[:6], len(message)) == (ErrorCode.POLICY_VIOLATION, "no?no?", MAX_MESSAGE_LENGTH + 3)
        failed = f"the policy of {CREATE} has failed; see the broker's log"
        assert await create(client, "unspeakable") == (ErrorCode.UNKNOWN_SERVER_ERROR, failed)
        assert await create(client, "good") == (ErrorCode.NONE, None)


async def test_a_policy_that_changes_what_it_is_asked_changes_no_topic(tmp_path: Path) -> None:
    async with with_policies(tmp_path) as (_, client):
        topic = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic
        config = topic.CreatableTopicConfig(name="retention.ms", value="86400000")
        assignment = topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])
        fields: dict[str, Any] = {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [assignment],
            "configs": [config],
        }
        assert await create(client, "changed", **fields) == (ErrorCode.NONE, None)
        metadata = await client.ask(ApiKey.METADATA, topics=None)
        assert [part.replica_nodes for each in metadata.topics for part in each.partitions] == [[0]]
        resource = messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
        wanted = resource(resource_type=TOPIC, resource_name="changed", configuration_keys=["retention.ms"])
        described = await client.ask(ApiKey.DESCRIBE_CONFIGS, resources=[wanted])
        assert [config.value for each in described.results for config in each.configs] == ["86400000"]


async def test_a_broker_stops_while_a_policy_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "ANSWER_WITHIN_MS", 100)
    environment = SystemEnvironment()

    def waits(request: None) -> None:
        plugins.may_answer.wait(120)

    policy = policies.Policy(CREATE, waits, environment, print)
    with pytest.raises(KafkaError, match="has not answered"):
        await policy.check(None)
    stopped = asyncio.get_running_loop().run_in_executor(None, environment.close)
    done, _ = await asyncio.wait([stopped], timeout=2)
    plugins.may_answer.set()
    assert done
    assert policy._late is not None
    await policy._late


async def test_a_policy_that_does_not_answer_holds_up_only_what_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "ANSWER_WITHIN_MS", 100)
    async with with_policies(tmp_path) as (cluster, client):
        other = await cluster.connect()
        silent = (ErrorCode.UNKNOWN_SERVER_ERROR, f"the policy of {CREATE} has not answered for 0.1 s")
        slow = asyncio.ensure_future(create(client, "slow"))
        # Metadata is answered meanwhile, and a second question does not take another thread.
        assert await topics(other) == set()
        assert await slow == silent
        assert await create(other, "next") == silent
        assert [each.topic for each in new_topics()] == ["slow"]
        plugins.may_answer.set()
        while (answer := await create(other, "next")) == silent:
            continue
        assert answer == (ErrorCode.NONE, None)
        assert await topics(client) == {"next"}


async def test_a_policy_gets_the_brokers_properties(tmp_path: Path) -> None:
    async with with_policies(tmp_path, partition_limit=5) as (_, client):
        assert (await create(client, "t", num_partitions=5))[0] == ErrorCode.NONE
        assert (await create(client, "u", num_partitions=6))[0] == ErrorCode.POLICY_VIOLATION


async def test_the_examples_of_the_documentation_load_and_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    for module, code in re.findall(r"```python\n# The module (\w+)\.\n(.*?)```", document, re.DOTALL):
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    properties: dict[str, Any] = {
        "create_topic_policy_class_name": "cluster_rules:TopicsAreReplicated",
        "alter_config_policy_class_name": "cluster_rules:RecordsStayADay",
        "replica_selector_class": "night_jobs:NightlyJobsReadFromFollowers",
    }
    async with running(tmp_path, **properties) as (_, client):
        assert await create(client, "t") == (ErrorCode.POLICY_VIOLATION, "t has 1 replicas; this cluster wants 3")
    async with running(tmp_path, **properties, rules_least_replicas=1) as (_, client):
        assert await create(client, "t") == (ErrorCode.NONE, None)
        assert await change(client, TOPIC, "t", ("retention.ms", SET, "1000")) == (
            ErrorCode.POLICY_VIOLATION,
            "records stay for a day; retention.ms may not be less",
        )


@pytest.mark.parametrize(
    ("key", "name", "problem"),
    [
        (
            CREATE,
            "org.example.Policy",
            "not of the form module:Class, which names a Python subclass of klamm.plugins.policies.CreateTopicPolicy",
        ),
        (CREATE, "no_such_module:Policy", "ModuleNotFoundError: No module named 'no_such_module'"),
        (ALTER, "support.plugins:Missing", "AttributeError: module 'support.plugins' has no attribute 'Missing'"),
        (
            ALTER,
            "support.plugins:AtMostThreePartitions",
            "not a subclass of klamm.plugins.policies.AlterConfigPolicy",
        ),
        (CREATE, "support.plugins:HasNoSettings", "ValueError: partition.limit is missing"),
        (CREATE, "support.plugins:Exits", "SystemExit: 0"),
        (
            "replica.selector.class",
            "org.apache.kafka.Other",
            "not of the form module:Class, which names a Python subclass of"
            " klamm.plugins.replica_selection.ReplicaSelector",
        ),
    ],
)
async def test_a_broker_does_not_start_without_its_plugins(tmp_path: Path, key: str, name: str, problem: str) -> None:
    environment = SystemEnvironment()
    properties = {"broker.id": "0", "log.dirs": str(tmp_path), "zookeeper.connect": "127.0.0.1:1", key: name}
    broker = Broker(BrokerConfig.from_properties(properties), environment)
    with pytest.raises(BrokerStartError) as raised:
        await broker.start()
    assert str(raised.value) == f"{key}={name}: {problem}"
    await broker.stop()
    environment.close()
