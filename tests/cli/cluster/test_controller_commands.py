"""klamm controller: what is printed, and against real clusters."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.access import controller as access
from klamm.access.controller import ControllerAddress, NotKlamm, find_controller, read_status, zookeeper_of_brokers
from klamm.cli import main
from klamm.cli.cluster import controller
from klamm.cli.cluster.controller import _records, record_line, status_lines
from klamm.processes.helper import Helper
from klamm.processes.tool_errors import ToolError
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.describe_configs import DescribeConfigsResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ConfigResourceType
from klamm.testing import Cluster
from support.processes import ManagedProcess
from support.scripted_cluster import HANG_UP, ScriptedCluster

KLAMM = [sys.executable, "-m", "klamm.cli.main"]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=3, helper=klamm_helper) as running:
        running.create_topic("t", partitions=2, replication_factor=3)
        yield running


@pytest.fixture
def klamm(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns what it prints."""

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main.run(["controller", *arguments])
        output = capsys.readouterr()
        assert ended == code, output.err
        return output.err if code else output.out

    return run


# -- texts ------------------------------------------------------------------------------------------------------------

ADDRESS = ControllerAddress(1, 7, 1_609_459_200_000, "host1", 9999, addresses={1: "host1:9092"})
STATUS: dict[str, Any] = {
    "active": True,
    "state": "BrokerChange",
    "event": "BrokerChange",
    "event_for_ms": 12,
    "event_queue_size": 3,
    "event_waits_ms": 11,
    "brokers": [
        {
            "broker_id": 1,
            "epoch": 20,
            "queue_size": 2,
            "sending": "LeaderAndIsr",
            "sending_for_ms": 5,
            "offline_replicas": 4,
            "shutting_down": True,
            "trouble": "cannot connect",
        }
    ],
    "topics": 2,
    "partitions": 9,
    "preferred_replica_imbalance": 1,
    "offline_partitions": {
        "count": 2,
        "first": [
            {"topic": "t", "partition": 0, "leader": -1, "replicas": [2, 3], "isr": [2], "why": "not alive: broker 2"}
        ],
    },
    "under_replicated_partitions": {
        "count": 1,
        "first": [{"topic": "t", "partition": 1, "leader": 1, "replicas": [1, 2], "isr": [1], "why": "so"}],
    },
    "deletions": {"count": 1, "first": [{"topic": "u", "deleted": 1, "replicas": 3, "waits_for": "its turn"}]},
    "reassignments": {
        "count": 1,
        "first": [
            {
                "topic": "v",
                "partition": 0,
                "replicas": [3, 1],
                "adding_replicas": [3],
                "removing_replicas": [1],
                "isr": [1],
                "waits_for": "not caught up: broker 3",
            }
        ],
    },
}


def test_a_status_for_people() -> None:
    first, since, *rest = status_lines(ADDRESS, STATUS)
    assert first == "Controller: broker 1 at host1:9092, epoch 7"
    assert re.fullmatch(r"Since: 202[01]-\d\d-\d\d \d\d:00:00 \S+ \([+-]\d{4}\)", since)
    assert rest == [
        "Status port: 9999 (http://host1:9999/controller)",
        "State: BrokerChange (doing BrokerChange for 12 ms)",
        "Event queue: 3 events, the first for 11 ms",
        "Cluster: 1 brokers, 2 topics, 9 partitions, 1 not led by their preferred replica",
        "\tBroker: 1\tAddress: host1:9092\tEpoch: 20\tQueue: 2\tSending: LeaderAndIsr for 5 ms\tOfflineReplicas: 4"
        "\tshutting down\tTrouble: cannot connect",
        "Offline partitions: 2",
        "\tTopic: t\tPartition: 0\tLeader: none\tReplicas: 2,3\tIsr: 2\tWhy: not alive: broker 2",
        "\t... and 1 more",
        "Under-replicated partitions: 1",
        "\tTopic: t\tPartition: 1\tLeader: 1\tReplicas: 1,2\tIsr: 1\tWhy: so",
        "Deletions in progress: 1",
        "\tTopic: u\tDeleted: 1 of 3 replicas\tWaits for: its turn",
        "Reassignments in progress: 1",
        "\tTopic: v\tPartition: 0\tReplicas: 3,1\tAddingReplicas: 3\tRemovingReplicas: 1\tIsr: 1"
        "\tWaits for: not caught up: broker 3",
    ]


def test_a_controller_that_tells_nothing() -> None:
    assert list(status_lines(ADDRESS, None))[3:] == [
        "No further status: the broker runs Apache Kafka, or its klamm.metrics.port is -1."
    ]
    assert list(status_lines(ADDRESS, {"active": False}))[3:] == [
        "ZooKeeper names this broker, but it is not active: it is taking over, or has lost its session."
    ]


