"""`klamm metrics`: numbers of two looks as values and text, and the command on a cluster, a JMX exporter and others."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from klamm.cli import main
from klamm.cli.cluster import metrics as command
from klamm.cli.cluster.metric_views import (
    BrokerMetrics,
    broker_value,
    is_important,
    is_named,
    named_lines,
    named_value,
    parse,
    screen_lines,
)
from klamm.processes.helper import Helper
from klamm.testing import Cluster

# As a broker of Kafka shows it behind the JMX exporter.
KAFKA = """\
# HELP kafka_server_brokertopicmetrics_messagesin_total Attribute exposed for management
# TYPE kafka_server_brokertopicmetrics_messagesin_total counter
kafka_server_brokertopicmetrics_messagesin_total %(messages)d
kafka_server_brokertopicmetrics_messagesin_total{topic="t"} 7.0
kafka_server_brokertopicmetrics_bytesin_total 2048.0
kafka_server_brokertopicmetrics_bytesout_total %(bytes)d
kafka_network_requestmetrics_requests_total{request="Produce",version="9"} %(produces)d
kafka_network_requestmetrics_requests_total{request="Produce",version="3"} %(produces)d
kafka_network_requestmetrics_requests_total{request="Fetch",version="12"} %(produces)d
kafka_network_requestmetrics_requests_total{request="FetchFollower",version="12"} %(produces)d
kafka_network_requestmetrics_requests_total{request="Metadata",version="9"} 4.0
kafka_network_requestmetrics_errors_total{error="NONE",request="Produce"} %(produces)d
kafka_network_requestmetrics_errors_total{error="NOT_LEADER_OR_FOLLOWER",request="Produce"} %(errors)d
kafka_network_requestmetrics_totaltimems{quantile="0.50",request="Produce"} 1.5
kafka_network_requestmetrics_totaltimems{quantile="0.99",request="Produce"} 20.25
kafka_network_requestmetrics_totaltimems_count{request="Produce"} 99.0
kafka_server_replicamanager_underreplicatedpartitions 3.0
kafka_server_replicamanager_offlinereplicacount 1.0
kafka_controller_kafkacontroller_activecontrollercount 1.0
kafka_controller_kafkacontroller_offlinepartitionscount 2.0
kafka_controller_controllereventmanager_eventqueuesize 5.0
"""
FIRST = {"messages": 100, "bytes": 500, "produces": 10, "errors": 0}
SECOND = {"messages": 300, "bytes": 100, "produces": 50, "errors": 1}


def of_kafka() -> BrokerMetrics:
    """Two looks, two seconds apart; in between the count of bytes has begun again."""
    first, second = (parse(KAFKA % numbers, time_s, is_important) for numbers, time_s in ((FIRST, 7.0), (SECOND, 9.0)))
    return BrokerMetrics(1, "http://h:1/metrics", first, second)


def test_the_screen_has_rates_and_the_busiest_apis() -> None:
    gone = BrokerMetrics(2, None, error="broker 2 shows no metrics")
    assert list(screen_lines([broker_value(of_kafka()), broker_value(gone)])) == [
        "BROKER  MESSAGES/S  IN/S  OUT/S  REQUESTS/S  ERRORS/S  UNDER-REPL  OFFLINE  QUEUE  LAG P99  MEMORY",
        "1*             100   0 B   50 B          60       0.5           3        2      5        -       -",
        "",
        "BROKER  API            REQUESTS/S  ERRORS/S     P50      P99",
        "1*      Produce                40       0.5  1.5 ms  20.2 ms",
        "1*      FetchFollower          20         0       -        -",
        "broker 2 shows no metrics",
    ]
    assert list(screen_lines([broker_value(gone)])) == ["broker 2 shows no metrics"]


def test_the_first_look_has_no_rates() -> None:
    value = broker_value(BrokerMetrics(1, "u", None, parse(KAFKA % FIRST, 0, is_important)))
    assert (value["messages_in_per_s"], value["requests_per_s"], value["apis"]) == (None, None, [])
    assert value["under_replicated_partitions"] == 3


def test_named_metrics_are_shown_with_their_labels() -> None:
    names = ["kafka_server_*_messagesin_total", "kafka_controller_controllereventmanager_eventqueuesize"]
    first, second = (
        parse(KAFKA % numbers, time_s, lambda line: is_named(line, names))
        for numbers, time_s in ((FIRST, 7.0), (SECOND, 9.0))
    )
    value = named_value(BrokerMetrics(None, "http://h:1/metrics", first, second))
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    assert value["metrics"] == [
        {
            "name": "kafka_controller_controllereventmanager_eventqueuesize",
            "labels": {},
            "value": 5.0,
            "per_s": None,
        },
        {"name": name, "labels": {}, "value": 300.0, "per_s": 100.0},
        {"name": name, "labels": {"topic": "t"}, "value": 7.0, "per_s": 0.0},
    ]
    lines = list(named_lines([value]))
    assert [line.split() for line in lines[2:]] == [
        ["http://h:1/metrics", name, "300", "100"],
        ["http://h:1/metrics", f'{name}{{topic="t"}}', "7", "0"],
    ]


# -- commands ---------------------------------------------------------------------------------------------------------


@contextmanager
def exporter(status: int, *answers: str) -> Iterator[str]:
    """The URL of a program that gives these answers, the last one again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LOOK_FOR_S", 0.01)


