"""Time travel: what the page's APIs say of the moments of a recording."""

import json
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from klamm.recording.difference import difference
from klamm.recording.entries import znode_entry
from klamm.recording.reader import Recording
from klamm.recording.writer import RecordingWriter
from klamm.tools.cockpit.answers import Cockpit
from klamm.tools.cockpit.recorded import RecordedCluster
from klamm.tools.cockpit.server import make_app
from klamm.znodes.brokers import BrokerRegistration, Endpoint, broker_path
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, encode_controller_epoch
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, partition_state_path, topic_path
from klamm.znodes.watch import Znode
from support.cockpit import FixedSource
from support.recordings import RandomCluster, record

KLAMM = [sys.executable, "-m", "klamm.tools.main"]
BEGAN_MS = 1_000_000


def browser_of(path: Path) -> TestClient:
    """A browser with the page of this recording open."""
    app = make_app(Cockpit(RecordedCluster(Recording(path))), "127.0.0.1")
    client = TestClient(app, base_url="http://127.0.0.1:8080")
    assert client.get(f"/?token={app.token}").status_code == 200
    return client


def write_failover(path: Path) -> dict[str, int]:
    """Broker 1 leads t-0, dies, and broker 2 leads; the numbers of the entries by what happens."""
    numbers = {}
    with open(path, "wb") as file:
        written = RecordingWriter(file, "test", "a failover", BEGAN_MS)
        for what, after_ms, znode, data in (
            ("1 registers", 10, broker_path(1), registration(1)),
            ("2 registers", 20, broker_path(2), registration(2)),
            ("epoch", 30, CONTROLLER_EPOCH_PATH, encode_controller_epoch(1)),
            ("election", 30, CONTROLLER_PATH, Controller(2, BEGAN_MS).encode()),
            ("topic", 40, topic_path("t"), TopicAssignment({0: (1, 2)}).encode()),
            ("1 leads", 50, partition_state_path("t", 0), LeaderAndIsr(1, 0, (1, 2), 1).encode()),
            ("1 dies", 5_000, broker_path(1), None),
            ("no leader", 5_010, partition_state_path("t", 0), LeaderAndIsr(-1, 1, (1,), 1).encode()),
            ("2 leads", 5_020, partition_state_path("t", 0), LeaderAndIsr(2, 2, (2,), 1).encode()),
        ):
            numbers[what] = written.entries
            number = written.entries
            written.add(znode_entry(Znode(znode, data, number, number, number)), BEGAN_MS + after_ms)
        written.add(
            {
                "kind": "partition",
                "sequence": 5,
                "time_ms": BEGAN_MS + 5_021,
                "controller": 2,
                "epoch": 1,
                "topic": "t",
                "partition": 0,
                "from": "OfflinePartition",
                "to": "OnlinePartition",
                "leader": 2,
                "leader_epoch": 2,
                "isr": [2],
                "failed": False,
                "why": "",
                "event": "BrokerChange",
            },
            BEGAN_MS + 5_021,
        )
        written.flush()
    return numbers


def registration(broker_id: int) -> bytes:
    return BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", "here", 9090 + broker_id),)).encode()


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
    assert [each["kind"] for each in during["findings"]] == ["offline"]
    assert [(each["id"], each["alive"]) for each in during["brokers"]] == [(1, False), (2, True)]

    after = browser.get("/api/now").json()
    assert after["events"]["event"] == "BrokerChange"
    assert [each["kind"] for each in after["findings"]] == ["under-replicated"]
    assert after["entry"] == numbers["2 leads"] + 1


def test_a_partition_has_its_story_up_to_the_moment(tmp_path: Path) -> None:
    numbers = write_failover(tmp_path / "r")
    browser = browser_of(tmp_path / "r")
    found = browser.get(f"/api/why?topic=t&partition=0&entry={numbers['no leader']}").json()
    assert found["leader"] is None
    assert found["conditions"] == [
        {
            "kind": "offline",
            "text": "No leader.",
            "why": ["broker 1 is not registered"],
            "remedies": [],
            "is_problem": True,
        }
    ]
    assert [(each["broker_id"], each["state"]) for each in found["replicas"]] == [(1, "offline"), (2, "out of sync")]
    story = found["story"]["entries"]
    assert [each["text"] for each in story] == [
        "topic t has 1 partitions",
        "t-0 has leader 1 in epoch 0, the ISR is [1, 2]",
        "t-0 has no leader in epoch 1, the ISR is [1]",
    ]
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
                assert found.status_code == 200


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
    assert (answer.status_code, why in answer.json()["error"]) == (status, True)


def test_a_live_cluster_has_no_moments() -> None:
    app = make_app(Cockpit(FixedSource({"cluster": {"id": "c", "kind": "klamm"}, "brokers": []})), "127.0.0.1")
    client = TestClient(app, base_url="http://127.0.0.1:8080")
    client.get(f"/?token={app.token}")
    assert client.get("/api/recording").status_code == 404


def test_klamm_cockpit_opens_a_file(tmp_path: Path) -> None:
    write_failover(tmp_path / "r")
    command = [*KLAMM, "cockpit", str(tmp_path / "r"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = browser.open(url, timeout=10).read()
        assert b'"recording":true' in page
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_a_file_that_is_no_recording_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("hello, this is a text")
    ended = subprocess.run(
        [*KLAMM, "cockpit", str(tmp_path / "r")], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == f"klamm: {tmp_path}/r is no recording of klamm: it has no head of a block there\n"
    ended = subprocess.run(
        [*KLAMM, "cockpit", str(tmp_path / "none")], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.stderr == f"klamm: {tmp_path}/none cannot be read: No such file or directory\n"
