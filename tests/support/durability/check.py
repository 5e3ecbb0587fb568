"""Whether the log holds what the writers were promised: everything acknowledged; idempotent: once, in order.

Brokers promise the latter for each epoch of a producer. librdkafka begins a new epoch when a leader has not got its
earlier batch yet, and then sends again, to every partition, what the former leaders may have stored without answering:
they died, and their successors said that they do not lead.
"""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from support.durability.load import IDEMPOTENT, Load, Rate, Record, Writer
from support.durability.replicas import ProducerEpochs

EXAMPLES = 5
TIMEOUT_S = 120.0
WAIT_FOR_MORE_S = 0.2
NOTHING = -1


@dataclass
class Stored:
    """One partition as it was read: at each offset the code of what was found (`NOTHING`: a hole)."""

    codes: "array[int]" = field(default_factory=lambda: array("q"))

    def put(self, offset: int, code: int) -> None:
        self.codes.extend([NOTHING] * (offset - len(self.codes)))
        self.codes.append(code)


@dataclass
class WriterReport:
    """What one writer wrote, and what became of it. Every list holds the first few examples of its count."""

    writer: str
    written: int = 0
    acknowledged: int = 0
    failed: int = 0
    stored: int = 0
    missing: int = 0  # acknowledged, and nowhere in the log
    misplaced: int = 0  # acknowledged at an offset where something else is
    duplicates: int = 0
    out_of_order: int = 0
    repeated_in_a_new_epoch: int = 0  # by the client; these are no duplicates
    written_per_s: Rate = field(default_factory=lambda: Rate(0, 0))
    acknowledged_per_s: Rate = field(default_factory=lambda: Rate(0, 0))
    longest_silence_s: float = 0.0
    examples: list[str] = field(default_factory=list)
    client_errors: dict[str, int] = field(default_factory=dict)

    def example(self, what: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append(what)

    def problems(self) -> list[str]:
        """What may not be."""
        counts = {"missing": self.missing, "misplaced": self.misplaced}
        if self.writer == IDEMPOTENT:
            counts |= {"duplicates": self.duplicates, "out of order": self.out_of_order, "failed": self.failed}
        return [f"{self.writer}: {count} {what}: {self.examples}" for what, count in counts.items() if count]


def read_log(bootstrap: str, topic: str, partitions: int, writers: list[str]) -> list[Stored]:
    """Every partition from its beginning to its end, as a consumer sees it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
    )
    stored = [Stored() for _ in range(partitions)]
    starts, ends = [], []
    for partition in range(partitions):
        start, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), TIMEOUT_S)
        starts.append(start)
        ends.append(end)
    assert starts == [0] * partitions, f"the logs begin at {starts}"
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)])
    unread = {partition for partition in range(partitions) if ends[partition]}
    last_came_at = time.monotonic()
    while unread:
        messages: list[Any] = consumer.consume(10_000, WAIT_FOR_MORE_S)
        silence_s = time.monotonic() - last_came_at
        assert messages or silence_s < TIMEOUT_S, f"nothing comes from the partitions {sorted(unread)} of {topic}"
        for message in messages:
            last_came_at = time.monotonic()
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            record = Record.parse(message.value())
            assert record.partition == partition, f"{record} is in partition {partition}"
            stored[partition].put(offset, code(writers.index(record.writer), record.sequence))
            if offset + 1 >= ends[partition]:
                unread.discard(partition)
    consumer.close()
    return stored


def code(writer_index: int, sequence: int) -> int:
    return sequence << 1 | writer_index


def check_load(bootstrap: str, load: Load, epochs: Sequence[ProducerEpochs] = ()) -> list[WriterReport]:
    """Reads everything and holds it against what each writer knows; the load has finished.

    Without the partitions' `epochs` the idempotent writer may have had one only.
    """
    stored = read_log(bootstrap, load.topic, load.partitions, [writer.name for writer in load.writers])
    return [check_writer(writer, index, stored, epochs) for index, writer in enumerate(load.writers)]


def check_writer(
    writer: Writer, index: int, stored: list[Stored], epochs: Sequence[ProducerEpochs] = ()
) -> WriterReport:
    report = WriterReport(
        writer.name,
        written=sum(writer.written),
        acknowledged=writer.acknowledged_count,
        failed=len(writer.failed),
        written_per_s=Rate.of(writer.written_per_second, writer.seconds),
        acknowledged_per_s=Rate.of(writer.acknowledged_per_second, writer.seconds),
        longest_silence_s=round(writer.longest_silence_s, 3),
        client_errors=dict(writer.errors),
    )
    for record, reason in writer.failed:
        report.example(f"{record} failed: {reason}")
    for partition, partition_stored in enumerate(stored):
        known = epochs[partition] if epochs and writer.name == IDEMPOTENT else None
        check_partition(writer, index, partition, partition_stored, report, known)
    return report


def check_partition(
    writer: Writer, index: int, partition: int, stored: Stored, report: WriterReport, epochs: ProducerEpochs | None
) -> None:
    copies = bytearray(writer.written[partition])
    in_epoch = bytearray()  # as `copies`, of the epoch alone
    last, last_epoch = -1, -1
    for offset, found in enumerate(stored.codes):
        if found == NOTHING or found & 1 != index:
            continue
        sequence = found >> 1
        report.stored += 1
        epoch = epochs.at(offset) if epochs else 0
        assert epoch >= last_epoch, f"partition {partition} offset {offset}: epoch {epoch} after {last_epoch}"
        if epoch > last_epoch:
            in_epoch, last, last_epoch = bytearray(len(copies)), -1, epoch
        report.repeated_in_a_new_epoch += bool(copies[sequence] and not in_epoch[sequence])
        if in_epoch[sequence]:
            report.duplicates += 1
            if writer.name == IDEMPOTENT:
                report.example(f"partition {partition} offset {offset}: {sequence} once more")
        copies[sequence] = in_epoch[sequence] = True
        if sequence < last:
            report.out_of_order += 1
            if writer.name == IDEMPOTENT:
                report.example(f"partition {partition} offset {offset}: {sequence} after {last}")
        last = sequence
    acknowledged = writer.acknowledged[partition]
    for sequence, offset in zip(acknowledged.sequences, acknowledged.offsets, strict=True):
        if not copies[sequence]:
            report.missing += 1
            report.example(f"partition {partition}: {sequence}, acknowledged at offset {offset}, is nowhere")
        elif offset >= 0 and (offset >= len(stored.codes) or stored.codes[offset] != code(index, sequence)):
            report.misplaced += 1
            report.example(f"partition {partition}: {sequence}, acknowledged at offset {offset}, is not there")
