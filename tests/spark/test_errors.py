"""Errors reach the user as the sentence that matters."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from klamm.spark.source import KlammDataSource

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "kafka.bootstrap.servers"),
        (
            {
                "value.format": "avro",
                "schema.registry.url": "http://127.0.0.1:1",
                "schema.registry.max.retries": "0",
            },
            "127.0.0.1:1",
        ),
    ],
)
def test_a_stream_that_cannot_be_read_says_why_whatever_spark_asks_first(
    options: dict[str, str], sentence: str
) -> None:
    if options:
        options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", **options}
    reader: Any = KlammDataSource(options).streamReader(StructType([StructField("value", BinaryType())]))
    calls: list[Callable[[], object]] = [
        reader.initialOffset,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
        lambda: reader.commit({}),
        lambda: reader.read(None),
    ]
    for call in calls:
        with pytest.raises(Exception, match=sentence):
            call()
    reader.stop()
