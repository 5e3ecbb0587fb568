"""Tables and views of Spark's catalog over topics, and the keys that Spark adds to the options by itself."""

import json

import pytest
from pyspark.errors import PySparkException

from klamm.spark.options import OptionError, read_options, table_metadata, write_options
from klamm.spark.source import KlammDataSource
from klamm.spark.tables import METADATA_KEY
from support.present import present
from support.spark.reading import values_read
from support.spark.schemas import struct

SERVERS = {"kafka.bootstrap.servers": "a:1"}

# The options that PySpark 4.3 passes.
SPARKS_OWN = {
    "CREATE TABLE ... USING klamm OPTIONS (...)": {
        "provider": "klamm",
        "owner": "root",
        "option.kafka.bootstrap.servers": "a:1",
        "kafka.bootstrap.servers": "a:1",
        "option.subscribe": "t",
        "subscribe": "t",
    },
    "CREATE TABLE ... USING klamm OPTIONS (...) COMMENT ... LOCATION ... TBLPROPERTIES ('team'='x')": {
        "provider": "klamm",
        "owner": "root",
        "comment": "of the shop",
        "location": "file:/tmp/t",
        "external": "true",
        "is_managed_location": "true",
        "path": "file:/tmp/t",
        "team": "x",
        "option.path": "file:/tmp/t",
        "option.kafka.bootstrap.servers": "a:1",
        "option.subscribe": "t",
    },
    "spark.read.load('somewhere')": {**SERVERS, "subscribe": "t", "path": "somewhere"},
    "spark.read.load(['here', 'there'])": {**SERVERS, "subscribe": "t", "paths": '["here","there"]'},
    "writeStream.queryName('q').start('somewhere')": {
        **SERVERS,
        "subscribe": "t",
        "path": "somewhere",
        "queryname": "q",
        "checkpointlocation": "/c",
    },
}


@pytest.mark.parametrize("statement", SPARKS_OWN)
def test_keys_that_spark_adds_are_no_options(statement: str) -> None:
    given = SPARKS_OWN[statement]
    assert read_options(given, streaming=False).topics.subscribe == ("t",)
    assert write_options(given).producer.client.bootstrap == (("a", 1),)
    typo = {"option.subscibe" if "provider" in given else "subscibe": "t"}
    with pytest.raises(OptionError, match="unknown option subscibe; did you mean subscribe"):
        read_options({**given, **typo}, streaming=False)


def test_a_path_names_no_topic() -> None:
    with pytest.raises(OptionError, match="given: none of them, and a path names no topic"):
        read_options({**SERVERS, "path": "orders"}, streaming=False)


def test_the_columns_of_a_new_table_carry_its_options() -> None:
    (*others, last) = struct(KlammDataSource(SPARKS_OWN["CREATE TABLE ... USING klamm OPTIONS (...)"]).schema()).fields
    assert json.loads(last.metadata[METADATA_KEY]) == {**SERVERS, "subscribe": "t"}
    assert not any(field.metadata for field in others)
    schema = KlammDataSource({**SERVERS, "subscribe": "t"}).schema()
    assert not any(field.metadata for field in struct(schema).fields)


def test_a_query_of_a_table_has_the_tables_options_and_its_own() -> None:
    columns = {"key": {}, "value": {METADATA_KEY: json.dumps({**SERVERS, "subscribe": "t", "includeheaders": "true"})}}
    found = read_options({"startingOffsets": "earliest", "subscribe": "u"}, streaming=True, columns=columns)
    assert (found.topics.subscribe, found.include_headers, found.client.bootstrap) == (("u",), True, (("a", 1),))


def test_a_query_that_names_its_cluster_has_no_options_of_another_table() -> None:
    columns = {"value": {METADATA_KEY: json.dumps({**SERVERS, "subscribe": "t", "includeheaders": "true"})}}
    found = read_options({"kafka.bootstrap.servers": "b:1", "subscribe": "u"}, streaming=False, columns=columns)
    assert (found.topics.subscribe, found.include_headers) == (("u",), False)


