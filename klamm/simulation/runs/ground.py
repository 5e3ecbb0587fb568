"""The base of the faults of a run: the cluster that they hit, the chance of their step, and waits for their effects."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

from klamm.protocol.vocabulary import PartitionKey
from klamm.simulation.cluster.cluster import SimulatedBroker, SimulatedCluster
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.schedule import step_chance

# Shorter and longer than a session (6 s), and than the lag that drops a follower out of the ISR (5 s).
OUTAGES_S = (0.0, 0.5, 3.0, 5.5, 8.0, 20.0)
# How long a fault waits for the outcome of one of its parts. Then it continues.
PART_S = 10.0
# How long the death of a machine waits until the cluster is whole, and later until the machine is out of all ISRs.
PATIENCE_S = 60


class Ground:
    """The base of classes with faults: a cluster and its administrator."""

    def __init__(self, cluster: SimulatedCluster, administrator: Administrator) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.administrator = administrator

    @property
    def random(self) -> random.Random:
        """The chance of the current step."""
        return step_chance(self.world.random)

    def broker(self) -> SimulatedBroker:
        return self.random.choice(list(self.cluster.brokers.values()))

    async def outage(self, lengths_s: Sequence[float] = OUTAGES_S) -> None:
        await asyncio.sleep(self.random.choice(lengths_s) * self.random.uniform(0.8, 1.2))

    async def is_whole(self) -> bool:
        """Whether the cluster becomes whole in time, and is still whole when the controller has handled all events."""
        was_whole = False
        for _ in range(PATIENCE_S):
            is_whole = self.cluster.is_whole()
            if is_whole and was_whole:
                return True
            was_whole = is_whole
            await asyncio.sleep(1)
        return False

    def replicas(self, key: PartitionKey) -> tuple[int, ...]:
        """The assigned replicas; empty when the topic is gone."""
        return self.cluster.state.replicas(key[0]).get(key[1], ())

    async def passed(self, is_reached: Callable[[], bool]) -> None:
        """Returns when `is_reached()`, or after `PART_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PART_S):
                await self.cluster.until(is_reached)
