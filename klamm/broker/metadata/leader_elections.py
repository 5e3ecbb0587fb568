"""ElectLeaders: the controller elects, and the answer waits until this broker knows the leaders (Kafka's
`ReplicaManager.electLeaders`, `DelayedElectLeader`).

What must stay true: once the client has its answer, it finds the new leader in this broker's metadata, unless the
request timed out.
"""

from collections.abc import Mapping, Sequence

from klamm.base.purgatory import DelayedOperation, Purgatory
from klamm.base.slices import each
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.controller.controller import KafkaController
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey


class LeaderElections:
    """The elections that clients request from this broker, which must be the controller."""

    def __init__(self, controller: KafkaController, metadata_cache: MetadataCache) -> None:
        self._controller = controller
        self._metadata_cache = metadata_cache
        self.purgatory: Purgatory[str] = Purgatory()

    def metadata_changed(self, topic: str) -> None:
        """Checks waiting elections after a change of the topic in the metadata cache."""
        self.purgatory.check(topic)

    async def elect(
        self, partitions: Sequence[PartitionKey], election_type: ElectionType
    ) -> Mapping[PartitionKey, int | KafkaError]:
        """The leader of each partition, or why there was no election: NOT_CONTROLLER, or an error of
        `replica_leader_election`."""
        try:
            return await self._controller.elect_leaders(partitions, election_type)
        except KafkaError as error:
            return dict.fromkeys(partitions, error)

    async def wait_until_known(
        self, results: Mapping[PartitionKey, int | KafkaError], timeout_ms: float
    ) -> dict[PartitionKey, KafkaError | None]:
        """The result of each election; None is success.

        REQUEST_TIMED_OUT for a partition that has its leader, but not in this broker's metadata within `timeout_ms`.
        """
        errors: dict[PartitionKey, KafkaError] = {}
        leaders: dict[PartitionKey, int] = {}
        topics: dict[str, None] = {}
        async for partition, result in each(results.items()):
            if isinstance(result, KafkaError):
                errors[partition] = result
            else:
                leaders[partition] = result
                topics[partition[0]] = None
        elected = _LeadersKnown(self._metadata_cache, leaders)
        are_known = await self.purgatory.wait(elected, topics, timeout_ms)
        timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the leader is elected, but not known here yet")
        return {
            partition: errors.get(partition) or (None if are_known or elected.is_known(partition) else timed_out)
            async for partition in each(results)
        }


class _LeadersKnown(DelayedOperation):
    """Waits until each partition has been seen with its elected leader."""

    def __init__(self, metadata_cache: MetadataCache, leaders: Mapping[PartitionKey, int]) -> None:
        self._metadata_cache = metadata_cache
        self._leaders = leaders
        # The next partition to check is the last one. A checked partition is never checked again.
        self._pending = list(leaders)[::-1]

    def is_known(self, partition: PartitionKey) -> bool:
        state = self._metadata_cache.snapshot.partition(*partition)
        return state is not None and state.leader == self._leaders[partition]

    def is_ready(self) -> bool:
        while self._pending and self.is_known(self._pending[-1]):
            self._pending.pop()
        return not self._pending
