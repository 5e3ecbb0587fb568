"""The end of a transaction whose producer has handed it over (`TransactionManager.prepare`): any process may commit or
abort it later, look whether it is still open, or fence what it left.

What must stay true: a `PreparedTransaction` names exactly one transaction, because no other one begins under its
producer epoch. So ending it twice ends nothing else.
"""

from collections.abc import Iterable
from typing import Any, Final

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import CoordinatorType
from klamm.client.transaction_requests import (
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

# The coordinator no longer has a prepared transaction open.
_GONE: Final = FENCED | UNKNOWN_TO_COORDINATOR | {ErrorCode.INVALID_TXN_STATE}


class TransactionGone(KafkaError):
    """The coordinator no longer has a prepared transaction open, and did not end it as asked.

    It has timed out and was aborted; or a newer producer with its transactional id has aborted it, or began after it
    had ended; or another process ended it in the other way.
    """


async def end_prepared(client: ClusterClient, prepared: PreparedTransaction, *, commit: bool) -> None:
    """Commits or aborts exactly this transaction. Repeating the call does nothing more.

    Raises TransactionGone when the coordinator no longer has it. Raises KafkaError and ClientError when the coordinator
    did not answer in time, or refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED); then the call may be repeated.
    """
    coordinator = TransactionCoordinator(client, prepared.transactional_id, CoordinatorType.TRANSACTION)
    response = await coordinator.ask(ApiKey.END_TXN, end_request(prepared, commit=commit), code_of)
    error = explained(response.error_code, f"the {'commit' if commit else 'abort'} of {_name(prepared)}")
    if error is None:
        return
    raise _gone(prepared, error, "can no longer be committed" if commit else "is no longer open")


async def require_prepared(client: ClusterClient, prepared: PreparedTransaction, partition: PartitionKey) -> None:
    """Raises TransactionGone unless the coordinator still has this transaction open; otherwise as `end_prepared`.

    `partition` is one that the transaction writes to: adding it once more changes nothing and shows who is fenced. Not
    to be called after `end_prepared`, when it would begin another transaction.
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
    """Fences the producers of a transactional id, and aborts what they left open. Returns whether that was anything.

    The coordinator also knows a new id afterwards. Raises KafkaError and ClientError.
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
