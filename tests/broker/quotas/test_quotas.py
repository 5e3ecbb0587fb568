"""Quotas on a running broker: set through requests or znodes, and what their clients are answered."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ADVERTISED_MAX, ApiKey
from klamm.protocol.vocabulary import FINAL_EPOCH
from support.fetch_messages import fetch_request, to_fetch
from support.one_broker import Client, OneBroker, batch, running, until, values

# One second is free at first, and then what a second has.
SHORT: dict[str, Any] = {"quota_window_num": 2, "controller_quota_window_num": 1}
CLIENT = {"client-id": "greedy"}
ANY = 2


async def alter(
    client: Client, entity: Mapping[str, str | None], *, validate_only: bool = False, version: int = 1, **quotas: Any
) -> tuple[int, str | None]:
    """Sets quotas; a value of None removes one."""
    entry = messages.request_class(ApiKey.ALTER_CLIENT_QUOTAS).EntryData
    entries = [
        entry(
            entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
        )
    ]
    answer = await client.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=validate_only)
    [result] = answer.entries
    assert {part.entity_type: part.entity_name for part in result.entity} == entity
    return result.error_code, result.error_message


async def describe(client: Client, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    component = messages.request_class(ApiKey.DESCRIBE_CLIENT_QUOTAS).ComponentData
    answer = await client.ask(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        components=[component(entity_type=kind, match_type=match, match=name) for kind, match, name in components],
        strict=strict,
    )
    if answer.error_code:
        return answer.error_code
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ]


async def in_effect(cluster: OneBroker, entity: Mapping[str, str | None], **quotas: Any) -> None:
    """Sets quotas through a connection of its own, and waits until the broker has heard of it."""
    client = await cluster.connect()
    known = cluster.broker.parts.quota_configs._known
    assert await alter(client, entity, **quotas) == (ErrorCode.NONE, None)
    stored = {key: value for key, value in quotas.items() if value is not None}
    await until(lambda: stored in known.values() or (not stored and not known))
    await client.close()


@contextmanager
def standing_clock(cluster: OneBroker) -> Iterator[Callable[[float], None]]:
    """The clock of quotas stands still, so that what their windows hold says nothing about the machine. Yields a
    function that moves it on."""
    quotas = cluster.broker.parts.quotas
    clock_ms, now_ms = quotas.clock_ms, quotas.clock_ms()

    def advance(by_ms: float) -> None:
        nonlocal now_ms
        now_ms += by_ms

    quotas.clock_ms = quotas.controller_mutation._clock_ms = lambda: now_ms
    try:
        yield advance
    finally:
        quotas.clock_ms = quotas.controller_mutation._clock_ms = clock_ms


def produce_request(size_bytes: int, acks: int = -1) -> ProduceRequest:
    return ProduceRequest.of(None, acks, 10_000, [("t", [(0, batch(bytes(size_bytes)))])])


async def produce(client: Client, size_bytes: int, client_id: str = "greedy") -> int:
    """Returns the throttle time."""
    answer = await client.request(ApiKey.PRODUCE, 9, produce_request(size_bytes), client_id=client_id)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return int(answer.throttle_time_ms)


async def is_muted(client: Client, other: Client) -> bool:
    """Whether a request waits, although another client's is answered."""
    waiting = asyncio.ensure_future(
        client.ask(ApiKey.API_VERSIONS, client_software_name="t", client_software_version="1")
    )
    for _ in range(3):
        await other.ask(ApiKey.API_VERSIONS, client_software_name="t", client_software_version="1")
    muted = not waiting.done()
    if muted:
        waiting.cancel()
    return muted


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_stored_and_described(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        entities: list[dict[str, str | None]] = [
            {"user": "CN=a b"},
            {"user": "CN=a b", "client-id": None},
            {"client-id": None},
        ]
        for number, entity in enumerate(entities):
            assert await alter(client, entity, version=version, producer_byte_rate=100.0 + number) == (0, None)
        assert await alter(client, {"ip": "::1"}, version=version, connection_creation_rate=7.0) == (0, None)
        assert await alter(client, entities[0], version=version, request_percentage=1.5) == (0, None)
        store = cluster.broker.zookeeper.store
        assert await store.configs.quota_entities() == [
            "users/CN%3Da%20b",
            "users/CN%3Da%20b/clients/<default>",
            "clients/<default>",
            "ips/::1",
        ]
        assert await store.configs.of("users/CN%3Da%20b") == {"producer_byte_rate": "100", "request_percentage": "1.5"}
        assert await describe(client) == [
            ({"client-id": None}, {"producer_byte_rate": 102}),
            ({"ip": "::1"}, {"connection_creation_rate": 7}),
            ({"user": "CN=a b"}, {"producer_byte_rate": 100, "request_percentage": 1.5}),
            ({"user": "CN=a b", "client-id": None}, {"producer_byte_rate": 101}),
        ]
        both = await describe(client, ("user", 0, "CN=a b"), strict=True)
        assert both == [({"user": "CN=a b"}, {"producer_byte_rate": 100, "request_percentage": 1.5})]
        assert await alter(client, entities[0], producer_byte_rate=None, request_percentage=None) == (0, None)
        assert await describe(client, ("user", ANY, None), strict=True) == []


async def test_a_refused_alteration_changes_nothing_and_no_other_entity(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        code, message = await alter(client, {"user": ""}, producer_byte_rate=1.0)
        assert (code, message) == (ErrorCode.INVALID_REQUEST, "Empty user not supported")
        assert (await alter(client, CLIENT, shoe_size=1.0))[0] == ErrorCode.INVALID_REQUEST
        refused = await alter(client, {"ip": "no host"}, connection_creation_rate=1.0)
        assert refused == (ErrorCode.INVALID_REQUEST, "no host is not a valid IP or resolvable host.")
        assert (await alter(client, CLIENT, validate_only=True, producer_byte_rate=1.5))[0] == ErrorCode.INVALID_REQUEST
        assert await alter(client, CLIENT, validate_only=True, producer_byte_rate=1.0) == (0, None)
        assert await cluster.broker.zookeeper.store.configs.quota_entities() == []
        assert (await alter(client, {"user": "."}, producer_byte_rate=1.0))[0] == ErrorCode.INVALID_REQUEST
        for kind, name in [("user", ""), ("user", "."), ("client-id", ".."), ("ip", "/"), ("ip", "a//b"), ("ip", "\0")]:
            assert await describe(client, (kind, 0, name), strict=True) == []
        assert await describe(client, ("shoe", ANY, None)) == ErrorCode.UNSUPPORTED_VERSION
        assert await describe(client, ("user", 7, None)) == ErrorCode.INVALID_REQUEST


async def test_a_producer_beyond_its_quota_is_answered_at_once_and_then_muted(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        other = await cluster.connect()
        assert await produce(client, 50_000) == 0
        await in_effect(cluster, CLIENT, producer_byte_rate=10_000.0)
        # Only what is recorded from now on counts, because nothing is recorded while no quota is set.
        with standing_clock(cluster):
            assert 2000 < await produce(client, 30_000) < 2100
        assert await is_muted(client, other)
        assert await produce(other, 30_000, client_id="modest") == 0
        assert not await is_muted(other, await cluster.connect())
        await in_effect(cluster, CLIENT, producer_byte_rate=None)
        assert await produce(await cluster.connect(), 50_000) == 0


async def test_a_muted_client_goes_on_afterwards(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await in_effect(cluster, CLIENT, producer_byte_rate=100_000.0)
        with standing_clock(cluster):
            throttle_time_ms = await produce(client, 110_000)
        assert 50 < throttle_time_ms < 150
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await produce(client, 1)
        assert loop.time() - began_s >= throttle_time_ms / 1000 - 0.02


async def test_a_muted_producer_without_acknowledgements_is_not_read(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await in_effect(cluster, CLIENT, producer_byte_rate=10_000.0)
        for _ in range(3):
            for buffer in messages.encode_request(ApiKey.PRODUCE, 9, 1, "greedy", produce_request(30_000, acks=0)):
                client.send_raw(bytes(buffer))
        other = await cluster.connect()

        async def end_offset() -> int:
            return int((await other.fetch("t", 0, 0)).high_watermark)

        while await end_offset() == 0:
            pass
        for _ in range(5):
            assert await end_offset() == 1


async def test_the_end_of_a_muted_connection_disturbs_no_one(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await in_effect(cluster, CLIENT, producer_byte_rate=1000.0)
        muted = await cluster.connect()
        assert await produce(muted, 30_000) > 20_000
        await muted.close()
        assert (await client.fetch("t", 0, 0)).high_watermark == 1
        began_s = asyncio.get_running_loop().time()
        await cluster.broker.stop()
        assert asyncio.get_running_loop().time() - began_s < 5


async def fetch(client: Client, client_id: str = "greedy", **options: Any) -> Any:
    body = fetch_request(("t", [to_fetch(0, 0)]), **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | options)
    return await client.request(ApiKey.FETCH, 12, body, client_id=client_id)


async def test_a_consumer_beyond_its_quota_gets_no_records(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        for _ in range(6):
            await client.produce("t", 0, batch(bytes(30_000)))
        await in_effect(cluster, CLIENT, consumer_byte_rate=100_000.0)
        # What the windows of the quota hold is all that one fetch gets.
        with standing_clock(cluster) as advance:
            first = await fetch(client, session_epoch=FINAL_EPOCH)
            assert (len(values(first.responses[0].partitions[0].records)), first.throttle_time_ms) == (3, 0)
            second = await fetch(client, session_epoch=FINAL_EPOCH)
            assert second.responses == []
            assert 700 < second.throttle_time_ms < 900
            # What was not sent does not count: later there is room again.
            advance(1_500)
            third = await fetch(client, session_epoch=FINAL_EPOCH, max_bytes=1)
        assert len(values(third.responses[0].partitions[0].records)) == 1
        assert len((await fetch(client, "modest")).responses) == 1


async def test_a_throttled_consumer_keeps_its_session_and_gets_no_new_one(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        for _ in range(2):
            await client.produce("t", 0, batch(bytes(60_000)))
        sessions = cluster.broker.parts.services.fetch_sessions
        await in_effect(cluster, CLIENT, consumer_byte_rate=100_000.0)
        with standing_clock(cluster):
            first = await fetch(client, session_epoch=0)
            assert (first.session_id > 0, len(first.responses), first.throttle_time_ms) == (True, 1, 0)
            again = fetch_request(
                session_id=first.session_id, session_epoch=1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20
            )
            throttled = await client.request(ApiKey.FETCH, 12, again, client_id="greedy")
            assert (throttled.session_id, throttled.responses) == (first.session_id, [])
            assert throttled.throttle_time_ms > 0
            new = await fetch(await cluster.connect(), session_epoch=0)
            assert (new.session_id, new.responses, len(sessions)) == (0, [], 1)
        assert new.throttle_time_ms > 0


async def test_a_batch_larger_than_the_quota_is_sent_once_and_paid_for(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(bytes(30_000)))
        await in_effect(cluster, CLIENT, consumer_byte_rate=10_000.0)
        with standing_clock(cluster):
            answer = await fetch(client)
        assert len(answer.responses) == 1
        assert 2000 < answer.throttle_time_ms < 2100


async def test_followers_are_not_throttled(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(bytes(30_000)))
        await in_effect(cluster, {"client-id": None}, consumer_byte_rate=1.0, request_percentage=0.0001)
        answer = await fetch(await cluster.connect(), "broker-1-fetcher-0", replica_id=1)
        assert answer.throttle_time_ms == 0
        # After a change of leader, at the same connection.
        for key in (ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.LIST_OFFSETS):
            body = messages.request_class(key)(replica_id=1, topics=[])
            answer = await (await cluster.connect()).request(key, ADVERTISED_MAX[key], body, "broker-1-fetcher-0")
            assert answer.throttle_time_ms == 0, key
        quotas = cluster.broker.parts.quotas
        assert quotas._exempt_percent() > 0
        # Not even the encoding counts for anybody.
        assert "broker-1-fetcher-0" not in [tags.client_id for tags, _ in quotas.request.rates(quotas.clock_ms())]


async def test_an_address_has_the_lowest_quota_of_its_names(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        bounds, rates = cluster.broker.parts.listeners.quotas._host_bounds, cluster.broker.parts.quota_configs._rates

        async def change(name: str, rate: float | None) -> None:
            assert await alter(client, {"ip": name}, connection_creation_rate=rate) == (0, None)

        await change("127.0.0.1", 5.0)
        await change("localhost", 7.0)
        await change("localhost", 6.0)
        await until(lambda: rates.get("127.0.0.1") == {"127.0.0.1": 5, "localhost": 6})
        assert bounds["127.0.0.1"] == 5
        await change("localhost", None)
        await until(lambda: rates == {"127.0.0.1": {"127.0.0.1": 5}})
        assert bounds == {"127.0.0.1": 5}
        await change("127.0.0.1", None)
        await until(lambda: not bounds)


async def test_a_request_quota_bounds_the_time_of_the_loop(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await in_effect(cluster, {"user": "ANONYMOUS"}, request_percentage=0.0001)
        fresh = await cluster.connect()
        topics = [messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name="t")]
        answer = await fresh.ask(ApiKey.METADATA, topics=topics)
        # No longer than a window.
        assert (answer.throttle_time_ms, answer.topics[0].error_code) == (1000, 0)
        # Every way of a request through the broker is measured: at once, after a wait, with records, in steps.
        bodies = {
            ApiKey.PRODUCE: produce_request(10),
            ApiKey.FETCH: fetch_request(("t", [to_fetch(0, 0)]), max_wait_ms=0, min_bytes=1, max_bytes=1000),
            ApiKey.METADATA: messages.request_class(ApiKey.METADATA)(topics=[topics[0]] * 5000),
        }
        for key, body in bodies.items():
            answer = await (await cluster.connect()).request(key, 9, body)
            assert answer.throttle_time_ms == 1000, key
        # Requests without an answer are not bounded.
        quiet = await cluster.connect()
        for buffer in messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", produce_request(10, acks=0)):
            quiet.send_raw(bytes(buffer))
        before = cluster.broker.parts.quotas._exempt_percent()
        await until(lambda: cluster.broker.parts.quotas._exempt_percent() > before)


async def test_without_a_quota_nothing_is_recorded(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await produce(client, 10_000)
        quotas = cluster.broker.parts.quotas
        assert not quotas.is_active
        await in_effect(cluster, {"client-id": "nobody"}, producer_byte_rate=10_000.0)
        assert quotas.is_active and not quotas.measures_time
        await produce(client, 10_000)
        assert [tags.client_id for tags, _ in quotas.produce.rates(quotas.clock_ms())] == ["greedy"]
        assert len(quotas.fetch._sensors) == len(quotas.request._sensors) == 0
        await in_effect(cluster, {"client-id": "nobody"}, producer_byte_rate=None)
        assert not quotas.is_active


def topics_of(prefix: str, *counts: int) -> list[Any]:
    topic = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    return [
        topic(name=f"{prefix}{number}", num_partitions=count, replication_factor=1, assignments=[], configs=[])
        for number, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("version", "codes", "throttle_ms"),
    [
        # A strict client is refused what is beyond; an older one is throttled for it.
        (5, [0, 0, 0], 2000),
        (6, [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED], 1000),
        (7, [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED], 1000),
    ],
)
async def test_created_partitions_beyond_the_quota(
    tmp_path: Path, version: int, codes: list[int], throttle_ms: int
) -> None:
    # One second of two a second is in the bucket.
    async with running(tmp_path, **SHORT) as (cluster, client):
        await in_effect(cluster, {"user": "ANONYMOUS"}, controller_mutation_rate=2.0)
        with standing_clock(cluster):
            answer = await client.ask(
                ApiKey.CREATE_TOPICS, version, topics=topics_of("t", 1, 3, 2), timeout_ms=10_000, validate_only=False
            )
        assert [topic.error_code for topic in answer.topics] == codes
        assert answer.throttle_time_ms == throttle_ms


async def test_validation_takes_no_tokens_and_refused_topics_are_not_made(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await in_effect(cluster, {"user": "ANONYMOUS"}, controller_mutation_rate=2.0)
        valid = await client.ask(
            ApiKey.CREATE_TOPICS, topics=topics_of("v", 100), timeout_ms=10_000, validate_only=True
        )
        assert (valid.topics[0].error_code, valid.throttle_time_ms) == (0, 0)
        with standing_clock(cluster):
            made = await client.ask(
                ApiKey.CREATE_TOPICS, topics=topics_of("t", 4, 1), timeout_ms=10_000, validate_only=False
            )
            assert made.topics[1].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            other = await cluster.connect()
            assert (await other.ask(ApiKey.METADATA, topics=None)).topics[0].name == "t0"
            grow = messages.request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
            grown = await other.ask(
                ApiKey.CREATE_PARTITIONS,
                topics=[grow(name="t0", count=5, assignments=None)],
                timeout_ms=10_000,
                validate_only=False,
            )
            assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            doomed = messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(name="t0", topic_id=None)
            third = await cluster.connect()
            deleted = await third.ask(ApiKey.DELETE_TOPICS, topics=[doomed], timeout_ms=10_000)
            assert deleted.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
            old = await (await cluster.connect()).ask(ApiKey.DELETE_TOPICS, 4, topic_names=["t0"], timeout_ms=10_000)
        assert old.responses[0].error_code == 0
        assert old.throttle_time_ms > 1000


async def test_topics_that_are_created_automatically_count_and_are_not_refused(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT, num_partitions=20, offsets_topic_replication_factor=1) as (cluster, client):
        await in_effect(cluster, {"user": "ANONYMOUS"}, controller_mutation_rate=10.0)
        topic = messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name="t")
        with standing_clock(cluster):
            made = await client.ask(ApiKey.METADATA, topics=[topic], allow_auto_topic_creation=True)
            assert (made.topics[0].error_code, made.throttle_time_ms) == (ErrorCode.LEADER_NOT_AVAILABLE, 0)
            # The bucket of ten is overdrawn by ten, and the coordinator's topic takes another fifty.
            await client.ask(ApiKey.FIND_COORDINATOR, key="g", key_type=0)
            answer = await client.ask(ApiKey.CREATE_TOPICS, topics=topics_of("u", 1), timeout_ms=10_000)
            assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 4000 < answer.throttle_time_ms <= 6000


async def test_quotas_are_in_effect_after_a_restart_and_without_their_znode_no_longer(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):
        await client.create_topic("t")
        await in_effect(cluster, {"user": "ANONYMOUS", "client-id": "greedy"}, producer_byte_rate=10_000.0)
        await cluster.restart_broker()
        assert cluster.broker.parts.quotas.is_active
        assert await produce(await cluster.connect(), 30_000) > 1000
        store = cluster.broker.zookeeper.store
        assert store.client is not None
        await store.client.delete_recursive("/config/users/ANONYMOUS")
        await cluster.broker.parts.quota_configs.load()
        assert not cluster.broker.parts.quotas.is_active


async def test_a_quota_that_cannot_be_read_leaves_the_last_one_in_force(tmp_path: Path, caplog: Any) -> None:
    async with running(tmp_path, **SHORT) as (cluster, _):
        store, configs = cluster.broker.zookeeper.store, cluster.broker.parts.quota_configs
        await in_effect(cluster, CLIENT, producer_byte_rate=10.0, consumer_byte_rate=20.0)
        await store.configs.replace("clients/greedy", {"producer_byte_rate": "fast", "consumer_byte_rate": "30"})
        await until(lambda: configs._known["clients/greedy"]["consumer_byte_rate"] == 30)
        assert configs._known["clients/greedy"]["producer_byte_rate"] == 10
        assert "ignored a quota of clients/greedy: producer_byte_rate=fast is not a long" in caplog.text
        assert store.client is not None
        await store.client.set("/config/clients/greedy", b"{")
        await configs.changed("clients/greedy")
        assert configs._known["clients/greedy"] == {"producer_byte_rate": 10, "consumer_byte_rate": 30}
        await store.configs.replace("clients/greedy", {"consumer_byte_rate": "30"})
        await until(lambda: configs._known["clients/greedy"] == {"consumer_byte_rate": 30})


async def test_connections_of_an_address_beyond_its_rate_are_closed_after_a_while(tmp_path: Path) -> None:
    async with running(tmp_path, **SHORT) as (cluster, client):

        async def is_served() -> bool:
            new = await cluster.connect()
            try:
                await new.ask(ApiKey.API_VERSIONS, client_software_name="t", client_software_version="1")
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return False
            return True

        await in_effect(cluster, {"ip": None}, connection_creation_rate=1.0)
        assert [await is_served() for _ in range(2)] == [True, False]
        # The name of the host stands for its addresses, and goes before the default.
        assert await alter(client, {"ip": "localhost"}, connection_creation_rate=1000.0) == (0, None)
        # A name is looked up before its quota is in effect.
        await until(lambda: "localhost" in cluster.broker.parts.quota_configs._addresses)
        assert [await is_served() for _ in range(3)] == [True, True, True]
        assert await alter(client, {"ip": "localhost"}, connection_creation_rate=None) == (0, None)
        assert await alter(client, {"ip": None}, connection_creation_rate=None) == (0, None)
        await until(lambda: not cluster.broker.parts.quota_configs._known)
        assert [await is_served() for _ in range(3)] == [True, True, True]
