"""The dashboard for Grafana: each of its queries returns data of a real cluster, asked through a real Prometheus."""

import asyncio
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from klamm.cli import main
from klamm.testing import Cluster
from support.metrics import recorded
from support.metrics.page import klamm_shapes
from support.paths import ROOT
from support.processes import free_port
from support.waiting import until

DASHBOARD = json.loads((ROOT / "dashboards" / "klamm.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = sorted({target["expr"] for panel in PANELS for target in panel["targets"]})
# What Grafana puts for its variables when everything is chosen.
VARIABLES = {"$broker": ".*", "$topic": ".*", "$__rate_interval": "4s"}
# The names of all metrics of brokers begin so.
METRIC = re.compile(r"\b(?:kafka|klamm|process)_\w+")
TOPIC = "t"
PROPERTIES = {
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
BROKERS = (0, 1)


async def test_the_dashboard_names_metrics_of_kafka_or_klamm(tmp_path: Path) -> None:
    names = {name for query in QUERIES for name in METRIC.findall(query)}
    klamms = {shape.name for shape in await klamm_shapes(tmp_path)}
    own = {name for name in names if not name.startswith("kafka_")}
    assert names - own <= {shape.name for shape in recorded()} | klamms
    assert own == {
        "klamm_eventloop_lagms",
        "klamm_eventloop_longestlagms",
        "klamm_garbagecollector_longestpausems",
        "klamm_garbagecollector_pausems",
        "process_resident_memory_bytes",
    }


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    places = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in DASHBOARD["panels"]
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_each_query_returns_data(tmp_path: Path) -> None:
    klamms = {shape.name for shape in asyncio.run(klamm_shapes(tmp_path / "registered"))}
    lacking = {shape.name for shape in recorded()} - klamms
    expected = [query for query in QUERIES if lacking.isdisjoint(METRIC.findall(query))]
    ports = [free_port() for _ in BROKERS]
    own = {broker: {"klamm.metrics.port": port} for broker, port in zip(BROKERS, ports, strict=True)}
    with (
        Cluster(brokers=len(BROKERS), properties=PROPERTIES, broker_properties=own) as cluster,
        prometheus(tmp_path, ports) as ask,
        under_load(cluster.bootstrap),
    ):
        missing = set(expected)

        def all_have_data() -> bool:
            missing.difference_update([query for query in missing if ask(query)])
            return not missing

        try:
            until(all_have_data)
        except AssertionError:
            raise AssertionError(f"these queries return nothing: {sorted(missing)}") from None
        assert ask('sum(kafka_controller_kafkacontroller_activecontrollercount{instance=~"$broker"})') == [1.0]


@contextmanager
def prometheus(directory: Path, ports: list[int]) -> Iterator[Callable[[str], list[float]]]:
    """Runs Prometheus, which scrapes these ports each second. Gives a function that asks a query of the dashboard."""
    targets = [f"127.0.0.1:{port}" for port in ports]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "klamm", "static_configs": [{"targets": targets}]}],
    }
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'prometheus'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]

    def ask(query: str) -> list[float]:
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        parameters = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{parameters}", timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return [float(series["value"][1]) for series in found["data"]["result"]]

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=120) as answer:
                return bool(answer.status == 200)
        except OSError:
            assert process.poll() is None, "prometheus has ended"
            return False

    with subprocess.Popen(command) as process:
        try:
            until(is_ready)
            yield ask
        finally:
            process.terminate()


@contextmanager
def under_load(bootstrap: str) -> Iterator[None]:
    """A transactional producer and a group, which go on for the time of the block, under quotas that bind nobody."""
    where = ["--bootstrap-server", bootstrap]
    quotas = "producer_byte_rate=1000000000,consumer_byte_rate=1000000000,request_percentage=10000"
    assert main.run(["configs", "alter", *where, "--client-defaults", "--add-config", quotas, "--yes"]) == 0
    create = ["topics", "create", *where, "--topic", TOPIC, "--replica-assignment", "0:1,1:0"]
    assert main.run([*create, "--config", "flush.messages=1"]) == 0
    ended = threading.Event()

    def work() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        producer.init_transactions(120)
        while not ended.is_set():
            producer.begin_transaction()
            for number in range(10):
                producer.produce(TOPIC, bytes(100), partition=number % 2)
            producer.commit_transaction(30)
            consumer.consume(10, 0.2)
            consumer.commit(asynchronous=True)
        consumer.close()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()
