"""The format `csv`: a line in each record, as Spark's `from_csv` reads it; the fields are in the order of the schema.

Arrow splits lines without quotes. This module splits the other lines, one by one: Spark's CSV has a backslash as its
escape, which has a meaning only within quotes, and the CSV readers of Arrow and Python do not support this.

What must stay true: a record is one row, whatever line ends it has. A record with another number of fields than the
schema is bad, and so is a record with a quoted field that continues after its closing quote. Time and memory grow with
a record's bytes: at most one more field than the schema has is split off.

Source: org.apache.spark.sql.catalyst.csv.UnivocityParser, CSVOptions.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats import texts
from klamm.spark.formats.coding import Decoded, Mask
from klamm.spark.formats.settings import ColumnFormat
from klamm.spark.formats.strings import utf8

_INTEGERS: dict[pa.DataType, int] = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?", re.ASCII)
# The forms of numbers that Arrow and Java read alike.
_COMMON_INTEGER, _COMMON_FLOAT = r"^-?\d+$", r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"
_BLANK = "".join(map(chr, range(33)))


def decoder(column: ColumnFormat, data_type: pa.DataType) -> "CsvDecoder":
    if not pa.types.is_struct(data_type):
        raise ValueError(f"the format csv makes {column.column} a struct, not {data_type}")
    return CsvDecoder(data_type, dict(column.settings))


class CsvDecoder:
    """Decodes lines into one struct type."""

    def __init__(self, data_type: pa.DataType, settings: Mapping[str, str]) -> None:
        self._type = data_type
        self._settings = settings
        self._separator = separator(settings)
        self._quote, self._escape = settings.get("quote", '"'), settings.get("escape", "\\")
        # The characters that have a meaning within quotes.
        self._special = re.compile("|".join(map(re.escape, filter(None, (self._quote, self._escape)))))
        self._converter = texts.Converter(settings)
        self._fields = [data_type.field(index).type for index in range(data_type.num_fields)]
        self._makers = [self._maker(one) for one in self._fields]
        self._leading = settings.get("ignoreLeadingWhiteSpace", "false").strip().lower() == "true"
        self._trailing = settings.get("ignoreTrailingWhiteSpace", "false").strip().lower() == "true"

    def decode(self, data: pa.Array) -> Decoded:
        rows = len(data)
        lines = utf8(data)
        cut = pc.split_pattern(lines, self._separator, max_splits=len(self._fields))
        tokens: Any = cut
        is_special = pc.fill_null(pc.match_substring(lines, self._quote), False) if self._quote else None
        if is_special is not None and pc.any(is_special).as_py():
            found = cut.to_pylist()
            for index in np.flatnonzero(np.asarray(is_special.to_numpy(zero_copy_only=False))).tolist():
                found[index] = self._tokens(lines[index].as_py())
            tokens = pa.array(found, pa.list_(pa.string()))
        counts = pc.fill_null(pc.list_value_length(tokens), -1).to_numpy(zero_copy_only=False)
        is_null = np.asarray(lines.is_null().to_numpy(zero_copy_only=False), np.bool_)
        # An empty line is a row of nulls, whatever the number of fields.
        is_empty = np.asarray(pc.fill_null(pc.equal(lines, ""), False).to_numpy(zero_copy_only=False), np.bool_)
        has_fields = ~is_null & ~is_empty & (counts == len(self._fields))
        bad: Mask = ~is_null & ~is_empty & ~has_fields
        reason = f"the record does not have {len(self._fields)} fields" if bad.any() else ""
        good = np.flatnonzero(has_fields)
        starts = np.asarray(tokens.offsets.to_numpy())[good]
        children = []
        for number, make in enumerate(self._makers):
            values = tokens.values.take(pa.array(starts + number, pa.int64()))
            made, wrong = make(self._trimmed(values))
            if wrong is not None:
                if not bad.any() or good[np.argmax(wrong)] < np.argmax(bad):
                    reason = f"field {number + 1} is not of the type {self._fields[number]}"
                bad[good[wrong]] = True
            children.append(made)
        # Each row's index among the rows with fields.
        places = np.cumsum(has_fields) - 1
        invalid = is_null | bad
        chosen = pa.array(places, pa.int64(), mask=invalid | is_empty)
        rows_of_fields = [child.take(chosen) for child in children]
        buffers = [pa.py_buffer(np.packbits(~invalid, bitorder="little"))]
        made_rows = pa.Array.from_buffers(self._type, rows, buffers, children=rows_of_fields)
        return Decoded(made_rows, bad, reason) if bad.any() else Decoded(made_rows)

    def _trimmed(self, values: pa.Array) -> pa.Array:
        if self._leading:
            values = pc.utf8_ltrim(values, characters=_BLANK)
        if self._trailing:
            values = pc.utf8_rtrim(values, characters=_BLANK)
        null = self._settings.get("nullValue", "")
        return pc.if_else(pc.equal(values, null), pa.scalar(None, pa.string()), values)

    def _tokens(self, line: str) -> list[str | None]:
        """The fields of a record with quotes; an empty list if the quotes are wrong."""
        found: list[str | None] = []
        position = 0
        while True:
            if line.startswith(self._quote, position):
                token, position = self._quoted(line, position + 1)
                if position < 0:
                    return []
            else:
                end = line.find(self._separator, position)
                end = len(line) if end < 0 else end
                token, position = line[position:end], end
            found.append(token)
            if position >= len(line) or len(found) > len(self._fields):
                return found
            position += len(self._separator)

    def _quoted(self, line: str, position: int) -> tuple[str, int]:
        """The text of a field after its opening quote, and the position of the separator or of the end; -1 if neither
        follows."""
        made: list[str] = []
        while (match := self._special.search(line, position)) is not None:
            found = match.start()
            made.append(line[position:found])
            following = line[found + 1 : found + 2]
            if line[found] == self._escape and following and following in (self._quote, self._escape):
                made.append(following)
                position = found + 2
            elif line[found] == self._quote:
                position = found + 1
                while (
                    position < len(line) and line[position] in " \t" and not line.startswith(self._separator, position)
                ):
                    position += 1
                if position < len(line) and not line.startswith(self._separator, position):
                    return "", -1
                return "".join(made) or self._settings.get("emptyValue", ""), position
            else:
                made.append(line[found])
                position = found + 1
        return "", -1

    # -- types --------------------------------------------------------------------------------------------------------

    def _maker(self, data_type: pa.DataType) -> Callable[[pa.Array], tuple[pa.Array, Mask | None]]:
        """A function that converts texts, and says which were wrong. Raises ValueError for a type that CSV does not
        have."""
        if pa.types.is_string(data_type):
            return lambda values: (values, None)
        if pa.types.is_binary(data_type):
            return lambda values: (values.cast(pa.binary()), None)
        if data_type in _INTEGERS:
            bits = _INTEGERS[data_type]
            return lambda values: _fast(values, data_type, _COMMON_INTEGER, lambda text: _integer(text, bits))
        if data_type in (pa.float32(), pa.float64()):
            names = {
                self._settings.get("nanValue", "NaN"): float("nan"),
                self._settings.get("positiveInf", "Inf"): float("inf"),
                self._settings.get("negativeInf", "-Inf"): float("-inf"),
            }
            return lambda values: _fast(values, data_type, _COMMON_FLOAT, lambda text: _float(text, names))
        if pa.types.is_boolean(data_type):
            return lambda values: texts.each(values, data_type, lambda text: _BOOLEANS.get(text.lower()))
        if pa.types.is_decimal(data_type) or pa.types.is_timestamp(data_type) or pa.types.is_date32(data_type):
            return lambda values: self._converter.convert(values, data_type)
        raise ValueError(f"the format csv has no type {data_type}")


_BOOLEANS = {"true": True, "false": False}


def separator(settings: Mapping[str, str]) -> str:
    text = settings.get("sep", settings.get("delimiter", ","))
    return {"\\t": "\t", "\\|": "|", "\\\\": "\\"}.get(text, text)


def _fast(
    values: pa.Array, data_type: pa.DataType, common: str, convert: Callable[[str], Any]
) -> tuple[pa.Array, Mask | None]:
    """Converts all texts by Arrow, or else one by one: only Java accepts a plus sign, and only Arrow accepts 0x1F."""
    made = texts.cast_common(values, data_type, common)
    return texts.each(values, data_type, convert) if made is None else (made, None)


def _integer(text: str, bits: int) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def _float(text: str, names: Mapping[str, float]) -> float | None:
    if text in names:
        return names[text]
    plain = text.strip(_BLANK)
    if plain in ("NaN", "Infinity", "+Infinity", "-Infinity"):
        return float(plain)
    return float(plain.rstrip("fFdD")) if _FLOAT.fullmatch(plain) else None
