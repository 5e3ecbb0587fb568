"""The control port of a cluster of processes, used as from another language: over HTTP alone."""

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from confluent_kafka import Producer

from klamm.testing import Cluster, ClusterError, Helper


def ask(c: Cluster, method: str, path: str, body: Any = None) -> Any:
    connection = HTTPConnection(c.control_url.removeprefix("http://"), timeout=120)
    headers = {"Authorization": f"Bearer {c.control_token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status in (200, 201), answer
    connection.close()
    return answer


def test_a_fault_and_a_killed_broker_over_http(klamm_helper: Helper) -> None:
    with Cluster(2, control=True, helper=klamm_helper) as c:
        cluster = ask(c, "GET", "/v1/cluster")
        assert cluster["bootstrap"] == c.bootstrap
        assert [(broker["server"], broker["running"]) for broker in cluster["brokers"]] == [(0, True), (1, True)]
        c.create_topic("t", replication_factor=2)
        fault = {"kind": "answers.fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "t", "times": 2}
        installed = ask(c, "POST", "/v1/faults", fault)
        producer = Producer({"bootstrap.servers": cluster["bootstrap"], "retry.backoff.ms": 10})
        producer.produce("t", b"v")
        assert producer.flush(120) == 0
        assert ask(c, "GET", f"/v1/faults/{installed['id']}?hits=2&timeout_ms=30000")["hits"] == 2
        assert ask(c, "DELETE", "/v1/faults") == {}
        to = c.replicas("t")[1]
        elected = ask(c, "POST", "/v1/actions", {"kind": "elections.elect", "topic": "t", "to": to})["result"]
        assert (elected["leader"], sorted(elected["isr"])) == (to, [0, 1])
        leader = c.leader("t")
        assert leader == to
        ask(c, "POST", f"/v1/servers/{leader}/kill")
        assert not c.broker(leader or 0).running
        ask(c, "POST", f"/v1/servers/{leader}/start")
        assert c.broker(leader or 0).running


def test_a_cluster_has_no_control_port_unless_it_is_asked_for(klamm_helper: Helper) -> None:
    with (
        Cluster(1, helper=klamm_helper) as c,
        pytest.raises(ClusterError, match=r"has no control port: make it with Cluster\(control=True\)"),
    ):
        _ = c.control_url
