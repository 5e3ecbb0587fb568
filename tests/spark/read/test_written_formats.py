"""What the sink wrote in a format, without a registry, is what the reader reads, both through Spark."""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from klamm.testing.cluster import Cluster
from support.schema_registry.messages import proto_file
from support.spark.producing import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = proto_file("order.proto", "shop", {"Order": {"id": "int64", "name": "string"}})
FILES = base64.b64encode(FileDescriptorSet(file=[FILE]).SerializeToString()).decode()
ORDER = (
    '{"type": "record", "name": "Order", "fields": ['
    '{"name": "id", "type": "long"}, {"name": "name", "type": ["string", "null"]}]}'
)


@pytest.mark.parametrize(
    "options",
    [
        {"value.format": "csv", "sep": "|"},
        {"value.format": "avro", "value.schema": ORDER},
        {"value.format": "protobuf", "value.schema": FILES, "value.message": "shop.Order"},
    ],
    ids=["csv", "avro", "protobuf"],
)
def test_what_was_written_is_read(
    spark: "SparkSession", cluster: Cluster, topic: Callable[..., str], options: dict[str, str]
) -> None:
    name = topic()
    where = {"kafka.bootstrap.servers": cluster.bootstrap, **options}
    written = spark.sql("SELECT struct(id + 1 AS id, IF(id = 1, NULL, 'a|ü') AS name) AS value FROM range(0, 3, 1, 1)")
    written.write.format("klamm").mode("append").options(**where, topic=name).save()
    produce(cluster.bootstrap, name, [{"value": b"\xff\xff"}])
    reader = spark.read.format("klamm").options(**where, subscribe=name)
    read = reader.schema("offset bigint, value struct<id: bigint, name: string>, _corrupt_record binary").load()
    assert [tuple(row) for row in read.orderBy("offset").select("value.*", "_corrupt_record").collect()] == [
        (1, "a|ü", None),
        (2, None, None),
        (3, "a|ü", None),
        (None, None, b"\xff\xff"),
    ]
