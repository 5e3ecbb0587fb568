"""What a client reads from one partition of any broker."""

import time
import uuid

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_SECONDS = 120


def consume(bootstrap: str, topic: str, isolation: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records of partition 0 up to its end, at this isolation level."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(5)
        if message is None:
            continue
        if error := message.error():
            assert error.name() == "_PARTITION_EOF", error
            consumer.close()
            return found
        offset = message.offset()
        assert offset is not None
        found.append((offset, message.key(), message.value()))
    raise AssertionError(f"{topic} has no end; {len(found)} records so far")