def test_a_querys_option_displaces_all_of_the_table_that_say_the_same_in_another_way() -> None:
    table = {**SERVERS, "assign": '{"t":[0]}', "startingtimestamp": "5", "endingtimestamp": "9"}
    columns = {"value": {METADATA_KEY: json.dumps(table)}}
    query = {"subscribe": "u", "startingOffsets": "earliest", "endingOffsets": "latest"}
    assert read_options(query, streaming=False, columns=columns) == read_options({**SERVERS, **query}, streaming=False)


SECRETS = {
    "kafka.sasl.jaas.config": "x",
    "kafka.ssl.key.password": "x",
    "kafka.ssl.keystore.key": "x",
    "kafka.sasl.oauthbearer.client.credentials.client.secret": "x",
    "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token?key=secret@",
    "kafka.ssl.truststore.certificates": "-----BEGIN PRIVATE KEY-----",
    "kafka.bootstrap.servers": "sasl://alice:secret@a:1",
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_table_keeps_no_secret(name: str) -> None:
    given = {"provider": "klamm", **{f"option.{key}": text for key, text in {**SERVERS, name: SECRETS[name]}.items()}}
    with pytest.raises(OptionError, match=f"option {name} may hold a secret") as caught:
        table_metadata(given)
    assert "secret@" not in str(caught.value)


def test_a_table_and_a_view(spark, cluster, topic, tmp_path):
    first, second = topic(), topic()
    options = f"'kafka.bootstrap.servers' '{cluster.bootstrap}', startingOffsets 'earliest'"
    spark.sql(f"CREATE TEMPORARY VIEW shop USING klamm OPTIONS ({options}, subscribe '{first}', topic '{first}')")
    spark.sql("INSERT INTO shop (key, value) VALUES (binary('k'), binary('0')), (NULL, binary('1'))")
    spark.sql(f"CREATE TABLE orders USING klamm OPTIONS ({options}, subscribe '{first}') TBLPROPERTIES ('team' = 'x')")
    try:
        for rows in (spark.table("shop"), spark.table("orders"), spark.sql("SELECT * FROM orders")):
            assert sorted(row.value for row in rows.collect()) == [b"0", b"1"]
        part = {"endingOffsets": json.dumps({first: {"0": 1}})}
        assert spark.read.options(**part).table("orders").count() == 1

        to_second = f"WITH ('kafka.bootstrap.servers' '{cluster.bootstrap}', topic '{second}')"
        spark.sql(f"INSERT INTO orders {to_second} SELECT * FROM orders")
        with pytest.raises(PySparkException, match="Spark passes no options of a table to a writer"):
            spark.sql("INSERT INTO orders SELECT * FROM orders")
        with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
            spark.sql(f"INSERT OVERWRITE orders {to_second} SELECT * FROM orders")
        stream = (
            spark.readStream.table("orders")
            .groupBy("topic")
            .count()
            .selectExpr("string(count) AS value")
            .writeStream.format("klamm")
            .outputMode("complete")
            .queryName("counts")
            .options(**{"kafka.bootstrap.servers": cluster.bootstrap, "topic": second})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert stream.awaitTermination(300)
        assert sorted(map(present, values_read(cluster, first)[0])) == [b"0", b"1"]
        assert sorted(map(present, values_read(cluster, second)[0])) == [b"0", b"1", b"2"]
    finally:
        spark.sql("DROP TABLE orders")
        spark.sql("DROP VIEW shop")


def test_a_table_with_columns_of_its_own_says_why_it_has_no_options(spark):
    spark.sql("CREATE TABLE bare (key BINARY, value BINARY) USING klamm OPTIONS (subscribe 't')")
    try:
        with pytest.raises(PySparkException, match="a table has its options only if it was made without columns"):
            spark.table("bare").collect()
    finally:
        spark.sql("DROP TABLE bare")
