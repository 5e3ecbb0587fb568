"""Elections of partition leaders, preferred or unclean (KIP-183, KIP-460)."""

from collections.abc import Iterable, Sequence

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import ANSWER_MARGIN_MS, ask_controller, by_topic, checked, error_of
from klamm.net.client import Connection, UnsupportedVersion
from klamm.protocol.apis.elect_leaders import ElectLeadersRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ElectionType, TopicPartition


async def elect_leaders(
    client: ClusterClient,
    election_type: ElectionType,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, KafkaError | None]:
    """Elects leaders of these partitions. Without partitions it elects leaders of all partitions, and only those that
    needed an election have a result.

    A partition that needs no election has the error ELECTION_NOT_NEEDED. If the first answer was lost, this includes
    partitions whose leader this call has elected. Raises KafkaError when the whole request is refused, and ClientError.
    """
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms
    wanted = None if partitions is None else list(dict.fromkeys(partitions))
    struct = ElectLeadersRequest.TopicPartitions

    async def ask(
        connection: Connection, whole: Sequence[None]
    ) -> dict[None, dict[TopicPartition, KafkaError | None] | KafkaError]:
        def build(version: int) -> ElectLeadersRequest:
            if version == 0 and election_type is not ElectionType.PREFERRED:
                raise UnsupportedVersion(f"{connection}: brokers before Kafka 2.4 elect only preferred leaders")
            topics = None
            if wanted is not None:
                topics = [struct(topic=name, partitions=numbers) for name, numbers in by_topic(wanted).items()]
            return ElectLeadersRequest(election_type=election_type, topic_partitions=topics, timeout_ms=wait_ms)

        response = await connection.send(ApiKey.ELECT_LEADERS, build, timeout_ms=wait_ms + ANSWER_MARGIN_MS)
        results: dict[TopicPartition, KafkaError | None] = {
            TopicPartition(topic.topic, each.partition_id): error_of(each.error_code, each.error_message)
            for topic in response.replica_election_results
            for each in topic.partition_result
        }
        # A broker that is not the controller returns that error for each partition.
        refused = [error for error in results.values() if error is not None and error.code is ErrorCode.NOT_CONTROLLER]
        error = error_of(response.error_code) or next(iter(refused), None)
        return {None: results if error is None else error}

    results = checked((await ask_controller(client, [None], ask, repeatable=True))[None])
    if wanted is None:
        return results
    missing = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the controller returned nothing for the partition")
    return {partition: results.get(partition, missing) for partition in wanted}
