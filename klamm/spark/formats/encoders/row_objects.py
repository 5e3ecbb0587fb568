"""Python objects for rows, for formats whose libraries write one row after another.

Arrow checks and converts whole columns. Then the objects are made column by column, because Arrow's own function would
make a further object for each value.

What must stay true: an error names the row, and the full path of the field.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats.coding import EncodingError
from klamm.spark.formats.encoders.arrays import as_entries, is_list, offsets

Rows = npt.NDArray[np.int64]


class RowObjects(ABC):
    """Makes objects by a format's schema. `rows` has the row of each value.

    Methods that take `rows` raise EncodingError for a value that the schema does not allow.
    """

    def objects(self, schema: Any, values: pa.Array) -> list[Any]:
        return self._objects(schema, values, np.arange(len(values)), "")

    @abstractmethod
    def field(self, schema: Any, name: str) -> Any:
        """The schema of a struct's field."""

    @abstractmethod
    def element(self, schema: Any) -> Any:
        """The schema of a list's elements, or of a map's values."""

    @abstractmethod
    def check_field(self, schema: Any, nulls: pa.Array, rows: Rows, path: str) -> None:
        """Called with the places where a struct's field is null."""

    @abstractmethod
    def check_elements(self, schema: Any, nulls: pa.Array, rows: Rows, path: str) -> None:
        """Called with the places where elements of the lists or maps at `path` are null."""

    @abstractmethod
    def converted(self, schema: Any, values: pa.Array, rows: Rows, path: str) -> pa.Array:
        """Values that are neither structs, lists nor maps, converted for the library."""

    def _objects(self, schema: Any, values: pa.Array, rows: Rows, path: str) -> list[Any]:
        if pa.types.is_struct(values.type):
            made = self._structs(schema, values, rows, path)
        elif pa.types.is_map(values.type) or is_list(values.type):
            made = self._lists(schema, values, rows, path)
        else:
            return list(self.converted(schema, values, rows, path).to_pylist())
        if not values.null_count:
            return made
        return [one if is_valid else None for one, is_valid in zip(made, values.is_valid().to_pylist(), strict=True)]

    def _structs(self, schema: Any, values: pa.Array, rows: Rows, path: str) -> list[Any]:
        names = [field.name for field in values.type]
        if len(set(names)) < len(names):
            raise ValueError(f"a struct has two fields of one name: {', '.join(names)}")
        columns = []
        for name, child in zip(names, values.flatten(), strict=True):
            below, child_path = self.field(schema, name), f"{path}.{name}" if path else name
            self.check_field(below, pc.and_(values.is_valid(), child.is_null()), rows, child_path)
            columns.append(self._objects(below, child, rows, child_path))
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] or [{} for _ in values]

    def _lists(self, schema: Any, values: pa.Array, rows: Rows, path: str) -> list[Any]:
        is_map = pa.types.is_map(values.type)
        lists = as_entries(values) if is_map else values
        keys, elements = lists.flatten().flatten() if is_map else (None, lists.flatten())
        below, owners = self.element(schema), rows[pc.list_parent_indices(lists).to_numpy()]
        self.check_elements(below, elements.is_null(), owners, path)
        made, bounds = self._objects(below, elements, owners, f"{path}[]"), pairwise(offsets(lists).to_pylist())
        if keys is None:
            return [made[start:end] for start, end in bounds]
        names, maps = keys.to_pylist(), []
        for row, (start, end) in zip(rows.tolist(), bounds, strict=True):
            maps.append(dict(zip(names[start:end], made[start:end], strict=True)))
            if len(maps[-1]) < end - start:
                raise EncodingError(row, "a map has a key twice")
        return maps


def refuse(wrong: pa.Array, rows: Rows, path: str, reason: str) -> None:
    """Raises EncodingError for the first value that is wrong."""
    found = np.flatnonzero(wrong.to_numpy(zero_copy_only=False))
    if len(found):
        raise EncodingError(int(rows[found[0]]), f"the field {path} {reason}")
