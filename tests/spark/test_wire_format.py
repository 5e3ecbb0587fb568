"""Confluent's wire format in the reader: ids, order, bad values, paths of Protobuf, and a registry that fails."""

import base64
import io
import json
import random
import re
import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, ClassVar

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from klamm.spark.formats import wire
from klamm.spark.formats.coding import Decoded, Decoder, make_decoder
from klamm.spark.formats.json_schema import ddl
from klamm.spark.formats.registry import NotRegistered, RegistryFailure, forget, schema_by_id, schema_of_subject
from klamm.spark.formats.settings import ColumnFormat, Mode, Registry, RegistryUse, TypedRows
from klamm.spark.formats.wire import WireDecoder, message_name, message_path, write_message_path
from klamm.spark.read.typed import BadRecord, RowDecoder
from support.schema_registry import SchemaRegistry
from support.schema_registry.messages import message_classes, proto_file
from support.spark.any_schemas import tower
from support.spark.producing import produce

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
OTHER = {**ORDER, "fields": [{"name": "note", "type": "string"}, {"name": "id", "type": "int"}]}
TYPE = pa.struct([("id", pa.int64())])


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    forget()
    with SchemaRegistry() as running:
        yield running


def use_of(url: str, **more: str) -> RegistryUse:
    properties = {"url": url, "max.retries": "1", "retries.wait.ms": "1", "timeout": "5", **more}
    return RegistryUse(Registry(tuple(properties.items())))


class Toy:
    """Decodes the ids of Avro's records by the writer's schema; an id below 0 is bad."""

    def __init__(self, column: ColumnFormat, _: pa.DataType) -> None:
        self._schema = json.loads(column.schema or "")

    def decode(self, data: pa.Array) -> Decoded:
        rows = [fastavro.schemaless_reader(io.BytesIO(value), self._schema, None) for value in data.to_pylist()]
        ids = [row["id"] for row in rows if isinstance(row, dict)]
        bad = np.array([one < 0 for one in ids])
        column = pa.array([None if one < 0 else {"id": one} for one in ids], TYPE)
        return Decoded(column, bad, "below 0") if bad.any() else Decoded(column)


def avro_decoder(registry: SchemaRegistry) -> Decoder:
    return WireDecoder(ColumnFormat("value", "avro", registry=use_of(registry.url)), TYPE, Toy)


def framed(schema_id: int, schema: Any, row: Any) -> bytes:
    out = io.BytesIO(b"\x00" + struct.pack(">I", schema_id))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def ids_of(decoded: Decoded) -> list[int | None]:
    return [None if row is None else row["id"] for row in decoded.column.to_pylist()]


def bad_of(decoded: Decoded) -> list[bool]:
    return [False] * len(decoded.column) if decoded.bad is None else decoded.bad.tolist()


def test_values_of_several_writers_keep_their_order_and_each_id_is_asked_for_once(registry: SchemaRegistry) -> None:
    first, second = registry.register("a", ORDER), registry.register("b", OTHER)
    chance = random.Random(5)
    wanted: list[int | None] = []
    data: list[bytes | None] = []
    bad = []
    for number in range(300):
        kind = chance.randrange(5)
        value = -1 if kind == 4 else number
        data.append(
            [
                None,
                b"\x01junk and more",
                framed(first, ORDER, {"id": value}),
                framed(second, OTHER, {"note": "x", "id": value}),
                framed(first, ORDER, {"id": value}),
            ][kind]
        )
        wanted.append(number if kind in (2, 3) else None)
        bad.append(kind in (1, 4))
    array = pa.array(data, pa.binary())
    decoder = avro_decoder(registry)
    for start, stop in ((0, 300), (17, 250), (5, 5), (299, 300)):
        decoded = decoder.decode(array[start:stop])
        assert ids_of(decoded) == wanted[start:stop]
        assert bad_of(decoded) == bad[start:stop]
    assert sorted(registry.requests) == ["GET /schemas/ids/1", "GET /schemas/ids/2"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the bytes do not begin with a zero and the id of a schema"),
        (b"\x00\x00\x00\x00", "the bytes do not begin with a zero and the id of a schema"),
        (b"\x01\x00\x00\x00\x01\x00", "the bytes do not begin with a zero and the id of a schema"),
        (b"\x00\x00\x00\x00\x63\x00", "the registry has no schema with the id 99"),
        (b"\x00\xff\xff\xff\xff\x00", "the registry has no schema with the id 4294967295"),
    ],
)
def test_a_value_without_a_schema_is_bad(registry: SchemaRegistry, value: bytes, reason: str) -> None:
    schema_id = registry.register("a", ORDER)
    good = framed(schema_id, ORDER, {"id": 1})
    decoded = avro_decoder(registry).decode(pa.array([good, value, None, good], pa.binary()))
    assert (ids_of(decoded), bad_of(decoded), decoded.reason) == (
        [1, None, None, 1],
        [False, True, False, False],
        reason,
    )


