"""The clients of a run of random faults: those that the run's shape names, each with its own topics.

What must stay true: each kind works without the others, and its guarantees are checked in every run that has it.
"""

from typing import NamedTuple

from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import Node
from klamm.simulation.workloads.compacting import TOPIC_CONFIGS, Compacting
from klamm.simulation.workloads.group_workload import GroupWorkload
from klamm.simulation.workloads.run_shape import RunShape
from klamm.simulation.workloads.transactional_workload import TransactionalWorkload
from klamm.simulation.workloads.trimming import Trimming
from klamm.simulation.workloads.verdict import come_to_rest, converge, judge
from klamm.simulation.workloads.workload import Workload, create_topic

TOPIC = "events"
# With acks=all: partition -> whether its producer is idempotent. The next partition has acks=1.
IS_IDEMPOTENT: dict[PartitionKey, bool] = {(TOPIC, 0): True, (TOPIC, 1): False, (TOPIC, 2): True}
ONLY_LEADER: PartitionKey = (TOPIC, 3)
# A topic of one partition, with acks=1: any replica may lead it.
UNCLEAN_TOPIC = "unclean"
# A topic of one partition, with acks=all, whose records are deleted while others are written.
TRIMMED_TOPIC = "trimmed"
# A topic of one partition, with acks=all, whose records have keys.
COMPACTED_TOPIC = "compacted"
# A topic of one partition, into which transactions are written, and one of two partitions, into which they are copied.
ORDERS_TOPIC, COPIES_TOPIC = "orders", "copies"
GROUP = "workers"
# The readers of these topics (clients and coordinators) verify checksums.
ROTTING_TOPICS = (TOPIC, TRIMMED_TOPIC, COMPACTED_TOPIC, ORDERS_TOPIC, COPIES_TOPIC, *sorted(INTERNAL_TOPICS))
BATCHES_OF_A_WHOLE_CLUSTER = 3
COMMITS_OF_A_HEALED_CLUSTER = 3


class _Topic(NamedTuple):
    name: str
    partitions: int
    configs: dict[str, str]
    # The client that needs the topic. None: all runs have the topic.
    client: str | None = None


TOPICS = (
    _Topic(TOPIC, len(IS_IDEMPOTENT) + 1, {}),
    _Topic(UNCLEAN_TOPIC, 1, {"unclean.leader.election.enable": "true"}),
    _Topic(TRIMMED_TOPIC, 1, {"segment.bytes": "2048"}, "trimming"),
    _Topic(COMPACTED_TOPIC, 1, dict(TOPIC_CONFIGS), "compacting"),
    _Topic(ORDERS_TOPIC, 1, {}, "transactions"),
    _Topic(COPIES_TOPIC, 2, {}, "transactions"),
)


class Clients:
    """See the module. `group` is None in a run without a group."""

    def __init__(self, cluster: SimulatedCluster, shape: RunShape) -> None:
        self._cluster, self._shape = cluster, shape
        world, names = cluster.world, shape.clients
        self._workload = Workload(
            world,
            cluster.client,
            {key: idempotent for key, idempotent in IS_IDEMPOTENT.items() if f"{TOPIC}-{key[1]}" in names},
            only_leader=[ONLY_LEADER] if f"{TOPIC}-{ONLY_LEADER[1]}" in names else [],
            unread=[(UNCLEAN_TOPIC, 0)] if UNCLEAN_TOPIC in names else [],
            racks=cluster.racks,
        )
        self.group = (
            GroupWorkload(
                world, cluster.client, GROUP, list(IS_IDEMPOTENT), coordinator_id=lambda: cluster.coordinator(GROUP)
            )
            if "group" in names
            else None
        )
        self._trimming = Trimming(world, cluster, (TRIMMED_TOPIC, 0)) if "trimming" in names else None
        self._compacting = Compacting(world, cluster, (COMPACTED_TOPIC, 0)) if "compacting" in names else None
        self._transactions = (
            TransactionalWorkload(
                cluster,
                [(ORDERS_TOPIC, 0)],
                [(COPIES_TOPIC, 0), (COPIES_TOPIC, 1)],
                # Two, so that transactions overlap.
                writers=2,
                pause_s=shape.producer_pause_s,
            )
            if "transactions" in names
            else None
        )

    async def create_topics(self, node: Node) -> None:
        """Creates the topics that the clients need, and two that operators work with."""
        await node.run(self._create_topics())

    async def _create_topics(self) -> None:
        client = self._cluster.client()
        for topic in TOPICS:
            if topic.client is None or topic.client in self._shape.clients:
                await create_topic(
                    client,
                    topic.name,
                    partitions=topic.partitions,
                    replication_factor=self._shape.replication_factor,
                    configs=topic.configs,
                )
        await client.close()

    def start(self) -> None:
        self._workload.start(pause_s=self._shape.producer_pause_s)
        if self.group:
            self.group.start()
        for each in (self._trimming, self._compacting):
            if each:
                each.start(self._shape.producer_pause_s)
        if self._transactions:
            self._transactions.start()

    async def finish(self) -> None:
        """All clients finish their work. The cluster is healed."""
        await self._workload.stop_producing()
        for each in (self._trimming, self._compacting):
            if each:
                await each.stop()
        if self._transactions:
            await self._transactions.ledger.until_commits(COMMITS_OF_A_HEALED_CLUSTER)
            await self._transactions.stop()
        if self.group:
            await self.group.until_stable()
            await self.group.ledger.until_commits(len(IS_IDEMPOTENT))
            await self.group.stop()

    async def judge(self) -> str:
        """Waits until the cluster is whole, and checks it. Returns the counts as text. SimulationFailure,
        AssertionError."""
        whole = await converge(self._cluster)
        counts = []
        if self.group:
            await self.group.check_committed()
        if self._transactions:
            counts.append(await self._transactions.check())
        await self._workload.produce_more(BATCHES_OF_A_WHOLE_CLUSTER)
        counts.insert(0, await judge(self._cluster, self._workload, whole, trimmed=[TRIMMED_TOPIC]))
        await come_to_rest(self._cluster)
        if self._trimming:
            self._trimming.check()
            self._trimming.check_records()
            counts.insert(1, f"{self._trimming.answered} of {self._trimming.end} deleted")
        if self._compacting:
            self._compacting.check_replicas()
        return ", ".join(counts)
