"""The story of eight brokers: who leads, and who is in sync, while some stop, come back, and are elected.

Partitions 0 to 7 each are on brokers p, p + 1 and p + 3 (beyond 7 again from 0), and partition 8 is on 1, 0 and 3.
`pytest -s tests/simulation/test_eight_brokers.py` prints the tables.
"""

import asyncio
from collections.abc import Iterable

from klamm.client.cluster import ClusterClient
from klamm.client.elections import elect_leaders
from klamm.client.fan_out import checked
from klamm.client.topics import NewTopic, create_topics
from klamm.protocol.errors import ErrorCode
from klamm.protocol.vocabulary import ElectionType, TopicPartition
from klamm.simulation.cluster import SimulatedCluster
from klamm.simulation.world import World

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


def eight_brokers(steps: list[tuple[str, list[str]]]) -> None:
    """Appends each step, and the table that it leads to."""
    world = World(seed=8)

    async def story() -> None:
        cluster = SimulatedCluster(world, brokers=BROKERS, properties={"auto.leader.rebalance.enable": "false"})
        await cluster.start()
        client = cluster.client()
        run = world.node("client").run
        await run(_create(client))

        async def then(step: str) -> None:
            await asyncio.sleep(A_WHILE_S)
            steps.append((step, _table(cluster)))

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

    world.run(story())


def _table(cluster: SimulatedCluster) -> list[str]:
    lines = []
    for partition, replicas in cluster.state.replicas(TOPIC).items():
        leader, isr = cluster.leader(TOPIC, partition), cluster.isr(TOPIC, partition)
        lines.append(f"{partition}  on {_ids(replicas)}  leader {leader:>2}  isr {_ids(sorted(isr))}")
    return lines


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


def test_eight_brokers() -> None:
    steps: list[tuple[str, list[str]]] = []
    eight_brokers(steps)
    told = "".join(f"\n{step}\n" + "".join(f"  {line}\n" for line in table) for step, table in steps)
    print(told)
    assert told.splitlines() == STORY.splitlines()
