"""DataFrames and streams written through Spark, read back by librdkafka."""

import pickle
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from klamm.spark.options import OptionError, write_options
from klamm.spark.write.sink import KlammStreamWriter, KlammWriter, Written
from support.spark.reading import read, values_read
from support.spark.schemas import struct

SCHEMA = "topic string, partition int, key string, value binary, headers array<struct<key:string,value:binary>>"


def write(frame, cluster, topic=None, **options):
    writer = frame.write.format("klamm").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_every_column(spark, cluster, topic):
    name, other = topic(partitions=2), topic()
    rows = [
        (name, 1, "k", b"v", [("h", b"1"), ("h", None)]),
        (name, 1, None, None, None),
        (name, 0, "", b"", []),
        (other, None, "é", b"\x00", None),
    ]
    write(spark.createDataFrame(rows, SCHEMA).coalesce(1), cluster)
    found = {
        name: {number: [(m.key(), m.value(), m.headers()) for m in messages] for number, messages in read_back.items()}
        for name, read_back in ((name, read(cluster, name)), (other, read(cluster, other)))
    }
    assert found == {
        name: {0: [(b"", b"", None)], 1: [(b"k", b"v", [("h", b"1"), ("h", None)]), (None, None, None)]},
        other: {0: [("é".encode(), b"\x00", None)]},
    }


def test_a_hundred_thousand_rows_of_several_tasks(spark, cluster, topic):
    name = topic(partitions=3)
    frame = spark.range(0, 100_000, 1, 4).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
    write(frame, cluster, name, **{"kafka.compression.type": "lz4"})
    pairs = [(m.key(), m.value()) for messages in read(cluster, name).values() for m in messages]
    assert Counter(pairs) == Counter((b"%d" % number, b"%d" % (number * 2)) for number in range(100_000))


def test_the_option_topic_goes_before_the_column(spark, cluster, topic):
    wanted, unwanted = topic(), topic()
    write(spark.createDataFrame([(unwanted, "x", 1.5)], "topic string, value string, other double"), cluster, wanted)
    assert (values_read(cluster, wanted), values_read(cluster, unwanted)) == ({0: [b"x"]}, {0: []})


def test_what_was_read_can_be_written(spark, cluster, topic):
    source, target = topic(partitions=2), topic(partitions=2)
    write(spark.createDataFrame([(0, "a"), (1, "b"), (1, None)], "partition int, value string"), cluster, source)
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap)
    write(reader.option("subscribe", source).option("includeHeaders", "true").load(), cluster, target)
    assert values_read(cluster, target) == values_read(cluster, source)


def test_a_row_that_cannot_be_written_fails_the_query(spark, cluster, topic):
    name = topic()
    with pytest.raises(PySparkException, match=f"topic {name} has 1 partitions, numbered from 0; a row names 7"):
        write(spark.createDataFrame([(7, "a")], "partition int, value string"), cluster, name)
    with pytest.raises(PySparkException, match=r"a record needs \d+ bytes, kafka\.max\.request\.size allows 1000"):
        write(
            spark.createDataFrame([("a" * 2_000,)], "value string"), cluster, name, **{"kafka.max.request.size": 1000}
        )


def test_a_stream(spark, cluster, topic, tmp_path):
    name = topic(partitions=2)
    for number in range(3):
        spark.range(number * 100, number * 100 + 100, 1, 1).write.mode("append").parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = (
        frame.selectExpr("cast(id as string) as value", "cast(id % 2 as int) as partition")
        .writeStream.format("klamm")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(query.recentProgress) >= 3
    assert {number: Counter(values) for number, values in values_read(cluster, name).items()} == {
        odd: Counter(b"%d" % number for number in range(odd, 300, 2)) for odd in (0, 1)
    }


def test_a_worker_gets_the_writer_and_sends_what_it_has_written(spark, cluster, topic):
    name = topic()
    options = write_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": name})
    schema = struct("value string, other int")
    for kind in (KlammWriter, KlammStreamWriter):
        writer = pickle.loads(pickle.dumps(kind(options, schema)))
        written = writer.write(iter([pa.record_batch({"value": ["a"] * 3, "other": [1, 2, 3]})] * 2))
        assert pickle.loads(pickle.dumps(written)) == Written(6)
        assert writer.write(iter([])) == Written(0)
    assert values_read(cluster, name) == {0: [b"a"] * 12}


@pytest.mark.parametrize(
    ("topic_option", "schema", "message"),
    [
        ("t", "key string", "the column value is required; the columns are key"),
        (None, "value string", "the option topic is required where there is no column topic"),
        ("t", "value int", "the column value is of type int; allowed: string or binary"),
        ("t", "value string, key struct<a:int>", "the column key is of type struct<a:int>; allowed: string or binary"),
        (None, "value string, topic int", "the column topic is of type int; allowed: string"),
        ("t", "value string, partition bigint", "the column partition is of type bigint; allowed: int"),
        (
            "t",
            "value string, headers map<string,binary>",
            r"headers is of type map<string,binary>; allowed: array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_columns_that_cannot_be_written(spark, topic_option, schema, message):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", **({"topic": topic_option} if topic_option else {})}
    for kind in (KlammWriter, KlammStreamWriter):
        with pytest.raises(OptionError) as error:
            kind(write_options(given), struct(schema))
        assert message in str(error.value)


def test_types_that_are_as_good(spark):
    options = write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    schema = "value binary, headers array<struct<key:string not null,value:binary not null>>, topic int"
    KlammWriter(options, struct(schema))
