"""RackReader.java with librdkafka: the same arguments, the same lines."""

import json
import sys

from confluent_kafka import Consumer, Message, TopicPartition


def main(bootstrap: str, topic: str, rack: str, count: str) -> None:
    follower = -1

    def told(statistics: str) -> None:
        nonlocal follower
        partition = json.loads(statistics)["topics"].get(topic, {"partitions": {}})["partitions"].get("0")
        if partition is not None:
            follower = -1 if partition["broker"] == partition["leader"] else partition["broker"]

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.rack": rack,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "topic.metadata.refresh.interval.ms": 2000,
            "metadata.max.age.ms": 2000,
            "statistics.interval.ms": 100,
            "stats_cb": told,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    following = 0
    while following < int(count):
        messages: list[Message] = consumer.consume(1000, 0.2)
        for message in messages:
            assert message.error() is None, message.error()
            assert message.offset() == following, f"offset {message.offset()} after {following - 1}"
            following += 1
        print(f"@ {follower} {following}", flush=True)
    consumer.close()


main(*sys.argv[1:])