COMMON = {"time_ms": 1_609_459_200_007, "controller": 1, "epoch": 7, "event": "TopicChange"}
CHANGE = {
    **COMMON,
    "topic": "t",
    "partition": 0,
    "from": "A",
    "to": "B",
    "leader": None,
    "leader_epoch": None,
    "isr": None,
    "failed": False,
    "why": "",
}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            {
                **COMMON,
                "kind": "event",
                "state": "TopicChange",
                "queue_time_ms": 2,
                "processing_time_ms": 3.5,
                "outcome": "processed",
            },
            "processed in 3.5 ms, after 2 ms in the queue",
        ),
        ({**COMMON, "kind": "controller", "text": "Resigned"}, "Resigned"),
        (
            {**COMMON, "kind": "request", "api": "LeaderAndIsr", "brokers": [2], "size": 3, "led": 1},
            "LeaderAndIsr to broker 2, 3 partitions, to lead 1",
        ),
        (
            {**COMMON, "kind": "request", "api": "UpdateMetadata", "brokers": [1, 2], "size": 3},
            "UpdateMetadata to broker 1,2, 3 partitions",
        ),
        (
            {**COMMON, "kind": "request", "api": "StopReplica", "brokers": [2], "size": 3, "delete": True},
            "StopReplica to broker 2, 3 partitions to delete them",
        ),
        ({**CHANGE, "kind": "partition"}, "t-0 A -> B"),
        (
            {**CHANGE, "kind": "replica", "replica": 3, "leader": 1, "leader_epoch": 4, "isr": [1, 2], "why": "so"},
            "replica 3 of t-0 A -> B, leader 1 epoch 4 isr 1,2: so",
        ),
        ({**CHANGE, "kind": "partition", "failed": True, "why": "nobody"}, "FAILED t-0 A -> B: nobody"),
    ],
)
def test_records_for_people(record: dict[str, Any], text: str) -> None:
    when, _, rest = record_line(record).partition(",007 ")
    assert when.startswith("20")
    assert rest == f"controller 1 epoch 7 TopicChange: {text}"


def test_a_gap_for_people() -> None:
    line = record_line({"kind": "missed", "records": 4})
    assert line == "... 4 records are missing: the controller wrote them faster than klamm read them"


@contextlib.contextmanager
def answering(*answers: bytes, open_until: threading.Event | None = None) -> Iterator[ControllerAddress]:
    """A controller at whose port one connection after another gets one of these answers."""

    def serve() -> None:
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)
                if open_until is not None:
                    open_until.wait(120)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        yield ControllerAddress(1, 7, 1_609_459_200_000, "127.0.0.1", server.getsockname()[1])
        if open_until is not None:
            open_until.set()
        serving.join()


OTHER_PROGRAMS = [b"", b"\x00RMI\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>\n", b"HTTP/1.1 404 No\r\n\r\n"]


@pytest.mark.parametrize("answer", [*OTHER_PROGRAMS, b"HTTP/1.1 200 OK\r\n\r\n[]\n", b"HTTP/1.1 200 OK\r\n\r\n{}\n"])
def test_another_program_at_the_port(answer: bytes) -> None:
    with answering(answer) as address, pytest.raises(NotKlamm, match="is not klamm's status port"):
        list(_records(address, True, print, is_patient=False))
    with pytest.raises(ToolError, match=r"broker 1 does not answer at http://127\.0\.0\.1:"):
        read_status(address)


@pytest.mark.parametrize("answer", OTHER_PROGRAMS)
def test_the_status_of_a_kafka_with_jmx(monkeypatch: pytest.MonkeyPatch, klamm: Run, answer: bytes) -> None:
    with answering(answer) as address:
        monkeypatch.setattr(controller, "find_controller", lambda connect: address)
        first, _, _, last = klamm("status", "--zookeeper", "zk").splitlines()
    assert first == "Controller: broker 1 at 127.0.0.1, epoch 7"
    assert last.startswith("No further status: the broker runs Apache Kafka")


