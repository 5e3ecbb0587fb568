"""The transactions of a producer (KIP-98, KIP-360, KIP-447), and their end in two phases.

`TransactionManager` has one producer's transactions; a `Sender` sends their records. `prepare` separates the end of a
transaction from its producer (`prepared_transactions.py`). The manager is one table of states with rules for each edge.

What must stay true:
- A transaction is committed only if all its records and offsets were acknowledged. If one could not be added, for
  whatever reason, the transaction can only be aborted.
- Only the member that owns partitions commits their offsets, in the membership in which it read the records.
- The errors that end a transaction and those that end its producer are those of Java's `TransactionManager`.
- Every call ends: if the coordinator needs more than the client's time, it is an error, and `commit` and `abort` may be
  called again.
- No record is appended after its transaction has ended: if a record may still reach a leader, the transaction is
  aborted in the next epoch, in which the leaders refuse the record.
- A request of a transaction does not affect later ones: if its answer was lost, so that the request may still arrive on
  the former connection, the next transaction begins in the next epoch, in which the coordinator refuses the request.

Source: org.apache.kafka.clients.producer.internals.TransactionManager.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Final, NoReturn

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.group_member import NO_GENERATION, Membership
from klamm.client.consumer.offsets import OffsetAndMetadata
from klamm.client.fan_out import CoordinatorType, answers
from klamm.client.producer.batches import NO_IDENTITY, Identity, Transaction, TransactionFailed
from klamm.client.producer.transaction_requests import (
    FENCED,
    TRANSIENT,
    UNKNOWN_TO_COORDINATOR,
    PreparedTransaction,
    TransactionCoordinator,
    add_partitions_request,
    code_of,
    codes_of_added,
    end_request,
    explained,
    offset_commit_request,
)
from klamm.net.client import ClientError, UnsupportedVersion
from klamm.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.apis.end_txn import EndTxnResponse
from klamm.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import PartitionKey, TopicPartition

# From this version on, InitProducerId continues a producer whose id and epoch the request has (KIP-360).
_CONTINUING_VERSION: Final = 3

# Errors after which the transaction can be aborted and the producer continues. All other errors of these requests end
# the producer.
_ABORTABLE: Final = {
    ApiKey.INIT_PRODUCER_ID: frozenset({ErrorCode.TRANSACTION_ABORTABLE}),
    ApiKey.ADD_OFFSETS_TO_TXN: UNKNOWN_TO_COORDINATOR
    | {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE},
    ApiKey.TXN_OFFSET_COMMIT: frozenset(
        {
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.TRANSACTION_ABORTABLE,
        }
    ),
    ApiKey.END_TXN: UNKNOWN_TO_COORDINATOR | {ErrorCode.TRANSACTION_ABORTABLE},
}
# Errors that end the producer. After all other errors of these requests the transaction can be aborted. A leader's
# INVALID_PRODUCER_EPOCH may be outdated (KIP-588): the abort shows whether the producer is fenced.
_FATAL: Final = {
    ApiKey.ADD_PARTITIONS_TO_TXN: FENCED
    | {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE},
    ApiKey.PRODUCE: frozenset(
        {
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.UNSUPPORTED_VERSION,
        }
    ),
}

_FENCED_TEXT: Final = "a newer producer has this transactional id, or the transaction has timed out"


class TransactionAborted(TransactionFailed):
    """The transaction cannot be committed. After `abort` the next transaction may begin."""


class ProducerEnded(TransactionFailed):
    """The producer can do nothing more, not even abort. A new producer with its transactional id aborts its
    transaction."""


class ProducerFenced(ProducerEnded):
    """A newer producer has the transactional id, or the transaction has timed out. Both abort the transaction."""


class State(Enum):
    """The states of a `TransactionManager` (Java's `TransactionManager.State`, and PREPARED)."""

    UNINITIALIZED = "UNINITIALIZED"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


VALID_PREVIOUS_STATES: Final[Mapping[State, Collection[State]]] = {
    State.UNINITIALIZED: (),
    State.READY: (State.UNINITIALIZED, State.COMMITTING, State.ABORTING),
    State.IN_TRANSACTION: (State.READY,),
    State.PREPARED: (State.IN_TRANSACTION,),
    State.COMMITTING: (State.IN_TRANSACTION, State.PREPARED, State.COMMITTING),
    State.ABORTING: (State.IN_TRANSACTION, State.PREPARED, State.ABORTABLE_ERROR, State.ABORTING),
    State.ABORTABLE_ERROR: (State.IN_TRANSACTION, State.COMMITTING),
    State.FATAL_ERROR: tuple(State),
}


class TransactionManager(Transaction):
    """The transactions of one producer: `init` once, then repeatedly `begin` and `commit` or `abort`.

    A `Sender` that knows this object sends the records. Its owner must flush it before `commit` and `prepare`, and
    abandon unsent batches before `abort`, as `TransactionalProducer` does.

    Methods raise TransactionAborted and ProducerEnded, RuntimeError when they are called in the wrong order, and
    KafkaError or ClientError when the coordinator does not answer within the client's time.
    """

    def __init__(self, client: ClusterClient, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.identity = NO_IDENTITY
        self.state = State.UNINITIALIZED
        self._client = client
        self._timeout_ms = timeout_ms
        self._coordinator = TransactionCoordinator(client, transactional_id, CoordinatorType.TRANSACTION)
        self._error: TransactionFailed | None = None
        # The partitions of this transaction that the coordinator knows, and those that it does not know yet.
        self._partitions: set[PartitionKey] = set()
        self._wanted: dict[PartitionKey, None] = {}
        self._adding = asyncio.Lock()
        self._has_offsets = False
        # Held while offsets are sent, so that the transaction does not end meanwhile.
        self._sending_offsets = asyncio.Lock()
        # Times of the loop's clock, by group and for all groups. If a consumer returned a record before, its
        # results are not in this transaction, or its offset is.
        self._covered_s: dict[str, float] = {}
        self._aborted_s = -math.inf
        # Whether the coordinator may have opened the transaction.
        self._may_be_open = False
        # Whether the next transaction needs a new epoch.
        self._must_bump_epoch = False
        # Whether a given-up batch may still reach a leader, or given-up offsets the group's coordinator.
        self._may_come_late = False

    async def init(self) -> Identity:
        """Registers the producer. Fences all earlier producers with its transactional id, and aborts their open
        transaction."""
        if self.state is not State.UNINITIALIZED:
            self._wrong_order("init", State.READY)
        self.identity = await self._init_producer_id(NO_IDENTITY)
        self._must_bump_epoch = False
        self._change(State.READY, "init")
        return self.identity

    def begin(self) -> None:
        """Begins a transaction. The coordinator learns of it with its first partition or offset."""
        self._change(State.IN_TRANSACTION, "begin")

    def require_open(self) -> None:
        """Raises unless records and offsets can be added to a transaction now."""
        if self._error is not None:
            raise self._error
        if self.state is not State.IN_TRANSACTION:
            raise RuntimeError(f"the producer {self.transactional_id} is {self.state.value}, not in a transaction")

    async def add_partition(self, partition: PartitionKey) -> None:
        self._require_sending()
        if partition in self._partitions:
            return
        self._wanted[partition] = None
        async with self._adding:
            # Partitions whose first batches come at the same time share a request.
            await asyncio.sleep(0)
            self._require_sending()
            if partition not in self._partitions:
                await self._add_partitions(list(self._wanted))

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Membership | str
    ) -> None:
        """Commits offsets of a group in this transaction: the next offsets that its consumers will read (KIP-447).

        The membership, which has the group id, is that of the consumer that has read the records. The group's
        coordinator refuses the commit if the member no longer owns the partitions. A group id alone is for clients that
        assign partitions to themselves. After any error the transaction can only be aborted.
        """
        began_s = asyncio.get_running_loop().time()
        self.require_open()
        with self.whole_or_aborted(f"offsets of group {_group_id(group)} may be missing", may_come_late=True):
            async with self._sending_offsets:
                self.require_open()
                membership = Membership(group) if isinstance(group, str) else group
                self._check_uninterrupted(membership)
                if offsets:
                    if membership is group:
                        self._check_is_member(membership)
                    await self._add_offsets(membership.group_id)
                    await self._commit_offsets(offsets, membership)
                self._covered_s[membership.group_id] = began_s

    @contextmanager
    def whole_or_aborted(self, what: str, *, may_come_late: bool = False) -> Iterator[None]:
        """If the block fails, an open transaction can only be aborted, because a part of it, `what`, is missing.

        With `may_come_late` a request of the block may still arrive later.
        """
        try:
            yield
        except TransactionFailed:
            raise
        except BaseException as error:
            self._may_come_late |= may_come_late
            if self.state is not State.IN_TRANSACTION:
                raise
            code = error.code if isinstance(error, KafkaError) else ErrorCode.NETWORK_EXCEPTION
            text = error.message if isinstance(error, KafkaError) else str(error)
            self._fail(TransactionAborted, code, f"{what}: {text or type(error).__name__}")
            if isinstance(error, KafkaError | ClientError):
                raise self._failed() from None
            raise

    def prepare(self) -> PreparedTransaction | None:
        """Leaves the end of the transaction to `end_prepared`; None if there is nothing to end.

        This producer may still `commit` or `abort` it, and can do nothing else before.
        """
        if self._sending_offsets.locked():
            raise RuntimeError("prepare: send_offsets has not returned")
        self._change(State.PREPARED, "prepare")
        if not self._may_be_open:
            return None
        self._must_bump_epoch = True
        return PreparedTransaction(self.transactional_id, *self.identity)

    async def commit(self) -> None:
        """Commits the transaction, whose records are all acknowledged."""
        async with self._sending_offsets:
            self._change(State.COMMITTING, "commit")
        if self._may_be_open:
            response = await self._end(commit=True)
            self._check(ApiKey.END_TXN, response.error_code, "the commit")
        with suppress(ProducerEnded):
            # The transaction is committed; `begin` raises the error.
            await self._begin_anew()

    async def abort(self) -> None:
        """Aborts the transaction."""
        self.begin_abort()
        async with self._sending_offsets:
            pass  # Requests with offsets must not come after the end.
        # Batches and offsets are sent only after the coordinator has confirmed their partition or group.
        is_open = bool(self._partitions or self._has_offsets)
        if self._may_come_late and is_open:
            self.identity = await self._abort_in_next_epoch()
            self._must_bump_epoch = False
        elif self._may_be_open:
            self._must_bump_epoch |= self._may_come_late
            response = await self._end(commit=False)
            code = response.error_code
            if code in UNKNOWN_TO_COORDINATOR:
                # The coordinator has forgotten the producer, and has no transaction of it.
                self._must_bump_epoch = True
            elif code != ErrorCode.INVALID_TXN_STATE or is_open:
                # Without a confirmed partition or group the coordinator may never have heard of the transaction.
                self._check(ApiKey.END_TXN, code, "the abort")
        await self._begin_anew()
        self._aborted_s = asyncio.get_running_loop().time()

    def begin_abort(self) -> None:
        """Ends additions to the transaction; `abort` follows."""
        self._change(State.ABORTING, "abort")

    def batch_failed(self, error: BaseException, *, may_come_late: bool) -> None:
        self._must_bump_epoch = True
        self._may_come_late |= may_come_late
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        message = error.message if isinstance(error, KafkaError) else str(error)
        if self._error is not None and self._error.code is code:
            return  # the batch failed because of this error
        if code in _FATAL[ApiKey.PRODUCE]:
            self._fail(ProducerFenced if code in FENCED else ProducerEnded, code, message)
        elif self.state is State.IN_TRANSACTION:
            # In other states the error comes too late: a commit begins only after all records were acknowledged.
            self._fail(TransactionAborted, code, message)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _require_sending(self) -> None:
        """Raises TransactionFailed unless records can be sent now."""
        if self._error is not None:
            raise self._error
        if self.state is not State.IN_TRANSACTION:
            what = f"the record came too late, the producer is {self.state.value}"
            raise TransactionFailed(ErrorCode.OPERATION_NOT_ATTEMPTED, what)

    async def _init_producer_id(self, continued: Identity) -> Identity:
        """A new epoch, or a new producer id. `continued` is this producer's current identity, if any."""
        return self._registered(await self._register(continued))

    async def _abort_in_next_epoch(self) -> Identity:
        """Aborts the transaction so that leaders refuse its batches after the marker, and returns a new epoch.

        The coordinator must have confirmed the transaction. After an EndTxn leaders would still accept batches of the
        old epoch, and open a transaction that never ends.
        """
        response = await self._register(self.identity)
        if response.error_code in FENCED:
            # Kafka's coordinator forgets which producer asked for the abort. An open transaction ends with an abort in
            # the next epoch, which no producer gets. (Without an open transaction a newer producer would have it.)
            aborted = self.identity._replace(producer_epoch=self.identity.producer_epoch + 1)
            response = await self._register(aborted)
        return self._registered(response)

    def _registered(self, response: InitProducerIdResponse) -> Identity:
        self._check(ApiKey.INIT_PRODUCER_ID, response.error_code, "the registration")
        return Identity(response.producer_id, response.producer_epoch)

    async def _register(self, continued: Identity) -> InitProducerIdResponse:
        def build(version: int) -> InitProducerIdRequest:
            if continued != NO_IDENTITY and version < _CONTINUING_VERSION:
                raise UnsupportedVersion(
                    "brokers before Kafka 2.5 let no producer continue after a failed or prepared transaction; make a"
                    " new one"
                )
            return InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=continued.producer_id,
                producer_epoch=continued.producer_epoch,
            )

        response: InitProducerIdResponse = await self._ask(self._coordinator, ApiKey.INIT_PRODUCER_ID, build, code_of)
        return response

    async def _add_partitions(self, partitions: Collection[PartitionKey]) -> None:
        self._may_be_open = True
        response = await self._ask(
            self._coordinator,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            add_partitions_request(PreparedTransaction(self.transactional_id, *self.identity), partitions),
            lambda response: codes_of_added(response).values(),
        )
        codes = codes_of_added(response)
        results = {partition: codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions}
        failures = [(partition, code) for partition, code in results.items() if code != ErrorCode.NONE]
        failures.sort(key=lambda failure: _precedence(failure[1]))
        for (topic, number), code in failures:
            self._check(ApiKey.ADD_PARTITIONS_TO_TXN, code, f"partition {topic}-{number}")
        for partition in partitions:
            self._partitions.add(partition)
            self._wanted.pop(partition, None)

    def _check_uninterrupted(self, membership: Membership) -> None:
        covered_s = max(self._aborted_s, self._covered_s.get(membership.group_id, -math.inf))
        if membership.interrupted_s > covered_s:
            # The next owners read these records again, so their results must not be committed.
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                "the group has rebalanced since the consumer handed out records of this transaction",
            )

    def _check_is_member(self, membership: Membership) -> None:
        if membership.generation_id == NO_GENERATION:
            # The coordinator would take the offsets for those of a client that assigns partitions to itself.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the consumer is not a member of the group yet")

    async def _add_offsets(self, group_id: str) -> None:
        self._may_be_open = True
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            group_id=group_id,
        )
        added = await self._ask(self._coordinator, ApiKey.ADD_OFFSETS_TO_TXN, request, code_of)
        self._check(ApiKey.ADD_OFFSETS_TO_TXN, added.error_code, f"offsets of group {group_id}")
        self._has_offsets = True

    async def _commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], membership: Membership
    ) -> None:
        given = {
            partition: OffsetAndMetadata(each) if isinstance(each, int) else each for partition, each in offsets.items()
        }

        def build(version: int) -> TxnOffsetCommitRequest:
            if version < 3 and membership.generation_id >= 0:
                raise UnsupportedVersion("brokers before Kafka 2.5 do not check the member whose offsets are committed")
            return offset_commit_request(self.transactional_id, self.identity, given, membership)

        def codes_of(response: Any) -> dict[TopicPartition, int]:
            return {partition: each.error_code for partition, each in answers(response.topics)}

        coordinator = TransactionCoordinator(self._client, membership.group_id, CoordinatorType.GROUP)
        response = await self._ask(
            coordinator, ApiKey.TXN_OFFSET_COMMIT, build, lambda response: codes_of(response).values()
        )
        codes = codes_of(response)
        for partition in offsets:
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._check(ApiKey.TXN_OFFSET_COMMIT, code, f"the offset of {partition} for {membership.group_id}")

    async def _end(self, *, commit: bool) -> EndTxnResponse:
        prepared = PreparedTransaction(self.transactional_id, *self.identity)
        request = end_request(prepared, commit=commit)
        response: EndTxnResponse = await self._ask(self._coordinator, ApiKey.END_TXN, request, code_of)
        return response

    async def _ask(
        self,
        coordinator: TransactionCoordinator,
        api_key: ApiKey,
        request: Any,
        codes_of: Callable[[Any], Iterable[int]],
    ) -> Any:
        """Like `TransactionCoordinator.ask`. An error that ends the transaction or the producer changes the state."""
        coordinator.may_come_late = False
        try:
            return await coordinator.ask(api_key, request, codes_of)
        except UnsupportedVersion as error:
            self._fail(ProducerEnded, ErrorCode.UNSUPPORTED_VERSION, str(error))
            raise self._failed() from None
        except KafkaError as error:
            self._raise(api_key, error)
        except asyncio.CancelledError:
            self._must_bump_epoch = True  # The request may be on its way.
            raise
        finally:
            self._must_bump_epoch |= coordinator.may_come_late

    async def _begin_anew(self) -> None:
        """Resets the state after the end of the transaction."""
        self._may_be_open = False
        self.number += 1
        if self._must_bump_epoch:
            self.identity = await self._init_producer_id(self.identity)
        self._partitions.clear()
        self._wanted.clear()
        self._has_offsets = self._must_bump_epoch = self._may_come_late = False
        self._error = None
        self._change(State.READY, "end")

    def _change(self, state: State, operation: str) -> None:
        """Enters the next state. Raises the error that ended the transaction or the producer, and RuntimeError."""
        if self.state in VALID_PREVIOUS_STATES[state]:
            self.state = state
            return
        self._wrong_order(operation, state)

    def _wrong_order(self, operation: str, state: State) -> NoReturn:
        if self._error is not None:
            raise self._error
        allowed = ", ".join(previous.value for previous in VALID_PREVIOUS_STATES[state])
        raise RuntimeError(
            f"{operation}: the producer {self.transactional_id} is {self.state.value}; allowed: {allowed}"
        )

    def _check(self, api_key: ApiKey, code: int, what: str) -> None:
        """Raises the error of an answer. An error that ends the transaction or the producer changes the state
        before."""
        error = explained(code, f"{what} of {self.transactional_id}")
        if error is not None:
            self._raise(api_key, error)

    def _raise(self, api_key: ApiKey, error: KafkaError) -> NoReturn:
        if error.code in TRANSIENT:
            raise error  # not within the client's time
        is_fatal = error.code in _FATAL[api_key] if api_key in _FATAL else error.code not in _ABORTABLE[api_key]
        if error.code in UNKNOWN_TO_COORDINATOR:
            self._must_bump_epoch = True
        if not is_fatal:
            self._fail(TransactionAborted, error.code, error.message)
        elif error.code in FENCED:
            self._fail(ProducerFenced, error.code, f"{error.message}: {_FENCED_TEXT}")
        else:
            self._fail(ProducerEnded, error.code, error.message)
        raise self._failed()

    def _fail(self, kind: type[TransactionFailed], code: ErrorCode, message: str) -> None:
        if issubclass(kind, ProducerEnded):
            self._error, self.state = kind(code, message), State.FATAL_ERROR
        elif self.state not in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            self._error = kind(code, message)
            if self.state in VALID_PREVIOUS_STATES[State.ABORTABLE_ERROR]:
                self.state = State.ABORTABLE_ERROR

    def _failed(self) -> TransactionFailed:
        assert self._error is not None
        return self._error


def _group_id(group: Membership | str) -> str:
    return group.group_id if isinstance(group, Membership) else group


def _precedence(code: int) -> int:
    """The sort key of partition errors. An error of the whole transaction comes first, because it explains the
    others."""
    if code in _FATAL[ApiKey.ADD_PARTITIONS_TO_TXN]:
        return 0
    return 2 if code == ErrorCode.OPERATION_NOT_ATTEMPTED else 1