def test_a_jmx_exporter(capsys: pytest.CaptureFixture[str]) -> None:
    with exporter(200, KAFKA % FIRST, KAFKA % SECOND) as url:
        assert main.run(["metrics", "--url", url, "--json"]) == 0
    (value,) = json.loads(capsys.readouterr().out)
    assert (value["broker_id"], value["url"], value["controller"], value["offline_partitions"]) == (None, url, True, 2)
    assert value["messages_in_per_s"] > 0
    assert [api["api"] for api in value["apis"]] == ["Produce", "FetchFollower"]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, "", " answers at {url} with 404 Not Found"),
        (200, 'kafka_server_replicamanager_underreplicatedpartitions{{"', " answers at {url} with no metrics: "),
        (200, "", " answers at {url} with no metrics: "),
        (200, "<html><body>It works!</body></html>", " answers at {url} with no metrics: "),
        (200, "jvm_threads_current 7", " answers at {url} with no metrics: "),
    ],
)
def test_a_url_without_metrics(status: int, body: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with exporter(status, body) as url:
        assert main.run(["metrics", "--url", url]) == 1
        assert told.format(url=url) in capsys.readouterr().out
    assert main.run(["metrics", "--url", url]) == 1
    assert f"the exporter does not answer at {url}: " in capsys.readouterr().out
    assert main.run(["metrics", "--url", url, "--broker", "1"]) == 2


def test_a_name_that_no_broker_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with exporter(200, KAFKA % FIRST) as url:
        assert main.run(["metrics", "--url", url, "no_such", "nor_*"]) == 1
    assert capsys.readouterr().err == "klamm: no broker shows a metric with the name no_such or nor_*\n"


def test_the_metrics_that_are_there_are_shown_beside_a_name_that_no_broker_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with exporter(200, KAFKA % FIRST) as url:
        assert main.run(["metrics", "--url", url, "no_such", "*offlinereplicacount"]) == 1
    told = capsys.readouterr()
    assert "kafka_server_replicamanager_offlinereplicacount" in told.out
    assert told.err == "klamm: no broker shows a metric with the name no_such\n"


def test_the_metrics_of_a_cluster(klamm_helper: Helper, capfd: pytest.CaptureFixture[str]) -> None:
    override = {1: {"klamm.metrics.port": "-1"}}
    with Cluster(brokers=2, broker_properties=override, helper=klamm_helper) as cluster:
        where = ["--bootstrap-server", cluster.bootstrap]
        assert main.run(["metrics", *where, "--json"]) == 1
        found = {value["broker_id"]: value for value in json.loads(capfd.readouterr().out)}
        assert found[0]["error"] is None
        assert (found[0]["under_replicated_partitions"], found[0]["offline_replicas"]) == (0, 0)
        assert found[0]["memory_bytes"] > 10_000_000
        told = "broker 1 shows no metrics: its klamm.metrics.port is -1, or it is Apache Kafka"
        assert found[1]["error"].startswith(told)
        assert main.run(["metrics", *where, "--broker", "0", "klamm_eventloop_*"]) == 0
        assert "klamm_eventloop_longestlagms" in capfd.readouterr().out
        assert main.run(["metrics", *where, "--broker", "7"]) == 1
        assert capfd.readouterr().err == "klamm: broker 7 is not in the cluster; known are 0, 1\n"
        # The live view.
        watching = subprocess.Popen(
            [sys.executable, "-m", "klamm", "metrics", *where, "--broker", "0", "--watch", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        for _ in range(2):
            (value,) = json.loads(watching.stdout.readline())
            assert value["broker_id"] == 0
        watching.send_signal(signal.SIGINT)
        assert watching.wait(120) == 130
        watching.stdout.close()
