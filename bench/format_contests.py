"""The contests of `formats.py`: orders and odd records in each format, read and written by klamm and by libraries."""

import base64
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

os.environ["POLARS_MAX_THREADS"] = "1"

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import sides  # noqa: F401  it makes tests/ importable
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, avro, protobuf
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from klamm.spark.formats.coding import EncodingError, make_decoder, make_encoder
from klamm.spark.formats.encoders.texts import plain
from klamm.spark.formats.settings import AVRO, CSV, JSON, PROTOBUF, ColumnFormat
from support.schema_registry.messages import message_classes, proto_file
from support.spark import odd_records

SEED = 7
ODD_RECORDS = 2_000
ODD_ROWS = 500
WANTED = ("id", "price", "at")
FLAT = ("id", "customer", "country", "price", "quantity", "paid", "at", "day", "comment")
WHERE = SerializationContext("orders", MessageField.VALUE)
TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("country", pa.string()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("address", pa.struct([("street", pa.string()), ("city", pa.string()), ("zip", pa.string())])),
        ("comment", pa.string()),
    ]
)
DDL = (
    "id bigint, customer string, country string, price double, quantity int, paid boolean, at timestamp, day date,"
    " tags array<string>, address struct<street: string, city: string, zip: string>, comment string"
)
AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "country", "type": {"type": "enum", "name": "Country", "symbols": ["DE", "FR", "JP", "US"]}},
        {"name": "price", "type": "double"},
        {"name": "quantity", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": name, "type": "string"} for name in ("street", "city", "zip")],
            },
        },
        {"name": "comment", "type": ["null", "string"]},
    ],
}
# Protobuf has no date; the days are left out.
FILE = proto_file(
    "order.proto",
    "shop",
    {
        "Order": {
            "id": "int64",
            "customer": "string",
            "country": "string",
            "price": "double",
            "quantity": "int32",
            "paid": "bool",
            "at": ".google.protobuf.Timestamp",
            "tags": "repeated string",
            "address": ".shop.Address",
            "comment": "string",
        },
        "Address": {"street": "string", "city": "string", "zip": "string"},
    },
    imports=["google/protobuf/timestamp.proto"],
)
MESSAGE = message_classes(FILE)["shop.Order"]

# Rows of `odd_records`, as far as libraries have the types.
ODD_JSON_ROW = {
    "b": pa.bool_(),
    "y": pa.int8(),
    "s": pa.int16(),
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
    "t": pa.string(),
}
ODD_CSV_ROW = {
    "t": pa.string(),
    "i": pa.int32(),
    "d": pa.float64(),
    "p": pa.decimal128(9, 2),
    "b": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "u": pa.string(),
}

Convert = Callable[[pa.Array], pa.Array]


class Contest(NamedTuple):
    """One format in one direction: what klamm makes of records, and what others make of them."""

    name: str
    records: pa.Array
    ours: Convert
    others: dict[str, Convert]
    odd: "tuple[pa.Array, Convert, dict[str, Convert]]"
    """Odd records, and the same with the types of those."""
    spark: str = ""
    """Spark's own function, as SQL over the column `value`."""


# -- orders -----------------------------------------------------------------------------------------------------------


def orders(count: int) -> list[dict[str, Any]]:
    chance = random.Random(SEED)
    comments = (None, None, None, None, None, *["please ring at the back door"] * 4, "twice, the bell is broken")
    return [
        {
            "id": number,
            "customer": f"customer-{chance.randrange(10**6)}",
            "country": chance.choice(("DE", "FR", "JP", "US")),
            "price": round(chance.uniform(1, 1000), 2),
            "quantity": chance.randrange(1, 20),
            "paid": chance.random() < 0.7,
            "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(milliseconds=chance.randrange(1, 10**10)),
            "day": date(2024, 1, 1) + timedelta(days=chance.randrange(300)),
            "tags": chance.choices(("new", "gift", "sale", "bulk"), k=chance.randrange(4)),
            "address": {
                "street": f"Main street {chance.randrange(999)}",
                "city": chance.choice(("Köln", "Paris", "Boston")),
                "zip": f"{chance.randrange(10**5):05}",
            },
            "comment": chance.choice(comments),
        }
        for number in range(1, count + 1)
    ]


def damaged(records: list[bytes]) -> list[bytes]:
    """Half of the records with another byte somewhere, some cut off."""
    chance = random.Random(SEED)
    made = []
    for record in map(bytearray, records):
        if chance.random() < 0.5:
            record[chance.randrange(len(record))] = chance.choice((0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF))
        if chance.random() < 0.1:
            del record[chance.randrange(len(record)) :]
        made.append(bytes(record))
    return made


