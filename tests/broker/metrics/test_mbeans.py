"""What a broker shows, by the names of Kafka's MBeans as Prometheus' JMX exporter translates them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.base.metrics import Metrics
from klamm.broker.metrics.metrics_endpoint import PauseWatch
from klamm.broker.metrics.prometheus_text import render
from klamm.broker.registration.broker_state import BrokerState
from klamm.broker.start.parts import BrokerParts
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.messages import ApiKey
from klamm.simulation.machine.small_slices import small_slices
from support.fetch_messages import fetch_request, to_fetch
from support.metrics import Values
from support.one_broker import Client, OneBroker, batch, running
from support.present import present

FLUSHES = "kafka_log_logflushstats_logflushrateandtimems_count"


def values(cluster: OneBroker) -> Values:
    endpoint = cluster.broker.parts.metrics_endpoint
    assert endpoint is not None
    return Values.of(endpoint.metrics)


async def test_a_broker_with_a_topic_and_two_connections(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 2, segment_bytes="200")
        for _ in range(2):
            assert (await client.produce("t", 1, batch(bytes(60)))).error_code == 0
        size = sum(path.stat().st_size for path in (tmp_path / "data" / "t-1").glob("*.log"))
        reader = await cluster.connect()
        fetch = fetch_request(("t", [to_fetch(0, 0, 1000), to_fetch(1, 2, 1000)]), max_wait_ms=20_000, min_bytes=1)
        waiting = asyncio.create_task(reader.request(ApiKey.FETCH, 12, fetch))
        purgatory = "kafka.server:type=DelayedOperationPurgatory,name={},delayedOperation={}"
        async with asyncio.timeout(120):
            while values(cluster)[purgatory.format("NumDelayedOperations", "Fetch")] < 1:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        found = values(cluster)
        for mbean, value in {
            "kafka.server:type=KafkaServer,name=BrokerState": 3,
            "kafka.network:type=RequestChannel,name=RequestQueueSize": 0,
            "kafka.server:type=ReplicaManager,name=LeaderCount": 2,
            "kafka.server:type=ReplicaManager,name=PartitionCount": 2,
            "kafka.log:type=Log,name=LogStartOffset,topic=t,partition=1": 0,
            "kafka.log:type=Log,name=LogEndOffset,topic=t,partition=0": 0,
            "kafka.log:type=Log,name=LogEndOffset,topic=t,partition=1": 2,
            "kafka.log:type=Log,name=NumLogSegments,topic=t,partition=0": 1,
            "kafka.log:type=Log,name=NumLogSegments,topic=t,partition=1": 2,
            "kafka.log:type=Log,name=Size,topic=t,partition=0": 0,
            "kafka.log:type=Log,name=Size,topic=t,partition=1": size,
            "kafka.log:type=LogManager,name=OfflineLogDirectoryCount": 0,
            f"kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory={tmp_path / 'data'}": 0,
            purgatory.format("PurgatorySize", "Fetch"): 2,
            purgatory.format("NumDelayedOperations", "Fetch"): 1,
            purgatory.format("PurgatorySize", "Produce"): 0,
            purgatory.format("PurgatorySize", "DeleteRecords"): 0,
            purgatory.format("PurgatorySize", "ElectLeader"): 0,
            purgatory.format("PurgatorySize", "topic"): 0,
            purgatory.format("NumDelayedOperations", "Heartbeat"): 0,
            purgatory.format("NumDelayedOperations", "Rebalance"): 0,
            "kafka.server:type=ReplicaFetcherManager,name=MaxLag,clientId=Replica": 0,
            "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica": 0,
            "kafka.server:type=ReplicaFetcherManager,name=DeadThreadCount,clientId=Replica": 0,
            "kafka.server:type=ReplicaAlterLogDirsManager,name=DeadThreadCount,clientId=ReplicaAlterLogDirs": 0,
            "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions": 0,
            "kafka.server:type=SessionExpireListener,name=ZooKeeperSyncConnectsPerSec": 1,
            "kafka.server:type=SessionExpireListener,name=ZooKeeperDisconnectsPerSec": 0,
            "kafka.server:type=SessionExpireListener,name=ZooKeeperExpiresPerSec": 0,
            "kafka.server:type=SessionExpireListener,name=ZooKeeperAuthFailuresPerSec": 0,
        }.items():
            assert (mbean, found[mbean]) == (mbean, value)
        connections = ("listener", "PLAINTEXT"), ("networkProcessor", "0")
        # Two clients, and the controller.
        assert found.by_name["kafka_server_socket_server_metrics_connection_count", connections] >= 2
        # The second record began a segment, and the first one was synced.
        async with asyncio.timeout(120):
            while not values(cluster).by_name[FLUSHES, ()]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
        await client.produce("t", 0, batch(b"a"))
        await waiting


async def test_the_traffic_of_a_listener(tmp_path: Path) -> None:
    def traffic(cluster: OneBroker, name: str) -> float:
        labels = ("listener", "PLAINTEXT"), ("networkProcessor", "0")
        return values(cluster).by_name[f"kafka_server_socket_server_metrics_{name}", labels]

    names = ("request_total", "response_total", "network_io_total", "incoming_byte_total", "outgoing_byte_total")
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        opened, closed = traffic(cluster, "connection_creation_total"), traffic(cluster, "connection_close_total")
        other = await cluster.connect()
        await other.ask(ApiKey.LIST_GROUPS, states_filter=[])
        await other.close()
        assert traffic(cluster, "connection_creation_total") == opened + 1
        async with asyncio.timeout(120):
            while traffic(cluster, "connection_close_total") != closed + 1:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        before = {name: traffic(cluster, name) for name in names}
        await client.ask(ApiKey.LIST_GROUPS, states_filter=[])
        assert [traffic(cluster, name) - before[name] for name in names[:3]] == [1, 1, 2]
        assert traffic(cluster, "incoming_byte_total") > before["incoming_byte_total"]
        assert traffic(cluster, "outgoing_byte_total") > before["outgoing_byte_total"]
        assert values(cluster).by_name["kafka_network_requestchannel_responsequeuesize", (("processor", "0"),)] == 0
        assert values(cluster).by_name["kafka_network_requestchannel_responsequeuesize", ()] == 0


async def test_a_produce_without_acknowledgement_is_a_request_without_a_response(tmp_path: Path) -> None:
    """docs/metrics.md says how Kafka counts it."""
    produced, failed = ("request", "Produce"), ("error", "NONE")

    def counted(cluster: OneBroker) -> list[float | None]:
        found = values(cluster).by_name
        labels = ("listener", "PLAINTEXT"), ("networkProcessor", "0")
        return [
            found["kafka_server_socket_server_metrics_request_total", labels],
            found["kafka_server_socket_server_metrics_response_total", labels],
            found.get(("kafka_network_requestmetrics_requests_total", (produced, ("version", "9")))),
            found.get(("kafka_network_requestmetrics_errors_total", (failed, produced))),
        ]

    def send(client: Client, topic: str) -> None:
        request = ProduceRequest.of(None, 0, 10_000, [(topic, [(0, batch(b"a"))])])
        for buffer in messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", request):
            client.send_raw(bytes(buffer))

    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t")
        requests, responses, *_ = counted(cluster)
        assert requests is not None
        assert responses is not None
        send(client, "t")
        await client.ask(ApiKey.LIST_GROUPS, states_filter=[])
        assert counted(cluster) == [requests + 2, responses + 1, 1, None]
        errors = "kafka_network_requestmetrics_errors_total"
        assert values(cluster).by_name[errors, (failed, ("request", "ListGroups"))] == 1
        # One that fails ends the connection, and is neither counted as answered nor as an error.
        send(client, "absent")
        assert await client.reader.read() == b""
        assert counted(cluster) == [requests + 3, responses + 1, 1, None]


async def test_fetches_that_expire_are_counted_by_who_fetches(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 1)
        for _ in range(2):
            await client.fetch("t", 0, 0, max_wait_ms=1)
        found = {
            who: values(cluster).by_name["kafka_server_delayedfetchmetrics_expires_total", (("fetcherType", who),)]
            for who in ("consumer", "follower")
        }
        assert found == {"consumer": 2, "follower": 0}


async def test_the_idle_share_of_the_loop() -> None:
    clock_s, work_s = [0.0], [0.0]
    environment: Any = SimpleNamespace(work_clock_s=lambda: clock_s[0], work_time_s=lambda: work_s[0])
    watch, metrics = PauseWatch(environment), Metrics()
    watch.register(metrics)

    def shown() -> set[float]:
        found = Values.of(metrics).by_name
        average = found["kafka_network_socketserver_networkprocessoravgidlepercent", ()]
        return {average, found["kafka_network_processor_idlepercent", (("networkProcessor", "0"),)]}

    environment.watch_gc_pauses = lambda _on_pause: None
    assert shown() == {1.0}
    for second in range(61):
        clock_s[0] = second / 10
        work_s[0] = second / 40
        watch._look(0.0)
        watch.stop()
    assert shown() == {0.75}


async def test_the_state_of_a_broker_is_shown_from_its_start_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def enter(parts: BrokerParts, state: BrokerState) -> None:
        parts.__dict__["entered"] = state
        seen.append(state)

    monkeypatch.setattr(BrokerParts, "state", property(lambda parts: parts.__dict__["entered"], enter), raising=False)
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, _):
        assert values(cluster)["kafka.server:type=KafkaServer,name=BrokerState"] == 3
    # Kafka's numbers.
    assert seen == [1, 2, 3, 6, 7]


async def test_a_partition_that_goes_during_a_scrape_does_no_harm(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 3)
        endpoint = present(cluster.broker.parts.metrics_endpoint)
        with small_slices():
            steps = render(endpoint.metrics)
            for _ in range(5):
                next(steps)
            manager = cluster.broker.parts.log_manager
            for number in range(3):
                manager.delete("t", number)
            with pytest.raises(StopIteration) as end:
                while True:
                    next(steps)
        assert b"kafka_cluster_partition_replicascount" in b"".join(end.value.value)
