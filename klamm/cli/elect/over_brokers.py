"""Elections over the wire protocol."""

from collections.abc import Mapping, Sequence

from klamm.access.clients import error_line
from klamm.cli.elect.batches import NOT_NEEDED
from klamm.client.admin.elections import elect_leaders
from klamm.client.cluster import ClusterClient
from klamm.diagnosis.cluster_view import ClusterView, read_cluster
from klamm.diagnosis.election_plans import PartitionLogEnds
from klamm.diagnosis.log_ends import replica_ends
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, TopicPartition


class BrokerElections:
    """An `Access`."""

    def __init__(self, client: ClusterClient, election_type: ElectionType) -> None:
        self._client = client
        self._election_type = election_type

    async def look(self, topics: Sequence[str]) -> ClusterView:
        return await read_cluster(self._client, topics, needs_reassignments=False)

    async def log_ends(self, view: ClusterView, partitions: Sequence[TopicPartition]) -> PartitionLogEnds:
        asked = {each: {view.partitions[each].leader, view.partitions[each].replicas[0]} for each in partitions}
        return await replica_ends(self._client, view, asked)

    async def elect(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str | None]:
        results = await elect_leaders(self._client, self._election_type, partitions)
        return {partition: None if error is None else _text(error) for partition, error in results.items()}


def _text(error: KafkaError) -> str:
    return NOT_NEEDED if error.code is ErrorCode.ELECTION_NOT_NEEDED else error_line(error)