def with_nulls(rows: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """The rows with nulls for fields, for elements of lists, and for whole rows."""
    chance = random.Random(SEED)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.1 else value

    return [
        maybe({name: maybe(value) for name, value in row.items()} | {"tags": [maybe(one) for one in row["tags"]]})
        for row in rows
    ]


def part(data_type: pa.DataType, names: tuple[str, ...]) -> pa.DataType:
    return pa.struct([data_type.field(name) for name in names])


def changed(data_type: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The struct with other types of its fields."""
    return pa.struct([(field.name, change(field.type)) for field in data_type])


def from_texts(rows: pa.Array, data_type: pa.DataType) -> pa.Array:
    """A struct whose fields are cast where they have other types, texts to times for example."""
    fields = [rows.field(field.name).cast(field.type) for field in data_type]
    return pa.StructArray.from_arrays(fields, fields=list(data_type), mask=rows.is_null())


def is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_date(data_type))


def times_as_texts(data_type: pa.DataType) -> pa.DataType:
    return changed(data_type, lambda one: pa.string() if is_time(one) else one)


def with_texts(rows: pa.Array) -> pa.Array:
    """Times as klamm writes them."""
    fields = [plain(child, None) if is_time(child.type) else child for child in rows.flatten()]
    return pa.StructArray.from_arrays(fields, rows.type.names, mask=rows.is_null())


# -- klamm ------------------------------------------------------------------------------------------------------------


def our_decoder(column: ColumnFormat, data_type: pa.DataType) -> Convert:
    decoder = make_decoder(column, data_type)
    return lambda data: decoder.decode(data).column


def our_encoder(column: ColumnFormat, data_type: pa.DataType) -> Convert:
    encoder = make_encoder(column, data_type)

    def encode(rows: pa.Array) -> pa.Array:
        try:
            return encoder.encode(rows)
        except EncodingError:
            # One row at a time: then only a row that cannot be written is a null.
            if len(rows) == 1:
                return pa.nulls(1, pa.binary())
            return pa.concat_arrays([encode(rows[at : at + 1]) for at in range(len(rows))])

    return encode


# -- JSON -------------------------------------------------------------------------------------------------------------


def json_readers(data_type: pa.DataType) -> dict[str, Convert]:
    texts = times_as_texts(data_type)
    dtype = pl.Series(pa.array([], data_type)).dtype

    def with_pyarrow(data: pa.Array) -> pa.Array:
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(texts), unexpected_field_behavior="ignore", newlines_in_values=False
        )
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=4 * 1024 * 1024)
        table = pyarrow.json.read_json(io.BytesIO(b"\n".join(data.to_pylist())), reading, options)
        return from_texts(table.combine_chunks().to_struct_array().combine_chunks(), data_type)

    def with_polars(data: pa.Array) -> pa.Array:
        return pl.Series(data.cast(pa.string())).str.json_decode(dtype).to_arrow().cast(data_type)

    return {"pyarrow.json": with_pyarrow, "polars": with_polars}


def json_writers() -> dict[str, Convert]:
    def with_polars(rows: pa.Array) -> pa.Array:
        return pl.Series(with_texts(rows)).struct.json_encode().to_arrow().cast(pa.binary())

    return {"polars": with_polars}


def json_contests(rows: list[dict[str, Any]]) -> Iterator[Contest]:
    column = ColumnFormat("value", JSON)
    documents = pa.array([json.dumps(row, ensure_ascii=False, default=json_time).encode() for row in rows], pa.binary())
    # No library has maps, and most have no decimals.
    odd_type = pa.struct([(name, one) for name, one in odd_records.JSON_TYPES.items() if name not in "mc"])
    odd = pa.array(odd_records.json_records(ODD_RECORDS), pa.binary())
    compared = (odd, our_decoder(column, odd_type), json_readers(odd_type))
    for fields, data_type, ddl in (
        ("", TYPE, DDL),
        (", 3 fields", part(TYPE, WANTED), "id bigint, price double, at timestamp"),
    ):
        yield Contest(
            f"read JSON{fields}",
            documents,
            our_decoder(column, data_type),
            json_readers(data_type),
            compared,
            f"from_json(cast(value as string), '{ddl}')",
        )
    array = pa.array(rows, TYPE)
    odd_rows = odd_array(ODD_JSON_ROW, odd_records.json_rows(ODD_ROWS))
    ours = our_encoder(column, TYPE)
    odd_contest = (odd_rows, our_encoder(column, odd_rows.type), json_writers())
    yield Contest("write JSON", array, ours, json_writers(), odd_contest, "to_json(value)")


def json_time(value: Any) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" if isinstance(value, datetime) else str(value)


def odd_array(fields: dict[str, pa.DataType], rows: list[tuple[Any, ...]]) -> pa.Array:
    """The first fields of the rows."""
    names = list(fields)
    return pa.array([dict(zip(names, row, strict=False)) for row in rows], pa.struct(fields.items()))


# -- CSV --------------------------------------------------------------------------------------------------------------


def csv_readers(data_type: pa.DataType) -> dict[str, Convert]:
    names = data_type.names
    schema = pl.from_arrow(pa.table(pa.array([], data_type).flatten(), names)).schema  # type: ignore[union-attr]

    def with_pyarrow(data: pa.Array) -> pa.Array:
        table = pyarrow.csv.read_csv(
            io.BytesIO(b"\n".join(data.to_pylist())),
            pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=4 * 1024 * 1024),
            pyarrow.csv.ParseOptions(escape_char="\\", double_quote=False),
            pyarrow.csv.ConvertOptions(
                column_types=dict(zip(names, (field.type for field in data_type), strict=True)),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true"],
                false_values=["false"],
            ),
        )
        return table.combine_chunks().to_struct_array().combine_chunks()

    def with_polars(data: pa.Array) -> pa.Array:
        frame = pl.read_csv(b"\n".join(data.to_pylist()), has_header=False, schema=schema)
        return frame.to_struct("value").to_arrow().cast(data_type)

    return {"pyarrow.csv": with_pyarrow, "polars": with_polars}


def csv_writers() -> dict[str, Convert]:
    def lines(text: bytes, count: int) -> pa.Array:
        found = [text[:-1]] if count == 1 else text.split(b"\n")[:-1]
        if len(found) != count:
            raise ValueError("a field has an end of line")
        return pa.array(found, pa.binary())

    def with_pyarrow(rows: pa.Array) -> pa.Array:
        out = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
        pyarrow.csv.write_csv(pa.table(with_texts(rows).flatten(), rows.type.names), out, options)
        return lines(out.getvalue(), len(rows))

    def with_polars(rows: pa.Array) -> pa.Array:
        frame = pl.DataFrame(pa.table(with_texts(rows).flatten(), rows.type.names))
        return lines(frame.write_csv(include_header=False).encode(), len(rows))

    return {"pyarrow.csv": with_pyarrow, "polars": with_polars}


def csv_contests(rows: list[dict[str, Any]]) -> Iterator[Contest]:
    column = ColumnFormat("value", CSV)
    array = pa.array([{name: row[name] for name in FLAT} for row in rows], part(TYPE, FLAT))
    lines = our_encoder(column, array.type)(array)
    odd_type = pa.struct(odd_records.CSV_TYPES.items())
    odd = pa.array(odd_records.csv_records(ODD_RECORDS), pa.binary())
    yield Contest(
        "read CSV",
        lines,
        our_decoder(column, array.type),
        csv_readers(array.type),
        (odd, our_decoder(column, odd_type), csv_readers(odd_type)),
        "from_csv(cast(value as string), 'id bigint, customer string, country string, price double, quantity int,"
        " paid boolean, at timestamp, day date, comment string')",
    )
    odd_rows = odd_array(ODD_CSV_ROW, odd_records.csv_rows(ODD_ROWS))
    yield Contest(
        "write CSV",
        array,
        our_encoder(column, array.type),
        csv_writers(),
        (odd_rows, our_encoder(column, odd_rows.type), csv_writers()),
        "to_csv(value)",
    )


# -- Avro -------------------------------------------------------------------------------------------------------------


def avro_readers(schema: dict[str, Any], data_type: pa.DataType) -> dict[str, Convert]:
    writer = fastavro.parse_schema(schema)
    kept = {**schema, "fields": [one for one in schema["fields"] if one["name"] in data_type.names]}
    reader = None if len(kept["fields"]) == len(schema["fields"]) else fastavro.parse_schema(kept)
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    text = json.dumps(schema)
    head = b"\0" + client.register_schema("orders-value", Schema(text, "AVRO")).to_bytes(4, "big")
    confluent = avro.AvroDeserializer(client, json.dumps(kept))

    def rows(values: list[Any]) -> pa.Array:
        return pa.array(map(with_pairs, values), data_type)

    def with_fastavro(data: pa.Array) -> pa.Array:
        read = fastavro.schemaless_reader
        return rows([read(io.BytesIO(value), writer, reader) for value in data.to_pylist()])

    def with_confluent(data: pa.Array) -> pa.Array:
        return rows([confluent(head + value, WHERE) for value in data.to_pylist()])

    return {"fastavro": with_fastavro, "confluent": with_confluent}


def with_pairs(row: dict[str, Any]) -> dict[str, Any]:
    """Arrow takes maps as pairs."""
    if "m" in row:
        row["m"] = list(row["m"].items())
    return row


def avro_writers(schema: dict[str, Any]) -> dict[str, Convert]:
    parsed = fastavro.parse_schema(schema)
    confluent = avro.AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://"}), json.dumps(schema))

    def written(row: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    def with_fastavro(rows: pa.Array) -> pa.Array:
        return pa.array(map(written, rows.to_pylist(maps_as_pydicts="strict")), pa.binary())

    def with_confluent(rows: pa.Array) -> pa.Array:
        made = rows.to_pylist(maps_as_pydicts="strict")
        return pa.array([confluent(row, WHERE)[5:] for row in made], pa.binary())

    return {"fastavro": with_fastavro, "confluent": with_confluent}


def avro_contests(rows: list[dict[str, Any]]) -> Iterator[Contest]:
    column = ColumnFormat("value", AVRO, json.dumps(AVRO_SCHEMA))
    array = pa.array(rows, TYPE)
    data = our_encoder(column, TYPE)(array)
    odd_schema, odd_type = odd_records.AVRO_SCHEMA, odd_records.AVRO_TYPE
    odd_column = ColumnFormat("value", AVRO, json.dumps(odd_schema))
    odd = pa.array(odd_records.avro_records(ODD_RECORDS), pa.binary())
    compared = (odd, our_decoder(odd_column, odd_type), avro_readers(odd_schema, odd_type))
    for fields, data_type in (("", TYPE), (", 3 fields", part(TYPE, WANTED))):
        ours = our_decoder(column, data_type)
        yield Contest(f"read Avro{fields}", data, ours, avro_readers(AVRO_SCHEMA, data_type), compared)
    odd_rows = pa.array(with_nulls(rows[:ODD_ROWS]), TYPE)
    ours = our_encoder(column, TYPE)
    yield Contest("write Avro", array, ours, avro_writers(AVRO_SCHEMA), (odd_rows, ours, avro_writers(AVRO_SCHEMA)))


# -- Protobuf ---------------------------------------------------------------------------------------------------------


def protobuf_readers(data_type: pa.DataType) -> dict[str, Convert]:
    # In JSON's form of Protobuf numbers of 64 bits are texts.
    texts = changed(data_type, lambda one: pa.string() if is_time(one) or one == pa.int64() else one)
    confluent = protobuf.ProtobufDeserializer(MESSAGE, {"use.deprecated.format": False})

    def rows(messages: Iterator[Any]) -> pa.Array:
        made = [json_format.MessageToDict(one, preserving_proto_field_name=True) for one in messages]
        return from_texts(pa.array(made, texts), data_type)

    def with_protobuf(data: pa.Array) -> pa.Array:
        return rows(map(MESSAGE.FromString, data.to_pylist()))

    def with_confluent(data: pa.Array) -> pa.Array:
        return rows(confluent(b"\0\0\0\0\1\0" + value, WHERE) for value in data.to_pylist())

    return {"protobuf": with_protobuf, "confluent": with_confluent}


def protobuf_writers() -> dict[str, Convert]:
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    confluent = protobuf.ProtobufSerializer(MESSAGE, client, {"use.deprecated.format": False})

    def messages(rows: pa.Array) -> Iterator[Any]:
        return (MESSAGE(**row) for row in rows.to_pylist())

    def with_protobuf(rows: pa.Array) -> pa.Array:
        return pa.array([one.SerializeToString(deterministic=True) for one in messages(rows)], pa.binary())

    def with_confluent(rows: pa.Array) -> pa.Array:
        return pa.array([confluent(one, WHERE)[6:] for one in messages(rows)], pa.binary())

    return {"protobuf": with_protobuf, "confluent": with_confluent}


def protobuf_contests(rows: list[dict[str, Any]]) -> Iterator[Contest]:
    files = [FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), FILE]
    text = base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()
    column = ColumnFormat("value", PROTOBUF, text, "shop.Order")
    whole = part(TYPE, tuple(name for name in TYPE.names if name != "day"))
    array = pa.array(rows, whole)
    data = our_encoder(column, whole)(array)
    odd = pa.array(damaged(data[:ODD_RECORDS].to_pylist()), pa.binary())
    compared = (odd, our_decoder(column, whole), protobuf_readers(whole))
    for fields, data_type in (("", whole), (", 3 fields", part(TYPE, WANTED))):
        ours = our_decoder(column, data_type)
        yield Contest(f"read Protobuf{fields}", data, ours, protobuf_readers(data_type), compared)
    odd_rows = pa.array(with_nulls(rows[:ODD_ROWS]), whole)
    ours = our_encoder(column, whole)
    yield Contest("write Protobuf", array, ours, protobuf_writers(), (odd_rows, ours, protobuf_writers()))


CONTESTS = {JSON: json_contests, CSV: csv_contests, AVRO: avro_contests, PROTOBUF: protobuf_contests}
