"""Load whose every record is checked while it lasts: per topic an idempotent producer and a group of two consumers.

A value names its number in its partition. What must hold of every partition:

- A consumer finds the numbers in order, each once, however often it reads an offset again after a rebalance.
- In a topic that is not compacted no number is left out. In a compacted topic a number may be missing only if a later
  record has the same key.
- At the end the last acknowledged number is in the log, or retention has removed it.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

TICK_S = 0.01
POLL_S = 0.2
TIMEOUT_S = 120.0
CONSUMERS_PER_TOPIC = 2
EXAMPLES = 5
NOTHING = -1


@dataclass(frozen=True)
class SoakTopic:
    """A topic, its configs, and how fast it is written. `keys` is None for records without keys."""

    name: str
    partitions: int
    records_per_s: int
    configs: dict[str, str]
    keys: int | None = None
    size_bytes: int = 200

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    def key(self, sequence: int) -> bytes | None:
        return None if self.keys is None else f"key-{sequence % self.keys}".encode()

    def value(self, sequence: int) -> bytes:
        return f"{sequence}/".ljust(self.size_bytes, "x").encode()


def sequence_of(value: bytes) -> int:
    return int(value.partition(b"/")[0])


@dataclass
class Problems:
    """What may not be, with the first few examples of each kind."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, example: str) -> None:
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if self.counts[kind] <= EXAMPLES:
                self.examples.append(f"{kind}: {example}")


class Sequences:
    """The numbers of one partition as readers find them, in the order of the offsets."""

    def __init__(self, topic: SoakTopic, partition: int, problems: Problems, reader: str) -> None:
        self.offset = self.sequence = NOTHING
        self.newest: dict[int, int] = {}
        self.records = 0
        self._topic, self._where, self._problems = topic, f"{topic.name}-{partition} ({reader})", problems

    def found(self, offset: int, sequence: int) -> None:
        """The record at `offset`. One that was read before is not looked at again."""
        if offset <= self.offset:
            return
        where = f"{self._where} offset {offset}: {sequence} after {self.sequence}"
        if sequence <= self.sequence:
            self._problems.add("doubled or out of order", where)
        elif sequence > self.sequence + 1 and not self._topic.is_compacted and self.sequence != NOTHING:
            self._problems.add("lost", where)
        self.offset, self.sequence = offset, sequence
        self.records += 1
        if self._topic.keys is not None:
            self.newest[sequence % self._topic.keys] = sequence


class Writer:
    """One idempotent producer in a thread of its own, at a steady rate, to the topic's partitions in turn."""

    def __init__(self, bootstrap: str, topic: SoakTopic, problems: Problems) -> None:
        self.topic = topic
        self.written = [0] * topic.partitions
        self.acknowledged = [NOTHING] * topic.partitions
        self._problems = problems
        self._stop = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": f"soak-{topic.name}",
                "enable.idempotence": True,
                "linger.ms": 20,
                # Records wait for as long as any fault lasts.
                "message.timeout.ms": 600_000,
                "queue.buffering.max.messages": 1_000_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"writer {topic.name}", daemon=True)
        self._thread.start()

    @property
    def acknowledged_count(self) -> int:
        return sum(self.acknowledged) + len(self.acknowledged)

    def finish(self) -> None:
        """Writes no more, and waits until every record is acknowledged or has failed."""
        self._stop.set()
        self._thread.join()
        if left := self._producer.flush(TIMEOUT_S):
            self._problems.add("neither acknowledged nor failed", f"{left} records of {self.topic.name}")

    def _run(self) -> None:
        started_at, total = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - started_at) * self.topic.records_per_s)
            for number in range(total, due):
                self._write(number % self.topic.partitions)
            total = due
            self._producer.poll(TICK_S)

    def _write(self, partition: int) -> None:
        sequence = self.written[partition]
        self._producer.produce(
            self.topic.name,
            self.topic.value(sequence),
            self.topic.key(sequence),
            partition=partition,
            on_delivery=self._delivered,
        )
        self.written[partition] += 1

    def _delivered(self, error: Any, message: Any) -> None:
        partition, sequence = message.partition(), sequence_of(message.value())
        where = f"{self.topic.name}-{partition}: {sequence}"
        if error is not None:
            self._problems.add("failed", f"{where}: {error.str()}")
        elif sequence != self.acknowledged[partition] + 1:
            self._problems.add("acknowledged out of order", f"{where} after {self.acknowledged[partition]}")
        self.acknowledged[partition] = sequence


