"""The Now document: what is shown of each kind of cluster, and the reasons for what is not."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from klamm.access.controller import ControllerAddress
from klamm.cockpit.live.document import (
    KAFKA_SHOWS_LESS,
    KRAFT_SHOWS_LESS,
    Place,
    Read,
    Registrations,
    controller_id,
    digested,
    now_document,
)
from klamm.cockpit.live.pulse import Heard
from klamm.cockpit.live.readings import Dated
from klamm.cockpit.partition_map import PartitionMap
from klamm.diagnosis.cluster_facts import KAFKA, KLAMM, BrokerFacts, ClusterFacts
from klamm.diagnosis.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.protocol.vocabulary import TopicPartition
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
HEARD = {1: Heard(4_900, None, 1)}


def known(value: Any, at_ms: int = 4_000) -> Dated[Any]:
    return Dated(value, at_ms, None)


def map_of(facts: ClusterFacts, live: Iterable[int]) -> PartitionMap:
    """The map that shows these facts."""
    made = PartitionMap()
    states: dict[str, dict[int, PartitionView]] = {}
    for key, each in facts.view.partitions.items():
        state = PartitionView(each.leader, -1, each.replicas, each.isr, each.adding, each.removing, each.offline)
        states.setdefault(key.topic, {})[key.partition] = state
    for _ in made.look(states, live):
        pass
    return made


def read(facts: ClusterFacts = FACTS, live: Iterable[int] = (1,), **changes: Any) -> Read:
    found = map_of(facts, live)
    whole = Read(
        5_000,
        HEARD,
        known(Registrations(CONTROLLER, LIVE)),
        known(STATUS),
        known({1: {"loop_lag_ms": 3.0}}),
        known(found.totals),
        live=found.live,
        shown=found.brokers,
        groups=known([]),
    )
    whole = replace(whole, **changes)
    silent = {broker_id: each.why_not for broker_id, each in whole.heard.items() if each.why_not is not None}
    digest = digested(facts, found, silent, controller_id(whole), Place(1, 0))
    return whole if "digest" in changes else replace(whole, digest=known(digest))


def lost(reading: Dated[Any], why_not: str = "no answer") -> Dated[Any]:
    return replace(reading, why_not=why_not)


def of(software: str, **changes: Any) -> ClusterFacts:
    return replace(FACTS, brokers={1: replace(BROKER, software=software, **changes)})


def test_a_cluster_of_klamm_shows_everything() -> None:
    found = now_document(read())
    assert found["cluster"] == {"id": "id", "kind": "klamm", "version": "2.8-IV1"}
    assert found["controller"]["epoch"] == 7
    assert found["events"]["waiting"] == STATUS["waiting_events"]
    assert (found["states"]["now"], len(found["states"]["names"])) == ("BrokerChange", 18)
    assert found["machines"] == STATUS["machines"]
    assert found["totals"] == {"topics": 2, "partitions": 3, "offline": 1, "under_replicated": 1, "reassigning": 1}
    assert [(broker["id"], broker["state"], broker["queue_size"]) for broker in found["brokers"]] == [
        (1, "alive", 2),
        (2, "down", None),
    ]
    assert found["brokers"][0]["loop_lag_ms"] == 3.0
    assert found["why_not"] is None
    assert "missing_brokers" in [finding["kind"] for finding in found["findings"]]
    assert found["live"] == {"state": "live", "text": "live", "since_ms": None}
    assert {each["why_not"] for each in found["readings"].values()} == {None}
    assert found["findings_of"] == {"version": 1, "sequence": 0}


def test_the_states_have_the_time_of_the_controller() -> None:
    states = now_document(read(states_over_time=[(3_000, "IsrChange")], controller_time_ms=4_000))["states"]
    assert (states["over_time"], states["time_ms"]) == ([(3_000, "IsrChange")], 4_000)
    assert now_document(read())["states"]["time_ms"] is None


def test_the_status_of_an_earlier_controller_is_not_shown() -> None:
    later = Registrations(replace(CONTROLLER, broker_id=2, epoch=8), LIVE)
    found = now_document(read(registrations=known(later)))
    assert found["controller"]["status"] is found["events"] is found["machines"] is None
    assert found["why_not"] == "The controller is taking over."


def test_clusters_of_apache_kafka_show_what_they_show_and_say_why_not_more() -> None:
    nothing: dict[str, Any] = {"status": Dated(), "numbers": known({})}
    found = now_document(read(of(KAFKA), **nothing))
    assert (found["cluster"]["kind"], found["controller"]["epoch"]) == ("kafka-zookeeper", 7)
    assert found["why_not"] == found["states"]["why_not"] == KAFKA_SHOWS_LESS
    assert [each["step"] for each in found["work"]["reassignments"]] == ["new replicas catch up"]
    assert found["work"]["deletions"] is None
    assert "JMX" in found["brokers"][0]["why_not"]
    found = now_document(read(of(KAFKA, is_kraft=True), **nothing, registrations=Dated(why_not="none")))
    assert (found["cluster"]["kind"], found["live"]["state"]) == ("kafka-kraft", "live")
    assert found["why_not"] == KRAFT_SHOWS_LESS
    assert found["brokers"][0]["alive"]
    assert "no_zookeeper" not in kinds(found)


def test_each_thing_that_cannot_be_read_says_why() -> None:
    refused: Dated[Any] = Dated(why_not="ZooKeeper at 127.0.0.1:2181: no")
    assert "127.0.0.1:2181" in str(now_document(read(registrations=refused, status=Dated()))["why_not"])
    nobody = now_document(read(registrations=known(Registrations(None, LIVE)), status=Dated()))
    assert nobody["why_not"] == "The cluster has no controller now."
    closed = Registrations(replace(CONTROLLER, port=None), LIVE)
    assert "klamm.metrics.port is -1" in now_document(read(registrations=known(closed), status=Dated()))["why_not"]
    nothing = now_document(Read(1))
    assert (nothing["live"]["state"], nothing["brokers"], nothing["totals"]) == ("opening", [], None)


# -- what is not known any more ---------------------------------------------------------------------------------------

GONE = {1: Heard(4_500, "connection refused", 1)}


def kinds(found: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in found["findings"]]


def all_lost(**changes: Any) -> dict[str, Any]:
    """The document when no reading is known any more, although each was."""
    whole = read()
    names = ("status", "numbers", "partitions", "digest", "groups", "registrations")
    gone = {name: lost(getattr(whole, name)) for name in names}
    return now_document(replace(whole, heard=GONE, **gone | changes))


def test_when_nothing_answers_nothing_is_said_of_now_but_that() -> None:
    found = all_lost()
    assert found["live"] == {
        "state": "lost",
        "text": "neither a broker nor ZooKeeper answers",
        "since_ms": 4_500,
    }
    assert kinds(found) == ["no_answer", "no_zookeeper"]
    assert all(each == {"at_ms": 4_000, "why_not": "no answer"} for each in found["readings"].values())
    assert found["events"] is found["machines"] is found["findings_of"] is found["work"]["reassignments"] is None
    assert not found["controller"]["is_known"]
    [first, second] = found["brokers"]
    assert (first["state"], first["trouble"], first["answered_ms"]) == ("silent", "connection refused", 4_500)
    assert (second["state"], second["loop_lag_ms"]) == ("unknown", None)
    # What was known stays, with its time.
    assert found["totals"]["partitions"] == 3


@pytest.mark.parametrize(
    ("registrations", "advice"),
    [
        (
            Registrations(CONTROLLER, LIVE),
            "ZooKeeper has broker 1 registered: it hangs, or the network to this machine is cut.",
        ),
        (Registrations(None, {}), "ZooKeeper has no broker registered: they have stopped or died. Start them."),
    ],
)
def test_when_zookeeper_answers_it_tells_dead_brokers_from_those_that_hang(
    registrations: Registrations, advice: str
) -> None:
    found = all_lost(registrations=known(registrations), live=frozenset(registrations.live))
    assert (found["live"]["state"], found["live"]["text"]) == ("lost", "no broker answers")
    [finding] = found["findings"]
    assert finding["text"] == "None of 1 broker answers."
    assert finding["advice"].startswith(advice)
    assert [each["state"] for each in found["brokers"]] == ["silent" if registrations.live else "down", "down"]


def test_without_zookeeper_the_brokers_still_tell_of_themselves() -> None:
    whole = read()
    found = now_document(replace(whole, registrations=lost(whole.registrations)))
    assert found["live"] == {"state": "partly", "text": "ZooKeeper does not answer", "since_ms": 4_000}
    assert kinds(found)[0] == "no_zookeeper"
    assert (found["controller"]["id"], found["controller"]["is_known"], found["events"]["event"]) == (
        1,
        True,
        "BrokerChange",
    )
    assert [each["state"] for each in found["brokers"]] == ["alive", "down"]


def test_a_broker_that_hangs_is_neither_alive_nor_down() -> None:
    heard = {**HEARD, 2: Heard(3_000, "it does not answer within 5 s", 1)}
    found = now_document(read(live=(1, 2), heard=heard))
    assert found["live"] == {"state": "partly", "text": "no answer from broker 2", "since_ms": 3_000}
    assert [(each["state"], each["trouble"]) for each in found["brokers"]] == [
        ("alive", None),
        ("silent", "it does not answer within 5 s"),
    ]
    assert "silent_brokers" in kinds(found)
    assert "missing_brokers" not in kinds(found)


def test_a_broker_that_answers_without_a_registration_is_not_alive() -> None:
    found = now_document(read(heard={**HEARD, 2: Heard(4_900, None, 1)}))
    assert [each["state"] for each in found["brokers"]] == ["alive", "unregistered"]


def test_findings_are_of_the_partitions_and_brokers_of_the_map() -> None:
    """The facts may have been read before a failover."""
    facts = replace(FACTS, brokers={1: BROKER, 2: replace(BROKER, broker_id=2)})
    before = replace(FACTS.view, partitions={TopicPartition("t", 0): PartitionView(2, 0, (1, 2), (1, 2))})
    found = map_of(replace(facts, view=before), (1, 2))
    assert not any(each.is_problem for each in digested(facts, found, {}, 1, Place(1, 0)).findings)
    found.change("t", 0, 1, [1])
    for _ in found.relive((1,)):
        pass
    digest = digested(facts, found, {}, 1, Place(1, 1))
    assert [each.kind for each in digest.findings if each.is_problem] == ["missing_brokers", "under_replicated"]
    assert found.totals == (1, 1, 0, 1, 0)
    # A leader that is not up is none.
    found.change("t", 0, 2, [2])
    digest = digested(facts, found, {}, 1, Place(1, 2))
    assert "offline_partitions" in [each.kind for each in digest.findings]
    assert found.totals == (1, 1, 1, 0, 0)


def test_a_controller_is_not_blamed_for_what_another_one_has_not_answered() -> None:
    facts = replace(FACTS, controller_error="controller 1 does not answer", brokers={1: BROKER})
    found = map_of(facts, (1, 3))
    for controller, blamed in ((1, ["silent_controller"]), (3, [])):
        kinds = [each.kind for each in digested(facts, found, {}, controller, Place(1, 0)).findings]
        assert [kind for kind in kinds if "controller" in kind] == blamed
