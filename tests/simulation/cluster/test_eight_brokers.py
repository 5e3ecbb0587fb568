"""The story of eight brokers: who leads, and who is in sync, while some stop, come back, and are elected.

Partitions 0 to 7 each are on brokers p, p + 1 and p + 3 (beyond 7 again from 0), and partition 8 is on 1, 0 and 3.
`pytest -s tests/simulation/cluster/test_eight_brokers.py` prints the tables.
"""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import checked
from klamm.cockpit.recorded.why import why_document
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import NO_LEADER, ElectionType, TopicPartition
from klamm.recording.difference import difference, words
from klamm.recording.reader import Recording
from klamm.recording.state import PartitionMoment, State
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World

BROKERS = 8
TOPIC = "story"
ASSIGNMENT = [*([(p + step) % BROKERS for step in (0, 1, 3)] for p in range(BROKERS)), [1, 0, 3]]
# Of the virtual clock: sessions have ended, and followers are back in the ISR.
A_WHILE_S = 30


STORY = """
created
  0  on 0,1,3  leader  0  isr 0,1,3
  1  on 1,2,4  leader  1  isr 1,2,4
  2  on 2,3,5  leader  2  isr 2,3,5
  3  on 3,4,6  leader  3  isr 3,4,6
  4  on 4,5,7  leader  4  isr 4,5,7
  5  on 5,6,0  leader  5  isr 0,5,6
  6  on 6,7,1  leader  6  isr 1,6,7
  7  on 7,0,2  leader  7  isr 0,2,7
  8  on 1,0,3  leader  1  isr 0,1,3

1, 2 and 4 stopped
  0  on 0,1,3  leader  0  isr 0,3
  1  on 1,2,4  leader -1  isr 4
  2  on 2,3,5  leader  3  isr 3,5
  3  on 3,4,6  leader  3  isr 3,6
  4  on 4,5,7  leader  5  isr 5,7
  5  on 5,6,0  leader  5  isr 0,5,6
  6  on 6,7,1  leader  6  isr 6,7
  7  on 7,0,2  leader  7  isr 0,7
  8  on 1,0,3  leader  0  isr 0,3

1 started
  0  on 0,1,3  leader  0  isr 0,1,3
  1  on 1,2,4  leader -1  isr 4
  2  on 2,3,5  leader  3  isr 3,5
  3  on 3,4,6  leader  3  isr 3,6
  4  on 4,5,7  leader  5  isr 5,7
  5  on 5,6,0  leader  5  isr 0,5,6
  6  on 6,7,1  leader  6  isr 1,6,7
  7  on 7,0,2  leader  7  isr 0,7
  8  on 1,0,3  leader  0  isr 0,1,3

elected: [8], 1 PREFERRED_LEADER_NOT_AVAILABLE, 2 PREFERRED_LEADER_NOT_AVAILABLE, 4 PREFERRED_LEADER_NOT_AVAILABLE
  0  on 0,1,3  leader  0  isr 0,1,3
  1  on 1,2,4  leader -1  isr 4
  2  on 2,3,5  leader  3  isr 3,5
  3  on 3,4,6  leader  3  isr 3,6
  4  on 4,5,7  leader  5  isr 5,7
  5  on 5,6,0  leader  5  isr 0,5,6
  6  on 6,7,1  leader  6  isr 1,6,7
  7  on 7,0,2  leader  7  isr 0,7
  8  on 1,0,3  leader  1  isr 0,1,3

2 and 4 started
  0  on 0,1,3  leader  0  isr 0,1,3
  1  on 1,2,4  leader  4  isr 1,2,4
  2  on 2,3,5  leader  3  isr 2,3,5
  3  on 3,4,6  leader  3  isr 3,4,6
  4  on 4,5,7  leader  5  isr 4,5,7
  5  on 5,6,0  leader  5  isr 0,5,6
  6  on 6,7,1  leader  6  isr 1,6,7
  7  on 7,0,2  leader  7  isr 0,2,7
  8  on 1,0,3  leader  1  isr 0,1,3

elected: [1, 2, 4]
  0  on 0,1,3  leader  0  isr 0,1,3
  1  on 1,2,4  leader  1  isr 1,2,4
  2  on 2,3,5  leader  2  isr 2,3,5
  3  on 3,4,6  leader  3  isr 3,4,6
  4  on 4,5,7  leader  4  isr 4,5,7
  5  on 5,6,0  leader  5  isr 0,5,6
  6  on 6,7,1  leader  6  isr 1,6,7
  7  on 7,0,2  leader  7  isr 0,2,7
  8  on 1,0,3  leader  1  isr 0,1,3
"""