class Readers:
    """The members of one group, which commit what they have read every second."""

    def __init__(self, bootstrap: str, topic: SoakTopic, problems: Problems) -> None:
        self._bootstrap, self._topic, self._problems = bootstrap, topic, problems
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.sequences = [Sequences(topic, partition, problems, "group") for partition in range(topic.partitions)]
        self._threads = [
            threading.Thread(target=self._run, name=f"reader {topic.name}", daemon=True)
            for _ in range(CONSUMERS_PER_TOPIC)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, acknowledged: list[int]) -> None:
        """Waits until everything acknowledged has been read."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and self._behind(acknowledged):
            time.sleep(POLL_S)
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for partition in self._behind(acknowledged):
            read = self.sequences[partition].sequence
            self._problems.add(
                "acknowledged and not read", f"{self._topic.name}-{partition}: {acknowledged[partition]}, read {read}"
            )

    def _behind(self, acknowledged: list[int]) -> list[int]:
        return [number for number, each in enumerate(self.sequences) if each.sequence < acknowledged[number]]

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"soak-{self._topic.name}",
                "client.id": f"soak-{self._topic.name}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
                "session.timeout.ms": 10_000,
                "check.crcs": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.subscribe([self._topic.name])
        while not self._stop.is_set():
            for message in consumer.consume(10_000, POLL_S):
                # Errors pass: a broker is away, or there is no leader.
                if message.error() is None:
                    with self._lock:
                        _note(message, self.sequences)
        consumer.close()


def _note(message: "confluent_kafka.Message[bytes, bytes]", sequences: list[Sequences]) -> None:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None and offset is not None and value is not None
    sequences[partition].found(offset, sequence_of(value))


def read_all(bootstrap: str, topic: SoakTopic, problems: Problems) -> list[Sequences]:
    """Every partition from its start to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak-check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    found = [Sequences(topic, partition, problems, "whole log") for partition in range(topic.partitions)]
    consumer.assign(
        [
            confluent_kafka.TopicPartition(topic.name, partition, confluent_kafka.OFFSET_BEGINNING)
            for partition in range(topic.partitions)
        ]
    )
    unread = set(range(topic.partitions))
    deadline = time.monotonic() + TIMEOUT_S
    while unread and time.monotonic() < deadline:
        for message in consumer.consume(10_000, POLL_S):
            error = message.error()
            if error is None:
                _note(message, found)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
    consumer.close()
    for partition in unread:
        problems.add("not readable to its end", f"{topic.name}-{partition} within {TIMEOUT_S:.0f} s")
    return found


def check_log(topic: SoakTopic, acknowledged: list[int], found: list[Sequences], problems: Problems) -> None:
    """Holds the whole log against what was acknowledged."""
    for partition, last in enumerate(acknowledged):
        each, where = found[partition], f"{topic.name}-{partition}"
        if topic.is_compacted:
            assert topic.keys is not None
            for sequence in range(max(0, last + 1 - topic.keys), last + 1):
                if each.newest.get(sequence % topic.keys, NOTHING) < sequence:
                    problems.add("lost", f"{where}: {sequence} is the last record of its key, and not in the log")
        elif each.records and each.sequence < last:
            problems.add("lost", f"{where}: {last} was acknowledged, the log ends with {each.sequence}")
        elif "retention.ms" not in topic.configs and each.records != last + 1:
            problems.add("lost", f"{where}: {last + 1} records were acknowledged, {each.records} are in the log")
