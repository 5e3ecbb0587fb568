"""ZooKeeper is away, forgets the broker, loses its data or holds garbage: records and other topics stay available."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.base.metrics import Metrics
from klamm.base.system_environment import SystemEnvironment
from klamm.broker.start.broker import Broker, BrokerStartError
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_LEADER
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, SessionExpired
from klamm.zookeeper.messages import Stat
from klamm.zookeeper.server import sessions
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.metrics import Values
from support.one_broker import Client, OneBroker, batch, running, until, values
from support.zookeeper.proxy import Proxy

NONE = ErrorCode.NONE
# Short sessions, which outlive a process that stands still for half of one.
SESSION_MS = 1_000
LATE_S = 0.1
FORBIDDEN = b'{"version":1,"config":{"unclean.leader.election.enable":"false"}}'


@pytest.fixture(autouse=True)
def short_pauses_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_LATE_S", LATE_S)


class Behind(OneBroker):
    """A broker that reaches ZooKeeper through a proxy, and a client of ZooKeeper's own beside it."""

    proxy: Proxy
    zk: ZooKeeperClient

    async def start_zookeeper(self, port: int = 0) -> None:
        await super().start_zookeeper(port)
        self.proxy = await self._stack.enter_async_context(Proxy("127.0.0.1", self.zookeeper.port))
        self.properties["zookeeper.connect"] = self.proxy.address
        self.zk = ZooKeeperClient(SystemEnvironment(), f"127.0.0.1:{self.zookeeper.port}")
        await self.zk.start(5_000)
        self._stack.push_async_callback(self.zk.close)

    async def end_session(self) -> None:
        """Ends the broker's session, as its time-out would."""
        session = self.broker.zookeeper.store.client
        assert session is not None
        thief = ZooKeeperClient(
            SystemEnvironment(),
            f"127.0.0.1:{self.zookeeper.port}",
            session=(session.session_id, session.session_password),
        )
        with contextlib.suppress(SessionExpired):
            await thief.start(5_000)
        await thief.close()

    async def expire_session(self) -> None:
        """Ends the broker's session and returns when another one has registered it."""
        gone = asyncio.Event()
        await self.zk.exists("/brokers/ids/0", lambda event: gone.set())
        await self.end_session()
        await gone.wait()
        await self.registered()

    async def registered(self) -> int:
        """Waits for the broker's znode; returns the session that owns it."""
        while True:
            stat, changed = await self._looked()
            if stat is not None:
                return stat.ephemeral_owner
            await changed.wait()

    async def _looked(self) -> tuple[Stat | None, asyncio.Event]:
        """The broker's znode, and what is set when it changes."""
        changed = asyncio.Event()
        return await self.zk.exists("/brokers/ids/0", lambda _: changed.set()), changed

    async def has_controller_epoch(self, epoch: int) -> None:
        await until(lambda: self.controller_epoch == epoch)

    async def read_json(self, path: str) -> Any:
        return json.loads((await self.zk.get(path))[0])


@asynccontextmanager
async def playing(tmp_path: Path, *, may_fail: bool = False, **props: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with asyncio.timeout(120), Behind(tmp_path, **props) as cluster:
        yield cluster, await cluster.connect()
        assert may_fail or not cluster.broker.failure.done(), cluster.broker.failure


async def produce(client: Client, topic: str, value: bytes) -> ErrorCode:
    return ErrorCode((await client.produce(topic, 0, batch(value))).error_code)


async def leader_epoch_of(client: Client, topic: str) -> int:
    wanted = [messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name=topic)]
    (found,) = (await client.ask(ApiKey.METADATA, topics=wanted, allow_auto_topic_creation=False)).topics
    return int(found.partitions[0].leader_epoch)


async def fetch_in_epoch(client: Client, epoch: int) -> Any:
    body = fetch_request(("t", [to_fetch(0, 0, 1 << 20, epoch=epoch)]), max_wait_ms=0)
    return result_of(await client.request(ApiKey.FETCH, 12, body))


# -- away


