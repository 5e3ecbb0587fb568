"""Takes nested Arrow arrays apart and puts them together again, for all encoders.

What must stay true: each function accepts slices, and ignores values under a null.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats.coding import EncodingError


def is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def is_string(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def is_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def refuse_wrong_texts(values: pa.Array) -> None:
    """Raises EncodingError for a string that is not UTF-8. Spark's strings may have any bytes; formats have texts."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        _find_wrong_text(values, np.arange(len(values)), "")


def _find_wrong_text(values: pa.Array, rows: npt.NDArray[np.int64], path: str) -> None:
    """`rows` has the row of each value."""
    if pa.types.is_struct(values.type):
        for field, child in zip(values.type, values.flatten(), strict=True):
            _find_wrong_text(child, rows, f"{path}.{field.name}" if path else field.name)
    elif pa.types.is_map(values.type) or is_list(values.type):
        lists = as_entries(values) if pa.types.is_map(values.type) else values
        _find_wrong_text(lists.flatten(), rows[pc.list_parent_indices(lists).to_numpy()], f"{path}[]")
    elif is_string(values.type):
        for index, value in enumerate(values.cast(pa.binary())):
            try:
                str(value.as_py() or b"", "utf-8")
            except UnicodeDecodeError:
                raise EncodingError(int(rows[index]), f"the field {path} is not UTF-8") from None


def as_entries(maps: pa.Array) -> pa.Array:
    """Maps as lists of structs of key and value."""
    return maps.view(pa.list_(pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])))


def with_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Lists of the same lengths with other elements. `elements` has as many as `lists.flatten()`."""
    return pa.ListArray.from_arrays(offsets(lists), elements, mask=lists.is_null())


def offsets(lists: pa.Array) -> pa.Array:
    """Where each list begins among the elements of `lists.flatten()`, and where the last one ends."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pc.cumulative_sum(pa.concat_arrays([pa.array([0], lengths.type), lengths])).cast(pa.int32())
