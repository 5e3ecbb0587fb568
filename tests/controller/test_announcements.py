"""What is decided about topics, reassignments and elections leaves a record, in Kafka's words where it has some."""

from pathlib import Path

from klamm.protocol.vocabulary import ElectionType
from support.controller.scene import Scene, playing

T0 = ("t", 0)


def announced(scene: Scene) -> list[tuple[str, str]]:
    """(event, text) of each announcement, since this was asked last."""
    log = scene.controller.state_changes
    records = [record.record.described() for record in log.records()]
    log._records.clear()
    told = [(record["event"], record["text"]) for record in records if record["kind"] == "controller"]
    # The scene notices by one that everything is settled.
    return [record for record in told if record[0] != "LogDirEventNotification"]


async def test_a_topic_comes_moves_and_goes(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        announced(scene)
        await scene.create("t", [1, 2])
        await scene.settled()
        assert announced(scene) == [("TopicChange", "New topics: [t], deleted topics: [], 1 new partitions")]
        assert await scene.controller.alter_partition_reassignments({T0: (2, 1)}) == {T0: None}
        await scene.settled()
        assert announced(scene) == [
            (
                "ApiPartitionReassignment",
                "Successfully updated assignment of partition t-0 to ReplicaAssignment(replicas=2,1,"
                " addingReplicas=, removingReplicas=)",
            ),
            ("ApiPartitionReassignment", "Reassignment of partition t-0 to 2,1 is complete"),
        ]
        await scene.controller.elect_leaders([T0], ElectionType.PREFERRED)
        assert announced(scene) == [
            ("ReplicaLeaderElection", "Starting replica leader election (PREFERRED) for partitions t-0")
        ]
        scene.silent.add(2)
        await scene.store.mark_topic_for_deletion("t")
        await scene.settled()
        await scene.kill(2)
        await scene.settled()
        told = [text for _, text in announced(scene)]
        assert told[0] == "Deletion of topic t (re)started"
        assert "Halted deletion of topics t due to replica deletion failure" in told
        scene.silent.clear()
        await scene.start(2)
        await scene.settled()
        told = [text for _, text in announced(scene) if "topic" in text]
        assert told == ["Deletion of topic t (re)started", "Deletion of topic t successfully completed"]


async def test_an_election_names_a_few_partitions(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        await scene.create("t", *([1] for _ in range(12)))
        await scene.settled()
        announced(scene)
        await scene.controller.elect_leaders([("t", number) for number in range(12)], ElectionType.UNCLEAN)
        names = ",".join(f"t-{number}" for number in range(10))
        (told,) = announced(scene)
        assert told[1] == f"Starting replica leader election (UNCLEAN) for partitions {names} and 2 more"


async def test_brokers_come_stop_and_go(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1)
        first = scene.brokers[1].epoch
        assert [text for _, text in announced(scene) if "roker" in text] == [
            f"Initialized broker epochs cache: Map(1 -> {first})",
            "Currently active brokers in the cluster: Set(1)",
            "Currently shutting brokers in the cluster: Set()",
        ]
        await scene.start(2)
        await scene.settled()
        epochs = f"1 -> {first}, 2 -> {scene.brokers[2].epoch}"
        assert announced(scene)[-1] == ("BrokerChange", f"Updated broker epochs cache: Map({epochs})")
        await scene.controller.controlled_shutdown(2, scene.brokers[2].epoch)
        await scene.kill(2)
        await scene.settled()
        told = [text for _, text in announced(scene)]
        assert "Removed 2 from list of shutting down brokers." in told
        assert told[-1] == f"Updated broker epochs cache: Map(1 -> {first})"
