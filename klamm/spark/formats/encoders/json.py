"""Structs, arrays and maps as JSON, as `to_json` writes them.

Whole columns are joined to texts by Arrow: no Python object is made for a row, except for binaries and for floating
point numbers that are not whole.

What must stay true: the text is what `to_json` writes with its default options, `ignoreNullFields` and `timeZone`.

Source: org.apache.spark.sql.catalyst.json.JacksonGenerator.
"""

from base64 import b64encode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats.encoders.arrays import as_entries, is_binary, is_list, is_string, with_elements
from klamm.spark.formats.encoders.texts import is_plain, plain
from klamm.spark.formats.settings import ColumnFormat

_ESCAPES = str.maketrans(
    {
        **{chr(code): f"\\u{code:04X}" for code in range(32)},
        **{'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"},
    }
)
_MAX_DEPTH = 100
_NULL = pa.scalar(None, pa.string())


def encoder(column: ColumnFormat, data_type: pa.DataType) -> "JsonEncoder":
    settings = dict(column.settings)
    if not (pa.types.is_struct(data_type) or is_list(data_type) or pa.types.is_map(data_type)):
        raise ValueError(f"the format json writes a struct, an array or a map, not {data_type}")
    _check(data_type, column.column, _MAX_DEPTH)
    return JsonEncoder(settings.get("ignoreNullFields", "true").lower() == "true", settings.get("timeZone"))


class JsonEncoder:
    """Makes documents. Timestamps are in `time_zone`, by default in the session's zone."""

    def __init__(self, ignore_null_fields: bool, time_zone: str | None) -> None:
        self._ignore_null_fields = ignore_null_fields
        self._time_zone = time_zone

    def encode(self, rows: pa.Array) -> pa.Array:
        return self._texts(rows).cast(pa.binary())

    def _texts(self, array: pa.Array) -> pa.Array:
        """The document of each value; null for null."""
        quote, texts = self._unquoted(array)
        return _around(quote, texts, quote) if quote else texts

    def _unquoted(self, array: pa.Array) -> tuple[str, pa.Array]:
        """(a quotation mark or nothing, the text between two of these); null for null."""
        kind = array.type
        if pa.types.is_struct(kind):
            return "", self._structs(array)
        if pa.types.is_map(kind):
            return "", self._maps(array)
        if is_list(kind):
            texts = _or_null(self._texts(array.flatten()))
            return "", _around("[", pc.binary_join(with_elements(array, texts), ","), "]")
        if pa.types.is_null(kind):
            return "", pa.nulls(len(array), pa.string())
        if is_binary(kind):
            return '"', pa.array([None if each is None else b64encode(each) for each in array.to_pylist()], pa.string())
        texts = plain(array, self._time_zone)
        if pa.types.is_floating(kind):
            return "", pc.if_else(pc.is_finite(array), texts, _around('"', texts, '"'))
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return "", texts
        return '"', _escaped(texts) if is_string(kind) else texts

    def _structs(self, array: pa.Array) -> pa.Array:
        # One join makes the documents. Each field begins with a comma; the first comma is left out.
        parts: list[pa.Array | str] = []
        for field, values in zip(array.type, array.flatten(), strict=True):
            name = f",{_quoted(field.name)}:"
            quote, texts = self._unquoted(values)
            if texts.null_count == 0:
                parts += [name + quote, texts, quote]
            elif self._ignore_null_fields:
                parts.append(pc.fill_null(_around(name + quote, texts, quote), ""))
            else:
                parts += [name, _or_null(_around(quote, texts, quote))]
        joined = pc.binary_join_element_wise(*parts, "") if parts else pa.array([","] * len(array), pa.string())
        documents = _around("{", pc.binary_replace_slice(joined, start=0, stop=1, replacement=""), "}")
        return documents if array.null_count == 0 else pc.if_else(array.is_valid(), documents, _NULL)

    def _maps(self, array: pa.Array) -> pa.Array:
        entries = as_entries(array)
        keys, values = entries.flatten().flatten()
        names = _around('"', _escaped(plain(_internal(keys), None)), '":')
        pairs = pc.binary_join_element_wise(names, _or_null(self._texts(values)), "")
        return _around("{", pc.binary_join(with_elements(entries, pairs), ","), "}")


def _check(data_type: pa.DataType, path: str, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"{path} is nested deeper than {_MAX_DEPTH} levels")
    if pa.types.is_struct(data_type):
        for field in data_type:
            _check(field.type, f"{path}.{field.name}", depth - 1)
    elif pa.types.is_map(data_type):
        if not is_plain(data_type.key_type):
            raise ValueError(f"{path} is a map with keys of type {data_type.key_type}; allowed: strings and numbers")
        _check(data_type.item_type, path, depth - 1)
    elif is_list(data_type):
        _check(data_type.value_type, path, depth - 1)
    elif not (is_plain(data_type) or is_binary(data_type) or pa.types.is_null(data_type)):
        raise ValueError(f"{path} is of type {data_type}, which the format json does not write; cast it before")


def _internal(keys: pa.Array) -> pa.Array:
    """Keys of maps in Spark's internal form, which Spark writes: dates and timestamps are numbers."""
    if pa.types.is_date32(keys.type):
        return keys.cast(pa.int32())
    return keys.cast(pa.int64()) if pa.types.is_timestamp(keys.type) else keys


def _around(before: str, texts: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, texts, after, "")


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null")


def _quoted(name: str) -> str:
    return f'"{_escape(name)}"'


def _escaped(texts: pa.Array) -> pa.Array:
    """Texts in the form in which they are between quotes."""
    if not _has_special(texts):
        return texts
    return pa.array([each if each is None else _escape(each) for each in texts.to_pylist()], pa.string())


def _has_special(texts: pa.Array) -> bool:
    """Whether a character may have to be escaped, from the bytes of the whole column."""
    _, offsets, data = texts.buffers()
    if data is None or len(texts) == 0:
        return False
    bounds = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    found = np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]]
    return bool(((found < ord(" ")) | (found == ord('"')) | (found == ord("\\"))).any())


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
