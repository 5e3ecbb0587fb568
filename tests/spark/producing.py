"""Writes records for tests, with librdkafka: an independent client."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer


def produce(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **config: Any) -> None:
    """Writes records, each the arguments of `Producer.produce` (value, key, partition, timestamp, headers)."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    failed: list[Any] = []
    for record in records:
        producer.produce(topic, on_delivery=lambda error, _: error and failed.append(error), **record)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not failed, failed


def numbered(count: int, partition: int = 0, first: int = 0) -> list[dict[str, Any]]:
    """Records with the values b"0", b"1", ... and timestamps 1000, 1001, ..."""
    return [
        {"value": str(number).encode(), "partition": partition, "timestamp": 1000 + number}
        for number in range(first, first + count)
    ]
