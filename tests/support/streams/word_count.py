"""Words that are written to a topic, and Kafka Streams, which counts them: `WordCount.java` says how."""

import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from support import oracles
from support.processes import ManagedProcess

APPLICATION = Path(__file__).with_name("WordCount.java")
INPUT, OUTPUT = "lines", "counts"
NAME = "words"
REPARTITION, CHANGELOGS = f"{NAME}-words-repartition", (f"{NAME}-counts-changelog", f"{NAME}-distinct-changelog")
PARTITIONS = 3
WORDS = tuple(f"w{number}" for number in range(40))
TIMEOUT_S = 120
OPTIONS: dict[str, str | int] = {
    "processing.guarantee": "at_least_once",
    "commit.interval.ms": 200,
    # Every update goes to the changelog at once.
    "statestore.cache.max.bytes": 0,
    "cache.max.bytes.buffering": 0,
    "repartition.purge.interval.ms": 200,
    "producer.enable.idempotence": "true",
    "producer.acks": "all",
    "consumer.auto.offset.reset": "earliest",
    "consumer.session.timeout.ms": 10_000,
    "consumer.heartbeat.interval.ms": 500,
    "topic.segment.ms": 2_000,
    "topic.min.cleanable.dirty.ratio": "0.05",
}


@dataclass(frozen=True)
class Count:
    """How often a word has arrived, and how often in a place that was new."""

    arrived: int
    distinct: int


class Application(ManagedProcess):
    """One instance of the application; `options` are added to (and replace) those above."""

    def __init__(
        self,
        version: str,
        bootstrap: str,
        brokers: int,
        directory: Path,
        state: str,
        options: Mapping[str, str | int] | None = None,
    ) -> None:
        settings = {
            "application.id": NAME,
            "bootstrap.servers": bootstrap,
            "state.dir": directory / state,
            "replication.factor": brokers,
            **OPTIONS,
            **(options or {}),
        }
        command = oracles.java_command(
            oracles.kafka_streams_jars(version),
            str(APPLICATION),
            INPUT,
            OUTPUT,
            *(f"{key}={value}" for key, value in settings.items()),
        )
        self._changed_counts = threading.Condition()
        self._counting: dict[str, Count] = {}
        self._counts: dict[str, Count] | None = None
        super().__init__("streams", command, directory / f"{state}.log", stdin=subprocess.PIPE)

    def _take(self, line: str) -> None:
        super()._take(line)
        match line.split():
            case ["@", "word", word, arrived, distinct]:
                self._counting[word] = Count(int(arrived), int(distinct))
            case ["@", "dumped"]:
                with self._changed_counts:
                    self._counts, self._counting = self._counting, {}
                    self._changed_counts.notify_all()

    def counts(self) -> dict[str, Count]:
        """What the stores hold now; nothing while the application rebalances."""
        assert self.popen.stdin is not None
        with self._changed_counts:
            self._counts = None
            self.popen.stdin.write("dump\n")
            self.popen.stdin.flush()
            assert self._changed_counts.wait_for(lambda: self._counts is not None, TIMEOUT_S), self.tail()
        assert self._counts is not None
        return self._counts

    def close(self) -> None:
        """Closes the application in order."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.wait(TIMEOUT_S) == 0, self.tail()


class Lines:
    """Writes numbered lines, and knows how often each word is in them."""

    def __init__(self, bootstrap: str) -> None:
        self.truth: Counter[str] = Counter()
        self._written = [0] * PARTITIONS
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def write(self, lines: int) -> None:
        results: list[object] = []
        for _ in range(lines):
            number = sum(self._written)
            partition = number % PARTITIONS
            words = [WORDS[number * factor % len(WORDS)] for factor in (1, 3, 7)]
            line = f"{partition}:{self._written[partition]} {' '.join(words)}"
            self._producer.produce(INPUT, line, partition=partition, on_delivery=lambda error, _: results.append(error))
            self._written[partition] += 1
            self.truth.update(words)
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not any(results), results
