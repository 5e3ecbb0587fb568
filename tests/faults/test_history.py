"""The history of a cluster: what happened, in order, with offsets."""

import os
import signal
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from klamm.faults.commands.answers import FailAnswers
from klamm.faults.commands.disk import FailDisk
from klamm.faults.commands.network import CutLinks
from klamm.faults.entries import (
    BecameFollower,
    BecameLeader,
    BrokerAdded,
    BrokerRegistered,
    BrokerUnregistered,
    ChronicleEntry,
    ControllerElected,
    FaultInstalled,
    FaultRemoved,
    FaultStruck,
    IsrChanged,
    LeaderElected,
    ServerEnded,
    ServerPaused,
    ServerResumed,
    ServerStarted,
    TopicCreated,
    TopicDeleted,
    Truncated,
)
from klamm.faults.history import MAX_ENTRIES, MAX_STRIKES, History, HistoryLog
from klamm.processes.helper import Helper
from klamm.testing.cluster import Cluster


def write(c: Cluster, topic: str, count: int, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": c.bootstrap, "acks": acks})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
        producer.flush(120)  # one batch each


def about(history: History, topic: str) -> list[ChronicleEntry]:
    return [entry for entry in history if getattr(entry, "topic", None) == topic]


def test_a_failover_stands_in_the_history(klamm_helper: Helper) -> None:
    with Cluster(2, zookeeper_session_timeout_ms=500, helper=klamm_helper) as c:
        c.create_topic("t")
        write(c, "t", 3)
        leader, follower = c.replicas("t")
        controller = c.controller_id()
        began = len(c.history)
        c.kill(leader)
        c.until(lambda: c.leader("t") == follower)
        c.start(leader)
        c.until(lambda: c.isr("t") == [follower, leader])
        c.pause(follower)
        c.resume(follower)

        history = c.history
        assert history[0] == ServerStarted("zookeeper")
        assert controller is not None
        assert ControllerElected(controller, 1) in history[:began]
        before = about(History(history[:began]), "t")
        assert [entry for entry in before if isinstance(entry, TopicCreated | LeaderElected)] == [
            TopicCreated("t", 1),
            LeaderElected("t", 0, leader, 0, (leader, follower), None, None),
        ]
        assert BecameLeader(leader, "t", 0, 0, 0, 0) in before
        assert BecameFollower(follower, "t", 0, 0, leader, 0, 0) in before

        since = History(history[began:])
        assert since.of(ServerEnded, ServerStarted, ServerPaused, ServerResumed) == [
            ServerEnded(leader, "killed"),
            ServerStarted(leader),
            ServerPaused(follower),
            ServerResumed(follower),
        ]
        assert [getattr(entry, "broker", None) for entry in since.of(BrokerUnregistered, BrokerRegistered)] == [
            leader
        ] * 2
        # A new controller, where the dead leader was the controller, writes first that there is no leader.
        elected = since.of(LeaderElected)[-1]
        assert (elected.topic, elected.partition, elected.leader, elected.isr) == ("t", 0, follower, (follower,))
        assert not elected.unclean
        assert [(entry.server, entry.leader_epoch, entry.start_offset) for entry in since.of(BecameLeader)] == [
            (follower, elected.leader_epoch, 3)
        ]
        assert since.of(IsrChanged)[-1].isr == (follower, leader)
        assert [entry.number for entry in history] == list(range(1, len(history) + 1))
        assert history.script() == [
            f"c.kill({leader})",
            f"c.start({leader})",
            f"c.pause({follower})",
            f"c.resume({follower})",
        ]


def test_the_lines_that_repeat_faults_know_nothing_of_a_fault_that_another_has_replaced() -> None:
    whole = FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER")
    once = replace(whole, times=1)
    history = History(
        [
            FaultInstalled(fault=1, what=whole),
            FaultInstalled(fault=2, what=once, instead_of=1),
            FaultRemoved(fault=1, calls=0, hits=0),
            FaultRemoved(fault=2, calls=1, hits=1),
        ]
    )
    assert history.script() == [f"fault_2 = {once.python()}", "fault_2.remove()"]


def test_the_lines_that_repeat_what_was_done_to_servers_tell_lives_and_deaths_apart() -> None:
    history = History(
        [
            ServerStarted(0),
            BrokerAdded(1),
            ServerStarted(1),
            ServerEnded(0, "killed"),
            ServerEnded(0, "broker-0: ZooKeeper does not answer"),
            ServerStarted(0),
            ServerEnded(0, "stopped"),
        ]
    )
    assert history.script() == ["c.add_broker()", "c.kill(0)", "c.start(0, wait=False)", "c.start(0)", "c.stop(0)"]


@pytest.mark.parametrize(
    ("life", "is_struck_down"),
    [
        ([ServerStarted(0), FaultStruck(1, 0, 1, {}), ServerEnded(0, "died")], False),
        ([ServerStarted(0), FaultStruck(2, 0, 1, {}), ServerEnded(0, "died")], True),
        ([ServerEnded(0, "killed"), FaultStruck(1, 0, 1, {}), ServerEnded(0, "died")], True),
        ([FaultStruck(2, 0, 1, {}), ServerEnded(0, "killed"), ServerEnded(0, "died")], False),
        ([ServerEnded(0, "killed"), FaultStruck(2, 1, 1, {}), ServerEnded(0, "died")], False),
    ],
)
def test_a_fault_of_the_network_ends_only_a_server_that_is_not_ready(
    life: list[ChronicleEntry], is_struck_down: bool
) -> None:
    cut = FaultInstalled(1, CutLinks(one=(0,), other=("zookeeper",)))
    disk = FaultInstalled(2, FailDisk(broker=0))
    assert History([cut, disk, *life]).was_struck_down(0) is is_struck_down


@pytest.mark.long  # docs/faults.md and the recipes have such elections, too.
def test_an_unclean_election_and_the_truncation_that_follows_stand_in_the_history(klamm_helper: Helper) -> None:
    with Cluster(2, helper=klamm_helper, properties={"unclean.leader.election.enable": True}) as c:
        c.create_topic("t")
        write(c, "t", 2)
        leader, follower = c.replicas("t")
        c.stop(follower)
        c.until(lambda: c.isr("t") == [leader])
        write(c, "t", 5, acks="1")
        c.stop(leader)
        c.start(follower)
        c.until(lambda: c.leader("t") == follower)
        write(c, "t", 1, acks="1")
        c.start(leader)
        c.until(lambda: c.isr("t") == [follower, leader])
        history = c.history
        assert [entry.leader for entry in history.of(LeaderElected) if entry.unclean] == [follower]
        [truncated] = history.of(Truncated)
        assert (truncated.server, truncated.from_offset, truncated.to_offset) == (leader, 7, 2)
        assert f"broker {leader} truncated t-0 from offset 7 to 2" in str(history)


@pytest.mark.parametrize(
    ("leader", "isr", "isr_before", "unclean"),
    [
        (0, (0,), None, False),
        (1, (1,), (0, 1), False),
        (1, (1,), (0,), True),
        (None, (0,), (0,), False),
        (None, (2,), (0, 1), True),  # Broker 2 was elected and lost before ZooKeeper was read again.
    ],
)
def test_an_election_is_unclean_when_what_was_in_sync_is_not(
    leader: int | None, isr: tuple[int, ...], isr_before: tuple[int, ...] | None, unclean: bool
) -> None:
    assert LeaderElected("t", 0, leader, 1, isr, 0, isr_before).unclean == unclean


def test_a_deleted_topic_and_one_of_the_same_name_stand_in_the_history(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as c:
        c.create_topic("t", 2)
        c.delete_topic("t")
        c.create_topic("t", 3)
        assert c.history.of(TopicCreated, TopicDeleted) == [
            TopicCreated("t", 2),
            TopicDeleted("t"),
            TopicCreated("t", 3),
        ]


def test_the_history_continues_when_zookeeper_was_away(klamm_helper: Helper) -> None:
    with Cluster(1, helper=klamm_helper) as c:
        c.create_topic("t", 1)
        c.kill("zookeeper")
        assert c.history.of(ServerEnded) == [ServerEnded("zookeeper", "killed")]
        c.start("zookeeper")
        c.create_topic("u", 1)
        assert [entry.topic for entry in c.history.of(TopicCreated)] == ["t", "u"]


def test_a_server_that_dies_by_itself_says_why_in_the_history(klamm_helper: Helper) -> None:
    with pytest.raises(Exception, match="died by itself"), Cluster(1, helper=klamm_helper) as c:
        pid = c.broker(0).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        c.until(lambda: not c.broker(0).running)
        [ended] = c.history.of(ServerEnded)
        assert ended.how.startswith("broker-0 was ended by SIGKILL")
    assert c.history.of(ServerEnded)[0] == ended  # It can be read after the end, too.


async def test_the_log_of_the_history_is_bounded_and_numbers_its_entries() -> None:
    log = HistoryLog(lambda: 7)
    for number in range(MAX_ENTRIES + 10):
        log.add(TopicDeleted(str(number)))
    assert len(log.after()) == MAX_ENTRIES
    assert log.after()[0].number == 11
    assert [entry.number for entry in log.after(MAX_ENTRIES + 8)] == [MAX_ENTRIES + 9, MAX_ENTRIES + 10]
    assert log.after(MAX_ENTRIES + 10) == log.after(2**63) == []
    assert await log.wait_after(MAX_ENTRIES + 10, 0.01) == []
    assert len(await log.wait_after(MAX_ENTRIES + 9, 10)) == 1


async def test_a_fault_that_strikes_all_the_time_drops_nothing_else() -> None:
    log = HistoryLog(lambda: 7)
    log.add(FaultInstalled(1, FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER")))
    for hit in range(1, MAX_STRIKES + 11):
        log.add(FaultStruck(1, 0, hit, {}))
    log.add(TopicDeleted("t"))
    assert [entry.number for entry in log.after()] == [1, *range(12, MAX_STRIKES + 13)]
    assert [entry.number for entry in log.after(MAX_STRIKES + 10)] == [MAX_STRIKES + 11, MAX_STRIKES + 12]


def test_similar_entries_are_one_line_in_a_report() -> None:
    history = History(LeaderElected("t", number, 0, 0, (0,), None, None) for number in range(50))
    for number in range(50):
        history += [BecameLeader(0, "t", number, 0, 0, 0), BecameFollower(1, "t", number, 0, 0, 0, 0)]
    assert len(str(history).splitlines()) == 10
    assert str(history).splitlines()[4].strip() == "and 46 more like these"
    assert str(history).endswith("and 96 more like these")
    assert history.report(2).splitlines()[0].strip() == "8 earlier lines are left out"
    struck = [FaultStruck(1, number // 25, number, {"topic": "t"}) for number in range(50)]
    assert len(History(struck).report(100).splitlines()) == 10
