"""The Python clients behind one face: each writes records to a partition and reads a partition from its start.

Partitions are assigned, no group is joined. Every writer is idempotent, which today's clients are by default.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka

TIMEOUT_S = 120
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
# Room for records of about a megabyte, which is more than some clients allow by default.
MAX_REQUEST_BYTES = 2_000_000


class Record(NamedTuple):
    """A record as a client sees it; a header's value may be null as a key or value may."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class RecordClient(Protocol):
    """A library that writes records to a partition and reads them back."""

    @staticmethod
    def accepts(record: Record) -> bool:
        """Whether the client sends such a record at all."""

    @staticmethod
    def write(
        bootstrap: str, topic: str, records: Sequence[Record], compression: str = "none", partition: int = 0
    ) -> list[int]:
        """Returns the offsets."""

    @staticmethod
    def read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Record]: ...


class Librdkafka:
    """confluent-kafka."""

    @staticmethod
    def accepts(record: Record) -> bool:
        return True

    @staticmethod
    def write(
        bootstrap: str, topic: str, records: Sequence[Record], compression: str = "none", partition: int = 0
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": compression,
                "message.max.bytes": MAX_REQUEST_BYTES,
            }
        )
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                errors.append(error)

        for record in records:
            timestamp: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            while True:
                try:
                    producer.produce(
                        topic,
                        record.value,
                        record.key,
                        partition,
                        headers=list(record.headers) or None,
                        on_delivery=delivered,
                        **timestamp,
                    )
                    break
                except BufferError:
                    producer.poll(1)
        assert producer.flush(TIMEOUT_S) == 0
        assert not errors, errors
        return offsets

    @staticmethod
    def read(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Record]:
        config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
        consumer = confluent_kafka.Consumer(config)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        records: list[Record] = []
        while len(records) < count:
            messages = consumer.consume(count - len(records), TIMEOUT_S)
            assert messages, f"only {len(records)} of {count} records came"
            for message in messages:
                assert message.error() is None, message.error()
                headers: Any = message.headers() or ()
                records.append(Record(message.value(), message.key(), tuple(headers), message.timestamp()[1]))
        consumer.close()
        return records


class KafkaPython:
    """kafka-python."""

    @staticmethod
    def accepts(record: Record) -> bool:
        has_content = record.value is not None or record.key is not None
        return has_content and all(value is not None for _, value in record.headers)

    @staticmethod
    def write(
        bootstrap: str, topic: str, records: Sequence[Record], compression: str = "none", partition: int = 0
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            max_request_size=MAX_REQUEST_BYTES,
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [future.get(TIMEOUT_S).offset for future in futures]
        finally:
            producer.close(TIMEOUT_S)

    @staticmethod
    def read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Record]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, consumer_timeout_ms=1000 * TIMEOUT_S)
        try:
            where = kafka.TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, 0)
            records: list[Record] = []
            while len(records) < count:
                message = next(consumer)
                records.append(Record(message.value, message.key, tuple(message.headers), message.timestamp))
            return records
        finally:
            consumer.close()


class AioKafka:
    """aiokafka."""

    @staticmethod
    def accepts(record: Record) -> bool:
        return record.value is not None or record.key is not None

    @staticmethod
    def write(
        bootstrap: str, topic: str, records: Sequence[Record], compression: str = "none", partition: int = 0
    ) -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                enable_idempotence=True,
                compression_type=None if compression == "none" else compression,
                max_request_size=MAX_REQUEST_BYTES,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition,
                        headers=list(record.headers),
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                async with asyncio.timeout(TIMEOUT_S):
                    return [(await future).offset for future in futures]
            finally:
                await producer.stop()

        return asyncio.run(run())

    @staticmethod
    def read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Record]:
        async def run() -> list[Record]:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
            await consumer.start()
            try:
                where = aiokafka.TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, 0)
                records: list[Record] = []
                while len(records) < count:
                    async with asyncio.timeout(TIMEOUT_S):
                        message = await consumer.getone()
                    records.append(Record(message.value, message.key, tuple(message.headers), message.timestamp))
                return records
            finally:
                await consumer.stop()

        return asyncio.run(run())


CLIENTS: dict[str, type[RecordClient]] = {"librdkafka": Librdkafka, "kafka-python": KafkaPython, "aiokafka": AioKafka}
