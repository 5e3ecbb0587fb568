"""The recipes' client on aiokafka. One event loop, in a thread, runs all producers and consumers.

aiokafka's idempotent producer has no delivery timeout: it retries for ever. So a producer with `delivery.timeout.ms` is
not idempotent here.
"""

import asyncio
import contextlib
import threading
from collections.abc import Collection, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import (
    BrokerResponseError,
    CommitFailedError,
    CorruptRecordException,
    IllegalOperation,
    IllegalStateError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    ProducerFenced,
)

from klamm.protocol.error_codes import ErrorCode
from klamm.testing.recipes import contract
from klamm.testing.recipes.contract import TIMEOUT_S, Failed

POLL_MS = 50
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)


def failed(error: BaseException) -> Failed:
    if isinstance(error, Failed):
        return error
    match error:
        case KafkaTimeoutError() | TimeoutError():
            name = "TIMED_OUT"
        case ProducerFenced():
            name = "FENCED"
        # Every call raises this after an error that has ended the producer.
        case IllegalOperation() if "fenced" in str(error).lower():
            name = "FENCED"
        # A commit of partitions that the member no longer has raises IllegalStateError.
        case CommitFailedError() | IllegalStateError():
            name = "EXPELLED"
        case CorruptRecordException():
            name = "CORRUPT_MESSAGE"
        case BrokerResponseError() if ErrorCode(error.errno) in FENCED:
            name = "FENCED"
        case BrokerResponseError():
            name = ErrorCode(error.errno).name
        case _:
            name = type(error).__name__
    return Failed(name, str(error))


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(_named(coroutine), self.loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.begin(coroutine).result(TIMEOUT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _named(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except Exception as error:
        raise failed(error) from error


class Producer(contract.Producer):
    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self._loop = loop
        if (limit_ms := config.pop("delivery.timeout.ms", None)) is not None:
            config |= {"request.timeout.ms": limit_ms, "enable.idempotence": False}
        self._transactional = "transactional.id" in config
        loop.run(self._start(_underscored(config)))

    async def _start(self, config: dict[str, Any]) -> None:
        self._producer = AIOKafkaProducer(**config)
        await self._producer.start()

    def send(self, topic: str, value: str, partition: int = 0) -> "Future[int]":
        return self._loop.begin(self._send(topic, value, partition))

    async def _send(self, topic: str, value: str, partition: int) -> int:
        while True:
            try:
                sent = await (await self._producer.send(topic, value.encode(), partition=partition))
            except LeaderNotAvailableError:
                # aiokafka gives up a batch that is as old as the request timeout while its partition has no leader.
                continue
            return int(sent.offset)

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.run(self._producer.stop())


class Consumer(contract.Consumer, ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, loop: Loop, topics: tuple[str, ...], config: dict[str, Any]) -> None:
        super().__init__()
        self._loop = loop
        self._commits_on_revoke = config.pop("commit.on.revoke", False)
        self._polls = asyncio.Event()
        self._polls.set()
        loop.run(self._start(topics, _underscored(config)))
        self._task = loop.begin(self._run())

    async def _start(self, topics: tuple[str, ...], config: dict[str, Any]) -> None:
        strategy = {"partition_assignment_strategy": [RangePartitionAssignor]}
        self._consumer = AIOKafkaConsumer(enable_auto_commit=False, **strategy, **config)
        if "group_id" in config:
            self._consumer.subscribe(topics, listener=self)
        await self._consumer.start()
        if "group_id" not in config:
            places = [TopicPartition(topic, 0) for topic in topics]
            self._consumer.assign(places)
            for place in places:
                self._consumer.seek(place, 0)

    async def _run(self) -> None:
        while True:
            await self._polls.wait()
            try:
                found = await self._consumer.getmany(timeout_ms=POLL_MS)
            except asyncio.CancelledError:
                return
            except Exception as error:
                told = failed(error)
                self.happened("failed", told.error, str(error))
                continue
            for record in (record for records in found.values() for record in records):
                place = (record.topic, record.partition, record.offset, record.timestamp)
                self.happened("record", *place, record.value.decode())

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        if self._commits_on_revoke:
            await self._commit(set(revoked))
        self.happened("revoked", {tuple(place) for place in revoked})

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.happened("assigned", {tuple(place) for place in assigned})

    async def _commit(self, places: Collection[TopicPartition]) -> None:
        """Commits what was read of these partitions. A commit without offsets would ignore lost partitions."""
        if offsets := {place: offset for place, offset in self._positions().items() if place in places}:
            await self._consumer.commit(offsets)

    def _positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in self.records}

    def commit(self) -> None:
        self._loop.run(self._commit(self._positions()))

    def hold(self) -> None:
        self._loop.run(self._hold())

    async def _hold(self) -> None:
        self._polls.clear()

    def resume(self) -> None:
        self._loop.loop.call_soon_threadsafe(self._polls.set)

    def close(self) -> None:
        self._task.cancel()
        # aiokafka ends a fetch by cancelling it, and may raise that CancelledError here.
        with contextlib.suppress(CancelledError):
            self._loop.run(self._consumer.stop())


class Client(contract.Client):
    lacks = frozenset({"KIP-320"})

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._loop = Loop()

    def _producer(self, config: dict[str, Any]) -> Producer:
        return Producer(self._loop, {"bootstrap.servers": self.bootstrap, **config})

    def _consumer(self, topics: tuple[str, ...], config: dict[str, Any]) -> Consumer:
        return Consumer(self._loop, topics, {"bootstrap.servers": self.bootstrap, **config})

    def close(self) -> None:
        super().close()
        self._loop.close()


def _underscored(config: dict[str, Any]) -> dict[str, Any]:
    return {key.replace(".", "_"): value for key, value in config.items()}
