"""The brokers' side of the tests of consumer groups: topics, records, and what the coordinator knows."""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewPartitions, NewTopic
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from support.group_clients.hosts import Partition
from support.leftovers import lasting

T = TypeVar("T")

TIMEOUT_S = 120.0


class GroupCluster:
    """Two brokers and one coordinator, as the admin clients see them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = lasting(AdminClient, {"bootstrap.servers": bootstrap})
        self._producer = lasting(Producer, {"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def create_topics(self, *names: str, partitions: int) -> None:
        for created in self._admin.create_topics([NewTopic(name, partitions, 2) for name in names]).values():
            created.result(TIMEOUT_S)

    def create_partitions(self, topic: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(TIMEOUT_S)

    def produce(self, topic: str, numbers: Iterable[int], partitions: int) -> None:
        """Numbers as records, round the partitions."""
        for number in numbers:
            self._producer.produce(topic, str(number).encode(), partition=number % partitions)
        assert self._producer.flush(TIMEOUT_S) == 0

    def describe(self, group: str) -> ConsumerGroupDescription:
        description: ConsumerGroupDescription = self._admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        return description

    def committed(self, group: str) -> dict[Partition, int]:
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(TIMEOUT_S).topic_partitions
        return {(place.topic, place.partition): place.offset for place in found}

    def move_coordinator(self, group: str) -> None:
        """Moves the group's coordinator to the other broker; the old one keeps running, and answers NOT_COORDINATOR."""
        old = self._coordinator(group)
        assert old is not None
        place = TopicPartition(GROUP_METADATA_TOPIC_NAME, 0)
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.alter_partition_reassignments({place: [1 - old, old]})
            self.until(lambda: not admin.list_partition_reassignments(), "the reassignment's end")
            admin.elect_leaders(0, {GROUP_METADATA_TOPIC_NAME: [0]})
        finally:
            admin.close()
        self.until(lambda: self._coordinator(group) == 1 - old, "the coordinator's move")

    def _coordinator(self, group: str) -> int | None:
        """The coordinator that answers; None while there is none."""
        # librdkafka's own idea of where the coordinator is outlives the answer NOT_COORDINATOR.
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return int(self.describe(group).coordinator.id)
        except KafkaException:
            return None

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Asks the brokers, who tell nobody of what happens, again and again."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not in time: {what}"
            time.sleep(0.02)
        return found

    def close(self) -> None:
        self._producer.flush(TIMEOUT_S)
