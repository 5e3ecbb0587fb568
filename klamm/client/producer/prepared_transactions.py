"""Ends prepared transactions (`TransactionManager.prepare`): any process may commit or abort one later, check whether
it is still open, or fence its producer.

What must stay true: a `PreparedTransaction` identifies exactly one transaction, because no other transaction begins in
its producer epoch. So ending it twice ends no other transaction.
"""

from collections.abc import Iterable
from typing import Any, Final

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import CoordinatorType
from klamm.client.producer.transaction_requests import (
    FENCED,
    UNKNOWN_TO_COORDINATOR,
    PreparedTransaction,
    TransactionCoordinator,
    add_partitions_request,
    code_of,
    codes_of_added,
    end_request,
    explained,
)
from klamm.protocol.apis.init_producer_id import InitProducerIdRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import PartitionKey

# The errors which mean that a prepared transaction is no longer open at its coordinator.
_GONE: Final = FENCED | UNKNOWN_TO_COORDINATOR | {ErrorCode.INVALID_TXN_STATE}


class TransactionGone(KafkaError):
    """A prepared transaction is no longer open at its coordinator, and did not end as requested.

    The transaction has timed out and was aborted; or a newer producer with its transactional id has aborted it, or
    began after its end; or another process ended it with the other outcome.
    """


async def end_prepared(client: ClusterClient, prepared: PreparedTransaction, *, commit: bool) -> None:
    """Commits or aborts exactly this transaction. Idempotent.

    Raises TransactionGone if the transaction is no longer open. Raises KafkaError and ClientError if the coordinator
    did not answer in time, or refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED); then the call may be repeated.
    """
    coordinator = TransactionCoordinator(client, prepared.transactional_id, CoordinatorType.TRANSACTION)
    response = await coordinator.ask(ApiKey.END_TXN, end_request(prepared, commit=commit), code_of)
    error = explained(response.error_code, f"the {'commit' if commit else 'abort'} of {_name(prepared)}")
    if error is None:
        return
    raise _gone(prepared, error, "can no longer be committed" if commit else "is no longer open")


async def require_prepared(client: ClusterClient, prepared: PreparedTransaction, partition: PartitionKey) -> None:
    """Raises TransactionGone unless this transaction is still open, and the other errors of `end_prepared`.

    `partition` is one that the transaction writes to: adding it once more changes nothing, and shows whether the
    producer is fenced. Do not call this after `end_prepared`: it would begin another transaction.
    """
    coordinator = TransactionCoordinator(client, prepared.transactional_id, CoordinatorType.TRANSACTION)
    response = await coordinator.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        add_partitions_request(prepared, [partition]),
        lambda response: codes_of_added(response).values(),
    )
    code = codes_of_added(response).get(partition, int(ErrorCode.UNKNOWN_SERVER_ERROR))
    error = explained(code, f"the partition {partition[0]}-{partition[1]} of {_name(prepared)}")
    if error is not None:
        raise _gone(prepared, error, "is no longer open")


async def fence(client: ClusterClient, transactional_id: str, timeout_ms: int) -> bool:
    """Fences the producers of a transactional id, and aborts their open transaction. Returns whether there was one.

    Afterwards the coordinator also knows an id that was new. Raises KafkaError and ClientError.
    """
    codes: set[int] = set()

    def seen(response: Any) -> Iterable[int]:
        codes.add(response.error_code)
        return code_of(response)

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )
    coordinator = TransactionCoordinator(client, transactional_id, CoordinatorType.TRANSACTION)
    response = await coordinator.ask(ApiKey.INIT_PRODUCER_ID, request, seen)
    error = explained(response.error_code, f"the registration of {transactional_id}")
    if error is not None:
        raise error
    # The coordinator aborts an open transaction before it registers a producer.
    return ErrorCode.CONCURRENT_TRANSACTIONS in codes


def _gone(prepared: PreparedTransaction, error: KafkaError, what: str) -> KafkaError:
    """The error of a request for this transaction."""
    if error.code not in _GONE:
        return error
    why = "it has timed out, a newer producer has its transactional id, or it was ended otherwise"
    return TransactionGone(error.code, f"{_name(prepared)} {what}: {why}")


def _name(prepared: PreparedTransaction) -> str:
    return (
        f"the transaction of {prepared.transactional_id}"
        f" (producer id {prepared.producer_id}, epoch {prepared.producer_epoch})"
    )
