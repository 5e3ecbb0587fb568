"""What a broker tells over HTTP: metrics under their usual names, the controller's status, its records."""

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from klamm.base.metrics import Histogram, MetricName, Metrics
from klamm.base.slices import SLICE, in_slices
from klamm.base.system_environment import SystemEnvironment
from klamm.broker.metrics import metrics_endpoint
from klamm.broker.metrics.prometheus_text import VALUES_PER_SLICE, prometheus_name, render
from klamm.broker.quotas.bounds import QuotaEntity
from klamm.broker.start.parts import _host_names
from klamm.config.broker import BrokerConfig
from klamm.net import http
from klamm.net.framing import FIRST_ALLOCATION_BYTES
from klamm.replication.metrics import replica_metrics
from klamm.storage.directories import log_metrics
from support.group_wire import commit, committed, find_coordinator
from support.one_broker import OneBroker, batch, running
from support.replicas import hosting_broker, state


class Answer:
    """The connection of one GET, past its head."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int, head: str) -> None:
        self.reader, self._writer, self.status, self.head = reader, writer, status, head

    async def body(self) -> bytes:
        content = await self.reader.read()
        self._writer.close()
        return content

    async def line(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.reader.readline())
        return found

    def close(self) -> None:
        self._writer.transport.abort()


async def get(cluster: OneBroker, path: str) -> Answer:
    port = cluster.broker.metrics_port
    assert port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return Answer(reader, writer, int(head.split()[1]), head)


async def metrics(cluster: OneBroker) -> dict[str, dict[str, float]]:
    """Name -> labels, as text -> value."""
    answer = await get(cluster, "/metrics")
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer.head
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families((await answer.body()).decode()):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_names_and_kinds() -> None:
    assert prometheus_name(MetricName("kafka.controller", "T", "A-b.C")) == "kafka_controller_t_a_b_c"
    tree, seen = Metrics(), Histogram()
    for value in range(1, 101):
        seen.update(value)
    tree.gauge(MetricName("g.h", "T", "Size"), "A size.", lambda: 3)
    tree.gauges(MetricName("g.h", "T", "QueueSize"), "Sizes.", "broker-id", lambda: {"1": 4, "2": 5})
    tree.meter(MetricName("g.h", "T", "ThingsPerSec"), "Things.", lambda: 6)
    tree.histograms(MetricName("g.h", "T", "TimeMs"), "Times.", "broker-id", lambda: {"1": seen})
    assert b"".join(await in_slices(render(tree))).decode() == (
        "# HELP g_h_t_size A size.\n# TYPE g_h_t_size gauge\ng_h_t_size 3.0\n"
        "# HELP g_h_t_queuesize Sizes.\n# TYPE g_h_t_queuesize gauge\n"
        'g_h_t_queuesize{broker_id="1"} 4.0\ng_h_t_queuesize{broker_id="2"} 5.0\n'
        "# HELP g_h_t_things_total Things.\n# TYPE g_h_t_things_total counter\ng_h_t_things_total 6.0\n"
        "# HELP g_h_t_timems Times.\n# TYPE g_h_t_timems summary\n"
        'g_h_t_timems{broker_id="1",quantile="0.50"} 50.0\ng_h_t_timems{broker_id="1",quantile="0.75"} 75.0\n'
        'g_h_t_timems{broker_id="1",quantile="0.95"} 95.0\ng_h_t_timems{broker_id="1",quantile="0.98"} 98.0\n'
        'g_h_t_timems{broker_id="1",quantile="0.99"} 99.0\ng_h_t_timems{broker_id="1",quantile="0.999"} 100.0\n'
        'g_h_t_timems_count{broker_id="1"} 100.0\ng_h_t_timems_sum{broker_id="1"} 5050.0\n'
    )


def test_the_values_of_thousands_of_clients_are_read_and_written_in_steps() -> None:
    metrics, read = Metrics(), []

    def rates() -> Iterator[tuple[tuple[str, ...], float]]:
        for number in range(1_050):
            read.append(number)
            yield ("Fetch", f"c{number}"), number

    metrics.gauges(MetricName("g", "quota", "rate"), "Rates.", ("resource", "clientId"), rates)
    steps, read_in_steps = render(metrics), []
    text = b""
    while not text:
        before = len(read)
        try:
            next(steps)
        except StopIteration as end:
            text = b"".join(end.value)
        read_in_steps.append(len(read) - before)
    assert max(read_in_steps) <= 200
    assert text.decode().splitlines() == [
        "# HELP g_quota_rate Rates.",
        "# TYPE g_quota_rate gauge",
        *(f'g_quota_rate{{clientId="c{number}",resource="Fetch"}} {number}.0' for number in range(1_050)),
    ]


async def test_metrics_of_a_broker(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 3)
        await cluster.wait_until_told()
        gc.collect()
        found = await metrics(cluster)
        prefix = "kafka_controller_"
        assert {name: found[f"{prefix}kafkacontroller_{name}"] for name in GAUGES} == {
            name: {"": value} for name, value in GAUGES.items()
        }
        assert found[f"{prefix}controllerstats_uncleanleaderelections_total"] == {"": 0}
        assert found[f"{prefix}controllerstats_topicchangerateandtimems_count"][""] >= 1
        assert found[f"{prefix}controllereventmanager_eventqueuesize"] == {"": 0}
        assert "quantile=0.999" in found[f"{prefix}controllereventmanager_eventqueuetimems"]
        assert found[f"{prefix}controllerchannelmanager_totalqueuesize"] == {"": 0}
        assert found[f"{prefix}controllerchannelmanager_queuesize"] == {"broker_id=0": 0}
        assert found[f"{prefix}controllerchannelmanager_requestrateandqueuetimems_count"]["broker_id=0"] >= 2
        for name in ("maxlag", "failedpartitionscount", "partitionscount"):
            assert found[f"kafka_server_replicaalterlogdirsmanager_{name}"] == {"clientId=ReplicaAlterLogDirs": 0}
        for side in ("leader", "follower", "alterlogdirs"):
            assert found[f"kafka_server_{side}replication_byte_rate"] == {"": 0}
            assert found[f"kafka_server_{side}replication_throttled_rate"] == {"": float(2**63 - 1)}
        assert found["klamm_garbagecollector_pausems_count"][""] >= 1
        assert found["klamm_garbagecollector_longestpausems"][""] > 0
        while not (found := await metrics(cluster))["klamm_eventloop_lagms_count"][""]:  # noqa: ASYNC110  # a timer
            await asyncio.sleep(0.01)
        assert found["klamm_eventloop_longestlagms"][""] >= 0


async def test_a_long_answer_says_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "PIECES_PER_SLICE", 1)
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        answer = await get(cluster, "/metrics")
        assert f"Content-Length: {len(await answer.body())}\r\n" in answer.head


async def test_those_who_ask_at_once_share_what_is_made_after_they_have_asked() -> None:
    shared = metrics_endpoint.Shared[list[int]]()
    releases = [asyncio.Event() for _ in range(4)]
    made: list[int] = []

    async def make() -> list[int]:
        made.append(len(made))
        value = made[:]
        await releases[len(value) - 1].wait()
        return value

    async def ask(count: int) -> list[asyncio.Task[list[int]]]:
        tasks = [asyncio.create_task(shared.make(make)) for _ in range(count)]
        await asyncio.sleep(0)
        return tasks

    first, others = await ask(1), await ask(50)
    assert made == [0]
    releases[0].set()
    await first[0]
    await asyncio.sleep(0)
    late = await ask(2)
    # One who goes leaves the work to the next, and nobody gets what was begun before the question.
    others.pop(0).cancel()
    await asyncio.sleep(0)
    for release in releases:
        release.set()
    assert (await first[0], await late[0], await late[1]) == ([0], [0, 1, 2], [0, 1, 2])
    assert {tuple(await each) for each in others} == {(0, 1, 2)}
    assert await shared.make(make) == [0, 1, 2, 3]
    assert shared._made is None


async def test_the_values_of_many_partitions_are_read_and_written_in_steps(tmp_path: Path) -> None:
    async with hosting_broker(tmp_path) as broker:
        await broker.tell(*(state(number) for number in range(600)))
        metrics = Metrics()
        replica_metrics.register(metrics, broker.manager)
        log_metrics.register(metrics, broker.log_manager)
        steps = render(metrics)
        assert next(steps) is None
        # Not a line is written while the partitions are counted.
        counted = len(list(metrics.walks()))
        assert counted == 600 // SLICE
        with pytest.raises(StopIteration) as end:
            while True:
                next(steps)
        lines = b"".join(end.value.value).decode().splitlines()
        assert lines.count("kafka_server_replicamanager_leadercount 600.0") == 1
        for name in ("kafka_cluster_partition_replicascount", "kafka_log_log_size"):
            assert sum(line.startswith(f"{name}{{") for line in lines) == 600
            assert lines.count(f"# TYPE {name} gauge") == 1
        assert max(piece.count(b"\n") for piece in end.value.value) <= VALUES_PER_SLICE + 2


async def test_metrics_of_groups(tmp_path: Path) -> None:
    async with running(
        tmp_path, klamm_metrics_port=0, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1
    ) as (cluster, client):
        await client.create_topic("t", 2)
        await find_coordinator(client)
        await committed(client)
        await commit(client, {("t", 0): 1, ("t", 1): 2})
        found = await metrics(cluster)
        prefix = "kafka_coordinator_group_groupmetadatamanager_num"
        assert found[f"{prefix}groups"] == found[f"{prefix}groupsempty"] == {"": 1}
        assert found[f"{prefix}groupsstable"] == {"": 0}
        assert found[f"{prefix}offsets"] == {"": 2}


async def test_metrics_of_requests_in_memory(tmp_path: Path) -> None:
    budget_bytes = 256 * 1024 * 1024
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        prefix = "kafka_network_socketserver_memorypool"
        # Half of a large produce request.
        client.send_raw((4 * 1024 * 1024).to_bytes(4) + bytes(100))
        while (found := await metrics(cluster))[f"{prefix}used"][""] < FIRST_ALLOCATION_BYTES:
            pass
        # The controller's own requests come and go.
        assert found[f"{prefix}used"][""] < FIRST_ALLOCATION_BYTES + 64 * 1024
        assert found[f"{prefix}available"][""] + found[f"{prefix}used"][""] == budget_bytes


GAUGES = {
    "activecontrollercount": 1,
    "offlinepartitionscount": 0,
    "preferredreplicaimbalancecount": 0,
    "controllerstate": 0,
    "globaltopiccount": 1,
    "globalpartitioncount": 3,
    "topicstodeletecount": 0,
    "replicastodeletecount": 0,
    "topicsineligibletodeletecount": 0,
    "replicasineligibletodeletecount": 0,
}


async def test_the_controllers_status(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        answer = await get(cluster, "/controller")
        assert "Content-Type: application/json\r\n" in answer.head
        found = json.loads(await answer.body())
        assert (found["controller_id"], found["active"], found["epoch"]) == (0, True, 1)
        assert [broker["broker_id"] for broker in found["brokers"]] == [0]


async def test_a_brief_status_for_a_reader_that_asks_every_second(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        found = json.loads(await (await get(cluster, "/controller?brief")).body())
        assert found["machines"]["partitions"].keys() >= {"OnlinePartition", "OfflinePartition"}
        broker = json.loads(await (await get(cluster, "/broker")).body())
        assert broker["broker_id"] == 0
        assert broker.keys() == {
            "broker_id",
            "time_ms",
            "memory_bytes",
            "loop_lag_ms",
            "longest_loop_lag_ms",
            "totals",
        }
        assert broker["totals"].keys() >= {"bytes_in", "bytes_out", "messages_in"}


async def test_records_that_there_are_and_those_that_follow(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        body = await (await get(cluster, "/controller/events")).body()
        records = [json.loads(line) for line in body.splitlines()]
        assert [record["sequence"] for record in records] == list(range(len(records)))
        assert {record["controller"] for record in records} == {0}
        assert any(record["kind"] == "controller" and "successfully elected" in record["text"] for record in records)
        following = await get(cluster, "/controller/events?follow")
        assert "Content-Type: application/x-ndjson\r\n" in following.head
        await client.create_topic("t")
        seen = []
        while not seen or seen[-1].get("to") != "OnlineReplica":
            seen.append(await following.line())
        # One line is between what there was and what follows.
        assert [record for record in seen if record["kind"] == "idle"] == [{"kind": "idle"}]
        seen = [record for record in seen if record["kind"] != "idle"]
        assert [record["sequence"] for record in seen] == list(range(len(seen)))
        changes = [(record["kind"], record["from"], record["to"]) for record in seen if "to" in record]
        assert changes == [
            ("partition", "NonExistentPartition", "NewPartition"),
            ("replica", "NonExistentReplica", "NewReplica"),
            ("partition", "NewPartition", "OnlinePartition"),
            ("replica", "NewReplica", "OnlineReplica"),
        ]
        assert {record["event"] for record in seen if "to" in record} == {"TopicChange"}
        # One that goes away without a word is noticed.
        leaving = await get(cluster, "/controller/events?follow")
        leaving.close()
        # Nobody tells anything after the end of the controllership.
        await cluster.broker.parts.controller._trigger_controller_move()
        rest = await following.body()
        assert json.loads(rest.splitlines()[-1])["text"] == "Resigned"
        async with asyncio.timeout(120):
            while cluster.broker.parts.controller.state_changes._followers:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)


async def test_a_quiet_stream_is_not_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "IDLE_S", 0.01)
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        following = await get(cluster, "/controller/events?follow")
        while (await following.line())["kind"] != "idle":
            pass
        await client.create_topic("t")
        seen = []
        while not seen or seen[-1].get("to") != "OnlineReplica":
            seen += [record for record in (await following.line(),) if record["kind"] != "idle"]
        sequences = [record["sequence"] for record in seen]
        assert sequences == list(range(sequences[0], sequences[0] + len(seen)))
        following.close()


@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/controller/", 404), ("/metrics?x=1", 200)])
async def test_other_paths(tmp_path: Path, path: str, status: int) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        answer = await get(cluster, path)
        assert answer.status == status
        await answer.body()


async def test_the_registration_tells_the_port(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        (broker,) = (await cluster.broker.zookeeper.store.live_brokers()).values()
        assert broker.registration.jmx_port == cluster.broker.metrics_port
        callbacks = len(gc.callbacks)
        await cluster.broker.stop()
        assert len(gc.callbacks) == callbacks - 1
        with pytest.raises(OSError):
            await get(cluster, "/metrics")


async def test_without_the_port_nothing_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, _):
        (broker,) = (await cluster.broker.zookeeper.store.live_brokers()).values()
        assert (broker.registration.jmx_port, cluster.broker.metrics_port) == (-1, None)


async def test_quotas_have_the_names_of_the_jmx_exporter(tmp_path: Path) -> None:
    # A minute, which lasts longer than the test.
    window: dict[str, Any] = {"quota_window_num": 2, "quota_window_size_seconds": 60}
    async with running(tmp_path, klamm_metrics_port=0, **window) as (cluster, client):
        await client.create_topic("t")
        assert not [name for name in await metrics(cluster) if name.startswith("kafka_server_quota_")]
        bounds = {"producer_byte_rate": 20, "request_percentage": 1000, "controller_mutation_rate": 10}
        cluster.broker.parts.quotas.configure(QuotaEntity("ANONYMOUS", None), bounds)
        assert (await client.produce("t", 0, batch(bytes(2000)))).error_code == 0
        await (await cluster.connect()).create_topic("u", partitions=3)
        found = await metrics(cluster)
        of_user = {name: found[f"kafka_server_quota_{name}"] for name in ("byte_rate", "request_time", "tokens")}
        assert 2000 < 60 * of_user["byte_rate"]["clientId=,resource=Produce,user=ANONYMOUS"] < 2200
        assert of_user["request_time"]["clientId=,resource=Request,user=ANONYMOUS"] > 0
        assert of_user["tokens"]["clientId=,resource=ControllerMutation,user=ANONYMOUS"] == pytest.approx(110, abs=3.1)
        rate = found["kafka_server_quota_mutation_rate"]["clientId=,resource=ControllerMutation,user=ANONYMOUS"]
        assert rate == pytest.approx(0.1, abs=0.01)
        throttled = found["kafka_server_quota_throttle_time"]
        assert 40_000 < throttled["clientId=,resource=Produce,user=ANONYMOUS"] < 50_000
        assert "kafka_server_request_exempt_request_time" in found


async def test_the_port_answers_to_names_of_its_broker_and_machine_only(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0, klamm_metrics_allowed_hosts="Added.example") as (cluster, _):
        endpoint = cluster.broker.parts.metrics_endpoint
        assert endpoint is not None and endpoint._server._learning is not None
        await endpoint._server._learning
        [machine, *_] = await asyncio.to_thread(SystemEnvironment().host_names)

        async def status(host: str, target: str = "/broker") -> int:
            answer = await get(cluster, f"{target} HTTP/1.0\r\nHost: {host}\r\nx:")
            await answer.body()
            return answer.status

        # What Prometheus and other scrapers send: an address, or a name that leads here.
        for host in ("127.0.0.1:9404", "localhost", "added.example", machine):
            assert await status(host) == 200, host
        for target in ("/broker", "/metrics", "/controller", "/controller/events", "/controller/events?follow"):
            assert await status("site.example", target) == 421
        assert await status("localhost", "http://site.example/broker") == 421
        assert await status("site.example", "http://localhost/broker") == 200


def test_a_brokers_names_are_those_of_its_listeners_and_those_that_are_added() -> None:
    listeners = {
        "listeners": "A://:9092,B://10.0.0.1:9093",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    }
    listeners |= {"advertised.listeners": "A://broker0.example:9092,B://b:1", "inter.broker.listener.name": "A"}
    config = BrokerConfig.from_properties(
        {"zookeeper.connect": "z:1", "klamm.metrics.allowed.hosts": "m, n"} | listeners
    )
    assert sorted(_host_names(config)) == ["", "10.0.0.1", "b", "broker0.example", "m", "n"]


async def test_those_who_follow_the_records_keep_no_scraper_out(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        followers = [await get(cluster, "/controller/events?follow") for _ in range(http.MAX_ENDLESS + 10)]
        assert [each.status for each in followers] == [200] * http.MAX_ENDLESS + [503] * 10
        assert (await get(cluster, "/metrics")).status == 200
        for each in followers:
            each.close()
