"""Reads what tests have written, with librdkafka: an independent client."""

from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition


def read(cluster: Any, topic: str) -> dict[int, "list[Message[bytes, bytes]]"]:
    """The messages of each partition, by number, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "check.crcs": True,
            "fetch.message.max.bytes": 30_000_000,
            "receive.message.max.bytes": 200_000_000,
            "enable.partition.eof": False,
        }
    )
    found: dict[int, list[Message[bytes, bytes]]] = {}
    try:
        for partition in consumer.list_topics(topic, timeout=120).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=120)
            consumer.assign([TopicPartition(topic, partition, low)])
            messages = found[partition] = []
            while len(messages) < high - low:
                message = consumer.poll(30)
                assert message is not None, f"{topic}-{partition}: {len(messages)} of {high - low} messages"
                assert message.error() is None, message.error()
                messages.append(message)
    finally:
        consumer.close()
    return found


def values_read(cluster: Any, topic: str) -> dict[int, list[bytes | None]]:
    return {partition: [each.value() for each in messages] for partition, messages in read(cluster, topic).items()}
