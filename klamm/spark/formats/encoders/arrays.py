"""Nested Arrow arrays, taken apart and put together again: what encoders have in common.

What must stay true: each function takes slices, and what stands under a null is not seen.
"""

import pyarrow as pa
import pyarrow.compute as pc


def is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def is_string(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def is_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def as_entries(maps: pa.Array) -> pa.Array:
    """Maps as lists of structs of key and value."""
    return maps.view(pa.list_(pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])))


def with_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Lists of the same lengths, with other elements: as many as `lists.flatten()` has."""
    return pa.ListArray.from_arrays(offsets(lists), elements, mask=lists.is_null())


def offsets(lists: pa.Array) -> pa.Array:
    """Where each list begins among the elements of `lists.flatten()`, and where the last one ends."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pc.cumulative_sum(pa.concat_arrays([pa.array([0], lengths.type), lengths])).cast(pa.int32())
