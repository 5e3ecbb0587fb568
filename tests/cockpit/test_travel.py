"""Time travel: what the page's APIs say of the moments of a recording."""

import json
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.recorded.cluster import RecordedCluster
from klamm.cockpit.recorded.why import NO_RECORDS
from klamm.recording.difference import difference
from klamm.recording.reader import Recording
from support.cockpit import Browser, FixedSource
from support.recordings import BEGAN_MS, RandomCluster, record, write_failover

KLAMM = [sys.executable, "-m", "klamm.cli.main"]


def browser_of(path: Path) -> Browser:
    """A browser with the page of this recording open."""
    return Browser(Cockpit(RecordedCluster(Recording(path)))).opened()


def test_the_documents_of_a_moment_are_those_of_that_moment(tmp_path: Path) -> None:
    numbers = write_failover(tmp_path / "r")
    browser = browser_of(tmp_path / "r")

    before = browser.get(f"/api/now?entry={numbers['1 leads']}").json()
    assert before["cluster"]["kind"] == "recording"
    assert before["time_ms"] == BEGAN_MS + 50
    assert before["controller"]["id"] == 2
    assert [(each["id"], each["alive"]) for each in before["brokers"]] == [(1, True), (2, True)]
    assert before["machines"] == {"partitions": {"OnlinePartition": 1}, "replicas": {"OnlineReplica": 2}}
    assert before["findings"] == []

    during = browser.get(f"/api/now?at={BEGAN_MS + 5_015}").json()
    assert during["entry"] == numbers["no leader"]
    assert during["machines"]["partitions"] == {"OfflinePartition": 1}
    assert [each["kind"] for each in during["findings"]] == ["offline_partitions"]
    assert [(each["id"], each["alive"]) for each in during["brokers"]] == [(1, False), (2, True)]

    after = browser.get("/api/now").json()
    assert after["events"]["event"] == "BrokerChange"
    assert [each["kind"] for each in after["findings"]] == ["under_replicated"]
    assert after["entry"] == numbers["2 leads"] + 1


def test_a_partition_has_its_story_up_to_the_moment(tmp_path: Path) -> None:
    numbers = write_failover(tmp_path / "r")
    browser = browser_of(tmp_path / "r")
    found = browser.get(f"/api/why?topic=t&partition=0&entry={numbers['no leader']}").json()
    assert found["leader"] is None
    [condition] = found["conditions"]
    assert (condition["kind"], condition["is_problem"]) == ("offline", True)
    assert condition["why"] == [
        "no replica of the ISR (broker 1) can lead",
        "broker 1 is not live (it is in the ISR)",
        "unclean.leader.election.enable is not in a recording",
    ]
    assert condition["remedies"][0]["text"] == "Start broker 1. Nothing is lost: it has all acknowledged records."
    assert condition["remedies"][1]["price"] == "the loss is unknown, as a recording has no log ends"
    assert [each["command"] for each in condition["remedies"]] == ["", "", ""]
    assert [(each["broker_id"], each["state"]) for each in found["replicas"]] == [(1, "offline"), (2, "out of sync")]
    story = found["story"]["entries"]
    assert [(each["writer"], each["subject"], each["text"]) for each in story] == [
        ("ZooKeeper", "broker 1", "broker 1 is registered, broker epoch 1"),
        ("ZooKeeper", "broker 2", "broker 2 is registered, broker epoch 2"),
        ("ZooKeeper", "controller", "broker 2 is the controller, controller epoch 1"),
        ("ZooKeeper", "partition", "topic t has 1 partition"),
        ("controller 2", "partition", "t-0 has leader 1 in epoch 0, the ISR is [1, 2]"),
        ("ZooKeeper", "broker 1", "broker 1 is no longer registered"),
        ("controller 2", "partition", "t-0 has no leader in epoch 1, the ISR is [1]"),
    ]
    assert found["story"]["why_no_more"] == NO_RECORDS
    assert [each["since_ms"] for each in found["replicas"]] == [BEGAN_MS + 5_000, None]
    last = browser.get("/api/why?topic=t&partition=0").json()["story"]["entries"][-1]
    assert (last["writer"], last["before"], last["after"], last["isr"]) == (
        "controller 2",
        "OfflinePartition",
        "OnlinePartition",
        [2],
    )


