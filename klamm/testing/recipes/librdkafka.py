"""The recipes' client on confluent-kafka, which is librdkafka."""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, Message, TopicPartition

from klamm.testing.recipes import contract
from klamm.testing.recipes.contract import TIMEOUT_S, Failed

POLL_S = 0.05
NAMES = {
    "_MSG_TIMED_OUT": "TIMED_OUT",
    "_TIMED_OUT": "TIMED_OUT",
    "_FENCED": "FENCED",
    "INVALID_PRODUCER_EPOCH": "FENCED",
    "PRODUCER_FENCED": "FENCED",
    "ILLEGAL_GENERATION": "EXPELLED",
    "UNKNOWN_MEMBER_ID": "EXPELLED",
    "_ASSIGNMENT_LOST": "EXPELLED",
    "_LOG_TRUNCATION": "LOG_TRUNCATION",
    "_BAD_MSG": "CORRUPT_MESSAGE",
    "INVALID_MSG": "CORRUPT_MESSAGE",
}


def failed(error: Any) -> Failed:
    if isinstance(error, KafkaException):
        error = error.args[0]
    # With auto.offset.reset=error, the text says why there is no offset.
    if error.name() == "_AUTO_OFFSET_RESET" and "truncation" in error.str():
        return Failed("LOG_TRUNCATION", error.str())
    return Failed(NAMES.get(error.name(), error.name()), error.str())


class Producer(contract.Producer):
    def __init__(self, config: dict[str, Any]) -> None:
        if (age_ms := config.get("metadata.max.age.ms")) is not None:
            config["topic.metadata.refresh.interval.ms"] = age_ms
        self._producer = confluent_kafka.Producer({"linger.ms": 0, "log_level": 0, **config})
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._poller.start()
        if "transactional.id" in config:
            self._call(self._producer.init_transactions)

    def _poll(self) -> None:
        while not self._closed.is_set():
            # The calls that a fatal error stops report it.
            with contextlib.suppress(KafkaException):
                self._producer.poll(POLL_S)

    def _call(self, method: Any) -> None:
        try:
            method(TIMEOUT_S)
        except KafkaException as error:
            raise failed(error) from error

    def send(self, topic: str, value: str, partition: int = 0) -> "Future[int]":
        sent: Future[int] = Future()

        def delivered(error: Any, message: Message) -> None:
            if error is None:
                sent.set_result(message.offset() or 0)
            else:
                sent.set_exception(failed(error))

        try:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
        except KafkaException as error:
            sent.set_exception(failed(error))
        return sent

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise failed(error) from error

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._closed.set()
        self._poller.join()


class Consumer(contract.Consumer):
    def __init__(self, topics: tuple[str, ...], config: dict[str, Any]) -> None:
        super().__init__()
        self._in_group = "group.id" in config
        self._on_revoke = config.pop("commit.on.revoke", False)
        if config["auto.offset.reset"] == "none":
            config["auto.offset.reset"] = "error"
        if (limit_ms := config.pop("request.timeout.ms", None)) is not None:
            config["socket.timeout.ms"] = limit_ms
        self._consumer = confluent_kafka.Consumer(
            {"group.id": "none", "enable.auto.commit": False, "check.crcs": True, "log_level": 0, **config}
        )
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._polls, self._open = True, True
        if self._in_group:
            self._consumer.subscribe(
                list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        else:
            self._consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._open:
            if not self._polls or not self._calls.empty():
                call, done = self._calls.get()
                try:
                    call()
                    done.set_result(None)
                except KafkaException as error:
                    done.set_exception(failed(error))
            elif (message := self._consumer.poll(POLL_S)) is not None:
                self._take(message)

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            error = failed(message.error())
            self.happened("failed", error.error, str(error))
        else:
            place = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
            self.happened("record", *place, (message.value() or b"").decode())

    def _call(self, call: Callable[[], None]) -> None:
        """Runs the call in the thread that polls."""
        done: Future[None] = Future()
        self._calls.put((call, done))
        done.result(TIMEOUT_S)

    def _assigned(self, _: Any, partitions: list[TopicPartition]) -> None:
        self.happened("assigned", {(place.topic, place.partition) for place in partitions})

    def _revoked(self, _: Any, partitions: list[TopicPartition]) -> None:
        if self._on_revoke:
            # If nothing can be committed, the next member of the group reads the records again.
            with contextlib.suppress(KafkaException):
                self._commit()
        self._lost(_, partitions)

    def _lost(self, _: Any, partitions: list[TopicPartition]) -> None:
        self.happened("revoked", {(place.topic, place.partition) for place in partitions})

    def _commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def _set(self, *, polls: bool) -> None:
        self._polls = polls

    def _end(self) -> None:
        self._consumer.close()
        self._open = False

    def commit(self) -> None:
        self._call(self._commit)

    def hold(self) -> None:
        self._call(lambda: self._set(polls=False))

    def resume(self) -> None:
        self._call(lambda: self._set(polls=True))

    def close(self) -> None:
        if self._open:
            self._call(self._end)
            self._thread.join()


class Client(contract.Client):
    def _producer(self, config: dict[str, Any]) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, **config})

    def _consumer(self, topics: tuple[str, ...], config: dict[str, Any]) -> Consumer:
        return Consumer(topics, {"bootstrap.servers": self.bootstrap, **config})
