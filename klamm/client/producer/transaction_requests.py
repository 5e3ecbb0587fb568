"""The requests of transactions to the coordinators of transactional ids and of groups: their contents, their retries,
and the meaning of their errors.

What must stay true:
- A request is repeated only while its errors are transient and the client's time is not over. A lost answer is
  remembered (`may_come_late`), because the request may still reach the coordinator.
- No request needs a version of KIP-890's second part, in which the coordinator raises the epoch with each transaction:
  all brokers since Kafka 2.5 get the same requests.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.group_member import Membership
from klamm.client.consumer.offsets import OffsetAndMetadata, committed_topics
from klamm.client.fan_out import CoordinatorType, Unroutable, by_topic, coordinators, error_of
from klamm.client.producer.batches import Identity
from klamm.client.retries import RETRIABLE_ERRORS, Attempts
from klamm.net.client import Disconnected, NotSent
from klamm.protocol.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from klamm.protocol.apis.end_txn import EndTxnRequest
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import PartitionKey, TopicPartition

# The wait for the markers of the last transaction, which takes a few milliseconds.
CONCURRENT_TRANSACTIONS_BACKOFF_S: Final = 0.02
_MOVED: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT})
TRANSIENT: Final = RETRIABLE_ERRORS | {ErrorCode.CONCURRENT_TRANSACTIONS}
FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
UNKNOWN_TO_COORDINATOR: Final = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID})

_EXPLANATIONS: Final = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "needs Write on the transactional id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "transaction.timeout.ms must be more than 0 and no more than the brokers' transaction.max.timeout.ms"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "writing needs Write on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "committing offsets needs Read on the group",
    ErrorCode.INVALID_TXN_STATE: "the coordinator has no such transaction open",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the coordinator knows the transactional id under another producer id",
    ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced since its offsets were read",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has removed the member whose offsets these are",
    ErrorCode.FENCED_INSTANCE_ID: "another member has taken over the group instance id",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the end of the last transaction is not complete yet",
}


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all written and whose outcome is decided later, perhaps by another process.

    A plain tuple: `json.dumps(prepared)` and `PreparedTransaction(*json.loads(text))` store it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionCoordinator:
    """Requests to the coordinator of a transactional id or of a group, repeated until they get a final answer."""

    def __init__(self, client: ClusterClient, key: str, of: CoordinatorType) -> None:
        self._client = client
        self._key = key
        self._route = coordinators(client, of)
        self._is_stale = False
        self.may_come_late = False
        """Whether an answer was lost, so that another attempt followed or may follow on another connection."""

    async def ask(self, api_key: ApiKey, request: Any, codes_of: Callable[[Any], Iterable[int]]) -> Any:
        """The answer, with a transient error only if the client's time is over. `request` may be a function that builds
        it.

        Raises KafkaError if there is no coordinator, and ClientError.
        """
        build = request if callable(request) else lambda version: request
        attempts = Attempts(self._client.retry)

        def are_over() -> bool:
            return attempts.are_over or self._client.is_closed

        while True:
            waits_for_markers = False
            try:
                broker = (await self._route([self._key], self._is_stale))[self._key]
                self._is_stale = True
                if isinstance(broker, Unroutable):
                    if not broker.is_transient or are_over():
                        raise broker.error
                else:
                    connection = await self._client.connection_to(broker)
                    response = await connection.send(api_key, build)
                    codes = set(codes_of(response)) - {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}
                    if not codes or not codes <= TRANSIENT or are_over():
                        self._is_stale = False
                        return response
                    self._is_stale = bool(codes & _MOVED)
                    waits_for_markers = ErrorCode.CONCURRENT_TRANSACTIONS in codes
            except (NotSent, Disconnected) as error:
                self._is_stale = True
                self.may_come_late |= isinstance(error, Disconnected)
                if are_over():
                    raise
            if waits_for_markers:
                await asyncio.sleep(CONCURRENT_TRANSACTIONS_BACKOFF_S)
            else:
                await attempts.pause()


def explained(code: int, what: str) -> KafkaError | None:
    """The error of a code in a response about `what`, with a remedy; or None."""
    explanation = _EXPLANATIONS.get(ErrorCode(code))
    return error_of(code, f"{what}: {explanation}" if explanation else what)


def code_of(response: Any) -> Iterable[int]:
    """The error code of a response with a single error code."""
    return (response.error_code,)


def codes_of_added(response: Any) -> dict[PartitionKey, int]:
    """The error code of each partition in an AddPartitionsToTxn response."""
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }


def add_partitions_request(of: PreparedTransaction, partitions: Iterable[PartitionKey]) -> AddPartitionsToTxnRequest:
    """Adds these partitions to the open transaction of this epoch, or begins it."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=of.transactional_id,
        v3_and_below_producer_id=of.producer_id,
        v3_and_below_producer_epoch=of.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=numbers)
            for topic, numbers in by_topic(TopicPartition(*each) for each in partitions).items()
        ],
    )


def end_request(prepared: PreparedTransaction, *, commit: bool) -> EndTxnRequest:
    """Commits or aborts the open transaction of this epoch."""
    return EndTxnRequest(
        transactional_id=prepared.transactional_id,
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        committed=commit,
    )


def offset_commit_request(
    transactional_id: str,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    membership: Membership,
) -> TxnOffsetCommitRequest:
    """Commits a group's offsets in the transaction, for this member."""
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=membership.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        generation_id=membership.generation_id,
        member_id=membership.member_id,
        group_instance_id=membership.group_instance_id,
        topics=committed_topics(topic, topic.TxnOffsetCommitRequestPartition, offsets),
    )