def test_the_status_of_a_controller_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(address: ControllerAddress, *arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(controller, "find_controller", lambda connect: address)
        assert main.run(["controller", "status", "--zookeeper", "zk", *arguments]) == 1
        output = capsys.readouterr()
        return output.out, output.err

    with answering() as nobody:
        pass
    out, err = status(nobody)
    assert out.splitlines()[0] == "Controller: broker 1 at 127.0.0.1, epoch 7"
    assert len(out.splitlines()) == 3
    assert err.startswith("klamm: broker 1 does not answer at http://127.0.0.1:")
    out, err = status(nobody, "--json")
    assert (json.loads(out)["broker_id"], json.loads(out)["status"]) == (1, None)
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") as torn:
        assert status(torn)[1] == "klamm: broker 1 has stopped in the middle of its answer\n"
    out, err = status(ControllerAddress(1, 7, 1_609_459_200_000, "", None, registered=False))
    assert out.splitlines()[0] == "Controller: broker 1, epoch 7"
    assert err == "klamm: broker 1 is not registered: it has died, or lost its session\n"


def described(broker_id: int, address: str | None) -> tuple[ApiKey, DescribeConfigsResponse]:
    struct = DescribeConfigsResponse.DescribeConfigsResult
    config = struct.DescribeConfigsResourceResult(
        name="zookeeper.connect", value=address, read_only=True, is_sensitive=False
    )
    result = struct(
        error_code=0,
        error_message=None,
        resource_type=ConfigResourceType.BROKER,
        resource_name=str(broker_id),
        configs=[config],
    )
    return ApiKey.DESCRIBE_CONFIGS, DescribeConfigsResponse(results=[result])


async def test_where_zookeeper_is_says_the_first_broker_that_answers() -> None:
    dead = (ApiKey.DESCRIBE_CONFIGS, HANG_UP)
    async with ScriptedCluster(dead, described(1, "zk:2181/k")) as cluster:
        assert await zookeeper_of_brokers(cluster.client()) == "zk:2181/k"
    async with ScriptedCluster(dead, dead) as cluster:
        with pytest.raises(KafkaError, match=r"NETWORK_EXCEPTION \(13\): .* the broker closed the connection"):
            await zookeeper_of_brokers(cluster.client())
    async with ScriptedCluster(described(0, None)) as cluster:
        with pytest.raises(ToolError, match=r"broker 0 has no zookeeper\.connect"):
            await zookeeper_of_brokers(cluster.client())
    async with ScriptedCluster() as cluster:
        cluster.forget(0)
        cluster.forget(1)
        with pytest.raises(ToolError, match="the cluster's metadata names no live broker"):
            await zookeeper_of_brokers(cluster.client())


RECORD = json.dumps({**COMMON, "sequence": 3, "kind": "controller", "text": "one"}).encode() + b"\n"
STREAM = b"HTTP/1.1 200 OK\r\n\r\n" + RECORD


def test_a_record_that_was_torn(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(STREAM + RECORD[:-20]) as address:
        records = _records(address, False, print, is_patient=False)
        assert next(records)["text"] == "one"
        with pytest.raises(ToolError, match="broker 1 has stopped in the middle of a record"):
            next(records)
    chunks = b"%x\r\n%b\r\n%x\r\n%b" % (len(RECORD), RECORD, len(RECORD), RECORD[:-20])
    with answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks) as address:
        records = _records(address, False, print, is_patient=False)
        assert next(records)["text"] == "one"
        with pytest.raises(ToolError, match="broker 1 has stopped in the middle of its answer"):
            next(records)
    with answering(STREAM + RECORD[:-20]) as address:
        assert [record["text"] for record in _records(address, True, print, is_patient=False)] == ["one"]
    assert "in the middle of a record; looking for the controller" in capsys.readouterr().out


def test_a_stream_in_which_nothing_comes_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controller, "_lines", partial(access._lines, timeout_s=0.3))
    with answering(STREAM + b'{"kind":"idle"}\n', open_until=threading.Event()) as address:
        assert [record["text"] for record in _records(address, True, print, is_patient=False)] == ["one"]
    assert "does not answer" in capsys.readouterr().out


# -- clusters ---------------------------------------------------------------------------------------------------------


def test_status(cluster: Cluster, klamm: Run) -> None:
    where = ("--bootstrap-server", cluster.bootstrap)
    controller = cluster.controller_id()
    lines = klamm("status", *where).splitlines()
    assert controller is not None
    address = cluster.broker(controller).address
    assert lines[0].startswith(f"Controller: broker {controller} at {address}, epoch ")
    for broker in cluster.brokers:
        assert any(line.startswith(f"\tBroker: {broker.id}\tAddress: {broker.address}\t") for line in lines)
    assert "Cluster: 3 brokers, 1 topics, 2 partitions, 0 not led by their preferred replica" in lines
    assert "Under-replicated partitions: 0" in lines
    for told in (where, ("--zookeeper", cluster.zookeeper)):
        found = json.loads(klamm("status", "--json", *told))
        assert found["broker_id"] == found["status"]["controller_id"] == controller
        assert found["epoch"] == found["status"]["epoch"]
        assert abs(found["since_ms"] - found["status"]["since_ms"]) < 60_000
        assert [broker["broker_id"] for broker in found["status"]["brokers"]] == [0, 1, 2]


