"""The operators' requests about transactions, and the abort of a hanging transaction (KIP-664).

A transaction hangs on a partition when its coordinator no longer knows of it and so never writes its marker. The last
stable offset of the partition then stays before the transaction.

Source: org.apache.kafka.clients.admin.KafkaAdminClient; internals.AbortTransactionHandler.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.coordinated import listed
from klamm.client.fan_out import (
    CoordinatorType,
    Route,
    answers,
    ask_every_broker,
    by_topic,
    checked,
    coordinators,
    error_of,
    fan_out,
    leaders,
    of_brokers,
)
from klamm.net.client import Connection, UnsupportedVersion
from klamm.protocol.apis.describe_producers import DescribeProducersRequest
from klamm.protocol.apis.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.apis.list_transactions import ListTransactionsRequest
from klamm.protocol.apis.write_txn_markers import WriteTxnMarkersRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

ANY_DURATION: Final = -1
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in its coordinator's list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The transaction of a transactional id. `start_time_ms` is None unless a transaction is open.

    `partitions` are the partitions that the transaction writes to, or after its end those that still lack its marker.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A replica's state of a producer. `transaction_start_offset` is None unless a transaction is open there.

    `coordinator_epoch` is that of the last marker, or -1 before the first marker.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int | None


class OpenTransaction(NamedTuple):
    """A transaction that is open on a partition."""

    partition: TopicPartition
    producer: ProducerState


class Coordinated(NamedTuple):
    """The coordinators' states of some transactions, by transactional id."""

    listings: Sequence[TransactionListing]
    descriptions: "Mapping[str, TransactionDescription | KafkaError]"


async def list_transactions(
    client: ClusterClient,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = ANY_DURATION,
) -> list[TransactionListing]:
    """The sorted transactional ids of all coordinators, in these states and of these producers, or in all and of all.

    Raises KafkaError and ClientError, also when one broker does not answer.
    """
    answers = await list_transactions_of_brokers(
        client, states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms
    )
    return sorted_transactions(map(checked, answers.values()))


def sorted_transactions(answers: Iterable[Iterable[TransactionListing]]) -> list[TransactionListing]:
    return sorted((each for answer in answers for each in answer), key=lambda each: each.transactional_id)


async def list_transactions_of_brokers(
    client: ClusterClient,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = ANY_DURATION,
) -> dict[int, list[TransactionListing] | KafkaError]:
    """The transactions that each broker coordinates, by broker id, or why the broker has not answered. Raises
    KafkaError and ClientError."""

    def build(version: int) -> ListTransactionsRequest:
        if longer_than_ms >= 0 and version < 1:
            raise UnsupportedVersion("brokers before Kafka 3.8 do not list transactions by their duration")
        return ListTransactionsRequest(
            state_filters=sorted(states), producer_id_filters=sorted(producer_ids), duration_filter=longer_than_ms
        )

    async def ask(broker_id: int) -> list[TransactionListing]:
        connection = await client.connection_to(broker_id)
        response = await connection.send(ApiKey.LIST_TRANSACTIONS, build)
        if (error := error_of(response.error_code, f"the transactions of broker {broker_id}")) is not None:
            raise error
        return [
            TransactionListing(each.transactional_id, broker_id, each.producer_id, each.transaction_state)
            for each in response.transaction_states
        ]

    return await ask_every_broker(client, ask)


async def coordinated_transactions(client: ClusterClient, producer_ids: Collection[int]) -> Coordinated:
    """All coordinators' states of the transactions of these producers.

    Raises ClientError, and KafkaError when a coordinator is missing or does not answer, because it might coordinate a
    transaction that no other coordinator knows.
    """

    async def ask(client: ClusterClient) -> Coordinated:
        listings = await list_transactions(client, producer_ids=producer_ids)
        return Coordinated(listings, await describe_transactions(client, [each.transactional_id for each in listings]))

    found, gap = await listed(client, CoordinatorType.TRANSACTION, ask)
    if gap is not None:
        raise KafkaError(gap.code, f"{gap.message}; the transactions there are not known")
    return found


