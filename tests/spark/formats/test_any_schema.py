"""Whatever the schema and whatever the bytes: a decoder is refused or made, and then every row is typed or corrupt.

What work is done is counted in opcodes: Avro's library runs as the same code in plain Python. The compiled loops of
JSON have a test of their own in `test_json_decoder.py`.
"""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import fastavro
import fastavro._read_py
import fastavro._schema_py
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.spark.formats import avro, avro_schemas
from klamm.spark.formats.coding import make_decoder
from klamm.spark.formats.schemas import column_type
from klamm.spark.formats.settings import AVRO, CSV, JSON, PROTOBUF, ColumnFormat, Mode, SchemaError, TypedRows
from klamm.spark.read.typed import BadRecord, RowDecoder
from support.opcodes import Opcodes
from support.spark.any_schemas import COLUMNS, VALUES_OF, tower

EXAMPLES = 60
# Of a schema's characters, of a value's bytes, and of a type's fields. Measured: less than a third of each.
OPCODES_OF_SCHEMA, OPCODES_OF_BYTES, OPCODES = 2_000, 100 * 150, 300_000


@pytest.fixture(scope="module", autouse=True)
def counted_library() -> Iterator[None]:
    """fastavro as plain Python, whose opcodes are counted, too."""
    plain = SimpleNamespace(
        schemaless_reader=fastavro._read_py.schemaless_reader, parse_schema=fastavro._schema_py.parse_schema
    )
    # Imported and compiled before anything is counted.
    for name in (JSON, CSV):
        make_decoder(ColumnFormat("value", name), pa.struct([("a", pa.int32())]))
    with patch.object(avro, "fastavro", plain):
        yield


def size_of(data_type: pa.DataType) -> int:
    """How many types a type has."""
    if pa.types.is_map(data_type):
        return 1 + size_of(data_type.item_type)
    return 1 + sum(size_of(data_type.field(number).type) for number in range(data_type.num_fields))


def check(column: ColumnFormat, data_type: pa.DataType, values: list[bytes | None], mode: Mode) -> None:
    """Decodes the values as rows of records in the mode, if the schema can be used at all."""
    schema_chars = len(column.schema or "") + len(column.reader_schema or "")
    work = OPCODES + OPCODES_OF_SCHEMA * (schema_chars + size_of(data_type))
    names = pa.schema([("offset", pa.int64()), ("value", data_type), ("_corrupt_record", pa.binary())])
    with Opcodes(work):
        try:
            decoder = RowDecoder(TypedRows(value=column, mode=mode), names)
        except ValueError as refused:
            assert str(refused)
            return
    records = pa.record_batch({"offset": range(len(values)), "value": pa.array(values, pa.binary())})
    size_bytes = sum(len(value or b"") + 1 for value in values)
    with Opcodes(OPCODES + OPCODES_OF_BYTES * size_bytes + size_of(data_type) * len(values) * 2_000):
        try:
            (rows,) = decoder.rows([records], "t-0")
        except BadRecord as error:
            assert mode is Mode.FAILFAST
            assert "t-0 at offset" in str(error)
            return
    rows.validate(full=True)
    is_corrupt = rows.column("_corrupt_record").is_valid().to_pylist()
    if mode is Mode.PERMISSIVE:
        assert rows.column("offset").to_pylist() == list(range(len(values)))
        for value, row, corrupt in zip(values, rows.column("value"), is_corrupt, strict=True):
            assert not (corrupt and row.is_valid)
            assert not (value is None and (corrupt or row.is_valid))
        kept = [value for value, corrupt in zip(values, is_corrupt, strict=True) if corrupt]
        assert rows.column("_corrupt_record").drop_null().to_pylist() == kept
    else:
        assert not any(is_corrupt)
        assert mode is Mode.DROPMALFORMED or rows.num_rows == len(values)


def a_test(name: str, examples: int) -> Any:
    @settings(max_examples=examples, deadline=None)
    @given(COLUMNS[name], st.lists(st.none() | VALUES_OF[name], max_size=4), st.sampled_from(Mode))
    def run(column: tuple[ColumnFormat, pa.DataType], values: list[bytes | None], mode: Mode) -> None:
        check(*column, values, mode)

    return run


@pytest.mark.parametrize("name", [AVRO, PROTOBUF, JSON, CSV])
def test_a_decoder_is_refused_or_never_raises_and_its_work_is_bounded(name: str) -> None:
    a_test(name, EXAMPLES)()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [AVRO, PROTOBUF, JSON, CSV])
def test_it_is_so_for_many_schemas(name: str) -> None:
    a_test(name, 5_000)()


@pytest.mark.parametrize(
    "leaf", ["null", "long", {"type": "array", "items": "null"}, {"type": "fixed", "name": "F", "size": 0}]
)
@pytest.mark.parametrize("kind", ["record", "array"])
def test_types_that_are_named_twice_at_many_levels_cost_no_more_than_their_text(leaf: Any, kind: str) -> None:
    column = ColumnFormat("value", AVRO, json.dumps(tower(60, 2, leaf, kind)))
    with Opcodes(OPCODES + OPCODES_OF_SCHEMA * len(column.schema or "")), pytest.raises(SchemaError):
        column_type(column)
    check(column, pa.struct([("lacking", pa.int64())]), [b"", b"\x00" * 100, b"\x02" * 100], Mode.PERMISSIVE)


@settings(max_examples=EXAMPLES, deadline=None)
@given(COLUMNS[AVRO], st.lists(VALUES_OF[AVRO], max_size=3))
def test_a_schema_is_refused_if_decoding_could_visit_more_types_than_its_bytes_pay_for(
    column: tuple[ColumnFormat, pa.DataType], values: list[bytes]
) -> None:
    """With small bounds, so that bytes reach them: the bound is proven for each datum by counting visits."""
    visits, read, skip = 0, fastavro._read_py.read_data, fastavro._read_py.skip_data

    def counting(function: Any) -> Any:
        def count(*arguments: Any, **named: Any) -> Any:
            nonlocal visits
            visits += 1
            return function(*arguments, **named)

        return count

    with (
        patch.multiple(avro_schemas, VISITS_PER_BYTE=3, MAX_FREE_VISITS=8),
        patch.multiple(fastavro._read_py, read_data=counting(read), skip_data=counting(skip)),
    ):
        try:
            decoder = make_decoder(*column)
        except ValueError:
            return
        for value in values:
            visits = 0
            decoder.decode(pa.array([value], pa.binary()))
            # Two for the record around the datum, and each name is looked up by a visit of its own.
            assert visits <= 2 * (3 * len(value) + 8) + 2
