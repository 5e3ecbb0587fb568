"""Altered configurations, as clients see them: stored, described, and in effect."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.controller.controller import KafkaController
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.storage.directories.log_manager import LogManager
from klamm.znodes.configs import encode_config
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import ZooKeeperClient
from support.one_broker import Client, OneBroker, batch, running, until

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER = 2, 4, 8
NONE, INVALID_REQUEST = ErrorCode.NONE, ErrorCode.INVALID_REQUEST


async def alter(
    client: Client,
    kind: int,
    name: str,
    configs: Mapping[str, str | None],
    *,
    validate_only: bool = False,
    version: int = 2,
) -> tuple[int, str | None]:
    request = messages.request_class(ApiKey.ALTER_CONFIGS).AlterConfigsResource
    resource = request(
        resource_type=kind,
        resource_name=name,
        configs=[request.AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )
    response = await client.ask(ApiKey.ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only)
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


def changed(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    request = messages.request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    return request(
        resource_type=kind,
        resource_name=name,
        configs=[
            request.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )


async def change(
    client: Client, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> int:
    response = await client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[changed(kind, name, *changes)], validate_only=validate_only
    )
    (answer,) = response.responses
    assert answer.error_code == NONE or answer.error_message
    return int(answer.error_code)


async def describe(client: Client, kind: int, name: str) -> dict[str, tuple[str | None, int]]:
    """Value and source of each key."""
    request = messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    response = await client.ask(
        ApiKey.DESCRIBE_CONFIGS,
        resources=[request(resource_type=kind, resource_name=name, configuration_keys=None)],
        include_synonyms=True,
        include_documentation=False,
    )
    (result,) = response.results
    assert result.error_code == NONE
    return {entry.name: (entry.value, entry.config_source) for entry in result.configs}


def stored(cluster: OneBroker, entity_path: str) -> Any:
    return cluster.broker.zookeeper.store.configs.of(entity_path)


def current(cluster: OneBroker) -> Any:
    return cluster.broker.parts.services.config.current


def partition(cluster: OneBroker, topic: str) -> Any:
    return cluster.broker.parts.replica_manager.partition(topic, 0)


async def test_a_topics_config_reaches_its_logs_and_partitions(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", segment_bytes="5000")
        await client.create_topic("u")
        hosted = partition(cluster, "t")
        changes = (
            ("max.message.bytes", SET, "100"),
            ("min.insync.replicas", SET, "2"),
            ("segment.bytes", DELETE, None),
        )
        assert await change(client, TOPIC, "t", *changes) == NONE
        await until(lambda: hosted.log.config.max_message_bytes == 100)
        assert (hosted.log.config.segment_bytes, hosted.topic_config.min_insync_replicas) == (1 << 30, 2)
        assert (await client.produce("t", 0, batch(b"x" * 200), acks=1)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await client.produce("t", 0, batch(b"x"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await client.produce("u", 0, batch(b"x" * 200))).error_code == NONE
        described = await describe(client, TOPIC, "t")
        assert (described["max.message.bytes"], described["segment.bytes"][1]) == (("100", 1), 5)

        # What is not named in an AlterConfigs request is no longer set.
        assert await alter(client, TOPIC, "t", {"retention.ms": "-1"}) == (NONE, None)
        await until(lambda: hosted.log.config.retention_ms == -1)
        assert (await client.produce("t", 0, batch(b"x" * 200))).error_code == NONE
        assert await stored(cluster, "topics/t") == {"retention.ms": "-1"}


async def test_nothing_is_stored_of_what_is_refused_or_only_validated(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", retention_ms="5")
        codes = [
            await change(client, TOPIC, "t", ("retention.ms", SET, "7"), validate_only=True),
            await change(client, TOPIC, "t", ("retention.ms", SET, "7"), ("segment.ms", SET, "0"), validate_only=True),
            await change(client, TOPIC, "t", ("retention.ms", SET, "7"), ("segment.ms", SET, "0")),
            await change(client, TOPIC, "t", ("retention.ms", SET, "7"), ("no.such.key", SET, "0")),
            await change(client, TOPIC, "absent", ("retention.ms", SET, "7")),
            await change(client, TOPIC, "../brokers/0", ("retention.ms", SET, "7")),
            await change(client, BROKER, "1", ("min.insync.replicas", SET, "7")),
            await change(client, BROKER, "<default>", ("min.insync.replicas", SET, "7")),
            await change(client, BROKER, "0", ("broker.id", SET, "7")),
            await change(client, LOGGER, "0", ("root", SET, "DEBUG")),
            (await alter(client, TOPIC, "t", {"retention.ms": "7"}, validate_only=True))[0],
            (await alter(client, TOPIC, "t", {"retention.ms": None}))[0],
            (await alter(client, TOPIC, "t", {"no.such.key": "x"}))[0],
            (await alter(client, TOPIC, "absent", {}))[0],
            (await alter(client, BROKER, "1", {}))[0],
            (await alter(client, LOGGER, "0", {}))[0],
            (await alter(client, 0, "t", {}))[0],
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [
            NONE, INVALID_REQUEST, INVALID_REQUEST, ErrorCode.INVALID_CONFIG, unknown, unknown, INVALID_REQUEST,
            INVALID_REQUEST, INVALID_REQUEST, INVALID_REQUEST,
            NONE, INVALID_REQUEST, ErrorCode.INVALID_CONFIG, unknown, INVALID_REQUEST, INVALID_REQUEST,
            INVALID_REQUEST,
        ]  # fmt: skip
        big = {f"nobody.knows.{number}": "\x01" * 30_000 for number in range(8)}  # Six bytes each in JSON.
        code, message = await alter(client, BROKER, "0", big)
        assert (code, "ZooKeeper takes" in (message or "")) == (INVALID_REQUEST, True)
        store = cluster.broker.zookeeper.store
        assert await store.configs.changes() == []
        assert await store.configs.of("topics/t") == {"retention.ms": "5"}
        assert await store.client.children("/config/brokers") == []


async def test_a_topic_that_is_gone_gets_no_configs(tmp_path: Path) -> None:
    """Also where the broker has not heard of its end yet: nobody would ever remove them."""
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        zk = cluster.broker.zookeeper.store.client
        for path in ("/brokers/topics/t", "/config/topics/t"):
            await zk.delete_recursive(path)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for validate_only in (True, False):
            key = ("retention.ms", SET, "7")
            assert await change(client, TOPIC, "t", key, validate_only=validate_only) == unknown
            assert (await alter(client, TOPIC, "t", {}, validate_only=validate_only))[0] == unknown
        assert await zk.children("/config/topics") == []


async def test_each_resource_is_answered_for_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        good, bad = ("retention.ms", SET, "7"), ("retention.ms", SET, "-7")
        resources = [
            changed(TOPIC, "absent", good),
            changed(LOGGER, "0", ("root", SET, "DEBUG")),
            changed(TOPIC, "t", good),
            changed(BROKER, "", bad),
        ]
        response = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=resources, validate_only=False)
        assert [one.error_code for one in response.responses] == [
            *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST, NONE, NONE)
        ]
        # `retention.ms` is no key of a broker, and may be one of a plugin.
        assert await stored(cluster, "brokers/<default>") == {"retention.ms": "-7"}

        # The same one twice, or one that has no configs: nothing at all is done.
        for odd in (changed(TOPIC, "t", bad), changed(3, "t", good)):
            response = await client.ask(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[changed(TOPIC, "t", bad), odd], validate_only=False
            )
            assert [one.error_code for one in response.responses] == [INVALID_REQUEST, INVALID_REQUEST]
        assert await stored(cluster, "topics/t") == {"retention.ms": "7"}


async def test_topics_inherit_what_brokers_have_now(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.create_topic("own", min_insync_replicas="1")
        assert (
            await change(client, BROKER, "", ("min.insync.replicas", SET, "3"), ("log.retention.ms", SET, "9")) == NONE
        )
        assert await change(client, BROKER, "0", ("min.insync.replicas", SET, "2")) == NONE
        await until(lambda: current(cluster).dynamic_broker == {"min.insync.replicas": "2"})
        await until(lambda: partition(cluster, "t").topic_config.min_insync_replicas == 2)
        assert partition(cluster, "t").log.config.retention_ms == 9
        assert (await client.produce("t", 0, batch(b"x"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await client.produce("own", 0, batch(b"x"))).error_code == NONE

        assert (await describe(client, TOPIC, "t"))["min.insync.replicas"] == ("2", 2)
        assert (await describe(client, TOPIC, "t"))["retention.ms"] == ("9", 3)
        assert (await describe(client, TOPIC, "own"))["min.insync.replicas"] == ("1", 1)
        assert (await describe(client, BROKER, "0"))["min.insync.replicas"] == ("2", 2)
        assert await describe(client, BROKER, "") == {"min.insync.replicas": ("3", 3), "log.retention.ms": ("9", 3)}

        # A topic made now inherits the same.
        await client.create_topic("new")
        assert partition(cluster, "new").topic_config.min_insync_replicas == 2

        assert await alter(client, BROKER, "0", {}) == (NONE, None)
        await until(lambda: partition(cluster, "new").topic_config.min_insync_replicas == 3)


async def test_dynamic_configs_outlive_a_restart(tmp_path: Path) -> None:
    """They are read before logs are opened: what must not be deleted is not deleted by a start."""
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        assert await change(client, BROKER, "", ("log.retention.ms", SET, "-1")) == NONE
        assert await change(client, BROKER, "0", ("log.segment.bytes", SET, "4096")) == NONE
        await cluster.restart_broker()
        assert (current(cluster).log_retention_ms, current(cluster).log_segment_bytes) == (-1, 4096)
        config = partition(cluster, "t").log.config
        assert (config.retention_ms, config.segment_bytes) == (-1, 4096)
        client = await cluster.connect()
        assert (await describe(client, BROKER, "0"))["log.segment.bytes"] == ("4096", 2)


async def test_what_brokers_have_may_contradict_itself(tmp_path: Path) -> None:
    """As in Kafka only a topic's own configs are compared. Otherwise one request could stop all brokers."""
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        lags = (("log.cleaner.max.compaction.lag.ms", SET, "8"), ("log.cleaner.min.compaction.lag.ms", SET, "9"))
        assert await change(client, BROKER, "", *lags) == NONE
        await until(lambda: partition(cluster, "t").topic_config.min_compaction_lag_ms == 9)
        assert await change(client, TOPIC, "t", ("retention.ms", SET, "7")) == NONE
        await until(lambda: partition(cluster, "t").log.config.retention_ms == 7)
        await client.create_topic("u", min_compaction_lag_ms="10")
        await cluster.restart_broker()
        client = await cluster.connect()
        assert (await client.produce("u", 0, batch(b"x"))).error_code == NONE


