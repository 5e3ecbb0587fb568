"""Flat structs as lines of CSV without their ends, as `to_csv` writes them.

Whole columns are joined to texts by Arrow; Python looks only at values that may need quotes.

What must stay true: the text is what `to_csv` writes with the same options.

Source: org.apache.spark.sql.catalyst.csv.UnivocityGenerator, CSVOptions.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats.csv import separator
from klamm.spark.formats.encoders.arrays import is_string
from klamm.spark.formats.encoders.texts import is_plain, plain
from klamm.spark.formats.settings import ColumnFormat


def encoder(column: ColumnFormat, data_type: pa.DataType) -> "CsvEncoder":
    if not pa.types.is_struct(data_type) or len(list(data_type)) == 0:
        raise ValueError(f"the format csv writes a struct with fields, not {data_type}")
    for field in data_type:
        if not is_plain(field.type):
            raise ValueError(
                f"{column.column}.{field.name} is of type {field.type}, which the format csv does not write"
            )
    settings = dict(column.settings)
    return CsvEncoder(
        separator=separator(settings),
        quote=settings.get("quote", '"'),
        escape=settings.get("escape", "\\"),
        null_value=settings.get("nullValue", ""),
        empty_value=settings.get("emptyValue", '""'),
        time_zone=settings.get("timeZone"),
    )


class CsvEncoder:
    """Makes lines."""

    def __init__(
        self, *, separator: str, quote: str, escape: str, null_value: str, empty_value: str, time_zone: str | None
    ) -> None:
        self._separator, self._quote, self._escape = separator, quote, escape
        self._null_value, self._empty_value, self._time_zone = null_value, empty_value, time_zone
        special = "|".join(map(re.escape, filter(None, (separator, quote, "\n", "\r"))))
        self._special = re.compile(special)

    def encode(self, rows: pa.Array) -> pa.Array:
        columns = [self._texts(values, first=index == 0) for index, values in enumerate(rows.flatten())]
        lines = pc.binary_join_element_wise(*columns, self._separator)
        return pc.if_else(rows.is_valid(), lines, pa.scalar(None, pa.string())).cast(pa.binary())

    def _texts(self, values: pa.Array, *, first: bool) -> pa.Array:
        texts = plain(values, self._time_zone)
        if is_string(values.type):
            texts = pa.array(
                [None if each is None else self._field(each, first) for each in texts.to_pylist()], pa.string()
            )
        return pc.fill_null(texts, self._null_value)

    def _field(self, text: str, first: bool) -> str:
        text = text.strip(" \t")
        if not text:
            return self._empty_value
        # Univocity would read a line that begins with # as a comment.
        if not self._quote or not (self._special.search(text) or (first and text.startswith("#"))):
            return text
        if self._escape:
            text = text.replace(self._escape, self._escape * 2).replace(self._quote, self._escape + self._quote)
        return f"{self._quote}{text}{self._quote}"
