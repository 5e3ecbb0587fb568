"""Why, on real klamm clusters whose brokers are stopped: the answer is right, and the command that it gives helps."""

import asyncio
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from klamm.net.client import ConnectionOptions, connect
from klamm.processes.helper import Helper
from klamm.protocol.apis.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.testing import Cluster
from support.clusters import KlammBroker, KlammZooKeeper
from support.cockpit_pages import asker
from support.processes import free_port

PROPERTIES = {"replica.lag.time.max.ms": 1_000, "auto.leader.rebalance.enable": "false"}


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=3, properties=PROPERTIES, helper=klamm_helper) as running:
        yield running


@pytest.fixture(autouse=True)
def all_run(cluster: Cluster) -> None:
    for broker in cluster.broker_ids:
        if broker not in [each.id for each in cluster.brokers if each.running]:
            cluster.start(broker)
    cluster.until(lambda: not cluster.under_replicated())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs the command of a remedy as a shell would, with the answer yes."""
    monkeypatch.chdir(tmp_path)

    def shell(command: str) -> None:
        for line in command.splitlines():
            words = shlex.split(line)
            if words[0] == "echo":
                assert words[2] == ">"
                (tmp_path / words[3]).write_text(words[1])
            else:
                assert main.run([*words[1:], "--yes"]) == 0, line

    return shell


async def why(cluster: Cluster, topic: str) -> dict[str, Any]:
    async with asker(cluster.bootstrap, cluster.zookeeper) as pages:
        found: dict[str, Any] = await pages.get("/api/why", topic=topic, partition=0)
        return found


def of(found: dict[str, Any], kind: str) -> dict[str, Any]:
    [condition] = [each for each in found["conditions"] if each["kind"] == kind]
    return dict(condition)


def commands(found: dict[str, Any], kind: str) -> list[str]:
    return [each["command"] for each in of(found, kind)["remedies"] if each["command"]]


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(120) == 0


def without_leader(cluster: Cluster, topic: str, end: Callable[[int], None]) -> tuple[int, int]:
    """The partition lost its follower, got two records more, and lost its leader by `end`; the follower is back.

    Returns the dead leader and the follower. The controller's broker stays.
    """
    leader, follower = of_others(cluster, topic)
    produce(cluster, topic, 3)
    cluster.kill(follower)
    cluster.until(lambda: cluster.isr(topic) == [leader])
    produce(cluster, topic, 2)
    end(leader)
    cluster.start(follower, wait=False)
    cluster.until(lambda: cluster.leader(topic) is None and follower in _registered(cluster))
    return leader, follower


def _registered(cluster: Cluster) -> list[int]:
    """The brokers whose sessions have not ended."""
    living = next(each for each in cluster.brokers if each.running)
    return sorted(AdminClient({"bootstrap.servers": living.address}).list_topics(timeout=120).brokers)


@pytest.mark.parametrize(("remedy", "end"), [(0, "kill"), pytest.param(1, "stop", marks=pytest.mark.long)])
async def test_an_offline_partition_has_its_reason_price_story_and_a_command_that_helps(
    cluster: Cluster, run: Callable[[str], None], remedy: int, end: str
) -> None:
    topic = f"offline-{remedy}"
    leader, follower = without_leader(cluster, topic, getattr(cluster, end))
    found = await why(cluster, topic)
    [offline] = [each for each in found["conditions"] if each["kind"] == "offline"]
    assert offline["why"][0] == f"no replica of the ISR (broker {leader}) can lead"
    assert f"broker {leader} is not live (it is in the ISR)" in offline["why"]
    assert offline["remedies"][0]["text"].startswith(f"Start broker {leader}. Nothing is lost")
    assert f"broker {leader} is not live, and what only it has is lost" in offline["remedies"][1]["price"]
    states = {each["broker_id"]: each["state"] for each in found["replicas"]}
    assert states == {leader: "offline", follower: "out of sync"}
    [dead] = [each for each in found["replicas"] if each["broker_id"] == leader]
    story = found["story"]
    assert story["source"] == "the records of klamm controllers"
    assert [each["controller_epoch"] for each in story["entries"]] == sorted(
        each["controller_epoch"] for each in story["entries"]
    )
    refused = [each for each in story["entries"] if "(event ControlledShutdown)" in each["text"]]
    assert [each["is_failed"] for each in refused] == [True] * (end == "stop")
    went = [each["time_ms"] for each in story["entries"] if each["subject"] == f"replica {leader}"]
    assert dead["since_ms"] is None or dead["since_ms"] in went
    run(commands(found, "offline")[remedy])
    cluster.until(lambda: cluster.leader(topic) == follower)


@pytest.mark.long
async def test_what_falls_short_of_min_insync_replicas_is_mended_by_the_command(
    cluster: Cluster, run: Callable[[str], None]
) -> None:
    cluster.create_topic("short", partitions=1, replication_factor=2, configs={"min.insync.replicas": "2"})
    leader = cluster.leader("short")
    [follower] = cluster.followers("short")
    cluster.kill(follower)
    cluster.until(lambda: cluster.isr("short") == [leader])
    found = await why(cluster, "short")
    assert [each["kind"] for each in found["conditions"]] == ["under_min_isr", "under_replicated"]
    assert "min.insync.replicas is 2, set on the topic" in found["conditions"][0]["why"]
    assert found["conditions"][0]["remedies"][0]["text"] == f"Start broker {follower}."
    run(commands(found, "under_min_isr")[0])
    produce(cluster, "short", 1)
    kinds = [each["kind"] for each in (await why(cluster, "short"))["conditions"]]
    assert "under_min_isr" not in kinds


@pytest.mark.long
async def test_the_preferred_leader_gets_its_partition_back_by_the_command(
    cluster: Cluster, run: Callable[[str], None]
) -> None:
    cluster.create_topic("moved", partitions=1, replication_factor=2)
    preferred = cluster.replicas("moved")[0]
    cluster.restart(preferred)
    cluster.until(lambda: len(cluster.isr("moved")) == 2)
    found = await why(cluster, "moved")
    assert [each["kind"] for each in found["conditions"]] == ["healthy", "off_preferred"]
    run(commands(found, "off_preferred")[0])
    assert cluster.leader("moved") == preferred
    assert [each["kind"] for each in (await why(cluster, "moved"))["conditions"]] == ["healthy"]


@pytest.mark.long
async def test_a_reassignment_says_what_it_waits_for_and_the_command_cancels_it(
    cluster: Cluster, run: Callable[[str], None]
) -> None:
    cluster.create_topic("moving", partitions=1, replication_factor=1)
    [origin] = cluster.replicas("moving")
    target = next(each for each in cluster.broker_ids if each != origin)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(8):
        producer.produce("moving", b"x" * 900_000, partition=0)
    assert producer.flush(120) == 0
    plan = f'{{"version":1,"partitions":[{{"topic":"moving","partition":0,"replicas":[{target}]}}]}}'
    options = f"--no-wait --throttle 1000 --bootstrap-server {cluster.bootstrap}"
    run(f"echo '{plan}' > plan.json\nklamm reassign execute --reassignment-json-file plan.json {options}")
    moving = of(await why(cluster, "moving"), "reassigning")
    assert f"Step A: broker {target} copies the log." in moving["text"]
    assert any(each.startswith(f"replication is throttled: broker {target} has") for each in moving["why"])
    assert f"klamm configs alter --broker {target} --delete-config" in " ".join(
        each["command"] for each in moving["remedies"]
    )
    cluster.kill(target)
    cluster.until(lambda: target not in _registered(cluster))
    moving = of(await why(cluster, "moving"), "reassigning")
    assert f"broker {target} is not live" in moving["why"]
    assert moving["remedies"][0]["text"] == f"Start broker {target}."
    run(moving["remedies"][-1]["command"])
    assert cluster.replicas("moving") == [origin]


def of_others(cluster: Cluster, topic: str) -> tuple[int, int]:
    """A topic with one partition on two brokers of which neither is the controller: its leader and its follower."""
    leader, follower = [each for each in cluster.broker_ids if each != cluster.controller_id()][:2]
    new = NewTopic(topic, 1, replica_assignment=[[leader, follower]])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([new])[topic].result(120)
    cluster.until(lambda: sorted(cluster.isr(topic)) == sorted((leader, follower)))
    return leader, follower


@pytest.mark.long
async def test_a_deletion_that_waits_for_a_dead_broker_ends_when_that_is_started(cluster: Cluster) -> None:
    _, follower = of_others(cluster, "doomed")
    cluster.kill(follower)
    cluster.until(lambda: follower not in _registered(cluster))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics(["doomed"])["doomed"].result(120)
    found = await why(cluster, "doomed")
    deleting = of(found, "deleting")
    assert [each["kind"] for each in found["conditions"]] == ["deleting"]
    assert deleting["is_problem"]
    assert f"broker {follower} is not live" in " ".join(deleting["why"])
    assert deleting["remedies"][0]["text"] == f"Start broker {follower}."
    cluster.start(follower)

    async def is_gone() -> bool:
        async with asker(cluster.bootstrap, cluster.zookeeper) as pages:
            status, _ = await pages.ask("/api/why", topic="doomed", partition=0)
            return status == 404

    async with asyncio.timeout(120):
        while not await is_gone():
            pass


@pytest.mark.long
async def test_a_leader_that_hangs_is_named_and_the_partition_is_well_when_it_goes_on(cluster: Cluster) -> None:
    leader, _ = of_others(cluster, "hung")
    cluster.pause(leader)
    try:
        found = await why(cluster, "hung")
    finally:
        cluster.resume(leader)
    kinds = [each["kind"] for each in found["conditions"]]
    if cluster.leader("hung") == leader:  # Otherwise its session has ended meanwhile, and another replica leads.
        assert "silent_leader" in kinds
        silent = of(found, "silent_leader")
        assert silent["text"].startswith(f"The leader, broker {leader}, does not answer.")
        assert silent["remedies"][0]["text"] == f"See why broker {leader} does not answer, and restart the process."
    cluster.until(lambda: len(cluster.isr("hung")) == 2)


@pytest.mark.long
async def test_a_leader_that_shuts_down_without_a_successor_is_named_and_the_command_brings_one(
    cluster: Cluster, run: Callable[[str], None]
) -> None:
    leader, follower = of_others(cluster, "leaving")
    cluster.kill(follower)
    cluster.until(lambda: cluster.isr("leaving") == [leader])
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(8):
        producer.produce("leaving", b"x" * 900_000, partition=0)
    assert producer.flush(120) == 0
    at = f"--bootstrap-server {cluster.bootstrap}"
    run(f"klamm configs alter --topic leaving --add-config 'leader.replication.throttled.replicas=*' {at}")
    run(f"klamm configs alter --broker {leader} --add-config leader.replication.throttled.rate=1000 {at}")
    cluster.start(follower)
    try:
        # As a broker asks that stops. This one stays, as one of Apache Kafka does until its last retry.
        assert ("leaving", 0) in await shut_down(cluster, leader)
        found = await why(cluster, "leaving")
        assert [each["kind"] for each in found["conditions"]][:2] == ["leader_shutting_down", "under_replicated"]
        leaving = of(found, "leader_shutting_down")
        assert leaving["text"].startswith(f"The leader, broker {leader}, is shutting down, and no other replica")
        assert found["replicas"][0]["why"] == f"broker {leader} is shutting down (it is in the ISR)"
        last = found["story"]["entries"][-1]
        assert (last["is_failed"], "(event ControlledShutdown)" in last["text"]) == (True, True)
        run(commands(found, "leader_shutting_down")[0])
        cluster.until(lambda: sorted(cluster.isr("leaving")) == sorted((leader, follower)))
        assert ("leaving", 0) not in await shut_down(cluster, leader)
        assert cluster.leader("leaving") == follower
    finally:
        cluster.restart(leader)


async def shut_down(cluster: Cluster, broker_id: int) -> list[tuple[str, int]]:
    """Asks the controller to move all leaderships of this broker; returns those that it could not move."""
    controller_id = cluster.controller_id()
    assert controller_id is not None
    controller = cluster.broker(controller_id)
    connection = await connect(controller.host, controller.port, ConnectionOptions("test"))
    try:
        response: ControlledShutdownResponse = await connection.send(
            ApiKey.CONTROLLED_SHUTDOWN, lambda version: ControlledShutdownRequest(broker_id=broker_id)
        )
    finally:
        connection.close()
    assert response.error_code == ErrorCode.NONE
    return [(each.topic_name, each.partition_index) for each in response.remaining_partitions]


@pytest.mark.long
async def test_a_failed_log_directory_is_named_and_the_command_elects_another_leader(
    tmp_path: Path, run: Callable[[str], None]
) -> None:
    zookeeper = KlammZooKeeper(tmp_path / "zookeeper")
    servers: list[KlammZooKeeper | KlammBroker] = [zookeeper]
    try:
        zookeeper.start()
        brokers = [directories_broker(tmp_path, zookeeper.connect, broker_id) for broker_id in range(3)]
        for broker in brokers:
            servers.append(broker)
            broker.start()
        # Broker 0 started first, so it is the controller.
        controller, leader, follower = brokers
        admin = AdminClient({"bootstrap.servers": controller.bootstrap})
        new = NewTopic("broken", 1, replica_assignment=[[1, 2]], config={"segment.bytes": "10000"})
        admin.create_topics([new])["broken"].result(120)
        reach = f"{controller.bootstrap},{leader.bootstrap},{follower.bootstrap}"
        producer = Producer({"bootstrap.servers": reach, "message.timeout.ms": 5_000})

        def write() -> None:
            producer.produce("broken", b"x" * 9_000, partition=0)
            producer.flush(120)

        async def until(told: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            found: dict[str, Any] | None = None
            async with asyncio.timeout(120), asker(reach, zookeeper.connect) as pages:
                while found is None or not told(found):
                    found = await pages.get("/api/why", topic="broken", partition=0)
            return found

        write()
        follower.kill()
        await until(lambda found: found["isr"] == [1])
        write()
        follower.start()
        [log] = leader.directory.glob("*/broken-0")
        log.parent.rename(tmp_path / "gone")
        write()  # The leader needs a new segment, and finds no directory for it.
        found = await until(lambda found: found["leader"] == -1 and len(found["replicas"]) == 2)
        offline = of(found, "offline")
        assert offline["why"][0] == "no replica of the ISR (broker 1) can lead"
        why_not = f"broker 1 has the replica in a log directory that is offline: {log.parent} (it is in the ISR)"
        assert offline["why"][1] == why_not
        repair = f"Repair the log directory ({log.parent}) of broker 1, and restart the broker."
        assert offline["remedies"][0]["text"] == f"{repair} Nothing is lost: it has all acknowledged records."
        assert [each["state"] for each in found["replicas"]] == ["offline", "out of sync"]
        run(commands(found, "offline")[0])
        found = await until(lambda found: found["leader"] == 2)
        assert of(found, "under_replicated")["remedies"][0]["text"] == repair
        (tmp_path / "gone").rename(log.parent)
        leader.stop()
        leader.start()
        await until(lambda found: sorted(found["isr"]) == [1, 2])
    finally:
        for server in servers:
            server.kill()


def directories_broker(directory: Path, zookeeper: str, broker_id: int) -> KlammBroker:
    """A broker with two log directories."""
    own = directory / f"broker-{broker_id}"
    properties: dict[str, str | int] = {
        "log.dirs": f"{own}/one,{own}/two",
        "klamm.metrics.port": free_port(),
        "replica.lag.time.max.ms": 1_000,
        "zookeeper.session.timeout.ms": 4_000,
    }
    return KlammBroker(own, zookeeper, broker_id=broker_id, properties=properties)


async def test_the_story_is_read_from_state_change_logs_where_they_are_given(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("told", partitions=1, replication_factor=1)
    (tmp_path / "state-change.log").write_text(
        "[2026-01-02 03:04:05,678] INFO [Controller id=1 epoch=4] Changed partition told-0 from NewPartition to"
        " OnlinePartition with state LeaderAndIsr(leader=1, leaderEpoch=0, isr=List(1), zkVersion=0)"
        " (state.change.logger)\n"
    )
    async with asker(cluster.bootstrap, cluster.zookeeper, logs=tmp_path) as pages:
        [entry] = (await pages.get("/api/why", topic="told", partition=0))["story"]["entries"]
    assert (entry["time"], entry["writer"], entry["controller_epoch"]) == ("2026-01-02 03:04:05,678", "controller 1", 4)
    assert (entry["before"], entry["after"], entry["leader"]) == ("NewPartition", "OnlinePartition", 1)


async def test_an_unknown_partition_and_topic_are_named(cluster: Cluster) -> None:
    async with asker(cluster.bootstrap, cluster.zookeeper) as pages:
        status, value = await pages.ask("/api/why", topic="missing", partition=0)
        assert (status, "missing-0 does not exist" in value["error"]) == (404, True)
        status, value = await pages.ask("/api/why", topic="missing", partition="x")
        assert (status, value["error"]) == (400, "partition='x' is not a number from 0 to 2147483647.")