class Step(NamedTuple):
    """What was done, the table that it led to, and when that was read."""

    done: str
    table: list[str]
    at_ms: int


class Told(NamedTuple):
    """The steps of the story, and the file in which it is recorded."""

    steps: list[Step]
    file: Path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The story of eight brokers."""
    file = tmp_path_factory.mktemp("eight_brokers") / "story.klamm"
    return Told(eight_brokers(file), file)


def eight_brokers(file: Path) -> list[Step]:
    """The steps of the story, which is recorded in the file."""
    world = World(seed=8)
    steps: list[Step] = []

    async def story() -> None:
        cluster = SimulatedCluster(world, brokers=BROKERS, properties={"auto.leader.rebalance.enable": "false"})
        await cluster.start()
        client = cluster.client()
        run = world.node("client").run
        await run(_create(client))

        async def then(step: str) -> None:
            await asyncio.sleep(A_WHILE_S)
            steps.append(Step(step, _table(cluster), world.now_ms()))

        await then("created")
        for broker_id in (1, 2, 4):
            await cluster.brokers[broker_id].stop()
        await then("1, 2 and 4 stopped")
        cluster.brokers[1].start()
        await then("1 started")
        results = await run(_elect(client))
        await then(f"elected: {results}")
        for broker_id in (2, 4):
            cluster.brokers[broker_id].start()
        await then("2 and 4 started")
        results = await run(_elect(client))
        await then(f"elected: {results}")
        await run(client.close())
        await cluster.close()

    with world.recorded(file, "the story of eight brokers"):
        world.run(story())
    return steps


def _table(cluster: SimulatedCluster) -> list[str]:
    lines = []
    for partition, replicas in cluster.state.replicas(TOPIC).items():
        leader, isr = cluster.leader(TOPIC, partition), cluster.isr(TOPIC, partition)
        lines.append(_line(partition, replicas, leader, isr))
    return lines


def _line(partition: int, replicas: Iterable[int], leader: int, isr: Iterable[int]) -> str:
    return f"{partition}  on {_ids(replicas)}  leader {leader:>2}  isr {_ids(sorted(isr))}"


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))


async def _create(client: ClusterClient) -> None:
    topic = NewTopic(TOPIC, replica_assignment=dict(enumerate(ASSIGNMENT)))
    checked((await create_topics(client, [topic], timeout_ms=10_000))[TOPIC])


async def _elect(client: ClusterClient) -> str:
    """Asks for the preferred leaders of all partitions; how many were elected, and who was not."""
    partitions = [TopicPartition(TOPIC, number) for number in range(len(ASSIGNMENT))]
    results = await elect_leaders(client, ElectionType.PREFERRED, partitions, timeout_ms=10_000)
    codes = {key.partition: ErrorCode.NONE if error is None else error.code for key, error in results.items()}
    done = sorted(number for number, code in codes.items() if code is ErrorCode.NONE)
    others = {n: c.name for n, c in sorted(codes.items()) if c not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)}
    return f"{done}" + "".join(f", {number} {name}" for number, name in others.items())


def test_eight_brokers(story: Told) -> None:
    told = "".join(f"\n{each.done}\n" + "".join(f"  {line}\n" for line in each.table) for each in story.steps)
    print(told)
    assert told.splitlines() == STORY.splitlines()


# The leader epochs of the partitions in each state, and what differs from one state to the next.
EPOCHS = [
    [0, 0, 0, 0, 0, 0, 0, 0, 0],
    [2, 5, 2, 1, 2, 0, 2, 1, 2],
    [2, 5, 2, 1, 2, 0, 2, 1, 2],
    [2, 5, 2, 1, 2, 0, 2, 1, 3],
    [2, 6, 2, 1, 2, 0, 2, 1, 3],
    [2, 7, 3, 1, 3, 0, 2, 1, 3],
]
CHANGES = [
    [
        "The controller is broker 6; it was broker 1.",
        "The controller epoch is 2; it was 1.",
        "Broker 1 is no longer registered.",
        "Broker 2 is no longer registered.",
        "Broker 4 is no longer registered.",
        "Broker 1 is ended; it was unknown.",
        "Broker 2 is ended; it was unknown.",
        "Broker 4 is ended; it was unknown.",
        "1 partition lost its leader: story-1.",
        "1 partition moved from leader 1 to 0: story-8.",
        "1 partition moved from leader 2 to 3: story-2.",
        "1 partition moved from leader 4 to 5: story-4.",
        "Broker 1 left the ISR of 4 partitions.",
        "Broker 2 left the ISR of 3 partitions.",
        "Broker 4 left the ISR of 2 partitions.",
    ],
    [
        "Broker 1 is registered.",
        "Broker 1 is running; it was ended.",
        "Broker 1 joined the ISR of 3 partitions.",
    ],
    ["1 partition moved from leader 0 to 1: story-8."],
    [
        "Broker 2 is registered.",
        "Broker 4 is registered.",
        "Broker 2 is running; it was ended.",
        "Broker 4 is running; it was ended.",
        "1 partition has a leader again: story-1.",
        "Broker 1 joined the ISR of 1 partition.",
        "Broker 2 joined the ISR of 3 partitions.",
        "Broker 4 joined the ISR of 2 partitions.",
    ],
    [
        "1 partition moved from leader 3 to 2: story-2.",
        "1 partition moved from leader 4 to 1: story-1.",
        "1 partition moved from leader 5 to 4: story-4.",
    ],
]
# Who made which broker the leader of partition 1: (decided by, controller epoch, leader, leader epoch).
LED = [
    ("controller 1", 1, 1, 0),
    ("controller 1", 1, 2, 1),
    ("controller 6", 2, 4, 3),
    ("controller 6", 2, 4, 6),
    ("controller 6", 2, 1, 7),
]


def test_a_recording_of_the_story_has_each_of_its_states_and_names_what_differs(story: Told) -> None:
    with Recording(story.file) as recording:
        moments = [recording.number_at(each.at_ms - 1) for each in story.steps]
        assert [_recorded_table(recording.moment(number)) for number in moments] == [each.table for each in story.steps]
        assert [[each.leader_epoch for each in _partitions(recording.moment(number))] for number in moments] == EPOCHS
        told = [words(difference(recording.moment(a), recording.moment(b))) for a, b in pairwise(moments)]
        assert told == CHANGES
        # Between two of the states: broker 1, the controller, has gone, and brokers 2 and 4 are still there.
        texts = {each.entry.get("text"): each.number for each in recording.entries(0, recording.count)}
        without_1 = recording.moment(texts["broker 1 is no longer registered"])
        assert (without_1.controller, without_1.cluster["controller_epoch"]) == (1, 1)
        elected = recording.moment(texts["broker 6 is the controller, controller epoch 2"])
        assert sorted(elected.brokers) == [0, 2, 3, 4, 5, 6, 7]
        assert _recorded_table(elected)[1] == "1  on 1,2,4  leader  2  isr 2,4"

        stopped, healed = (why_document(recording, TOPIC, 1, moments[step]) for step in (1, -1))
        assert stopped is not None and healed is not None
        assert stopped["conditions"][0]["why"][0] == "no replica of the ISR (broker 4) can lead"
        start = "Start broker 4. Nothing is lost: it has all acknowledged records."
        assert [each["text"] for each in stopped["conditions"][0]["remedies"]] == [start]
        assert [each["kind"] for each in healed["conditions"]] == ["healthy"]
        records = [each for each in healed["story"]["entries"] if each["after"] and each["leader"] is not None]
        elections = [each for each in records if each["subject"] == "partition" and not each["is_failed"]]
        led = [(each["writer"], each["controller_epoch"], each["leader"], each["leader_epoch"]) for each in elections]
        # Changes of the ISR within an epoch are records, too.
        assert list(dict.fromkeys(led)) == LED


def _partitions(state: State) -> list[PartitionMoment]:
    return [each for (topic, _), each in sorted(state.partitions.items()) if topic == TOPIC]


def _recorded_table(state: State) -> list[str]:
    return [
        _line(number, each.replicas, NO_LEADER if each.leader is None else each.leader, each.isr)
        for number, each in enumerate(_partitions(state))
    ]
