"""What is written to Apache Kafka 2.8.2, whose broker looks into every record of a compressed batch."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.protocol.error_codes import KafkaError
from klamm.spark.options import write_options
from klamm.spark.write.writing import record_writer
from support.long_rows import long
from support.oracles import RealKafka, java_tool
from support.spark.kafka_broker import running_kafka
from support.spark.reading import read, values_read

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker of Apache Kafka 2.8.2 that creates topics of three partitions when they are asked for."""
    with running_kafka(kafka_jars, tmp_path_factory.mktemp("kafka-written-to"), {"num.partitions": 3}) as broker:
        yield broker


def create(kafka: RealKafka, topic: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        future.result()


def write(kafka: RealKafka, topic: str, columns: dict[str, pa.Array], **options: str) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **options}
    with record_writer(write_options(given)) as writer:
        writer.write(pa.record_batch(columns))
        writer.flush()


@pytest.mark.parametrize("codec", ["zstd", *long(*CODECS[:-1])])
def test_records_of_all_kinds_in_a_topic_that_did_not_exist(kafka: RealKafka, kafka_jars: Path, codec: str) -> None:
    topic = f"written-{codec}"
    rows = [
        (key, value, headers)
        for key, value, headers in product(
            (None, b"", b"key", "é".encode() * 100),
            (None, b"", b"value" * 10_000),
            (None, [], [("a", None), ("é", b""), ("c", b"d" * 300)]),
        )
    ]
    columns = {
        "key": pa.array([row[0] for row in rows], pa.binary()),
        "value": pa.array([row[1] for row in rows], pa.binary()),
        "headers": pa.array(
            [row[2] if row[2] is None else [{"key": k, "value": v} for k, v in row[2]] for row in rows], HEADERS
        ),
        "partition": pa.array([0] * len(rows), pa.int32()),
    }
    write(kafka, topic, columns, **{"kafka.compression.type": codec, "kafka.batch.size": "100000"})
    messages = read(kafka, topic)
    assert [(message.key(), message.value(), message.headers()) for message in messages[0]] == [
        (key, value, headers or None) for key, value, headers in rows
    ]
    assert messages[1] == messages[2] == []
    log = kafka.data_directory / f"{topic}-0" / f"{0:020}.log"
    dumped = java_tool(kafka_jars, "kafka.tools.DumpLogSegments", "--deep-iteration", "--files", log).decode()
    assert f"compresscodec: {codec.upper()}" in dumped
    assert "isvalid: false" not in dumped


@pytest.mark.parametrize("codec", CODECS)
def test_a_broker_that_compresses_in_its_own_way(kafka: RealKafka, codec: str) -> None:
    topic = f"recompressed-{codec}"
    create(kafka, topic, **{"compression.type": "gzip" if codec != "gzip" else "lz4"})
    values = [b"%d" % number for number in range(5_000)]
    write(kafka, topic, {"value": pa.array(values)}, **{"kafka.compression.type": codec, "kafka.batch.size": "5000"})
    assert values_read(kafka, topic) == {0: values}


def test_a_batch_that_is_too_large_for_the_topic(kafka: RealKafka) -> None:
    create(kafka, "small", **{"max.message.bytes": "10000"})
    values = [b"%d" % number * 20 for number in range(5_000)]
    write(kafka, "small", {"value": pa.array(values)})
    assert values_read(kafka, "small") == {0: values}
    with pytest.raises(KafkaError, match=r"MESSAGE_TOO_LARGE \(10\): small-0: a batch of 1 records"):
        write(kafka, "small", {"value": pa.array([b"x" * 20_000])})


def test_a_compacted_topic_takes_no_record_without_a_key(kafka: RealKafka) -> None:
    create(kafka, "compacted", **{"cleanup.policy": "compact"})
    with pytest.raises(KafkaError, match=r"INVALID_RECORD \(87\): compacted-0: a batch of 2 records .* key"):
        write(kafka, "compacted", {"key": pa.array([b"k", None]), "value": pa.array([b"a", b"b"])})
    assert values_read(kafka, "compacted") == {0: []}
