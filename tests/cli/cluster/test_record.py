"""klamm record: what happens in a live cluster, in a file."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.processes.helper import Helper
from klamm.recording.ordering import HOLD_MS, MAX_DELAY_MS, Ordering
from klamm.recording.reader import Recording
from klamm.recording.writer import RecordingWriter
from klamm.testing.cluster import Cluster

KLAMM = [sys.executable, "-m", "klamm.cli.main"]


@contextmanager
def recording_of(c: Cluster, path: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*KLAMM, "record", str(path), "--bootstrap-server", c.bootstrap, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Recording the cluster at ZooKeeper 127.0.0.1:")
        yield process
        process.kill()


def test_a_live_cluster_is_recorded_until_a_signal(klamm_helper: Helper, tmp_path: Path) -> None:
    path = tmp_path / "live"
    with Cluster(2, zookeeper_session_timeout_ms=2_000, helper=klamm_helper) as c:
        c.create_topic("before", partitions=2, replication_factor=2)
        with recording_of(c, path) as process:
            leader, follower = c.replicas("before")
            c.create_topic("meanwhile", partitions=3, replication_factor=2)
            c.kill(leader)
            c.until(lambda: all(c.leader("before", number) == follower for number in (0, 1)))
            # The znodes have been told when the controller's event is over, and its records come after that.
            c.start(leader)
            c.until(lambda: not c.under_replicated())
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            said = process.stdout.read()
            assert process.wait(120) == 0
        states = {
            (topic, number): (c.leader(topic, number), tuple(c.isr(topic, number)))
            for topic, count in (("before", 2), ("meanwhile", 3))
            for number in range(count)
        }
    with Recording(path) as recording:
        assert said == f"{path} has {recording.count} entries. To open it: klamm cockpit {path}\n"
        assert (recording.source, recording.trouble) == ("live", None)
        last = recording.moment(recording.count - 1)
        assert {key: (each.leader, each.isr) for key, each in last.partitions.items()} == states
        assert sorted(last.brokers) == [0, 1]
        entries = recording.entries(0, recording.count)
        # An event that began before the recording may end in it; what it changed is no news.
        first = next(entry for entry in entries if entry.entry.get("mark", "event") != "event")
        assert first.entry["text"] == "topic meanwhile has 3 partitions"
        assert {"event", "partition", "replica"} <= {entry.entry["kind"] for entry in entries}


def test_a_recorder_that_is_killed_leaves_a_file(klamm_helper: Helper, tmp_path: Path) -> None:
    path = tmp_path / "live"
    with Cluster(1, helper=klamm_helper) as c:
        c.create_topic("t")
        with recording_of(c, path) as process:
            process.kill()
            process.wait()
    with Recording(path) as recording:
        assert ("t", 0) in recording.moment(recording.count - 1).partitions


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "live"
    path.write_text("something")
    command = [*KLAMM, "record", str(path), "--zookeeper", "127.0.0.1:1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"klamm: {path} exists; name a file that does not\n")
    assert path.read_text() == "something"


@pytest.mark.parametrize("delay_ms", [0, HOLD_MS - 1, MAX_DELAY_MS + 1])
def test_entries_of_two_sources_are_in_the_order_of_their_times(tmp_path: Path, delay_ms: int) -> None:
    began_ms = 1_000_000
    with open(tmp_path / "r", "wb") as file:
        writer = RecordingWriter(file, "live", "a test", began_ms)
        ordering = Ordering(writer)
        for second in range(20):
            now_ms = began_ms + second * 1_000
            ordering.add({"kind": "fault", "text": f"now {second}"}, now_ms, now_ms)
            ordering.add({"kind": "fault", "text": f"late {second}"}, now_ms - delay_ms, now_ms)
            ordering.release(now_ms)
        ordering.release_all()
        writer.flush()
    with Recording(tmp_path / "r") as recording:
        entries = recording.entries(1, 100)
        assert len(entries) == 40
        at = {entry.entry["text"]: entry.at_ms for entry in entries}
        believed_ms = delay_ms if delay_ms <= MAX_DELAY_MS else 0
        assert all(at[f"now {second}"] == began_ms + second * 1_000 for second in range(20))
        late = [at[f"late {second}"] for second in range(3, 20)]
        assert late == [began_ms + second * 1_000 - believed_ms for second in range(3, 20)]
