"""Eight brokers, of which three stop and come back, and two preferred elections: through ElectLeaders, and through the
znode /admin/preferred_replica_election.

The first column of STATES is the partition and its replicas; each further column is a state: the leader and the ISR.
"""

from collections.abc import Callable

import pytest

from klamm.testing import Cluster, Helper

BROKERS = 8
TOPIC = "castle"
# Partition p is on brokers p + 1, p + 3 and p + 4, beyond 7 again from 0.
ASSIGNMENT = ",".join(":".join(str((number + step) % BROKERS) for step in (1, 3, 4)) for number in range(BROKERS))
STATES = """
partition | created   | 1, 2, 4 stopped | 1 started | election  | 2, 4 started | election
0: 1,3,4  | 1 / 1,3,4 | 3 / 3           | 3 / 1,3   | 1 / 1,3   | 1 / 1,3,4    | 1 / 1,3,4
1: 2,4,5  | 2 / 2,4,5 | 5 / 5           | 5 / 5     | 5 / 5     | 5 / 2,4,5    | 2 / 2,4,5
2: 3,5,6  | 3 / 3,5,6 | 3 / 3,5,6       | 3 / 3,5,6 | 3 / 3,5,6 | 3 / 3,5,6    | 3 / 3,5,6
3: 4,6,7  | 4 / 4,6,7 | 6 / 6,7         | 6 / 6,7   | 6 / 6,7   | 6 / 4,6,7    | 4 / 4,6,7
4: 5,7,0  | 5 / 0,5,7 | 5 / 0,5,7       | 5 / 0,5,7 | 5 / 0,5,7 | 5 / 0,5,7    | 5 / 0,5,7
5: 6,0,1  | 6 / 0,1,6 | 6 / 0,6         | 6 / 0,1,6 | 6 / 0,1,6 | 6 / 0,1,6    | 6 / 0,1,6
6: 7,1,2  | 7 / 1,2,7 | 7 / 7           | 7 / 1,7   | 7 / 1,7   | 7 / 1,2,7    | 7 / 1,2,7
7: 0,2,3  | 0 / 0,2,3 | 0 / 0,3         | 0 / 0,3   | 0 / 0,3   | 0 / 0,2,3    | 0 / 0,2,3
"""
# What the first election answers for the partitions whose preferred replica has not started.
NOT_AVAILABLE = {1: 2, 3: 4}


def states() -> dict[str, str]:
    """Each state of the table, as the fixture `table` writes a cluster's."""
    (_, *names), *rows = [[cell.strip() for cell in line.split("|")] for line in STATES.strip().splitlines()]
    return {
        f"{position}. {name}": "\n".join(f"{row[0].partition(':')[0]}: {row[position + 1]}" for row in rows)
        for position, name in enumerate(names)
    }


@pytest.mark.parametrize("way", ["--bootstrap-server", "--zookeeper"])
def test_three_brokers_stop_and_come_back(
    way: str,
    klamm: Callable[..., str],
    table: Callable[[Cluster, str, int], str],
    klamm_helper: Helper,
) -> None:
    wanted = states()
    properties = {"auto.leader.rebalance.enable": False}
    with Cluster(BROKERS, helper=klamm_helper, properties=properties) as cluster:
        where = (way, {"--bootstrap-server": cluster.bootstrap, "--zookeeper": cluster.zookeeper}[way])

        def elect(code: int) -> str:
            return klamm("elect", "preferred", "--all-topic-partitions", *where, "--yes", code=code)

        def reaches(state: str) -> None:
            try:
                cluster.until(lambda: table(cluster, TOPIC, BROKERS) == wanted[state])
            except TimeoutError:
                assert table(cluster, TOPIC, BROKERS) == wanted[state]

        klamm("topics", "create", "--topic", TOPIC, "--replica-assignment", ASSIGNMENT, *where)
        reaches("0. created")
        for broker in (1, 2, 4):
            cluster.stop(broker)
        reaches("1. 1, 2, 4 stopped")
        cluster.start(1)
        reaches("2. 1 started")
        answer = elect(code=1)
        for number, broker in NOT_AVAILABLE.items():
            assert f"{TOPIC}-{number}: PREFERRED_LEADER_NOT_AVAILABLE: " in answer
            assert f"broker {broker} is not live" in answer
        reaches("3. election")
        for broker in (2, 4):
            cluster.start(broker)
        reaches("4. 2, 4 started")
        elect(code=0)
        reaches("5. election")
        assert sorted(cluster.leader(TOPIC, number) or 0 for number in range(BROKERS)) == list(range(BROKERS))