async def describe_transactions(
    client: ClusterClient, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    """The transactions of these ids; TRANSACTIONAL_ID_NOT_FOUND for an unknown id."""

    async def ask(connection: Connection, ids: Sequence[str]) -> dict[str, TransactionDescription | KafkaError]:
        request = DescribeTransactionsRequest(transactional_ids=list(ids))
        response = await connection.send(ApiKey.DESCRIBE_TRANSACTIONS, lambda version: request)
        coordinator = client.transaction_coordinators.get(ids[0], NO_LEADER)
        return {
            each.transactional_id: error_of(each.error_code, f"transactional id {each.transactional_id}")
            or _description(each, coordinator)
            for each in response.transaction_states
        }

    return await fan_out(client, transactional_ids, coordinators(client, CoordinatorType.TRANSACTION), ask)


def _description(state: DescribeTransactionsResponse.TransactionState, coordinator: int) -> TransactionDescription:
    start_time_ms = state.transaction_start_time_ms
    return TransactionDescription(
        state.transactional_id,
        coordinator,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        None if start_time_ms == NO_TIMESTAMP else start_time_ms,
        sorted(TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions),
    )


async def describe_producers(
    client: ClusterClient, partitions: Iterable[TopicPartition], *, broker_id: int | None = None
) -> dict[TopicPartition, Sequence[ProducerState] | KafkaError]:
    """The producers of these partitions, according to their leaders, or to the replicas on one broker."""

    async def ask(
        connection: Connection, asked: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Sequence[ProducerState] | KafkaError]:
        struct = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(
            topics=[struct(name=name, partition_indexes=numbers) for name, numbers in by_topic(asked).items()]
        )
        response = await connection.send(ApiKey.DESCRIBE_PRODUCERS, lambda version: request)
        return {
            partition: error_of(each.error_code, each.error_message or f"partition {partition}")
            or [
                ProducerState(
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.coordinator_epoch,
                    producer.last_sequence,
                    producer.last_timestamp,
                    None if producer.current_txn_start_offset < 0 else producer.current_txn_start_offset,
                )
                for producer in each.active_producers
            ]
            for partition, each in answers(response.topics)
        }

    route: Route[TopicPartition] = leaders(client)
    if broker_id is not None:
        replicas_on = broker_id
        route = of_brokers(client, lambda _: replicas_on)
    return await fan_out(client, partitions, route, ask)


async def abort_transaction(
    client: ClusterClient, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> KafkaError | None:
    """Writes an abort marker to one partition, instead of the coordinator, and returns the leader's error.

    Only for hanging transactions: if the coordinator committed the transaction later, its records would be lost.
    """

    async def ask(
        connection: Connection, asked: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, KafkaError | None]:
        struct = WriteTxnMarkersRequest.WritableTxnMarker
        marker = struct(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[struct.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            # A producer without a marker has no coordinator epoch. Epoch 0 is not newer than that of any coordinator.
            coordinator_epoch=max(coordinator_epoch, 0),
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await connection.send(ApiKey.WRITE_TXN_MARKERS, lambda version: request)
        return {
            TopicPartition(topic.name, each.partition_index): error_of(each.error_code, f"partition {partition}")
            for result in response.markers
            for topic in result.topics
            for each in topic.partitions
        }

    # A second marker with the same outcome changes nothing.
    return (await fan_out(client, [partition], leaders(client), ask))[partition]


def ending_transactions(open_: Iterable[OpenTransaction], found: Coordinated) -> dict[OpenTransaction, str]:
    """The open transactions that a coordinator will end, and their transactional ids. Pure.

    The other transactions hang: no coordinator will ever write their markers. Raises KafkaError when a coordinator
    could not be asked.
    """
    ids = {listing.producer_id: listing.transactional_id for listing in found.listings}
    ending = {}
    for each in open_:
        transactional_id = ids.get(each.producer.producer_id, "")
        described = found.descriptions.get(transactional_id)
        if isinstance(described, KafkaError):
            if described.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise described
        elif described is not None and each.partition in described.partitions:
            ending[each] = transactional_id
    return ending
