"""Preferred elections through /admin/preferred_replica_election, as kafka-preferred-replica-election does it.

The controller removes the znode after the election and does not report the result. The result is read from the states
of the partitions.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from klamm.diagnosis.cluster_view import ClusterView, read_znodes
from klamm.diagnosis.election_plans import PartitionLogEnds, preferred_plan
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition
from klamm.znodes.requests import PREFERRED_REPLICA_ELECTION_PATH
from klamm.znodes.store import KafkaZooKeeper


class ZnodeElections:
    """An `Access`. `tell` gets the lines of Kafka's tool. The controller has `timeout_ms` for each election."""

    def __init__(self, znodes: KafkaZooKeeper, timeout_ms: int, tell: Callable[[str], None]) -> None:
        self._znodes = znodes
        self._timeout_ms = timeout_ms
        self._tell = tell

    async def look(self, topics: Sequence[str]) -> ClusterView:
        await self._znodes.sync()
        return await read_znodes(self._znodes, topics)

    async def log_ends(self, view: ClusterView, partitions: Sequence[TopicPartition]) -> PartitionLogEnds:
        return {}

    async def elect(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str | None]:
        """Raises ToolError while another election is in progress, and when the controller does not hold this one."""
        in_progress = await self._znodes.start_preferred_replica_election(partitions)
        if in_progress is not None:
            names = ",".join(f"{topic}-{number}" for topic, number in in_progress)
            raise ToolError(f"Preferred replica leader election currently in progress for {names}. Aborting operation")
        self._tell(f"Created preferred replica election path with {','.join(map(str, partitions))}")
        self._tell(
            f"Successfully started preferred replica election for partitions Set({', '.join(map(str, partitions))})"
        )
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._znodes.preferred_replica_election_ended()
        except TimeoutError:
            raise ToolError(
                f"the controller has not held the election after {self._timeout_ms} ms;"
                f" {PREFERRED_REPLICA_ELECTION_PATH} stays until a controller does"
            ) from None
        view = await self.look(sorted({each.topic for each in partitions}))
        after = preferred_plan(view, partitions)
        errors: dict[TopicPartition, str | None] = {**after.refused, **dict.fromkeys(after.not_needed)}
        for partition in after.due:
            errors[partition] = f"the controller has not elected broker {view.partitions[partition].replicas[0]}"
        return errors
