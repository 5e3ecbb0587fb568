"""What stands in `__consumer_offsets`, read as any consumer reads it."""

from confluent_kafka import Consumer, KafkaError, TopicPartition

from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.coordinator.groups.group_records import OffsetKey, read_key, read_offset_value
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME


def logged_commits(bootstrap: str, group: str, partitions: int) -> dict[tuple[str, int], list[int]]:
    """The offsets that a group has committed for each partition, in the order of the log; the topic has so many
    partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    found: dict[tuple[str, int], list[int]] = {}
    try:
        consumer.assign([TopicPartition(GROUP_METADATA_TOPIC_NAME, partition_for(group, partitions), 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            key, value = read_key(message.key() or b""), message.value()
            if isinstance(key, OffsetKey) and key.group_id == group and value is not None:
                found.setdefault(key.partition, []).append(read_offset_value(value).offset)
    finally:
        consumer.close()


def check_no_commit_goes_back(logged: dict[tuple[str, int], list[int]]) -> None:
    for partition, offsets in logged.items():
        assert offsets == sorted(offsets), f"commits of {partition} go back: {offsets}"