async def test_zookeeper_absent_at_start(tmp_path: Path) -> None:
    cluster = OneBroker(tmp_path)
    async with cluster, Proxy("127.0.0.1", cluster.zookeeper.port) as proxy:
        proxy.refusing = True
        connect = {"zookeeper_connect": proxy.address, "zookeeper_connection_timeout_ms": 300}
        other = Broker(cluster.config(log_dirs=tmp_path / "other", broker_id=1, **connect), SystemEnvironment())
        with pytest.raises(ConnectionLoss, match=f"no session with {proxy.address} within 300 ms"):
            await other.start()
        await other.stop()
        assert not (tmp_path / "other").exists()


async def test_expired_sessions_are_counted_by_the_names_of_kafkas_mbeans(tmp_path: Path) -> None:
    async with playing(tmp_path) as (cluster, _):
        metrics = Metrics()
        cluster.broker.zookeeper.register(metrics)
        await cluster.expire_session()
        found = Values.of(metrics)
        for name, count in {"SyncConnects": 2, "Disconnects": 1, "Expires": 1, "AuthFailures": 0}.items():
            assert (name, found[f"kafka.server:type=SessionExpireListener,name=ZooKeeper{name}PerSec"]) == (name, count)


async def test_zookeeper_away_within_the_session(tmp_path: Path) -> None:
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == NONE
        session = await cluster.registered()
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        assert await produce(client, "t", b"b") == NONE
        admin = await cluster.connect()
        creation = asyncio.ensure_future(admin.create_topic("u"))
        assert values((await client.fetch("t", 0, 0)).records) == [b"a", b"b"]
        assert [topic.name for topic in (await client.ask(ApiKey.METADATA, topics=None)).topics] == ["t"]
        assert not creation.done()
        cluster.proxy.refusing = False
        assert (await creation).error_code == NONE
        assert await produce(client, "u", b"c") == NONE
        assert await cluster.registered() == session
        assert await leader_epoch_of(client, "t") == 0


def metadata_topics(*names: str) -> list[Any]:
    return [messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name=name) for name in names]


async def test_topics_that_exist_are_told_of_while_zookeeper_is_away_and_others_are_not_there_yet(
    tmp_path: Path,
) -> None:
    async with playing(tmp_path, zookeeper_session_timeout_ms=10_000) as (cluster, client):
        await client.create_topic("t")
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        expired = asyncio.Event()
        await cluster.zk.exists("/brokers/ids/0", lambda event: expired.set())
        wanted = metadata_topics("t", "new", "newer")
        for waits in (True, False):
            answer = await asyncio.wait_for(
                client.ask(ApiKey.METADATA, topics=wanted, allow_auto_topic_creation=True), 3 if waits else 1
            )
            assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [
                ("t", NONE, 1),
                ("new", ErrorCode.LEADER_NOT_AVAILABLE, 0),
                ("newer", ErrorCode.LEADER_NOT_AVAILABLE, 0),
            ]
        assert not expired.is_set()
        # Nobody asks again, but what was begun is done.
        cluster.proxy.refusing = False
        await until(lambda: set(cluster.broker.parts.metadata_cache.snapshot.topics) == {"t", "new", "newer"})