def test_an_unknown_id_is_asked_for_once(registry: SchemaRegistry) -> None:
    decoder = avro_decoder(registry)
    for _ in range(3):
        decoder.decode(pa.array([b"\x00\x00\x00\x00\x09x"] * 10, pa.binary()))
    assert registry.requests == ["GET /schemas/ids/9"]


def test_values_that_name_ever_more_unknown_ids_do_not_ask_for_ever(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They do not end the query either, and ids that many values have are asked for first."""
    monkeypatch.setattr(wire, "MAX_UNKNOWN_IDS", 10)
    good = registry.register("a", ORDER)
    data = [b"\x00" + struct.pack(">I", number) + b"x" for number in range(2, 100)]
    data += [framed(good, ORDER, {"id": 1})] * 2
    decoder = avro_decoder(registry)
    for _ in range(2):
        decoded = decoder.decode(pa.array(data, pa.binary()))
        assert ids_of(decoded) == [None] * 98 + [1, 1]
        assert bad_of(decoded) == [True] * 98 + [False] * 2
    assert len(registry.requests) == 11
    assert caplog.messages == [
        "values name 10 ids that the schema registry does not have; it is asked for no other id by this task."
        " Are the values in Confluent's wire format?"
    ]


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_a_registry_that_fails_makes_no_record_bad(registry: SchemaRegistry, status: int) -> None:
    schema_id = registry.register("a", ORDER)
    decoder, data = avro_decoder(registry), pa.array([framed(schema_id, ORDER, {"id": 1})], pa.binary())
    registry.fail(status, times=9)
    with pytest.raises(RegistryFailure, match=f"the schema registry {registry.url} answered HTTP {status}"):
        decoder.decode(data)
    registry.fail(503, times=1)
    assert ids_of(decoder.decode(data)) == [1]


@pytest.mark.parametrize(
    ("schema", "kind", "told"),
    [
        ({"type": "object"}, "JSON", "is of the type JSON, but the format is avro"),
        ({**ORDER, "fields": [{"name": "below", "type": ["null", "Order"]}]}, "AVRO", "has a type within itself"),
    ],
)
def test_one_value_of_a_schema_that_cannot_be_used_does_not_end_a_query(
    registry: SchemaRegistry, schema: dict[str, Any], kind: str, told: str
) -> None:
    good, strange = registry.register("a", ORDER), registry.register("b", schema, kind)
    data = [framed(good, ORDER, {"id": 1}), b"\x00" + struct.pack(">I", strange) + b"x"]
    column = ColumnFormat("value", "avro", schema=json.dumps(ORDER), registry=use_of(registry.url))
    decoded = make_decoder(column, TYPE).decode(pa.array(data, pa.binary()))
    assert ids_of(decoded) == [1, None]
    assert told in decoded.reason


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"schema": '{"type":'}, "is not valid JSON"),
        ({"schema": "[" * 100_000}, "is not valid JSON"),
        ({"schema": '{"type": "record", "name": "R", "fields": {"id": "long"}}'}, "fields are not a list"),
        ({"schema": '{"type": "record", "name": "R", "fields": [{"name": "id"}]}'}, "a field without type"),
        ({"schema": json.dumps(tower(28, 2, "null"))}, "more than 20000 types that a datum without bytes visits"),
        ({"schema": json.dumps({**ORDER, "fields": [{"name": "id", "type": "string"}]})}, "cannot read what was"),
        ({"schema": json.dumps({**ORDER, "fields": []})}, "no default for id"),
        ({"schema": "x", "schemaType": "THRIFT"}, "is of the type THRIFT"),
        ({"schema": '"R"', "references": [{"name": "R", "subject": "none", "version": 1}]}, "does not have: R"),
    ],
)
def test_a_schema_that_cannot_be_used_does_what_the_mode_says(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], told: str
) -> None:
    good, usual = registry.register("a", ORDER), registry.answer

    def with_another(method: str, target: str, *more: Any) -> tuple[int, Any]:
        return (200, answer) if target == "/schemas/ids/77" else usual(method, target, *more)

    monkeypatch.setattr(registry, "answer", with_another)
    values = [framed(good, ORDER, {"id": 1}), b"\x00\x00\x00\x00\x4dxx", framed(good, ORDER, {"id": 2})]
    records = pa.record_batch({"offset": [5, 6, 7], "value": pa.array(values, pa.binary())})
    column = ColumnFormat("value", "avro", schema=json.dumps(ORDER), registry=use_of(registry.url))

    def rows(mode: Mode) -> list[Any]:
        names = pa.schema([("value", TYPE), ("_corrupt_record", pa.binary())])
        (found,) = RowDecoder(TypedRows(value=column, mode=mode), names).rows([records], "t-0")
        return [tuple(row.values()) for row in found.to_pylist()]

    first, last = ({"id": 1}, None), ({"id": 2}, None)
    assert rows(Mode.PERMISSIVE) == [first, (None, values[1]), last]
    assert rows(Mode.DROPMALFORMED) == [first, last]
    with pytest.raises(BadRecord, match=rf"t-0 at offset 6: .* the schema with the id 77 .*{told}"):
        rows(Mode.FAILFAST)


def test_a_type_that_the_readers_schema_lacks_is_an_error_before_the_first_record(registry: SchemaRegistry) -> None:
    column = ColumnFormat("value", "avro", schema=json.dumps(ORDER), registry=use_of(registry.url))
    with pytest.raises(ValueError, match="has long, which cannot become string"):
        make_decoder(column, pa.struct([("id", pa.string())]))


class Answers(BaseHTTPRequestHandler):
    """Answers each request with `answer`, or with what the request has."""

    answer: tuple[int, dict[str, str], str | None] = (200, {}, None)
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        status, headers, text = self.answer
        body = (text or json.dumps({"error_code": status, "message": self.headers["Authorization"]})).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((200, {}, "<html>"), "gave no usable answer"),
        ((200, {}, '{"schema": 5}'), "a schema that is no text"),
        ((302, {"Location": "/elsewhere"}, "moved"), "answered HTTP 302"),
        ((403, {}, None), "answered HTTP 403"),
    ],
)
def test_an_answer_that_is_none_is_an_error_without_secrets(
    answer: tuple[int, dict[str, str], str | None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "answer", answer)
    monkeypatch.setattr(Answers, "paths", [])
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        use = use_of(url, **{"basic.auth.user.info": "ann:hunter2-secret"})
        with pytest.raises(RegistryFailure, match=told) as caught:
            schema_by_id(use.registry, 1, "avro")
        server.shutdown()
    assert not re.search("hunter2|" + base64.b64encode(b"ann:hunter2-secret").decode(), str(caught.value))
    # A redirection is not followed: it would take the password elsewhere.
    assert Answers.paths == ["/schemas/ids/1"]


def test_a_new_version_is_found_by_a_process_that_knows_an_older_one(registry: SchemaRegistry) -> None:
    for number, schema in enumerate((ORDER, {**ORDER, "doc": "newer"}), 1):
        registry.register("a", schema)
        assert schema_of_subject(use_of(registry.url).registry, "a", None, "avro").schema_id == number


def test_a_registry_that_is_down_makes_no_record_bad() -> None:
    with SchemaRegistry() as registry:
        decoder = avro_decoder(registry)
    with pytest.raises(RegistryFailure, match=r"gave no usable answer for the schema with the id 1: ConnectError"):
        decoder.decode(pa.array([framed(1, ORDER, {"id": 1})], pa.binary()))


def test_references_are_put_where_they_are_used(registry: SchemaRegistry) -> None:
    base = {"type": "record", "name": "Base", "namespace": "n", "fields": [{"name": "id", "type": "long"}]}
    middle = {
        "type": "record",
        "name": "n.Middle",
        "fields": [{"name": "base", "type": "n.Base"}, {"name": "next", "type": ["null", "n.Middle"]}],
    }
    top = {
        "type": "record",
        "name": "n.Top",
        "fields": [{"name": "a", "type": {"type": "array", "items": "n.Middle"}}, {"name": "b", "type": "Base"}],
    }
    registry.register("base", base)
    to_base = {"name": "n.Base", "subject": "base", "version": 1}
    registry.register("middle", middle, references=[to_base])
    references = [{"name": "n.Middle", "subject": "middle", "version": 1}, to_base]
    schema_id = registry.register("top", top, references=references)
    alone = json.loads(schema_by_id(use_of(registry.url).registry, schema_id, "avro").text)
    row = {"a": [{"base": {"id": 1}, "next": None}], "b": {"id": 2}}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(alone), row)
    assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), fastavro.parse_schema(alone), None) == row


def test_a_schema_of_another_format_is_told(registry: SchemaRegistry) -> None:
    registry.register("t-value", ORDER)
    with pytest.raises(RegistryFailure, match="is of the type AVRO, but the format is json"):
        schema_of_subject(use_of(registry.url).registry, "t-value", None, "json")
    with pytest.raises(NotRegistered, match="version 7 of the subject t-value"):
        schema_of_subject(use_of(registry.url).registry, "t-value", 7, "avro")


# -- Protobuf ---------------------------------------------------------------------------------------------------------


class Echo:
    """Decodes one varint."""

    def __init__(self, *_: object) -> None:
        pass

    def decode(self, data: pa.Array) -> Decoded:
        return Decoded(pa.array([{"id": value[1]} for value in data.to_pylist()], TYPE))


def test_values_of_other_messages_and_damaged_paths_are_bad(registry: SchemaRegistry) -> None:
    file = proto_file("o.proto", "shop", {"Other": {"x": "int64"}, "Order": {"Line": {"id": "int64"}, "id": "int64"}})
    schema_id = registry.register("a", base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    files = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    column = ColumnFormat("value", "protobuf", files, "shop.Order", registry=use_of(registry.url))
    head = b"\x00" + struct.pack(">I", schema_id)
    values = [
        head + b"\x02\x02" + b"\x08\x05",
        head + b"\x00" + b"\x08\x06",
        head + b"\x02\x02" + b"\x08\x07",
        head + b"\x04\x02\x00" + b"\x08\x08",
        head + b"\x02\x08",
        head + b"\xff" * 40,
        head,
        head + b"\x7e" + b"\x02" * 70,
    ]
    decoded = WireDecoder(column, TYPE, Echo).decode(pa.array(values, pa.binary()))
    assert ids_of(decoded) == [5, None, 7, None, None, None, None, None]
    assert bad_of(decoded) == [False, True, False, True, True, True, True, True]
    assert decoded.reason == "the message is shop.Other, not shop.Order"


@pytest.mark.parametrize(
    ("path", "data"), [((0,), b"\x00"), ((1,), b"\x02\x02"), ((0, 3), b"\x04\x00\x06"), ((200,), b"\x02\x90\x03")]
)
def test_the_path_to_a_message(path: tuple[int, ...], data: bytes) -> None:
    assert write_message_path(path) == data
    assert wire._message_path(data + b"more") == (path, len(data))


def test_names_of_messages() -> None:
    file = proto_file("o.proto", "a.b", {"First": {}, "Second": {"Inner": {"x": "int32"}}})
    files = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    for path, name in (((0,), "a.b.First"), ((1,), "a.b.Second"), ((1, 0), "a.b.Second.Inner")):
        assert message_name(files, path) == name
        assert message_path(files, name) == path
    assert message_name(files, (2,)) is None
    with pytest.raises(ValueError, match=r"there is no message a\.b\.Third"):
        message_path(files, "a.b.Third")


def test_mutated_bytes_are_bad_or_decoded_and_never_an_error(registry: SchemaRegistry) -> None:
    file = proto_file("o.proto", "shop", {"Order": {"id": "int64"}})
    schema_id = registry.register("a", base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    files = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    column = ColumnFormat("value", "protobuf", files, "shop.Order", registry=use_of(registry.url))

    class Length(Echo):
        def decode(self, data: pa.Array) -> Decoded:
            return Decoded(pa.array([{"id": len(value)} for value in data.to_pylist()], TYPE))

    decoder = WireDecoder(column, TYPE, Length)
    chance = random.Random(1)
    good = b"\x00" + struct.pack(">I", schema_id) + b"\x00\x08\x05"
    values = []
    for _ in range(2_000):
        value = bytearray(good)
        # The id stays: each other one costs a request.
        for _ in range(chance.randrange(3)):
            value[chance.choice([0, 5, 6, 7])] = chance.randrange(256)
        values.append(bytes(value[: chance.randrange(len(value) + 1)]))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert len(decoded.column) == 2_000
    bad = bad_of(decoded)
    assert [row is None for row in decoded.column.to_pylist()] == bad
    assert any(bad) and not all(bad)


# -- JSON -------------------------------------------------------------------------------------------------------------


def test_a_json_schema_as_sparks_types() -> None:
    schema = {
        "type": "object",
        "definitions": {"Line": {"type": "object", "properties": {"sku": {"type": "string"}, "up": {"$ref": "#"}}}},
        "properties": {
            "id": {"type": "integer"},
            "a`b": {"type": ["null", "number"]},
            "ok": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {},
            "mixed": {"type": ["string", "integer"]},
        },
    }
    assert ddl(json.dumps(schema)) == (
        "`id` BIGINT, `a``b` DOUBLE, `ok` BOOLEAN, `lines` ARRAY<STRUCT<`n`: BIGINT>>, `counts` MAP<STRING, BIGINT>,"
        " `any` STRING, `mixed` STRING"
    )


def test_a_json_schema_that_has_itself_ends() -> None:
    once = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert ddl(json.dumps(once)).count("STRUCT") < 40
    wide = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abc"}}
    with pytest.raises(ValueError, match="more than 20000 properties"):
        ddl(json.dumps(wide))
    assert ddl(json.dumps({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}})) == "`a` STRING"


def test_what_confluents_serializer_wrote_is_read_with_the_schema_of_the_registry(
    spark: Any, cluster: Any, topic: Any, registry: SchemaRegistry
) -> None:
    name = topic()
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    }
    client = SchemaRegistryClient({"url": registry.url})
    serialize = JSONSerializer(json.dumps(schema), client, conf={"subject.name.strategy.type": "TOPIC"})
    context = SerializationContext(name, MessageField.VALUE)
    values = [serialize({"id": number, "tags": ["a"]}, context) for number in range(3)]
    produce(cluster.bootstrap, name, [{"value": value, "partition": 0} for value in [*values, b'{"id": 1}', None]])
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", name)
    frame = reader.option("value.format", "json").option("schema.registry.url", registry.url).load()
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,tags:array<string>>"
    rows = [row[0] for row in frame.orderBy("offset").select("value").collect()]
    assert [row and (row.id, row.tags) for row in rows] == [(0, ["a"]), (1, ["a"]), (2, ["a"]), None, None]


# -- Confluent's serializers and this reader, through Spark -----------------------------------------------------------


def typed_reader(spark: Any, bootstrap: str, topic: str, registry: SchemaRegistry, name: str, **more: str) -> Any:
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.option("value.format", name).option("schema.registry.url", registry.url).options(**more)


def test_avro_of_several_writers_is_resolved_to_the_latest_schema(
    spark: Any, cluster: Any, topic: Any, registry: SchemaRegistry
) -> None:
    name = topic()
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext(name, MessageField.VALUE)
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]}
    values = []
    for schema, row in ((ORDER, {"id": 1}), (newer, {"id": 2, "note": "x"})):
        serialize = AvroSerializer(client, json.dumps(schema), conf={"subject.name.strategy.type": "TOPIC"})
        values.append(serialize(row, context))
    values = [values[1], values[0], b"junk", None, values[1]]
    produce(cluster.bootstrap, name, [{"value": value, "partition": 0} for value in values])
    reader = typed_reader(spark, cluster.bootstrap, name, registry, "avro")
    rows = [row[0] for row in reader.load().orderBy("offset").select("value").collect()]
    assert [row and (row.id, row.note) for row in rows] == [(2, "x"), (1, "none"), None, None, (2, "x")]
    given = typed_reader(spark, cluster.bootstrap, name, registry, "avro", mode="DROPMALFORMED")
    chosen = given.schema("offset bigint, value struct<note: string>").load()
    assert [row.offset for row in chosen.orderBy("offset").collect()] == [0, 1, 3, 4]


def test_protobuf_is_read_with_the_schema_of_the_registry(
    spark: Any, cluster: Any, topic: Any, registry: SchemaRegistry
) -> None:
    name = topic()
    common = proto_file("common.proto", "shop", {"Money": {"units": "int64"}})
    order = proto_file(
        "order.proto", "shop", {"Order": {"id": "int64", "total": ".shop.Money"}}, imports=["common.proto"]
    )
    kind = message_classes(common, order)["shop.Order"]
    client = SchemaRegistryClient({"url": registry.url})
    serialize = ProtobufSerializer(kind, client, conf={"subject.name.strategy.type": "TOPIC"})
    value = serialize(kind(id=7, total={"units": 3}), SerializationContext(name, MessageField.VALUE))
    produce(cluster.bootstrap, name, [{"value": one, "partition": 0} for one in (value, b"\x01junk", value)])
    frame = typed_reader(spark, cluster.bootstrap, name, registry, "protobuf").load()
    rows = [row[0] for row in frame.orderBy("offset").select("value").collect()]
    assert [row and (row.id, row.total.units) for row in rows] == [(7, 3), None, (7, 3)]


def test_what_the_sink_wrote_is_read_back(spark: Any, cluster: Any, topic: Any, registry: SchemaRegistry) -> None:
    name = topic()
    written = spark.sql(
        "SELECT struct(id, concat('n', id) AS name, array(id, NULL) AS l) AS value FROM range(0, 5, 1, 1)"
    )
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": name, "value.format": "avro"}
    registry_options = {"schema.registry.url": registry.url}
    written.write.format("klamm").mode("append").options(**given, **registry_options).save()
    read = typed_reader(spark, cluster.bootstrap, name, registry, "avro").load()
    rows = [row[0] for row in read.orderBy("offset").select("value").collect()]
    assert [(row.id, row.name, row.l) for row in rows] == [(n, f"n{n}", [n, None]) for n in range(5)]
