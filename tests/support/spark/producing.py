"""Writes records for tests, with librdkafka: an independent client."""

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from klamm.testing.cluster import Cluster


def produce(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **config: Any) -> None:
    """Writes records, each the arguments of `Producer.produce` (value, key, partition, timestamp, headers).

    A partition has them in this order and each once, whatever a broker answers at first. How many a batch has is only
    bounded: `support.placed_topics.write_batches` writes exact ones.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, **config})
    results: list[Any] = []
    for record in records:
        producer.produce(topic, on_delivery=lambda error, _: results.append(error), **record)
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not any(results), results


def numbered(count: int, partition: int = 0, first: int = 0) -> list[dict[str, Any]]:
    """Records with the values b"0", b"1", ... and timestamps 1000, 1001, ..."""
    return [
        {"value": str(number).encode(), "partition": partition, "timestamp": 1000 + number}
        for number in range(first, first + count)
    ]


def sale(product: str, amount: float, time: str) -> dict[str, Any]:
    return {"value": json.dumps({"product": product, "amount": amount, "time": f"2024-05-01T{time}Z"}).encode()}


def set_retention(cluster: Cluster, topic: str, retention_ms: int) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