async def test_without_a_session_each_item_of_a_request_gets_its_own_answer(tmp_path: Path) -> None:
    """An item that needs no ZooKeeper to be refused, or served, is; the others are to be tried again."""
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    async with playing(tmp_path, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):
        await client.create_topic("t")
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        expired = asyncio.Event()
        await cluster.zk.exists("/brokers/ids/0", lambda event: expired.set())
        creations = [
            messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for name in ("n", "t", "a/b")
        ]
        created = asyncio.ensure_future(
            (await cluster.connect()).ask(ApiKey.CREATE_TOPICS, topics=creations, timeout_ms=1000)
        )
        resource = messages.request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
        resources = [
            resource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in ((2, "t"), (2, "absent"), (4, "0"))
        ]
        described = asyncio.ensure_future((await cluster.connect()).ask(ApiKey.DESCRIBE_CONFIGS, resources=resources))
        found = await client.ask(ApiKey.FIND_COORDINATOR, key="g")
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await expired.wait()
        cluster.proxy.refusing = False
        assert [(one.resource_name, one.error_code) for one in (await described).results] == [
            ("t", timed_out),
            ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("0", NONE),
        ]
        assert [(topic.name, topic.error_code) for topic in (await created).topics] == [
            ("n", ErrorCode.NOT_CONTROLLER),
            ("t", ErrorCode.TOPIC_ALREADY_EXISTS),
            ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        await cluster.registered()


async def test_a_session_that_ends_before_a_change_of_topics_is_written_is_no_timeout(tmp_path: Path) -> None:
    """REQUEST_TIMED_OUT says that the change is written and will be done; librdkafka then reports success."""
    async with playing(tmp_path, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):
        await client.create_topic("t")
        await client.create_topic("u")
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        expired = asyncio.Event()
        await cluster.zk.exists("/brokers/ids/0", lambda event: expired.set())
        partitions = messages.request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
        creatable = messages.request_class(ApiKey.CREATE_TOPICS).CreatableTopic
        topic = creatable(name="n", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        deletable = messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState
        asked = [
            asyncio.ensure_future((await cluster.connect()).ask(api_key, **body, timeout_ms=1_000))
            for api_key, body in (
                (ApiKey.CREATE_TOPICS, {"topics": [topic], "validate_only": False}),
                (ApiKey.DELETE_TOPICS, {"topics": [deletable(name="t")], "topic_names": ["t"]}),
                (
                    ApiKey.CREATE_PARTITIONS,
                    {"topics": [partitions(name="u", count=2, assignments=None)], "validate_only": False},
                ),
            )
        ]
        await expired.wait()
        cluster.proxy.refusing = False
        created, deleted, added = [await answer for answer in asked]
        results = [*created.topics, *deleted.responses, *added.results]
        assert [(each.name, ErrorCode(each.error_code).name) for each in results] == [
            ("n", "NOT_CONTROLLER"),
            ("t", "NOT_CONTROLLER"),
            ("u", "NOT_CONTROLLER"),
        ]
        assert all("session" in each.error_message for each in results)
        assert await cluster.zk.children("/brokers/topics") == ["t", "u"]
        assert await cluster.zk.children("/admin/delete_topics") == []
        await cluster.registered()


async def test_a_stop_does_not_wait_for_zookeeper(tmp_path: Path) -> None:
    async with playing(tmp_path, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):
        await client.create_topic("t")
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        assert await produce(client, "t", b"a") == NONE
        await cluster.broker.stop()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        cluster.proxy.refusing = False
        # The session of the broker that could not say goodbye still owns the id, until it expires.
        while True:
            try:
                await cluster.start_broker()
                break
            except BrokerStartError as error:
                assert "broker id 0 is taken" in str(error)
                await cluster.broker.stop()
        client = await cluster.connect()
        assert values((await client.fetch("t", 0, 0)).records) == [b"a"]


# -- the session expires


async def test_an_expired_session_is_followed_by_another(tmp_path: Path) -> None:
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == NONE
        first = await cluster.registered()
        first_epoch = cluster.controller_epoch
        polling = asyncio.ensure_future((await cluster.connect()).fetch("t", 0, 1, max_wait_ms=60_000))
        for leader_epoch, epoch in enumerate((first_epoch + 1, first_epoch + 2), 1):
            broker_epoch = cluster.broker_epoch
            await cluster.expire_session()
            # It is the controller again, and has told itself so.
            await cluster.has_controller_epoch(epoch)
            assert cluster.broker_epoch > broker_epoch
            # Nobody else could lead; the new registration might have been that of a broker that has lost something.
            await cluster.wait_until_told()
            assert await leader_epoch_of(client, "t") == leader_epoch
            assert values((await fetch_in_epoch(client, leader_epoch)).records) == [b"a"]
        assert await cluster.registered() != first
        state = await cluster.read_json("/brokers/topics/t/partitions/0/state")
        assert (state["leader"], state["leader_epoch"]) == (0, 2)
        await cluster.wait_until_told()
        # Clients of its topics did not notice.
        assert await produce(client, "t", b"b") == NONE
        assert values((await polling).records) == [b"b"]
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1)
        assert (answer.error_code, answer.producer_id) == (NONE, 0)
        assert (await client.create_topic("u")).error_code == NONE
        assert await produce(client, "u", b"c") == NONE


async def test_zookeeper_away_for_longer_than_the_session(tmp_path: Path) -> None:
    async with playing(tmp_path, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):
        await client.create_topic("t")
        epoch = cluster.controller_epoch
        expired = asyncio.Event()
        await cluster.zk.exists("/brokers/ids/0", lambda event: expired.set())
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        while not expired.is_set():
            assert await produce(client, "t", b"a") == NONE
        end = (await client.fetch("t", 0, 0)).high_watermark
        admin, producer = await cluster.connect(), await cluster.connect()
        creation = asyncio.ensure_future(admin.create_topic("u"))
        cluster.proxy.refusing = False
        created = await creation
        assert created.error_code in (NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)
        await cluster.registered()
        await until(lambda: cluster.controller_epoch == epoch + 1)
        assert (await producer.produce("t", 0, batch(b"b"))).base_offset == end
        if created.error_code != NONE:
            assert (await admin.create_topic("u")).error_code in (NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        while await produce(client, "u", b"c") != NONE:
            pass


async def test_configs_that_change_without_a_session_are_seen_in_the_next_one(tmp_path: Path) -> None:
    """Also when their notifications have been removed by then."""
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        await cluster.end_session()
        await cluster.zk.set("/config/topics/t", b'{"version":1,"config":{"segment.bytes":"7777"}}')
        await cluster.zk.create("/config/brokers/<default>", b'{"version":1,"config":{"log.retention.ms":"-1"}}')
        cluster.proxy.refusing = False
        log = cluster.broker.parts.replica_manager.partition("t", 0).log
        await until(lambda: (log.config.segment_bytes, log.config.retention_ms) == (7777, -1))
        assert await produce(client, "t", b"a") == NONE


async def test_a_new_session_elects_with_the_configs_of_now(tmp_path: Path) -> None:
    """Unclean elections were forbidden while the broker had no session: it must not begin the next one with some."""
    async with playing(tmp_path, unclean_leader_election_enable="true") as (cluster, client):
        await client.create_topic("t")
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        await cluster.end_session()
        await cluster.zk.create("/config/brokers/<default>", FORBIDDEN)
        # As if broker 7, which is dead, had led and been the last in sync.
        await cluster.zk.set("/brokers/topics/t", b'{"version":2,"partitions":{"0":[7,0]}}')
        await cluster.zk.set("/brokers/topics/t/partitions/0/state", LeaderAndIsr(7, 1, (7,), 1).encode())
        cluster.proxy.refusing = False
        cache = cluster.broker.parts.metadata_cache
        # It is told of broker 7 before it elects.
        await until(lambda: cache.snapshot.topics["t"][0].leader_epoch > 0)
        await until(lambda: cache.snapshot.topics["t"][0].leader != 7)
        await client.create_topic("u")  # All that came before is done.
        assert cache.snapshot.topics["t"][0].leader == NO_LEADER
        assert (await cluster.read_json("/brokers/topics/t/partitions/0/state"))["isr"] == [7]


async def test_a_session_that_expires_while_the_broker_is_set_up_in_it(tmp_path: Path) -> None:
    """It is followed by another one; there are never two at a time."""
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        # Answer 1 tells of the expiry, 2 opens the new session, from 3 on the broker is set up in it.
        for answers in range(2, 11):
            before = await cluster.registered()
            cluster.proxy.refusing = True
            cluster.proxy.cut()
            await cluster.end_session()
            cluster.proxy.hold_answers(after=answers)
            cluster.proxy.refusing = False
            await cluster.proxy.held.wait()
            await cluster.end_session()
            cluster.proxy.cut()
            cluster.proxy.release()
            assert await cluster.registered() != before
            assert await produce(client, "t", b"a") == NONE
        while (code := (await client.create_topic("u")).error_code) != NONE:
            assert code == ErrorCode.NOT_CONTROLLER
        assert await produce(client, "u", b"a") == NONE
        assert len(values((await client.fetch("t", 0, 0)).records)) == 9


async def test_no_producer_ids_while_there_is_no_session(tmp_path: Path) -> None:
    """A producer that needs an id meanwhile is told to ask again; one that finds some left gets one."""
    async with playing(tmp_path, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):

        async def ask(client: Client) -> Any:
            return await client.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1)

        expired = asyncio.Event()
        await cluster.zk.exists("/brokers/ids/0", lambda event: expired.set())
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        ids = [(await ask(client)).producer_id for _ in range(1000)]
        assert ids == list(range(1000))
        waiting = asyncio.ensure_future(ask(client))
        await expired.wait()
        cluster.proxy.refusing = False
        assert (await waiting).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await cluster.registered()
        answer = await ask(client)
        assert (answer.error_code, answer.producer_id) == (NONE, 1000)


# -- two brokers, two clusters


@contextlib.asynccontextmanager
async def second_broker(cluster: OneBroker, **changes: Any) -> AsyncIterator[Broker]:
    broker = Broker(cluster.config(log_dirs=cluster.directory / "second", **changes), SystemEnvironment())
    try:
        yield broker
    finally:
        await broker.stop()


async def test_two_brokers_with_one_id(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        async with second_broker(cluster) as second:
            with pytest.raises(BrokerStartError, match=r"broker id 0 is taken: session 0x.* owns /brokers/ids/0"):
                await second.start()
        assert (await client.create_topic("u")).error_code == NONE
        assert await produce(client, "t", b"a") == NONE
        assert await leader_epoch_of(client, "t") == 0


async def test_an_address_that_another_broker_advertises(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        host, port = cluster.broker.endpoints["PLAINTEXT"]
        taken = f"PLAINTEXT://{host}:{port}"
        async with second_broker(cluster, broker_id=1, advertised_listeners=taken) as second:
            with pytest.raises(BrokerStartError, match=f"advertised.listeners: {host}:{port} belongs to broker 0"):
                await second.start()
        assert await produce(client, "t", b"a") == NONE


async def test_the_id_is_taken_while_the_session_is_gone(tmp_path: Path) -> None:
    """Then there are two: the one that lost its session stops."""
    async with playing(tmp_path, may_fail=True, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):
        await client.create_topic("t")
        expired = asyncio.Event()
        await cluster.zk.exists("/brokers/ids/0", lambda event: expired.set())
        cluster.proxy.refusing = True
        cluster.proxy.cut()
        registration, _ = await cluster.zk.get("/brokers/ids/0")
        await expired.wait()
        await cluster.zk.create("/brokers/ids/0", registration.replace(b"127.0.0.1", b"127.0.0.2"))
        cluster.proxy.refusing = False
        reason = await cluster.broker.failure
        assert isinstance(reason, BrokerStartError)
        assert "broker id 0 is taken" in str(reason)


async def test_zookeeper_loses_its_data(tmp_path: Path) -> None:
    """The broker stops as soon as it knows: nobody else could know of the topics that it would go on to serve.

    (It knows when the empty ZooKeeper has had more transactions than the lost one, and so lets it in again.) The logs
    stay as they are, and the broker refuses to join the new, empty cluster, until an operator has decided.
    """
    async with running(tmp_path, may_fail=True, zookeeper_session_timeout_ms=SESSION_MS) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == NONE
        port = cluster.zookeeper.port
        await cluster.zookeeper.stop()
        (tmp_path / "zookeeper").rename(tmp_path / "saved")
        await cluster.start_zookeeper(port)
        zk = ZooKeeperClient(SystemEnvironment(), f"127.0.0.1:{port}")
        await zk.start(5_000)
        assert await produce(client, "t", b"b") == NONE
        await asyncio.gather(*(zk.create(f"/{number}") for number in range(200)))
        reason = await cluster.broker.failure
        assert isinstance(reason, BrokerStartError)
        cluster_id = cluster.broker.cluster_id
        assert f"holds no cluster; this broker belongs to {cluster_id}" in str(reason)
        with pytest.raises(KafkaError, match=f"{tmp_path}/data belongs to cluster {cluster_id}, this is cluster"):
            await cluster.restart_broker()
        await cluster.broker.stop()
        # With ZooKeeper's data back, so is everything else.
        await zk.close()
        await cluster.zookeeper.stop()
        (tmp_path / "zookeeper").rename(tmp_path / "empty")
        (tmp_path / "saved").rename(tmp_path / "zookeeper")
        await cluster.start_zookeeper(port)
        while True:
            try:
                await cluster.start_broker()
                break
            except BrokerStartError as error:
                # The session of before the loss must expire first.
                assert "broker id 0 is taken" in str(error)
                await cluster.broker.stop()
        assert values((await (await cluster.connect()).fetch("t", 0, 0)).records) == [b"a", b"b"]


# -- garbage in znodes

GARBAGE = [
    b"",
    b"garbage",
    b"{}",
    b"null",
    b"[]",
    b'{"version":"x"}',
    b"\xff\xfe",
    b'{"version":1,"partitions":{"x":[0]}}',
]


@pytest.mark.parametrize("restart", [False, True])
async def test_garbage_in_a_topics_znode(tmp_path: Path, restart: bool) -> None:
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("good")
        await client.create_topic("spoilt")
        for topic in ("good", "spoilt"):
            assert await produce(client, topic, b"a") == NONE
        original, _ = await cluster.zk.get("/brokers/topics/spoilt")
        await cluster.zk.set("/brokers/topics/spoilt", b"garbage")
        for number, garbage in enumerate(GARBAGE):
            await cluster.zk.create(f"/brokers/topics/new-{number}", garbage)
        await cluster.zk.create("/brokers/topics/no topic's name", original)
        await cluster.zk.create("/brokers/topics/" + "x" * 400, original)
        if restart:
            await cluster.restart_broker()
            client = await cluster.connect()
        assert (await client.create_topic("later")).error_code == NONE
        for topic in ("good", "later"):
            assert await produce(client, topic, b"b") == NONE
        request = messages.request_class(ApiKey.CREATE_PARTITIONS)
        more = [request.CreatePartitionsTopic(name="spoilt", count=3, assignments=None)]
        answer = await client.ask(ApiKey.CREATE_PARTITIONS, topics=more, timeout_ms=1000, validate_only=False)
        assert answer.results[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "/brokers/topics/spoilt" in answer.results[0].error_message
        # Mended, it is served again, with its records.
        await cluster.zk.set("/brokers/topics/spoilt", original)
        while await produce(client, "spoilt", b"b") != NONE:
            pass
        assert values((await client.fetch("spoilt", 0, 0)).records)[:2] == [b"a", b"b"]


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"{}", b'{"leader":0,"leader_epoch":-5,"isr":[],"version":1}'])
async def test_garbage_in_a_partitions_state(tmp_path: Path, garbage: bytes) -> None:
    """That partition has no leader: to begin its epochs anew could take back what others have read."""
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        await client.create_topic("other")
        for topic in ("t", "other"):
            assert await produce(client, topic, b"a") == NONE
        path = "/brokers/topics/t/partitions/0/state"
        original, _ = await cluster.zk.get(path)
        await cluster.zk.set(path, garbage)
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await produce(client, "other", b"b") == NONE
        assert (await client.produce("t", 1, batch(b"b"))).error_code == NONE
        assert await produce(client, "t", b"b") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await cluster.zk.get(path))[0] == garbage
        await cluster.zk.set(path, original)
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await produce(client, "t", b"b") == NONE
        assert values((await client.fetch("t", 0, 0)).records) == [b"a", b"b"]


async def test_garbage_in_a_topics_config(tmp_path: Path) -> None:
    async with playing(tmp_path) as (cluster, client):
        configs = [
            b"garbage",
            b"{}",
            b'{"version":1,"config":[]}',
            b'{"version":1,"config":{"segment.bytes":5}}',
            b'{"version":1,"config":{"segment.bytes":"-7","unheard.of":"x"}}',
        ]
        names = [f"t{number}" for number in range(len(configs))]
        for name, config in zip(names, configs, strict=True):
            await client.create_topic(name)
            assert await produce(client, name, b"a") == NONE
            await cluster.zk.set(f"/config/topics/{name}", config)
        await cluster.restart_broker()
        client = await cluster.connect()
        for name in names:
            assert await produce(client, name, b"b") == NONE
            assert values((await client.fetch(name, 0, 0)).records) == [b"a", b"b"]
        assert (await client.create_topic("later")).error_code == NONE


@pytest.mark.parametrize(
    ("name", "registration"),
    [
        ("7", b"garbage"),
        ("x", b""),
        ("99999999999", b'{"version":5,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],"jmx_port":-1}'),
        ("7" * 200, b""),
        ("7", b'{"version":5,"host":"h","port":1,"endpoints":["PLAINTEXT://a..b:1"],"jmx_port":-1}'),
        ("7", b'{"version":1,"host":"h","port":-1,"jmx_port":-1}'),
        ("7", b'{"version":5,"endpoints":["PLAINTEXT://%s:1"],"jmx_port":-1}' % (b"h" * 40_000)),
    ],
    ids=["garbage", "no number", "huge id", "long id", "impossible host", "impossible port", "long host"],
)
async def test_garbage_among_the_brokers(tmp_path: Path, name: str, registration: bytes) -> None:
    """Whatever says it is a broker concerns no other one: neither its sessions, nor its start, nor the controller."""
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await cluster.zk.create(f"/brokers/ids/{name}", registration)
        assert (await client.create_topic("u")).error_code == NONE
        assert await produce(client, "u", b"a") == NONE
        epoch = cluster.controller_epoch
        await cluster.expire_session()
        await until(lambda: cluster.controller_epoch == epoch + 1)
        await cluster.wait_until_told()
        assert await produce(client, "t", b"a") == NONE
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await produce(client, "t", b"b") == NONE


@pytest.mark.parametrize("path", ["/cluster/id", "/latest_producer_id_block"], ids=["cluster id", "producer ids"])
async def test_garbage_that_concerns_the_whole_cluster_stops_the_start(tmp_path: Path, path: str) -> None:
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == NONE
        await cluster.broker.stop()
        original = (await cluster.zk.get(path))[0] if await cluster.zk.exists(path) else None
        await (cluster.zk.create(path, b"garbage") if original is None else cluster.zk.set(path, b"garbage"))
        with pytest.raises(BrokerStartError, match=f"znode {path}: not JSON"):
            await cluster.start_broker()
        await cluster.broker.stop()
        await (cluster.zk.delete(path) if original is None else cluster.zk.set(path, original))
        await cluster.start_broker()
        assert values((await (await cluster.connect()).fetch("t", 0, 0)).records) == [b"a"]


async def test_garbage_among_the_marks_for_deletion(tmp_path: Path) -> None:
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        done = asyncio.Event()
        await cluster.zk.create("/admin/delete_topics/never was", b"garbage")
        await cluster.zk.exists("/admin/delete_topics/never was", lambda event: done.set())
        await done.wait()
        assert await produce(client, "t", b"a") == NONE


async def test_znodes_removed_under_the_broker(tmp_path: Path) -> None:
    """Somebody removes a topic's znodes by hand: its records stay, other topics are created and served as before."""
    async with playing(tmp_path) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == NONE
        await cluster.zk.delete_recursive("/brokers/topics/t")
        assert (await client.create_topic("u")).error_code == NONE
        assert await produce(client, "t", b"b") == NONE
        assert await produce(client, "u", b"b") == NONE
