"""The interface that the recipes expect of every client.

A client has `producer(**config)`, `consumer(*topics, **config)` and `close()`. Configurations have Kafka's names with
underscores instead of dots, and mean the same to every client. A consumer with a `group_id` joins that group; a
consumer without one reads partition 0 of each topic from the beginning. Offsets are committed only when a recipe asks
for it.

An error has Kafka's name. Clients have names of their own for five conditions; these are the recipes' names for them:

    TIMED_OUT         the record was not acknowledged, or the request not answered, within the client's time
    FENCED            another producer has taken over the transactional id, or the coordinator has ended the transaction
    EXPELLED          the member is no longer in the group
    LOG_TRUNCATION    records that the consumer has read are no longer in the log, and it may not choose an offset
    CORRUPT_MESSAGE   the checksum of a batch is wrong
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

TIMEOUT_S = 30.0


class Failed(Exception):
    """A client has reported an error to its application."""

    def __init__(self, error: str, text: str = "") -> None:
        super().__init__(f"{error}: {text}")
        self.error = error


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    value: str


class Producer(ABC):
    """A producer with acks=all and idempotence, unless its configuration says otherwise."""

    @abstractmethod
    def send(self, topic: str, value: str, partition: int = 0) -> "Future[int]":
        """Sends a record at once. The future has the record's offset when it is acknowledged, or raises Failed."""

    def write(self, topic: str, *values: str) -> None:
        """Sends records one after another, each when the one before is acknowledged."""
        for value in values:
            self.send(topic, value).result(TIMEOUT_S)

    @abstractmethod
    def begin(self) -> None:
        """Begins a transaction. The producer has a `transactional_id`."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Consumer(ABC):
    """A consumer that polls all the time, in a thread of its own; `records` is what it has read so far."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.assigned: set[tuple[str, int]] = set()
        self.rebalances = 0
        self._taken = 0
        self._error: Failed | None = None
        # The number of records before the error.
        self._error_at = 0
        self._changed = threading.Condition()

    def read(self, count: int) -> list[str]:
        """The values of the next `count` records. Raises Failed when the consumer gets an error instead."""
        self.until(lambda: len(self._readable()) >= count, f"{count} more records")
        begin, self._taken = self._taken, self._taken + count
        return [record.value for record in self.records[begin : self._taken]]

    def read_until(self, value: str) -> list[str]:
        """The values of the next records, up to and including `value`."""
        self.until(lambda: value in self._readable(), repr(value))
        return self.read(self._readable().index(value) + 1)

    def _readable(self) -> list[str]:
        """The values of the next records, up to the first error."""
        end = len(self.records) if self._error is None else self._error_at
        return [record.value for record in self.records[self._taken : end]]

    def until_assigned(self) -> None:
        """Waits until the member has partitions."""
        self.until(lambda: bool(self.assigned), "partitions")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until an event has made the condition true."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._changed:
            while not condition():
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"no {what} within {TIMEOUT_S:g} s; the last records: {self.records[-5:]}"
                self._changed.wait(left_s)

    def happened(self, event: str, *arguments: Any) -> None:
        """Notes an event, from any thread: record, assigned, revoked or failed."""
        with self._changed:
            if event == "record":
                self.records.append(Record(*arguments))
            elif event == "assigned":
                self.rebalances += 1
                self.assigned |= arguments[0]
            elif event == "revoked":
                self.assigned -= arguments[0]
            elif event == "failed" and self._error is None:
                self._error, self._error_at = Failed(*arguments), len(self.records)
            self._changed.notify_all()

    @abstractmethod
    def commit(self) -> None:
        """Commits the offsets of all that has been read. Raises Failed."""

    @abstractmethod
    def hold(self) -> None:
        """Stops polling, like a busy application. Returns when the consumer no longer polls."""

    @abstractmethod
    def resume(self) -> None:
        """Begins to poll again."""

    @abstractmethod
    def close(self) -> None: ...


class Client(ABC):
    """One client library, connected to one cluster. `lacks` names the KIPs that the library does not implement."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._open: list[Producer | Consumer] = []

    @abstractmethod
    def _producer(self, config: dict[str, Any]) -> Producer: ...

    @abstractmethod
    def _consumer(self, topics: tuple[str, ...], config: dict[str, Any]) -> Consumer: ...

    def producer(self, **config: Any) -> Producer:
        """A new producer. With a `transactional_id`, the earlier transactions of that id are ended. Raises Failed."""
        producer = self._producer(_dotted({"acks": "all", "enable_idempotence": True, **config}))
        self._open.append(producer)
        return producer

    def consumer(self, *topics: str, **config: Any) -> Consumer:
        """A new consumer, which begins to poll."""
        consumer = self._consumer(topics, _dotted({"auto_offset_reset": "earliest", **config}))
        self._open.append(consumer)
        return consumer

    def read(self, topic: str, until: str, **config: Any) -> list[str]:
        """The values of the topic's partition 0 from its beginning to the value `until`."""
        consumer = self.consumer(topic, **config)
        try:
            return consumer.read_until(until)
        finally:
            consumer.close()

    def close(self) -> None:
        """Closes all open producers and consumers."""
        for part in self._open:
            part.close()
        self._open.clear()


def _dotted(config: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "."): value for key, value in config.items()}
