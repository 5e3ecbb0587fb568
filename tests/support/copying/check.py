"""Whether a copy is exactly its input: the same records, each once, in the order of their partition.

Values are compared, which are different for every record of an input partition.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

TIMEOUT_S = 120.0
POLL_S = 0.2
EXAMPLES = 5

Partition = tuple[str, int]


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes


Found = dict[Partition, list[Record]]
"""By partition: each record, as they were read."""


def differences(source: Sequence[bytes], copy: Sequence[bytes]) -> list[str]:
    """What is wrong with the copy of one partition; empty when it is the source."""
    known, copies = set(source), Counter(copy)
    repeated = [value for value, count in copies.items() if count > 1 and value in known]
    found = {
        "missing": [value for value in source if value not in copies],
        "more than once": repeated,
        "not in the input": [value for value in copies if value not in known],
    }
    problems = [f"{len(values)} {what}: {values[:EXAMPLES]}" for what, values in found.items() if values]
    if not problems and list(source) != list(copy):
        place = next(index for index, pair in enumerate(zip(source, copy, strict=True)) if pair[0] != pair[1])
        problems.append(f"out of order from record {place}: {list(copy[place : place + EXAMPLES])}")
    return problems


def read(bootstrap: str, partitions: Sequence[Partition], *, committed: bool) -> Found:
    """The partitions from their beginning to the end that a reader of that isolation level has."""
    ends = end_offsets(bootstrap, partitions, committed=committed)
    reader = Reader(bootstrap, partitions, committed=committed)
    reader.wait_for(ends)
    return reader.finish()


class Reader:
    """Reads partitions from their beginning, in a thread of its own, until it is finished."""

    def __init__(self, bootstrap: str, partitions: Sequence[Partition], *, committed: bool) -> None:
        self.found: Found = {partition: [] for partition in partitions}
        self.problems: list[str] = []
        self._changed = threading.Condition()
        self._positions = dict.fromkeys(partitions, 0)
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader-of-copies",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in partitions])
        self._thread = threading.Thread(target=self._run, name="reader of copies", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(10_000, POLL_S)
            with self._changed:
                for message in messages:
                    self._take(message)
                self._changed.notify_all()
        self._consumer.close()

    def _take(self, message: Any) -> None:
        partition, offset = (message.topic(), message.partition()), message.offset()
        error: KafkaError | None = message.error()
        if error is not None:
            # The end of a partition, where markers may stand that no message tells of.
            if error.code() == KafkaError._PARTITION_EOF:
                self._positions[partition] = max(self._positions[partition], offset)
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.problems.append(f"the reader of {partition}: {error}")
            return
        if offset < self._positions[partition]:
            self.problems.append(f"the reader of {partition} went back from {self._positions[partition]} to {offset}")
        self._positions[partition] = offset + 1
        self.found[partition].append(Record(offset, message.key(), message.value()))

    def wait_for(self, ends: dict[Partition, int], timeout_s: float = TIMEOUT_S) -> None:
        """Waits until it has read up to these offsets."""

        def behind() -> dict[Partition, int]:
            return {partition: at for partition, at in self._positions.items() if at < ends[partition]}

        with self._changed:
            done = self._changed.wait_for(lambda: not behind(), timeout_s)
            assert done, f"a reader stands at {behind()} for {timeout_s} s; the ends are {ends}"

    def finish(self) -> Found:
        self._stop.set()
        self._thread.join()
        return self.found


def end_offsets(bootstrap: str, partitions: Sequence[Partition], *, committed: bool) -> dict[Partition, int]:
    """The last stable offsets, or the high watermarks."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    wanted = {TopicPartition(*partition): OffsetSpec.latest() for partition in partitions}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        try:
            answers = admin.list_offsets(wanted, isolation_level=level, request_timeout=TIMEOUT_S)
            return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def committed_offsets(bootstrap: str, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The offsets that the group has committed, when no transaction of its members is open; 0 for no offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed", "log_level": 0}
    )
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                found = consumer.committed([TopicPartition(*partition) for partition in partitions], timeout=TIMEOUT_S)
                return {(place.topic, place.partition): max(place.offset, 0) for place in found}
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
    finally:
        consumer.close()
