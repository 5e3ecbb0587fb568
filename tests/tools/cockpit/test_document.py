"""The Now document: what is shown of each kind of cluster, and the reasons for what is not."""

from dataclasses import replace
from typing import Any

from klamm.protocol.vocabulary import TopicPartition
from klamm.tools.cluster_facts import KAFKA, KLAMM, BrokerFacts, ClusterFacts
from klamm.tools.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.tools.cockpit.document import KAFKA_SHOWS_LESS, KRAFT_SHOWS_LESS, Read, Registrations, now_document
from klamm.tools.controller import ControllerAddress
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.store import LiveBroker

CONTROLLER = ControllerAddress(1, 7, 1_000, "host1", 9999)
STATUS: dict[str, Any] = {
    "active": True,
    "broker_id": 1,
    "epoch": 7,
    "state": "BrokerChange",
    "event": "BrokerChange",
    "event_for_ms": 12,
    "event_queue_size": 1,
    "event_waits_ms": 11,
    "waiting_events": [{"event": "TopicChange", "state": "TopicChange", "waits_ms": 11}],
    "brokers": [
        {"broker_id": 1, "queue_size": 2, "sending": "LeaderAndIsr", "sending_for_ms": 5, "trouble": ""},
    ],
    "preferred_replica_imbalance": 1,
    "machines": {"partitions": {"OnlinePartition": 2}, "replicas": {"OnlineReplica": 3}},
    "elections": [],
    "deletions": {"count": 0, "first": []},
    "reassignments": {"count": 0, "first": []},
}
BROKER = BrokerFacts(1, ("host1", 9092), software=KLAMM, protocol="2.8-IV1")
FACTS = ClusterFacts(
    "id",
    ClusterView(
        {1: BrokerView(1, ("host1", 9092))},
        {
            TopicPartition("t", 0): PartitionView(1, 0, (1, 2), (1,)),
            TopicPartition("t", 1): PartitionView(-1, 0, (2,), (2,)),
            TopicPartition("u", 0): PartitionView(1, 0, (1, 2), (1,), adding=(2,)),
        },
        controller_id=1,
    ),
    {1: BROKER},
)
LIVE = {1: LiveBroker(BrokerRegistration(1, ()), 30)}


def read(**changes: Any) -> Read:
    whole = Read(5_000, FACTS, None, Registrations(CONTROLLER, LIVE), None, STATUS, None, {1: {"loop_lag_ms": 3.0}}, [])
    return replace(whole, **changes)


def of(software: str, **changes: Any) -> ClusterFacts:
    return replace(FACTS, brokers={1: replace(BROKER, software=software, **changes)})


def test_a_cluster_of_klamm_shows_everything() -> None:
    found = now_document(read())
    assert found["cluster"] == {"id": "id", "kind": "klamm", "version": "2.8-IV1"}
    assert found["controller"]["epoch"] == 7
    assert found["events"]["waiting"] == STATUS["waiting_events"]
    assert (found["states"]["now"], len(found["states"]["names"])) == ("BrokerChange", 18)
    assert found["machines"] == STATUS["machines"]
    assert found["totals"] == {
        "topics": 2,
        "partitions": 3,
        "replicas": 5,
        "offline": 1,
        "under_replicated": 1,
        "reassigning": 1,
        "not_preferred": 1,
        "size_bytes": 0,
    }
    assert [(broker["id"], broker["alive"], broker["queue_size"]) for broker in found["brokers"]] == [
        (1, True, 2),
        (2, False, None),
    ]
    assert found["brokers"][0]["loop_lag_ms"] == 3.0
    assert found["why_not"] is None
    assert "missing_brokers" in [finding["kind"] for finding in found["findings"]]


def test_the_states_have_the_time_of_the_controller() -> None:
    states = now_document(read(states_over_time=[(3_000, "IsrChange")], controller_time_ms=4_000))["states"]
    assert (states["over_time"], states["time_ms"]) == ([(3_000, "IsrChange")], 4_000)
    assert now_document(read())["states"]["time_ms"] is None


def test_the_status_of_an_earlier_controller_is_not_shown() -> None:
    found = now_document(read(registrations=Registrations(replace(CONTROLLER, broker_id=2, epoch=8), LIVE)))
    assert found["controller"]["status"] is found["events"] is found["machines"] is None
    assert found["why_not"] == "The controller is taking over."


def test_clusters_of_apache_kafka_show_what_they_show_and_say_why_not_more() -> None:
    found = now_document(read(facts=of(KAFKA), status=None, numbers={}))
    assert (found["cluster"]["kind"], found["controller"]["epoch"]) == ("kafka-zookeeper", 7)
    assert found["why_not"] == found["states"]["why_not"] == KAFKA_SHOWS_LESS
    assert [each["step"] for each in found["work"]["reassignments"]] == ["new replicas catch up"]
    assert found["work"]["deletions"] is None
    assert "JMX" in found["brokers"][0]["why_not"]
    found = now_document(
        read(facts=of(KAFKA, is_kraft=True), status=None, numbers={}, registrations=None, registrations_why_not="none")
    )
    assert (found["cluster"]["kind"], found["controller"]["id"]) == ("kafka-kraft", None)
    assert found["why_not"] == KRAFT_SHOWS_LESS
    assert found["brokers"][0]["alive"]


def test_each_thing_that_cannot_be_read_says_why() -> None:
    assert "127.0.0.1:2181" in str(
        now_document(read(registrations=None, registrations_why_not="ZooKeeper at 127.0.0.1:2181: no", status=None))[
            "why_not"
        ]
    )
    nobody = now_document(read(registrations=Registrations(None, LIVE), status=None))
    assert nobody["why_not"] == "The cluster has no controller now."
    closed = now_document(read(registrations=Registrations(replace(CONTROLLER, port=None), LIVE), status=None))
    assert "klamm.metrics.port is -1" in closed["why_not"]
    nothing = now_document(Read(1, facts_why_not="no broker answers", registrations_why_not="silence"))
    assert (nothing["trouble"], nothing["brokers"], nothing["totals"]) == ("no broker answers", [], None)
