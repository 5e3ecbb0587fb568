"""Why in a recording: what the records of klamm controllers and the history tell of a partition at a moment."""

from pathlib import Path
from typing import Any

from klamm.cockpit.recorded.why import NO_RECORDS, why_document
from klamm.faults.entries import ServerPaused
from klamm.recording.entries import Json, history_entry, znode_entry
from klamm.recording.reader import Recording
from klamm.recording.writer import RecordingWriter
from klamm.znodes.brokers import broker_path
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, encode_controller_epoch
from klamm.znodes.requests import delete_topic_path
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, partition_state_path, topic_path
from klamm.znodes.watch import Znode
from support.recordings import BEGAN_MS, registration


class Story:
    """Writes a recording: t-0 is on brokers 1 and 2, and broker 3 is the controller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sequence = 0
        self._file = open(path, "wb")  # noqa: SIM115  # closed by `why`
        self._written = RecordingWriter(self._file, "test", "a test", BEGAN_MS)
        self._at_ms = BEGAN_MS
        for broker in (1, 2, 3):
            self.znode(broker_path(broker), registration(broker))
        self.controller(3, 1)
        self.znode(topic_path("t"), TopicAssignment({0: (1, 2)}).encode())
        self.state(1, 0, (1, 2))

    def add(self, entry: Json) -> None:
        self._at_ms += 10
        self._written.add(entry, self._at_ms)

    def znode(self, path: str, data: bytes | None) -> None:
        number = self._written.entries
        self.add(znode_entry(Znode(path, data, number, number, number)))

    def controller(self, broker: int, epoch: int) -> None:
        self.znode(CONTROLLER_EPOCH_PATH, encode_controller_epoch(epoch))
        self.znode(CONTROLLER_PATH, Controller(broker, BEGAN_MS).encode())

    def state(self, leader: int, leader_epoch: int, isr: tuple[int, ...], controller_epoch: int = 1) -> None:
        self.znode(partition_state_path("t", 0), LeaderAndIsr(leader, leader_epoch, isr, controller_epoch).encode())

    def record(self, kind: str, before: str, after: str, **others: Any) -> None:
        self.sequence += 1
        common = {"sequence": self.sequence, "time_ms": self._at_ms, "controller": 3, "epoch": 1, "kind": kind}
        of_partition = {"topic": "t", "partition": 0, "leader": None, "leader_epoch": None, "isr": None}
        self.add({**common, **of_partition, "failed": False, "why": "", "from": before, "to": after, **others})

    def replica(self, replica: int, before: str, after: str, event: str) -> None:
        self.record("replica", f"{before}Replica", f"{after}Replica", replica=replica, event=event)

    def why(self) -> dict[str, Any]:
        """The answer about the last moment."""
        self._written.flush()
        self._file.close()
        with Recording(self.path) as recording:
            found = why_document(recording, "t", 0, recording.count - 1)
        assert found is not None
        return found


def kinds(found: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in found["conditions"]]


def test_a_failed_log_directory_is_told_from_a_broker_that_is_down(tmp_path: Path) -> None:
    story = Story(tmp_path / "r")
    story.replica(1, "Online", "Offline", "LeaderAndIsrResponseReceived")
    story.state(2, 1, (2,))
    found = story.why()
    assert kinds(found) == ["under_replicated", "off_preferred"]
    offline = "broker 1 has the replica in a log directory that is offline"
    assert found["conditions"][0]["why"] == (offline,)
    remedy = "Repair the log directory of broker 1, and restart the broker."
    assert found["conditions"][0]["remedies"] == [{"text": remedy, "command": "", "price": ""}]
    assert (found["replicas"][0]["state"], found["replicas"][0]["why"]) == ("offline", offline)
    assert found["replicas"][0]["since_ms"] == BEGAN_MS + 80


def test_a_broker_that_has_registered_again_has_no_failed_directory(tmp_path: Path) -> None:
    story = Story(tmp_path / "r")
    story.replica(1, "Online", "Offline", "LeaderAndIsrResponseReceived")
    story.znode(broker_path(1), None)
    story.znode(broker_path(1), registration(1))
    assert kinds(story.why()) == ["healthy"]


def test_a_controlled_shutdown_that_cannot_move_the_leader_is_named(tmp_path: Path) -> None:
    story = Story(tmp_path / "r")
    story.state(1, 0, (1,))
    story.record(
        "partition",
        "OnlinePartition",
        "OnlinePartition",
        failed=True,
        leader=1,
        leader_epoch=0,
        isr=[1],
        why="no replica can be elected",
        event="ControlledShutdown",
    )
    found = story.why()
    assert kinds(found) == ["leader_shutting_down", "under_replicated"]
    last = found["story"]["entries"][-1]
    assert (last["writer"], last["is_failed"]) == ("controller 3", True)
    assert last["text"] == "no replica can be elected (event ControlledShutdown)"
    assert found["story"]["why_no_more"] == ""


def test_who_decided_is_the_leader_in_its_epoch_and_otherwise_the_controller_of_the_controller_epoch(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path / "r")
    story.state(1, 0, (1,))
    story.controller(2, 2)
    story.state(1, 1, (1,), controller_epoch=2)
    # This epoch's controller is not in the recording.
    story.state(2, 2, (2,), controller_epoch=7)
    found = story.why()
    decided = [each for each in found["story"]["entries"] if each["leader"] is not None]
    assert [(each["writer"], each["controller_epoch"]) for each in decided] == [
        ("controller 3", 1),
        ("leader 1", 1),
        ("controller 2", 2),
        ("ZooKeeper", 7),
    ]
    assert found["story"]["why_no_more"] == NO_RECORDS


def test_records_are_in_the_order_of_epochs_and_numbers_not_of_clocks(tmp_path: Path) -> None:
    story = Story(tmp_path / "r")
    for epoch, sequence in ((2, 0), (1, 9), (1, 8)):
        story.record("partition", "OnlinePartition", "OnlinePartition", epoch=epoch, sequence=sequence)
    story.state(1, 1, (1, 2))
    entries = story.why()["story"]["entries"][-4:]
    assert [(each["controller_epoch"], each["leader_epoch"]) for each in entries] == [
        (1, None),
        (1, None),
        (2, None),
        (1, 1),
    ]


def test_a_paused_leader_and_a_deletion_are_named(tmp_path: Path) -> None:
    story = Story(tmp_path / "paused")
    story.add(history_entry(ServerPaused(1)))
    found = story.why()
    assert kinds(found) == ["silent_leader"]
    assert found["conditions"][0]["why"] == ("what was seen of it last: its process is paused",)

    story = Story(tmp_path / "deleted")
    story.znode(delete_topic_path("t"), b"")
    story.znode(broker_path(2), None)
    story.replica(1, "ReplicaDeletionStarted", "ReplicaDeletionSuccessful", "TopicDeletionStopReplicaResponseReceived")
    found = story.why()
    assert kinds(found) == ["deleting"]
    assert found["conditions"][0]["remedies"][0]["text"] == "Start broker 2."


def test_a_story_of_a_moment_is_found_behind_thousands_of_later_entries(tmp_path: Path) -> None:
    story = Story(tmp_path / "r")
    for _ in range(2_500):
        story.replica(1, "Online", "Online", "LogDirEventNotification")
    story.why()
    with Recording(story.path) as recording:
        first = why_document(recording, "t", 0, 7)
    assert first is not None
    assert [each["text"] for each in first["story"]["entries"]][-1] == "t-0 has leader 1 in epoch 0, the ISR is [1, 2]"


def test_a_hostile_record_is_a_line_without_what_it_lacks(tmp_path: Path) -> None:
    story = Story(tmp_path / "r")
    story.add({"kind": "partition", "topic": "t", "partition": 0})
    story.add({"kind": "replica", "topic": "t", "partition": 0, "replica": "x", "epoch": [], "isr": 5, "leader": {}})
    story.add({"kind": "replica", "topic": "t", "partition": 0, "replica": 1, "to": "OfflineReplica", "event": 7})
    story.add({"kind": "znode", "path": partition_state_path("t", 0), "data": "{"})
    story.add({"kind": "znode", "path": broker_path(1), "data": 5})
    entries = story.why()["story"]["entries"][-5:]
    assert [each["writer"] for each in entries] == ["controller ?"] * 3 + ["ZooKeeper"] * 2
