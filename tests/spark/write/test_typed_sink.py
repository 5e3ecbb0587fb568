"""Structs written through Spark in a format: read back by Confluent's deserializers, and refused with a sentence."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DayTimeIntervalType, LongType, MapType, StringType, StructField, StructType

from klamm.spark.options import OptionError, write_options
from klamm.spark.write.sink import KlammWriter
from klamm.spark.write.typed import TypedColumns, UnwritableRow
from support.present import present
from support.schema_registry import SchemaRegistry
from support.schema_registry.messages import message_classes, proto_file
from support.spark.reading import read, values_read

ID = StructField("id", LongType(), False)
LINE = StructType([StructField("sku", StringType())])
SECRET = "hunter2-secret"


def row_of(*fields: StructField) -> StructType:
    """Rows with a struct of these fields as value."""
    return StructType([StructField("value", StructType(list(fields)))])


ORDER = row_of(ID, StructField("name", StringType()), StructField("lines", ArrayType(LINE)))


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry(users={"ann": SECRET}) as running:
        yield running


def options(registry: SchemaRegistry, **more: str) -> dict[str, str]:
    given = {"schema.registry.url": registry.url, "schema.registry.basic.auth.user.info": f"ann:{SECRET}"}
    return {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "value.format": "avro", **given, **more}


def client_of(registry: SchemaRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": f"ann:{SECRET}"})


def writer(given: dict[str, str], schema: StructType = ORDER) -> KlammWriter:
    return KlammWriter(write_options(given), schema)


def encoded(made: KlammWriter, rows: list[Any], data_type: pa.DataType) -> list[bytes | None]:
    """The values as a task encodes them."""
    assert made._sink._options.typed is not None
    batch = pa.record_batch({"value": pa.array(rows, data_type)})
    found: list[bytes | None] = (
        TypedColumns(made._sink._options.typed, "orders").encode(batch).column("value").to_pylist()
    )
    return found


TYPE = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
    ]
)
ROWS = [{"id": 1, "name": "a", "lines": [{"sku": "x"}]}, None, {"id": 2, "name": None, "lines": None}]
CONTEXT = SerializationContext("orders", MessageField.VALUE)


def test_structs_are_written_as_json_and_csv(spark, cluster, topic) -> None:
    name = topic()
    frame = spark.range(3).select(
        F.struct(F.col("id"), F.lit(None).cast("int").alias("none")).alias("value"),
        F.struct(F.col("id").alias("k"), F.lit("a,b").alias("t")).alias("key"),
    )
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name, "value.format": "json", "key.format": "csv"}
    frame.coalesce(1).write.format("klamm").mode("append").options(**given).save()
    [messages] = read(cluster, name).values()
    assert [(m.key(), m.value()) for m in messages] == [(b'%d,"a,b"' % n, b'{"id":%d}' % n) for n in range(3)]


def test_a_stream_is_written_with_a_registry_which_is_asked_once_by_the_driver(
    spark, cluster, topic, tmp_path, registry
) -> None:
    name = topic()
    for number in range(2):
        spark.range(number * 5, number * 5 + 5, 1, 1).write.mode("append").parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = (
        frame.select(F.struct("id").alias("value"))
        .writeStream.format("klamm")
        .options(**options(registry, **{"kafka.bootstrap.servers": cluster.bootstrap, "topic": name}))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    deserialize = AvroDeserializer(client_of(registry))
    [values] = values_read(cluster, name).values()
    assert sorted(deserialize(value, CONTEXT)["id"] for value in values) == list(range(10))
    assert {request for request in registry.requests if request.startswith("POST")} == {
        f"POST /subjects/{name}-value/versions?normalize=False"
    }


def test_a_row_that_cannot_be_written_fails_the_query_before_its_batch_is_sent(spark, cluster, topic) -> None:
    name = topic()
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
    frame = spark.sql("SELECT named_struct('a', IF(id = 2, NULL, id)) AS value FROM range(0, 4, 1, 1)")
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name, "value.format": "avro"}
    with pytest.raises(
        PySparkException,
        match=rf"row 3 of this task, for the topic {name}, cannot be written as avro: the field a is null",
    ):
        frame.write.format("klamm").mode("append").options(**given, **{"value.schema": schema}).save()
    assert values_read(cluster, name) == {0: []}


NOTE = row_of(StructField("notes", MapType(StringType(), StringType())))
NOTE_TYPE = pa.struct([("notes", pa.map_(pa.string(), pa.string()))])
ADDRESS = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}


@pytest.mark.parametrize("name", ["json", "avro"])
def test_a_string_that_is_no_text_is_told_with_row_and_field(name: str) -> None:
    made = writer({**ADDRESS, "value.format": name}, NOTE)
    keys = pa.array([b"a", b"b", b"c"]).view(pa.string())
    texts = pa.array([b"fine", None, b"secret\xff"]).view(pa.string())
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), keys, texts)
    batch = pa.record_batch({"value": pa.StructArray.from_arrays([maps], fields=list(NOTE_TYPE))})
    columns = TypedColumns(present(made._sink._options.typed), "orders")
    with pytest.raises(
        UnwritableRow, match=r"row 2 of this task, for the topic orders, .*notes\[\]\.value is not UTF-8"
    ):
        columns.encode(batch)


def test_a_map_that_has_a_key_twice_is_told_with_its_row() -> None:
    made = writer({**ADDRESS, "value.format": "avro"}, NOTE)
    with pytest.raises(UnwritableRow, match=r"row 2 of this task, .*: a map has a key twice"):
        encoded(made, [{"notes": [("a", "x")]}, {"notes": [("a", "x"), ("a", "y")]}], NOTE_TYPE)


def test_avro_with_the_derived_schema_is_read_by_confluents_deserializer(registry: SchemaRegistry) -> None:
    first, none, second = encoded(writer(options(registry)), ROWS, TYPE)
    assert none is None
    deserialize = AvroDeserializer(client_of(registry))
    assert [deserialize(first, CONTEXT), deserialize(second, CONTEXT)] == [ROWS[0], ROWS[2]]
    assert registry.store.subjects() == ["orders-value"]


def test_json_is_read_and_validated_by_confluents_deserializer(registry: SchemaRegistry) -> None:
    data, _, without = encoded(writer(options(registry, **{"value.format": "json"})), ROWS, TYPE)
    assert data == b'\x00\x00\x00\x00\x01{"id":1,"name":"a","lines":[{"sku":"x"}]}'
    deserialize = JSONDeserializer(None, schema_registry_client=client_of(registry))
    assert [deserialize(data, CONTEXT), deserialize(without, CONTEXT)] == [ROWS[0], {"id": 2}]


@pytest.mark.parametrize(("message", "path"), [("shop.Order", b"\x02\x02"), ("shop.Order.Line", b"\x04\x02\x00")])
def test_protobuf_with_imports_is_read_by_confluents_deserializer(
    registry: SchemaRegistry, message: str, path: bytes
) -> None:
    common = proto_file("common.proto", "shop", {"Money": {"units": "int64"}})
    fields = {"Line": {"sku": "string"}, "sku": "string", "total": ".shop.Money"}
    order = proto_file("order.proto", "shop", {"Other": {}, "Order": fields}, imports=["common.proto"])
    files = base64.b64encode(FileDescriptorSet(file=[common, order]).SerializeToString()).decode()
    given = options(registry, **{"value.format": "protobuf", "value.schema": files, "value.message": message})
    schema = row_of(*LINE.fields)
    [data] = encoded(writer(given, schema), [{"sku": "x"}], pa.struct([("sku", pa.string())]))
    assert data is not None
    assert data.startswith(b"\x00\x00\x00\x00\x02" + path)
    kind = message_classes(common, order)[message]
    assert ProtobufDeserializer(kind, {}, client_of(registry))(data, CONTEXT) == kind(sku="x")
    assert registry.store.subjects() == ["common.proto", "orders-value"]


WIDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "source", "type": "string", "default": "spark"},
    ],
}
NARROW = row_of(ID)
NARROW_TYPE = pa.struct([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    "chosen",
    [{"use.latest.version": "true"}, {"value.schema.version": "1"}, {"value.schema.id": "1"}],
)
def test_a_schema_of_the_registry_is_written_with(registry: SchemaRegistry, chosen: dict[str, str]) -> None:
    registry.register("orders-value", WIDER)
    [data] = encoded(writer(options(registry, **chosen), NARROW), [{"id": 7}], NARROW_TYPE)
    assert AvroDeserializer(client_of(registry))(data, CONTEXT) == {"id": 7, "source": "spark"}
    assert registry.store.versions("orders-value") == [1]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "orders-value"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.Order"),
        ("TopicRecordNameStrategy", "orders-shop.Order"),
    ],
)
def test_subjects_are_named_by_confluents_strategies(registry: SchemaRegistry, strategy: str, subject: str) -> None:
    given = options(registry, **{"value.subject.name.strategy": strategy, "value.schema": json.dumps(WIDER)})
    writer(given, NARROW)
    assert registry.store.subjects() == [subject]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, r"answered HTTP 409 \(code 40901\) and refused a new schema for the subject orders-value, as it is not"),
        (
            {"auto.register.schemas": "false"},
            r"answered HTTP 404 \(code 40403\) for a schema of the subject orders-value",
        ),
        ({"value.subject": "none", "use.latest.version": "true"}, "for the latest version of the subject none"),
        ({"value.schema.id": "99"}, "the registry has no schema with the id 99"),
        ({"value.subject.name.strategy": "RecordNameStrategy", "value.format": "json"}, "does not name one subject"),
        (
            {"schema.registry.basic.auth.user.info": f"ann:{SECRET}x"},
            r"answered HTTP 401 \(code 401\) for a new schema for the subject orders-value: Unauthorized",
        ),
        (
            {"schema.registry.url": "http://ann:hunter2-other@127.0.0.1:1", "schema.registry.max.retries": "0"},
            r"the schema registry http://127\.0\.0\.1:1 gave no usable answer",
        ),
    ],
)
def test_what_a_registry_refuses_is_one_sentence_without_secrets(
    registry: SchemaRegistry, more: dict[str, str], told: str
) -> None:
    registry.register(
        "orders-value", {"type": "record", "name": "topLevelRecord", "fields": [{"name": "z", "type": "int"}]}
    )
    with pytest.raises(OptionError, match=told) as caught:
        writer(options(registry, **more))
    message = str(caught.value)
    assert "hunter2" not in message
    assert "\n" not in message
    assert registry.store.subjects() == ["orders-value"]


def test_a_type_that_cannot_be_written_is_not_registered(registry: SchemaRegistry) -> None:
    schema = row_of(StructField("a", DayTimeIntervalType()))
    with pytest.raises(OptionError, match=r"the column value cannot be written: the type interval"):
        writer(options(registry), schema)
    assert registry.store.subjects() == []


def test_no_secret_is_in_what_is_printed_of_options(registry: SchemaRegistry) -> None:
    made = writer(options(registry))
    assert "hunter2" not in repr(made._sink._options)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"value.format": "json", "value.subject": "s"}, r"option value\.subject needs schema\.registry\.url"),
        ({"schema.registry.url": "file:///x"}, r"option schema\.registry\.url is no URL"),
        ({"schema.registry.timeout": "soon"}, r"option schema\.registry\.timeout is 'soon'; allowed: whole numbers"),
        ({"value.schema.id": "0"}, r"option value\.schema\.id is '0'; allowed: whole numbers from 1"),
        ({"value.schema.id": "1", "value.schema.version": "1"}, "exclude each other"),
        ({"value.subject.name.strategy": "Own"}, "allowed: TopicNameStrategy, RecordNameStrategy, TopicRecord"),
        ({"use.latest.version": "true", "auto.register.schemas": "true"}, "cannot both be true"),
        ({"normalize.schemas": "yes"}, r"option normalize\.schemas is 'yes'; allowed: true, false"),
        ({"schema.registry.nonsense": "1"}, r"unknown option schema\.registry\.nonsense"),
        ({"value.format": "protobuf"}, r"the format protobuf needs value\.schema, a FileDescriptorSet in base64"),
        ({"value.format": "csv", "quote": "ab"}, "option quote is 'ab'; allowed: one character, or none"),
        ({"value.format": "csv", "sep": ""}, "option sep is empty; allowed: characters"),
        ({"value.format": "csv", "ignoreLeadingWhiteSpace": "yes"}, "option ignoreLeadingWhiteSpace is 'yes'"),
        ({"value.format": "json", "dateFormat": "yyyy-MM-dd"}, "option dateFormat is for readers"),
    ],
)
def test_a_wrong_option_is_told(registry: SchemaRegistry, given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        writer(
            {**options(registry), **given}
            if "value.subject" not in given
            else {"topic": "t", **given, "kafka.bootstrap.servers": "a:1"}
        )