def flushes_after(cluster: OneBroker, flush_ms: int) -> bool:
    return partition(cluster, "t").log.config.flush_ms == flush_ms


async def test_the_same_value_from_elsewhere_is_described_with_its_source(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        for name, source in (("", 3), ("0", 2)):
            assert await change(client, BROKER, name, ("min.insync.replicas", SET, "1")) == NONE
            # What comes later is in effect later.
            assert await change(client, TOPIC, "t", ("flush.ms", SET, str(source))) == NONE
            await until(partial(flushes_after, cluster, source))
            assert (await describe(client, BROKER, "0"))["min.insync.replicas"] == ("1", source)
            assert (await describe(client, TOPIC, "t"))["min.insync.replicas"] == ("1", source)


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_the_first_election_goes_by_the_configs_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    """Not by those that were read before the logs were loaded, which may take long."""
    load, startup, elects_unclean = LogManager.load, KafkaController.startup, []

    async def noting(controller: KafkaController, store: KafkaZooKeeper) -> None:
        elects_unclean.append(controller.parts.config.current.unclean_leader_election_enable)
        await startup(controller, store)

    async with running(tmp_path, unclean_leader_election_enable=str(not is_allowed)) as (cluster, _):

        async def changing(*arguments: Any) -> None:
            await load(*arguments)
            config = {"unclean.leader.election.enable": str(is_allowed)}
            await overwrite(cluster.broker.zookeeper.store.client, "brokers/<default>", encode_config(config))

        monkeypatch.setattr(LogManager, "load", changing)
        monkeypatch.setattr(KafkaController, "startup", noting)
        await cluster.restart_broker()
        assert elects_unclean == [is_allowed]


async def test_the_controller_works_with_what_the_cluster_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as (cluster, client):
        controller = cluster.broker.parts.controller
        asked: list[str] = []
        monkeypatch.setattr(controller, "enable_default_unclean_leader_election", lambda: asked.append("all"))
        monkeypatch.setattr(controller, "enable_topic_unclean_leader_election", asked.append)
        await client.create_topic("t")
        unclean = ("unclean.leader.election.enable", SET, "true")
        assert await change(client, TOPIC, "t", unclean) == NONE
        await until(lambda: asked == ["t"])
        changes = (
            unclean,
            ("auto.leader.rebalance.enable", SET, "false"),
            ("leader.imbalance.per.broker.percentage", SET, "33"),
            ("leader.imbalance.check.interval.seconds", SET, "44"),
        )
        assert await change(client, BROKER, "", *changes) == NONE
        await until(lambda: asked == ["t", "all"])
        config = controller.parts.config.current
        assert (
            config.unclean_leader_election_enable,
            config.auto_leader_rebalance_enable,
            config.leader_imbalance_per_broker_percentage,
            config.leader_imbalance_check_interval_seconds,
        ) == (True, False, 33, 44)
        # Only being switched on is an event.
        assert await change(client, BROKER, "", ("min.insync.replicas", SET, "2")) == NONE
        assert await change(client, BROKER, "", ("unclean.leader.election.enable", DELETE, None)) == NONE
        await until(lambda: not controller.parts.config.current.unclean_leader_election_enable)
        assert asked == ["t", "all"]


async def test_the_rebalance_is_planned_anew_when_it_is_switched_on(tmp_path: Path) -> None:
    async with running(tmp_path, auto_leader_rebalance_enable="false") as (cluster, client):
        parts = cluster.broker.parts.controller.parts
        assert parts._leader_rebalance is None
        assert await change(client, BROKER, "", ("auto.leader.rebalance.enable", SET, "true")) == NONE
        await until(lambda: parts._leader_rebalance is not None)
        assert await change(client, BROKER, "", ("auto.leader.rebalance.enable", SET, "false")) == NONE
        await until(lambda: parts._leader_rebalance is None)


async def test_listeners_take_fewer_connections_from_now_on(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        silent = await cluster.connect()
        assert await change(client, BROKER, "0", ("max.connections", SET, "1")) == NONE
        assert await silent.is_closed()
        waiting = asyncio.ensure_future((await cluster.connect()).create_topic("t"))
        assert await change(client, BROKER, "0", ("max.connections", DELETE, None)) == NONE
        await waiting
        assert await change(client, BROKER, "0", ("max.connections.per.ip.overrides", SET, "127.0.0.1:1")) == NONE
        await until(lambda: current(cluster).max_connections_per_ip_overrides == {"127.0.0.1": 1})
        assert await (await cluster.connect()).is_closed()


async def test_replication_throttles_come_change_and_go(tmp_path: Path) -> None:
    leader_rate, follower_rate = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
    leaders, followers = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
    async with running(tmp_path) as (cluster, client):
        throttles = cluster.broker.parts.throttles
        await client.create_topic("t", partitions=3)
        await client.create_topic("u", 1, **{followers.replace(".", "_"): "*"})
        assert throttles.follower.is_throttled("u", 0)
        assert not throttles.leader.has_throttled_replicas
        assert throttles.leader.bytes_per_second == throttles.follower.bytes_per_second == 2**63 - 1
        await change(client, BROKER, "0", (leader_rate, SET, "1000"))
        await change(client, BROKER, "", (follower_rate, SET, "2000"), (leader_rate, SET, "1"))
        await change(client, TOPIC, "t", (leaders, SET, "0:0,1:1,2:0"))
        await until(lambda: throttles.leader.has_throttled_replicas)
        assert [throttles.leader.is_throttled("t", number) for number in range(3)] == [True, False, True]
        assert (throttles.leader.bytes_per_second, throttles.follower.bytes_per_second) == (1000, 2000)
        await change(client, BROKER, "0", ("replica.alter.log.dirs.io.max.bytes.per.second", SET, "3000"))
        await until(lambda: throttles.alter_log_dirs.bytes_per_second == 3000)
        await change(client, TOPIC, "t", (leaders, SUBTRACT, "0:0,2:0"))
        await change(client, BROKER, "0", (leader_rate, DELETE, None))
        await until(lambda: not throttles.leader.has_throttled_replicas)
        await until(lambda: throttles.leader.bytes_per_second == 1)
        await cluster.restart_broker()
        throttles = cluster.broker.parts.throttles
        await until(lambda: throttles.follower.is_throttled("u", 0))
        assert (throttles.leader.bytes_per_second, throttles.follower.bytes_per_second) == (1, 2000)


async def test_two_changes_at_once_both_count(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        keys = ("retention.ms", "segment.ms", "flush.ms", "segment.bytes")
        clients = [await cluster.connect() for _ in keys]
        codes = await asyncio.gather(
            *(change(one, TOPIC, "t", (key, SET, "1000")) for one, key in zip(clients, keys, strict=True))
        )
        assert codes == [NONE] * 4
        assert await stored(cluster, "topics/t") == dict.fromkeys(keys, "1000")


# -- znodes that somebody else wrote


async def overwrite(zk: ZooKeeperClient, entity_path: str, data: bytes) -> None:
    """Writes a configuration as another program might, and announces it."""
    path = f"/config/{entity_path}"
    await zk.ensure_path(path)
    await zk.set(path, data)
    await announce(zk, entity_path)


async def announce(zk: ZooKeeperClient, entity_path: str) -> None:
    notification = b'{"version":2,"entity_path":"%s"}' % entity_path.encode()
    await zk.create("/config/changes/config_change_", notification, sequential=True)


GARBAGE = (
    b"",
    b"not JSON",
    b'{"version":1,"config":7}',
    b'{"version":1,"config":{"min.insync.replicas":2}}',
    b'{"version":1,"config":{"min.insync.replicas":"many","broker.id":"7","listeners":"%%","log.dirs":"/nowhere"}}',
    b'{"version":1,"config":{"log.cleaner.dedupe.buffer.size":"1"}}',
)


KNOWN = ("brokers/0", "brokers/<default>", "topics/t")


@pytest.mark.parametrize("data", GARBAGE)
async def test_garbage_stops_no_broker_and_is_passed_over(tmp_path: Path, data: bytes) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        zk = cluster.broker.zookeeper.store.client
        for entity_path in (*KNOWN, "topics/..", "topics/a/b", "brokers/x", "x"):
            if ".." not in entity_path:
                await zk.ensure_path(f"/config/{entity_path}")
                await zk.set(f"/config/{entity_path}", data)
            await announce(zk, entity_path)
        await client.create_topic("u")
        assert await change(client, TOPIC, "u", ("retention.ms", SET, "123")) == NONE
        await until(lambda: partition(cluster, "u").log.config.retention_ms == 123)
        assert current(cluster).min_insync_replicas == 1
        await cluster.restart_broker()
        # Without a value from before the safest counts: all replicas, of which there is one.
        assert current(cluster).min_insync_replicas in (1, 2**31 - 1)
        assert current(cluster).broker_id == 0
        client = await cluster.connect()
        assert (await client.produce("t", 0, batch(b"x"))).error_code == NONE
        assert await alter(client, BROKER, "0", {"log.segment.bytes": "77777"}) == (NONE, None)
        await until(lambda: current(cluster).log_segment_bytes == 77777)


@pytest.mark.parametrize("data", [b"not JSON", b"[]", b'{"version":1}', b'{"version":1,"config":{"retention.ms":5}}'])
async def test_what_cannot_be_read_makes_no_topic_less_safe(tmp_path: Path, data: bytes) -> None:
    """The broker would keep records for a second and elect anybody. The topic says otherwise, and then nothing."""
    async with running(tmp_path, log_retention_ms=1000, unclean_leader_election_enable="true") as (cluster, client):

        def guards() -> tuple[object, ...]:
            hosted = partition(cluster, "t")
            log, config = hosted.log.config, hosted.topic_config
            unclean = config.unclean_leader_election_enable
            return log.retention_ms, log.cleanup_policy, log.flush_messages, config.min_insync_replicas, unclean

        own = {"retention_ms": "-1", "min_insync_replicas": "2", "unclean_leader_election_enable": "false"}
        await client.create_topic("t", 1, **own)
        await client.create_topic("u")
        zk = cluster.broker.zookeeper.store.client
        await overwrite(zk, "topics/t", data)
        assert await change(client, TOPIC, "u", ("segment.ms", SET, "123")) == NONE
        await until(lambda: partition(cluster, "u").log.config.segment_ms == 123)
        assert guards() == (-1, ("delete",), 2**63 - 1, 2, False)
        await cluster.restart_broker()
        assert guards() == (-1, (), 1, 2**31 - 1, False)
        client = await cluster.connect()
        # All replicas are in sync.
        assert (await client.produce("t", 0, batch(b"x"))).error_code == NONE
        described = await describe(client, TOPIC, "t")
        assert (described["retention.ms"], described["cleanup.policy"]) == (("-1", 1), ("", 1))
        # A change of a part of what cannot be read is refused; all of it can be replaced.
        for validate_only in (True, False):
            code = await change(client, TOPIC, "t", ("segment.ms", SET, "7"), validate_only=validate_only)
            assert code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await alter(client, TOPIC, "t", {"retention.ms": "7"}) == (NONE, None)
        await until(lambda: guards() == (7, ("delete",), 2**63 - 1, 1, True))


async def test_a_bad_value_of_a_topic_leaves_the_others_in_force(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        zk = cluster.broker.zookeeper.store.client
        await overwrite(zk, "topics/t", b'{"version":1,"config":{"retention.ms":"-1","segment.bytes":"x"}}')
        await until(lambda: partition(cluster, "t").log.config.retention_ms == -1)
        await cluster.restart_broker()
        config = partition(cluster, "t").log.config
        assert (config.retention_ms, config.segment_bytes) == (-1, 1 << 30)


async def test_a_broker_does_not_start_with_a_dynamic_listener_that_it_cannot_protect(tmp_path: Path) -> None:
    async with running(tmp_path, may_fail=True) as (cluster, _):
        zk = cluster.broker.zookeeper.store.client
        await overwrite(
            zk, "brokers/0", b'{"version":1,"config":{"listeners":"SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}}'
        )
        with pytest.raises(Exception, match="SSL is not supported yet"):
            await cluster.restart_broker()


async def test_a_list_does_not_grow_beyond_what_a_response_can_hold(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", cleanup_policy="delete")
        many = ",".join(["delete"] * 4_000)
        for kind, name, key in ((BROKER, "", "log.cleanup.policy"), (TOPIC, "t", "cleanup.policy")):
            assert await change(client, kind, name, (key, APPEND, many)) == NONE
            assert await change(client, kind, name, (key, APPEND, many)) == INVALID_REQUEST
        assert (await stored(cluster, "topics/t"))["cleanup.policy"] == "delete," + many