def test_move_and_events_of_both_controllers(cluster: Cluster, klamm: Run, tmp_path: Path) -> None:
    where = ("--zookeeper", cluster.zookeeper)
    records = [json.loads(line) for line in klamm("events", "--json", *where).splitlines()]
    assert {"NewPartition", "OnlinePartition"} <= {record.get("to") for record in records}
    command = [*KLAMM, "controller", "events", "--follow", "--json", *where]
    following = ManagedProcess("events", command, tmp_path / "events")
    try:
        following.wait_for("OnlinePartition")
        moved = json.loads(klamm("move", "--json", *where))
        assert moved["after"]["epoch"] == moved["before"]["epoch"] + 1
        assert moved["after"]["broker_id"] == cluster.controller_id()
        following.wait_for(f"Ready to serve as the new controller with epoch {moved['after']['epoch']}")
        text = klamm("move", *where)
        assert text.splitlines()[0] == (
            f"The controller was broker {moved['after']['broker_id']} (epoch {moved['after']['epoch']})."
        )
        following.wait_for(f"Ready to serve as the new controller with epoch {moved['after']['epoch'] + 1}")
    finally:
        following.kill()
    told = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()[:-1] if line[0] == "{"]
    keys = [(record["epoch"], record["sequence"]) for record in told]
    assert keys == sorted(set(keys))


def test_a_controller_that_was_elected_meanwhile_is_not_moved(
    cluster: Cluster, klamm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, seen = access.read_controller, []

    async def read_and_lose(store: Any) -> Any:
        found = await read(store)
        assert found is not None
        if not seen:
            await store.client.delete("/controller")
            while (now := await read(store)) is None or now[0].epoch == found[0].epoch:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        seen.append(found)
        return found

    monkeypatch.setattr(access, "read_controller", read_and_lose)
    moved = json.loads(klamm("move", "--json", "--zookeeper", cluster.zookeeper))
    assert moved["after"]["epoch"] == moved["before"]["epoch"] + 1
    now = find_controller(cluster.zookeeper)
    assert now is not None and now.epoch == moved["after"]["epoch"]


def test_the_log_files(cluster: Cluster) -> None:
    logs = [cluster.directory / "logs" / f"broker-{broker}" for broker in cluster.broker_ids]
    changes = "".join((directory / "state-change.log").read_text() for directory in logs)
    assert changes.count("Changed partition t-0 from NewPartition to OnlinePartition with state LeaderAndIsr(") == 1
    assert len(re.findall(r"\[Broker id=[0-2]\] Leader t-0 starts at leader epoch 0 from offset 0 with", changes)) == 1
    assert (
        len(re.findall(r"\[Broker id=[0-2]\] Follower t-0 starts at leader epoch 0 from offset 0 with", changes)) == 2
    )
    added = r"INFO \[Broker id=0\] Add 2 partitions and deleted 0 partitions from metadata cache in response to"
    assert re.search(
        rf"{added} UpdateMetadata request sent by controller [0-2] epoch 1 with correlation id [0-9]+ ", changes
    )
    assert all(line.endswith(" (state.change.logger)") for line in changes.splitlines())
    controller = "".join((directory / "controller.log").read_text() for directory in logs)
    assert " successfully elected as the controller. Epoch incremented to 1 " in controller
    assert "state.change.logger" not in "".join(cluster.log(broker, 1000) for broker in cluster.broker_ids)


def test_a_controller_without_the_port(klamm_helper: Helper, klamm: Run) -> None:
    with Cluster(brokers=1, properties={"klamm.metrics.port": -1}, helper=klamm_helper) as running:
        where = ("--zookeeper", running.zookeeper)
        found = json.loads(klamm("status", "--json", *where))
        assert (found["broker_id"], found["epoch"], found["port"], found["status"]) == (0, 1, None, None)
        assert klamm("status", *where).splitlines()[2].startswith("No further status")
        assert "serves no events" in klamm("events", *where, code=1)
        running.stop(0)
        assert klamm("status", *where, code=1) == "klamm: the cluster has no controller now\n"
        assert klamm("move", *where, code=1) == "klamm: the cluster has no controller now\n"


@pytest.mark.parametrize("command", ["status", "move", "events"])
def test_nobody_there(klamm: Run, command: str) -> None:
    message = klamm(command, "--bootstrap-server", "127.0.0.1:1", code=1)
    assert message.startswith("klamm: no broker answers at 127.0.0.1:1")
    assert "is not host or host:port" in klamm(command, "--zookeeper", "h:x", code=1)


def test_ctrl_c_ends_following(cluster: Cluster, tmp_path: Path) -> None:
    command = [*KLAMM, "controller", "events", "--follow", "--zookeeper", cluster.zookeeper]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.send_signal(2)
        assert following.wait(120) == 130
