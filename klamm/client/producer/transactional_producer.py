"""A producer of single records whose records become visible together, or not at all.

    producer = TransactionalProducer(client, options, environment)
    await producer.init()
    producer.begin()
    await producer.send(ProducerRecord("orders", b"..."))
    await producer.send_offsets(consumer.positions(), consumer.membership)
    await producer.commit()

What must stay true:
- `commit` and `prepare` wait for every pending call of `send` and `send_offsets`, and for every record. If a record has
  failed, or a call has raised, they raise TransactionAborted, and the transaction can only be aborted.
- A record is in the transaction in which its `send` began, or in none: after the call of `commit`, `prepare` or `abort`
  no record is added, and only one of these runs at a time.
- `abort` ends the transaction only when every record of it is answered or given up, and in such a way that no leader
  appends a given-up record: a record after the end of its transaction would hold back the last stable offset.

Source: org.apache.kafka.clients.producer.KafkaProducer.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from klamm.base.environment import Environment
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.group_member import Membership
from klamm.client.consumer.offsets import OffsetAndMetadata
from klamm.client.options import ProducerOptions
from klamm.client.producer.batches import Identity
from klamm.client.producer.producer import OnCompletion, Producer, ProducerRecord
from klamm.client.producer.topic_partitions import TopicPartitions
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactions import State, TransactionManager
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ACKS_ALL, TopicPartition

# How long a closing producer waits for the abort of an open transaction. Otherwise the coordinator aborts it later.
CLOSE_TIMEOUT_S = 5.0


class TransactionalProducer:
    """Writes records in transactions, one at a time, on the loop of its client. The caller closes the client.

    The methods raise the errors of `TransactionManager` and `Producer`. If the coordinator does not answer in time,
    `init`, `commit` and `abort` raise KafkaError or ClientError, and may be called again; `send` and `send_offsets`
    raise TransactionAborted, because their record or offsets are missing.
    """

    def __init__(self, client: ClusterClient, options: ProducerOptions, environment: Environment) -> None:
        if not options.transactional_id:
            raise ValueError("transactional.id is not set")
        if options.acks != ACKS_ALL or not options.enable_idempotence:
            raise ValueError("transactional.id needs acks=all and enable.idempotence=true")
        self._transactions = TransactionManager(client, options.transactional_id, options.transaction_timeout_ms)
        self._producer = Producer(client, options, environment, self._transactions)
        # The pending calls of `send`.
        self._sends = 0
        self._all_sent = asyncio.Event()
        self._is_ending = False

    @property
    def state(self) -> State:
        return self._transactions.state

    async def init(self) -> Identity:
        """Fences all earlier producers with this transactional id and aborts their open transaction."""
        return await self._transactions.init()

    def begin(self) -> None:
        """Begins a transaction."""
        self._transactions.begin()

    async def partitions_for(self, topic: str) -> TopicPartitions:
        """Like `Producer.partitions_for`."""
        return await self._producer.partitions_for(topic)

    async def send(self, record: ProducerRecord, on_completion: OnCompletion | None = None) -> None:
        """Like `Producer.send`, in the transaction."""
        self._require_open("send")
        self._sends += 1
        try:
            with self._transactions.whole_or_aborted("a record was not sent"):
                await self._producer.send(record, on_completion)
        finally:
            self._sends -= 1
            self._all_sent.set()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Membership | str
    ) -> None:
        """Commits a group's next offsets to be read in the transaction, like `TransactionManager.send_offsets`."""
        self._require_open("send_offsets")
        await self._transactions.send_offsets(offsets, group)

    async def prepare(self) -> PreparedTransaction | None:
        """Writes every record, and leaves the end of the transaction to `end_prepared`.

        None if the transaction has no records and no offsets. Until its end this producer cannot do anything else.
        """
        with self._ending("prepare"):
            self._transactions.require_open()
            await self._write_all()
            return self._transactions.prepare()

    async def commit(self) -> None:
        """Writes every record and commits the transaction."""
        with self._ending("commit"):
            await self._write_all()
            await self._transactions.commit()

    async def abort(self) -> None:
        """Aborts the transaction. Unsent records fail."""
        with self._ending("abort"):
            await self._abort()

    async def close(self) -> None:
        """Aborts an open transaction, but not a prepared one, and fails all unacknowledged records. Idempotent."""
        is_open = self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)
        try:
            if is_open or (self.state is State.ABORTING and not self._is_ending):
                with contextlib.suppress(KafkaError, ClientError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await self._abort()
        finally:
            await self._producer.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _require_open(self, operation: str) -> None:
        self._transactions.require_open()
        if self._is_ending:
            raise RuntimeError(f"{operation}: the transaction of {self._transactions.transactional_id} is being ended")

    @contextlib.contextmanager
    def _ending(self, operation: str) -> Iterator[None]:
        """During the block no record or offset can be added to the transaction."""
        if self._is_ending:
            raise RuntimeError(f"{operation}: another call of commit, prepare or abort has not returned")
        self._is_ending = True
        try:
            yield
        finally:
            self._is_ending = False

    async def _write_all(self) -> None:
        while self._sends:
            self._all_sent.clear()
            await self._all_sent.wait()
        await self._producer.flush()

    async def _abort(self) -> None:
        self._transactions.begin_abort()
        await self._producer.abandon(KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted"))
        await self._transactions.abort()