def test_two_moments_are_compared_in_words_and_values(tmp_path: Path) -> None:
    numbers = write_failover(tmp_path / "r")
    browser = browser_of(tmp_path / "r")
    found = browser.get(f"/api/recording/difference?a={numbers['1 leads']}&b={numbers['2 leads']}").json()
    assert found["words"] == [
        "Broker 1 is no longer registered.",
        "1 partition moved from leader 1 to 2: t-0.",
        "Broker 1 left the ISR of 1 partition.",
    ]
    assert [(each["section"], each["key"]) for each in found["changed"]] == [("brokers", "1"), ("partitions", "t-0")]
    assert found["changed"][1]["after"]["leader"] == 2


def test_the_timeline_leads_from_mark_to_mark(tmp_path: Path) -> None:
    numbers = write_failover(tmp_path / "r")
    browser = browser_of(tmp_path / "r")
    head = browser.get("/api/recording").json()
    assert (head["about"], head["entries"], head["trouble"]) == ("a failover", 11, None)
    assert sum(bar["entries"] for bar in head["timeline"]) == 11
    following = browser.get(f"/api/recording/next?entry={numbers['1 leads']}").json()["entry"]
    assert following == numbers["1 dies"]
    assert browser.get(f"/api/recording/next?entry={following}&back=1").json()["entry"] == numbers["1 leads"]
    entries = browser.get(f"/api/recording/entries?first={following}&limit=2").json()["entries"]
    assert [(each["number"], each["mark"], each["text"]) for each in entries] == [
        (numbers["1 dies"], "broker", "broker 1 is no longer registered"),
        (numbers["no leader"], "election", "t-0 has no leader in epoch 1, the ISR is [1]"),
    ]


def test_every_moment_of_a_random_run_has_documents(tmp_path: Path) -> None:
    record(tmp_path / "r", RandomCluster(2), 250)
    browser = browser_of(tmp_path / "r")
    with Recording(tmp_path / "r") as recording:
        for number in range(0, recording.count, 7):
            now = browser.get(f"/api/now?entry={number}").json()
            state = recording.moment(number)
            assert sum(now["machines"]["partitions"].values()) == len(state.partitions)
            assert {each["id"] for each in now["brokers"] if each["alive"]} == set(state.brokers)
            compared = browser.get(f"/api/recording/difference?a=0&b={number}").json()
            assert compared["count"] == len(difference(recording.moment(0), state))
            for topic, partition in list(state.partitions)[:2]:
                found = browser.get(f"/api/why?topic={topic}&partition={partition}&entry={number}")
                assert found.status == 200


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/api/now?entry=11", 400, "entry=11 is not allowed; allowed are numbers from 0 to 10."),
        ("/api/now?entry=x", 400, "entry=x is not allowed"),
        ("/api/now?at=-1", 400, "at=-1 is not allowed"),
        ("/api/why?topic=t", 400, "partition=None is not allowed"),
        ("/api/why?topic=t&partition=9", 404, "There is no partition t-9 at this moment."),
        ("/api/recording/difference?a=1", 400, "b=None is not allowed"),
        ("/api/recording/entries?limit=1000000", 400, "limit=1000000 is not allowed"),
    ],
)
def test_wrong_parameters_are_named(tmp_path: Path, path: str, status: int, why: str) -> None:
    write_failover(tmp_path / "r")
    answer = browser_of(tmp_path / "r").get(path)
    assert (answer.status, why in answer.json()["error"]) == (status, True)


def test_a_live_cluster_has_no_moments() -> None:
    client = Browser(Cockpit(FixedSource({"cluster": {"id": "c", "kind": "klamm"}, "brokers": []}))).opened()
    assert client.get("/api/recording").status == 404


def test_klamm_cockpit_opens_a_file(tmp_path: Path) -> None:
    write_failover(tmp_path / "r")
    command = [*KLAMM, "cockpit", str(tmp_path / "r"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = browser.open(url, timeout=120).read()
        assert b'"recording":true' in page
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


def test_a_file_that_is_no_recording_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("hello, this is a text")
    ended = subprocess.run(
        [*KLAMM, "cockpit", str(tmp_path / "r")], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == f"klamm: {tmp_path}/r is no recording of klamm: it has no head of a block there\n"
    ended = subprocess.run(
        [*KLAMM, "cockpit", str(tmp_path / "none")], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stderr == f"klamm: {tmp_path}/none cannot be read: No such file or directory\n"
