"""The status for an operator: the controller, pending work, and what it is blocked on."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.controller import controller_status as module
from klamm.controller.controller import KafkaController
from klamm.controller.controller_status import controller_status
from klamm.controller.events import BrokerChange, ReplicaLeaderElection
from klamm.protocol.vocabulary import ElectionType, PartitionKey
from support.controller.scene import playing


def whys(listed: dict[str, Any], key: str = "why") -> dict[tuple[str, int], str]:
    assert len(listed["first"]) == listed["count"]
    return {(item["topic"], item.get("partition", -1)): item[key] for item in listed["first"]}


async def test_a_broker_that_is_not_the_controller_says_who_is(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        found = await controller_status(scene.brokers[2].controller)
        assert found == {"broker_id": 2, "active": False, "controller_id": 1}


async def test_a_cluster_in_order(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2], [2, 1])
        found = await controller_status(scene.controller)
        now_ms = scene.environment.now_ms()
        assert now_ms - 60_000 < found.pop("since_ms") <= found.pop("now_ms") <= now_ms
        epochs = {broker_id: broker.epoch for broker_id, broker in scene.brokers.items()}
        nothing: dict[str, Any] = {"count": 0, "first": []}
        assert found == {
            "broker_id": 1,
            "active": True,
            "controller_id": 1,
            "epoch": 1,
            "state": "Idle",
            "event": None,
            "event_for_ms": 0,
            "event_queue_size": 0,
            "event_waits_ms": 0,
            "waiting_events": [],
            "elections": [],
            "brokers": [
                {
                    "broker_id": broker_id,
                    "epoch": epochs[broker_id],
                    "shutting_down": False,
                    "offline_replicas": 0,
                    "queue_size": 0,
                    "sending": None,
                    "sending_for_ms": 0,
                    "trouble": "",
                }
                for broker_id in (1, 2)
            ],
            "topics": 1,
            "partitions": 2,
            "preferred_replica_imbalance": 0,
            "offline_partitions": nothing,
            "under_replicated_partitions": nothing,
            "deletions": nothing,
            "reassignments": nothing,
        }
        brief = await controller_status(scene.controller, brief=True)
        assert brief.keys() - found.keys() == {"machines", "now_ms", "since_ms"}
        assert found.keys() - brief.keys() == {"offline_partitions", "under_replicated_partitions"}


async def test_both_state_machines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED_SLICE", 1)
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", [1, 2], [2, 1], [2])
        await scene.kill(2)
        await scene.settled()
        machines = (await controller_status(scene.controller, brief=True))["machines"]
        assert machines["partitions"] == {
            "NewPartition": 0,
            "OnlinePartition": 2,
            "OfflinePartition": 1,
            "NonExistentPartition": 0,
        }
        replicas = {state: count for state, count in machines["replicas"].items() if count}
        assert replicas == {"OnlineReplica": 2, "OfflineReplica": 3}
        assert len(machines["replicas"]) == 7


async def test_elections_are_listed_with_the_one_in_progress_and_those_that_wait() -> None:
    def election(*partitions: PartitionKey) -> ReplicaLeaderElection:
        answer = asyncio.get_running_loop().create_future()
        return ReplicaLeaderElection(partitions, ElectionType.PREFERRED, answer=answer)

    events = SimpleNamespace(
        current=(election(("t", 0)), 7.0), waiting=lambda limit: [(BrokerChange(), 5.0), (election(("t", 1)), 3.0)]
    )
    found = module._elections(cast(KafkaController, SimpleNamespace(event_manager=events)))
    assert [(each["type"], each["partitions"], each["step"], each["for_ms"]) for each in found] == [
        ("preferred", 1, "in progress", 7),
        ("preferred", 1, "waiting", 3),
    ]


async def test_partitions_that_are_out_of_order(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1, 3], [3], [1, 2])
        scene.offline.add((("t", 2), 2))
        await scene.kill(3)
        await scene.store.report_log_dir_failure(2)
        await scene.settled()
        await scene.until(lambda: scene.controller.context.replicas_on_offline_dirs)
        await scene.settled()
        found = await controller_status(scene.controller)
        assert whys(found["offline_partitions"]) == {
            ("t", 1): "no in-sync replica can lead: not alive: broker 3",
        }
        assert whys(found["under_replicated_partitions"]) == {
            ("t", 0): "not alive: broker 3",
            ("t", 2): "on a disk that does not work: broker 2",
        }
        [partition, _] = found["under_replicated_partitions"]["first"]
        assert {**partition, "leader_epoch": 0, "why": ""} == {
            "topic": "t",
            "partition": 0,
            "leader": 1,
            "leader_epoch": 0,
            "isr": (1,),
            "replicas": (1, 3),
            "why": "",
        }


async def test_what_deletions_wait_for(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("answered", [1, 2])
        await scene.create("dead", [1, 3])
        await scene.kill(3)
        scene.silent.add(2)
        for topic in ("answered", "dead"):
            await scene.store.mark_topic_for_deletion(topic)
        await scene.until(lambda: scene.controller.context.topics_with_deletion_started)
        await scene.settled()
        found = await controller_status(scene.controller)
        assert whys(found["deletions"], "waits_for") == {
            ("answered", -1): "the answers of broker 2",
            ("dead", -1): "not alive: broker 3",
        }
        assert found["deletions"]["first"][0] == {
            "topic": "answered",
            "started": True,
            "replicas": 2,
            "deleted": 1,
            "step": "deleting",
            "waits_for": "the answers of broker 2",
        }
        assert found["offline_partitions"]["count"] == 0


async def test_what_a_reassignment_waits_for(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2, 3)
        await scene.create("t", [1])
        await scene.controller.alter_partition_reassignments({("t", 0): (2, 3)})
        await scene.settled()
        await scene.kill(3)
        await scene.settled()
        found = await controller_status(scene.controller)
        assert found["reassignments"] == {
            "count": 1,
            "first": [
                {
                    "topic": "t",
                    "partition": 0,
                    "replicas": (2, 3, 1),
                    "adding_replicas": (2, 3),
                    "removing_replicas": (1,),
                    "isr": (1,),
                    "step": "new replicas catch up",
                    "waits_for": "not alive: broker 3; not caught up: broker 2",
                }
            ],
        }
        assert found["under_replicated_partitions"]["count"] == 0
        await scene.store.mark_topic_for_deletion("t")
        await scene.settled()
        [deletion] = (await controller_status(scene.controller))["deletions"]["first"]
        assert deletion["waits_for"] == "the reassignment of t-0: not alive: broker 3; not caught up: broker 2"


async def test_long_lists_are_cut(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "LISTED", 2)
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        await scene.create("t", *[[1, 2]] * 3)
        await scene.kill(2)
        found = (await controller_status(scene.controller))["under_replicated_partitions"]
        assert (found["count"], len(found["first"])) == (3, 2)
