"""Load whose every acknowledgement is known: two librdkafka producers that write numbered records at a steady rate.

One has acks=all alone, one is idempotent. A value names its writer, its partition and its number there (`Record`), so
that a reader of the log knows what it has found; what was acknowledged, and at which offset, stands in the writer.
"""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import confluent_kafka

PLAIN, IDEMPOTENT = "plain", "idempotent"
TICK_S = 0.01
SETTLE_TIMEOUT_S = 120.0


class Record(NamedTuple):
    """What a value says of itself."""

    writer: str
    partition: int
    sequence: int

    def value(self, size_bytes: int) -> bytes:
        return f"{self.writer}/{self.partition}/{self.sequence}/".ljust(size_bytes, "x").encode()

    @classmethod
    def parse(cls, value: bytes) -> Self:
        writer, partition, sequence, _ = value.decode().split("/")
        return cls(writer, int(partition), int(sequence))


@dataclass
class Acknowledged:
    """One partition's delivery reports without an error, in their order; offset -1: librdkafka was not told which."""

    sequences: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(frozen=True)
class Rate:
    """Records in each full second."""

    minimum: int
    mean: float

    @classmethod
    def of(cls, per_second: Counter[int], seconds: int) -> Self:
        counts = [per_second[second] for second in range(seconds)]
        return cls(min(counts, default=0), sum(counts) / max(1, len(counts)))


class Writer:
    """One producer in a thread of its own: `records_per_s` to the topic's partitions in turn, until it is told to stop.

    When the brokers do not acknowledge, it goes on: what waits stays in librdkafka's queue.
    """

    def __init__(
        self,
        name: str,
        config: dict[str, Any],
        *,
        bootstrap: str,
        topic: str,
        partitions: int,
        records_per_s: int,
        size_bytes: int,
        started_at: float,
    ) -> None:
        self.name = name
        self.written = [0] * partitions
        self.acknowledged = [Acknowledged() for _ in range(partitions)]
        self.failed: list[tuple[Record, str]] = []
        self.errors: Counter[str] = Counter()
        self.written_per_second: Counter[int] = Counter()
        self.acknowledged_per_second: Counter[int] = Counter()
        self.longest_silence_s = 0.0
        self.seconds = 0
        self._topic, self._records_per_s, self._size_bytes = topic, records_per_s, size_bytes
        self._started_at, self._last_acknowledged_at = started_at, started_at
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                # A second of several partitions' records is a few dozen requests, as of a busy producer.
                "linger.ms": 20,
                # Whatever happens, the writer's rate holds: the queue takes minutes of records.
                "queue.buffering.max.messages": 5_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "reconnect.backoff.max.ms": 500,
                "error_cb": lambda error: self.errors.update([error.name()]),
                "log_level": 0,
                **config,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"writer {name}", daemon=True)
        self._thread.start()

    @property
    def acknowledged_count(self) -> int:
        return sum(len(partition.sequences) for partition in self.acknowledged)

    def finish(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Writes no more and waits until every record is acknowledged or has failed."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        left = self._producer.flush(timeout_s)
        assert left == 0, f"{left} records of the writer {self.name} are neither acknowledged nor failed"

    def _run(self) -> None:
        total = 0
        try:
            while not self._stop.is_set():
                due = int((time.monotonic() - self._started_at) * self._records_per_s)
                for number in range(total, due):
                    self._write(number % len(self.written))
                total = due
                self._producer.poll(TICK_S)
        except BaseException as error:
            self._failure = error
        self.seconds = int(time.monotonic() - self._started_at)

    def _write(self, partition: int) -> None:
        record = Record(self.name, partition, self.written[partition])
        self._producer.produce(
            self._topic, record.value(self._size_bytes), partition=partition, on_delivery=self._delivered
        )
        self.written[partition] += 1
        self.written_per_second[int(time.monotonic() - self._started_at)] += 1

    def _delivered(self, error: Any, message: Any) -> None:
        record = Record.parse(message.value())
        if error is not None:
            self.failed.append((record, error.str()))
            return
        now = time.monotonic()
        self.longest_silence_s = max(self.longest_silence_s, now - self._last_acknowledged_at)
        self._last_acknowledged_at = now
        self.acknowledged_per_second[int(now - self._started_at)] += 1
        acknowledged = self.acknowledged[record.partition]
        acknowledged.sequences.append(record.sequence)
        acknowledged.offsets.append(message.offset() if message.offset() is not None else -1)


class Load:
    """Both writers on one topic, or one of them, `records_per_s` each."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        records_per_s: int = 2500,
        size_bytes: int = 100,
        writers: Sequence[str] = (PLAIN, IDEMPOTENT),
    ) -> None:
        self.topic, self.partitions, self.started_at = topic, partitions, time.monotonic()

        def writer(name: str, config: dict[str, Any]) -> Writer:
            return Writer(
                name,
                config,
                bootstrap=bootstrap,
                topic=topic,
                partitions=partitions,
                records_per_s=records_per_s,
                size_bytes=size_bytes,
                started_at=self.started_at,
            )

        self.writers = [writer(name, {"enable.idempotence": name == IDEMPOTENT}) for name in writers]

    def finish(self) -> None:
        for writer in self.writers:
            writer.finish()
