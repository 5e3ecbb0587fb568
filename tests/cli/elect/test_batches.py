"""How `klamm elect` carries a plan out: against a cluster that is played, on a clock that is played."""

from collections.abc import Mapping, Sequence

import pytest

from klamm.cli.elect.batches import NOT_NEEDED, Event, Pace, elect_preferred, elect_unclean
from klamm.diagnosis.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.diagnosis.election_plans import PartitionLogEnds
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(5)]
P0, P1, P2, P3, P4 = PARTITIONS


class Played:
    """Partitions led by broker 2 whose preferred leader is 1. A `slow` partition shows its leader after some looks."""

    def __init__(self, count: int = 5) -> None:
        self.partitions = {each: PartitionView(2, 5, (1, 2, 3), (1, 2, 3)) for each in PARTITIONS[:count]}
        self.ends: dict[TopicPartition, list[int]] = {}
        self.errors: dict[TopicPartition, str] = {}
        self.elections: list[list[TopicPartition]] = []
        self.slow: dict[TopicPartition, int] = {}
        self.isr_after: tuple[int, ...] = (1, 2, 3)

    async def look(self, topics: Sequence[str]) -> ClusterView:
        assert list(topics) == ["t"]
        for partition, looks in list(self.slow.items()):
            self.slow[partition] = looks - 1
            if looks == 0:
                del self.slow[partition]
                self._lead(partition)
        return ClusterView({each: BrokerView(each, ("h", 9092)) for each in (1, 2, 3)}, dict(self.partitions))

    async def log_ends(self, view: ClusterView, partitions: Sequence[TopicPartition]) -> PartitionLogEnds:
        """The leader ends at 100; the preferred replica at the next of its ends."""
        ends = {}
        for each in partitions:
            of_partition = self.ends.get(each, [100])
            ends[each] = {2: 100, 1: of_partition.pop(0) if len(of_partition) > 1 else of_partition[0]}
        return ends

    async def elect(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str | None]:
        self.elections.append(list(partitions))
        for each in partitions:
            if each not in self.errors and each not in self.slow:
                self._lead(each)
        return {each: self.errors.get(each) for each in partitions}

    def _lead(self, partition: TopicPartition) -> None:
        self.partitions[partition] = self.partitions[partition]._replace(leader=1, leader_epoch=6, isr=self.isr_after)


async def run(played: Played, *, batch_size: int = 2) -> tuple[int, list[Event]]:
    events: list[Event] = []
    pace = Pace(batch_size, timeout_ms=1_000, max_lag=10)
    failed = await elect_preferred(played, list(played.partitions), pace, events.append)
    return failed, events


@pytest.mark.loop("virtual")
async def test_partitions_are_elected_batch_by_batch() -> None:
    played = Played()
    failed, events = await run(played)
    assert played.elections == [[P0, P1], [P2, P3], [P4]]
    assert (failed, events) == (0, [Event("elected", batch) for batch in played.elections])


@pytest.mark.loop("virtual")
async def test_the_next_batch_waits_until_the_leaders_are_known() -> None:
    played = Played(3)
    played.slow = {P0: 7}
    failed, events = await run(played)
    assert (failed, played.elections) == (0, [[P0, P1], [P2]])
    assert (played.slow, [each.name for each in events]) == ({}, ["elected", "elected"])


@pytest.mark.loop("virtual")
async def test_no_more_batch_is_elected_when_an_isr_has_shrunk() -> None:
    played = Played(4)
    played.isr_after = (1, 2)
    with pytest.raises(ToolError) as raised:
        await run(played)
    assert str(raised.value) == (
        "t-0 had the ISR 1,2,3 and has 1,2: broker 3 is live, but not in the ISR after 1000 ms, and 1 more have not"
        " settled; 2 partitions are left, run the command again when it has settled"
    )
    assert played.elections == [[P0, P1]]


@pytest.mark.loop("virtual")
async def test_a_replica_that_has_left_the_isr_since_the_plan_is_not_elected() -> None:
    played = Played(2)
    played.partitions[P0] = played.partitions[P0]._replace(isr=(2, 3))
    played.ends = {P0: [40]}
    failed, events = await run(played)
    why = "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 2,3; broker 1 is 60 records behind the leader"
    assert (failed, events) == (1, [Event("failed", [P0], why), Event("elected", [P1])])
    assert played.elections == [[P1]]


@pytest.mark.loop("virtual")
async def test_a_replica_that_lags_is_elected_when_it_has_caught_up() -> None:
    played = Played(3)
    played.ends = {P0: [50, 60, 90]}
    failed, events = await run(played)
    assert (failed, played.elections) == (0, [[P1], [P2], [P0]])
    assert [each.partitions for each in events] == played.elections


@pytest.mark.loop("virtual")
async def test_a_replica_that_does_not_catch_up_is_not_elected() -> None:
    played = Played(2)
    played.ends = {P0: [50]}
    failed, events = await run(played)
    why = "broker 1 is 50 records behind the leader, and --max-lag allows 10"
    assert (failed, events) == (1, [Event("elected", [P1]), Event("failed", [P0], why)])


@pytest.mark.loop("virtual")
async def test_the_errors_of_partitions_are_reported() -> None:
    played = Played(3)
    played.errors = {P0: "NOT_CONTROLLER (41)", P1: NOT_NEEDED}
    failed, events = await run(played, batch_size=9)
    assert (failed, events) == (
        1,
        [Event("elected", [P2]), Event("not_needed", [P1]), Event("failed", [P0], "NOT_CONTROLLER (41)")],
    )


@pytest.mark.loop("virtual")
async def test_an_unclean_election_waits_for_the_new_leader() -> None:
    played = Played(2)
    played.partitions = {each: PartitionView(-1, 5, (1, 2, 3), (9,)) for each in played.partitions}
    played.slow = {P0: 3}
    played.isr_after = (1,)
    events: list[Event] = []
    assert await elect_unclean(played, [P0, P1], Pace(1, timeout_ms=1_000), events.append) == 0
    assert (played.slow, events) == ({}, [Event("elected", [P0]), Event("elected", [P1])])
    assert events[0].value() == {"event": "elected", "partitions": [{"topic": "t", "partition": 0}]}
