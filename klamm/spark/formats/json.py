"""The format `json`: a document in each record becomes a struct, as Spark's `from_json` makes it.

The loops of `json_kernels.py` find the values of the wanted fields, and only check the rest of the document. General
libraries make objects of all fields first, or refuse a block because of one bad line. They do not keep the text of a
number, which a field of type string needs.

What must stay true:
- A document is bad, and its row null, if `from_json` in the mode PERMISSIVE finds a corrupt record. docs/spark.md has
  the table of the differences.
- Memory is bounded by the bytes: documents are decoded in chunks, and one document has at most
  MAX_VALUES wanted values.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats import json_kernels as kernels
from klamm.spark.formats import json_tokens as tokens
from klamm.spark.formats.coding import Decoded, Mask, in_chunks
from klamm.spark.formats.settings import ColumnFormat
from klamm.spark.formats.strings import utf8
from klamm.spark.formats.texts import Converter

Numbers = npt.NDArray[np.int64]

# The most values of one document. In Spark only memory limits them.
MAX_VALUES = 1024 * 1024
# The most nodes of a schema: the tape is sorted by their numbers as int16.
MAX_NODES = 2**15
# The size of the tape: at first, and at most between two chunks.
FIRST_VALUES, KEPT_VALUES = 64 * 1024, 512 * 1024
# A field's name in a document may have escapes up to this size.
LONGEST_ESCAPED_NAME_BYTES = 4096

_FLAGS = {
    "allowComments": (tokens.COMMENTS, False),
    "allowUnquotedFieldNames": (tokens.UNQUOTED_NAMES, False),
    "allowSingleQuotes": (tokens.SINGLE_QUOTES, True),
    "allowNumericLeadingZeros": (tokens.LEADING_ZEROS, False),
    "allowNonNumericNumbers": (tokens.NOT_NUMBERS, True),
    "allowBackslashEscapingAnyCharacter": (tokens.ANY_ESCAPE, False),
    "allowUnquotedControlChars": (tokens.CONTROL, False),
}
_REASONS = {
    kernels.SYNTAX: "not valid JSON",
    kernels.TRUNCATED: "the JSON document does not end",
    kernels.NO_OBJECT: "not a JSON object",
    kernels.TOO_DEEP: f"the JSON document is nested deeper than {kernels.MAX_DEPTH}",
    kernels.TOO_LONG_NUMBER: f"a number has more than {tokens.MAX_DIGITS} digits",
    kernels.WRONG_TYPE: "a field has a value of another type than in the schema",
    kernels.FULL: f"the JSON document has more than {MAX_VALUES} values of the schema",
}
_INTEGERS: dict[pa.DataType, tuple[int, int]] = {
    # Jackson accepts bytes up to 255, and Spark takes their lower eight bits.
    pa.int8(): (-(2**7), 2**8 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
}


def decoder(column: ColumnFormat, data_type: pa.DataType) -> "JsonDecoder":
    if not pa.types.is_struct(data_type):
        raise ValueError(f"the format json makes {column.column} a struct, not {data_type}")
    return JsonDecoder(data_type, dict(column.settings))


class _Found(NamedTuple):
    """The entries of the tape for one node, in the order of the document. `at` are their positions on the tape."""

    at: Numbers
    slots: Numbers
    found: npt.NDArray[np.int8]
    first: Numbers
    second: Numbers
    rows: Numbers


class _Node:
    """A type within the schema, with its number in the compiled loops."""

    def __init__(self, number: int, data_type: pa.DataType, kind: int) -> None:
        self.number, self.type, self.kind = number, data_type, kind
        self.children: list[_Node] = []


class JsonDecoder:
    """Decodes documents into one struct type."""

    def __init__(self, data_type: pa.DataType, settings: Mapping[str, str]) -> None:
        self._converter = Converter(settings)
        self._flags = sum(
            flag
            for name, (flag, default) in _FLAGS.items()
            if settings.get(name, str(default)).strip().lower() == "true"
        )
        self._tree = _Tree(data_type)
        self._tape = np.empty((FIRST_VALUES, kernels.TAPE_FIELDS), np.int64)
        self._stack = np.empty((kernels.MAX_DEPTH + 1, kernels.STACK_FIELDS), np.int64)
        self._scratch = np.empty(LONGEST_ESCAPED_NAME_BYTES, np.uint8)

    def decode(self, data: pa.Array) -> Decoded:
        return in_chunks(data, self._tree.root.type, self._chunk)

    def _chunk(self, data: pa.Array) -> Decoded:
        rows = len(data)
        _, offsets_buffer, bytes_buffer = data.buffers()
        offsets = _read_only(offsets_buffer, np.int32)[data.offset : data.offset + rows + 1]
        content = _read_only(bytes_buffer, np.uint8)
        statuses = np.zeros(rows, np.int8)
        if data.null_count:
            statuses[np.asarray(data.is_null().to_numpy(zero_copy_only=False), np.bool_)] = kernels.EMPTY
        used, counts = self._scan(content, offsets, statuses)
        tape = self._tape[:used]
        if len(self._tape) > KEPT_VALUES:
            self._tape = np.empty((FIRST_VALUES, kernels.TAPE_FIELDS), np.int64)
        columns = _Columns(content, tape, counts, rows, self._converter)
        fields = [columns.make(child, rows) for child in self._tree.root.children]
        bad = statuses > kernels.EMPTY
        reason = _REASONS[int(statuses[bad][0])] if bad.any() else ""
        if columns.wrong_rows:
            wrong = np.zeros(rows, np.bool_)
            wrong[np.concatenate(columns.wrong_rows)] = True
            if not bad.any() or np.argmax(wrong) < np.argmax(bad):
                reason = _REASONS[kernels.WRONG_TYPE]
            bad |= wrong
        is_null = bad | (statuses == kernels.EMPTY)
        validity = None if not is_null.any() else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        made = pa.Array.from_buffers(self._tree.root.type, rows, [validity], int(is_null.sum()), 0, fields)
        return Decoded(made, bad if bad.any() else None, reason)

    def _scan(self, content: Any, offsets: Any, statuses: Any) -> tuple[int, Numbers]:
        """(length of the tape, how many slots each list and map has)."""
        tree = self._tree
        counts, before = np.zeros((2, len(tree.table)), np.int64)
        row, used, rows = 0, 0, len(statuses)
        while True:
            row, used = kernels.scan(
                content, offsets, row, rows, self._flags, tree.table, tree.names, tree.hashes,
                self._tape, used, counts, before, self._stack, self._scratch, statuses,
            )  # fmt: skip
            if row == rows:
                return used, counts
            if len(self._tape) - used >= MAX_VALUES:
                statuses[row] = kernels.FULL
            else:
                larger = np.empty((2 * len(self._tape), kernels.TAPE_FIELDS), np.int64)
                larger[:used] = self._tape[:used]
                self._tape = larger


class _Tree:
    """The schema as the loops see it."""

    def __init__(self, data_type: pa.DataType) -> None:
        self._rows: list[list[int]] = []
        self._names = bytearray()
        self._hashes: list[int] = []
        self.root = self._node(data_type)
        self._fill(self.root)
        if len(self._rows) > MAX_NODES:
            raise ValueError(f"the schema has more than {MAX_NODES} fields, which the format json does not read")
        self.table = _frozen(np.array(self._rows, np.int64))
        self.names = _frozen(np.frombuffer(bytes(self._names) or b"\0", np.uint8))
        self.hashes = _frozen(np.array(self._hashes, np.int64))

    def _node(self, data_type: pa.DataType, name: str = "") -> _Node:
        made = _Node(len(self._rows), data_type, _kind(data_type))
        start = len(self._names)
        self._names += name.encode()
        lowest, highest = _INTEGERS.get(data_type, (0, 0))
        if made.kind == kernels.TIMESTAMP:
            # The number is seconds, which Java multiplies. The bounds exclude an overflow.
            lowest, highest = (-(2**63) // 10**6 + 1, 2**63 // 10**6) if data_type.tz is not None else (1, 0)
        self._rows.append([made.kind, -1, 0, 0, 0, start, len(self._names), lowest, highest])
        return made

    def _fill(self, node: _Node) -> None:
        """Adds the children, which have consecutive numbers."""
        row = self._rows[node.number]
        row[kernels.CHILD] = len(self._rows)
        if node.kind == kernels.STRUCT:
            node.children = [self._node(field.type, field.name) for field in _fields(node.type)]
            self._hash(node, row)
        elif node.kind == kernels.LIST:
            node.children = [self._node(node.type.value_type)]
        elif node.kind == kernels.MAP:
            node.children = [self._node(node.type.key_type), self._node(node.type.item_type)]
        row[kernels.CHILDREN] = len(node.children)
        for child in node.children:
            self._fill(child)

    def _hash(self, node: _Node, row: list[int]) -> None:
        size = 2
        while size < 2 * len(node.children) + 1:
            size *= 2
        row[kernels.TABLE], row[kernels.TABLE_MASK] = len(self._hashes), size - 1
        places = [-1] * size
        # For each place, where the next free place may be: many names may have the same hash.
        free = list(range(1, size + 1))
        for child in node.children:
            at = self._rows[child.number]
            place = _place(bytes(self._names[at[kernels.NAME_START] : at[kernels.NAME_END]])) & (size - 1)
            passed = []
            while places[place] >= 0:
                passed.append(place)
                place = free[place] & (size - 1)
            places[place] = child.number
            for each in passed:
                free[each] = place + 1
        self._hashes += places


class _Columns:
    """Makes arrays from the entries of a tape."""

    def __init__(self, content: Any, tape: Any, counts: Numbers, rows: int, converter: Converter) -> None:
        self._content, self._counts, self._rows, self._converter = content, counts, rows, converter
        order = np.argsort(tape[:, kernels.NODE].astype(np.int16), kind="stable")
        self._sorted = tape[order]
        self._order = order
        self._ends = np.searchsorted(self._sorted[:, kernels.NODE], np.arange(len(counts) + 1))
        # Rows with a value that cannot be converted.
        self.wrong_rows: list[Numbers] = []

    def make(self, node: _Node, length: int, opened: "Numbers | None" = None) -> pa.Array:
        """The node's array with `length` slots. `opened` has, for each slot, where on the tape its last struct
        begins."""
        found = self._found(node, opened)
        if node.kind == kernels.STRUCT:
            return self._struct(node, found, length)
        if node.kind in (kernels.LIST, kernels.MAP):
            return self._list(node, found, length)
        if node.kind == kernels.INTEGER:
            return self._integers(node, found, length)
        if node.kind == kernels.BOOLEAN:
            values, valid = _spread(found, length)
            packed = np.packbits(values.astype(np.bool_), bitorder="little")
            return pa.Array.from_buffers(pa.bool_(), length, [_validity(valid), pa.py_buffer(packed)])
        texts = self._texts(found, length)
        if node.kind == kernels.TEXT:
            return utf8(texts)
        if node.kind == kernels.FLOAT:
            return self._floats(node, found, texts)
        return self._converted(node, found, utf8(texts))

    def _found(self, node: _Node, opened: "Numbers | None") -> _Found:
        chosen = slice(self._ends[node.number], self._ends[node.number + 1])
        part, at = self._sorted[chosen], self._order[chosen]
        if opened is not None:
            # If the field of a struct is repeated, the entries of the earlier struct are replaced.
            current = at > opened[part[:, kernels.SLOT]]
            if not current.all():
                part, at = part[current], at[current]
        return _Found(
            at, part[:, kernels.SLOT], part[:, kernels.FOUND].astype(np.int8),
            part[:, kernels.A], part[:, kernels.B], part[:, kernels.ROW],
        )  # fmt: skip

    def _struct(self, node: _Node, found: _Found, length: int) -> pa.Array:
        opened = np.full(length, -1, np.int64)
        opened[found.slots] = found.at
        valid = np.zeros(length, np.bool_)
        valid[found.slots] = found.found == tokens.OPENED
        children = [self.make(child, length, opened) for child in node.children]
        return pa.Array.from_buffers(node.type, length, [_validity(valid)], children=children)

    def _list(self, node: _Node, found: _Found, length: int) -> pa.Array:
        sizes, firsts = np.zeros(length, np.int64), np.zeros(length, np.int64)
        valid = np.zeros(length, np.bool_)
        # The entry of a list is written when the list ends; the entry of a null at once.
        sizes[found.slots] = np.where(found.found == tokens.ELEMENTS, found.second, 0)
        firsts[found.slots] = np.where(found.found == tokens.ELEMENTS, found.first, 0)
        valid[found.slots] = found.found == tokens.ELEMENTS
        elements = int(self._counts[node.number])
        children = [self.make(child, elements) for child in node.children]
        offsets = np.zeros(length + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        if node.kind == kernels.MAP:
            items = pa.StructArray.from_arrays(children, fields=[node.type.key_field, node.type.item_field])
        else:
            items = children[0]
        if offsets[-1] != elements or (firsts[sizes > 0] != offsets[:-1][sizes > 0]).any():
            # A repeated field has left elements that belong to no list.
            chosen = np.repeat(firsts - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
            items = items.take(pa.array(chosen, pa.int64()))
        buffers = [_validity(valid), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(node.type, length, buffers, children=[items])

    def _integers(self, node: _Node, found: _Found, length: int) -> pa.Array:
        values, valid = _spread(found, length)
        data = pa.py_buffer(values.astype(node.type.to_pandas_dtype()))
        return pa.Array.from_buffers(node.type, length, [_validity(valid), data])

    def _floats(self, node: _Node, found: _Found, texts: pa.Array) -> pa.Array:
        numbers = texts.view(pa.string()).cast(node.type)
        kinds = np.zeros(len(texts), np.int8)
        kinds[found.slots] = found.found
        special = np.isin(kinds, (tokens.NOT_A_NUMBER, tokens.INFINITE, tokens.MINUS_INFINITE))
        if not special.any():
            return numbers
        values = np.array(numbers.fill_null(0).to_numpy())
        values[kinds == tokens.NOT_A_NUMBER] = np.nan
        values[kinds == tokens.INFINITE] = np.inf
        values[kinds == tokens.MINUS_INFINITE] = -np.inf
        valid = special | np.asarray(numbers.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return pa.Array.from_buffers(node.type, len(values), [_validity(valid), pa.py_buffer(values)])

    def _converted(self, node: _Node, found: _Found, texts: pa.Array) -> pa.Array:
        made, wrong = self._converter.convert(texts, node.type)
        if wrong is not None:
            rows = np.zeros(len(texts), np.int64)
            rows[found.slots] = found.rows
            self.wrong_rows.append(rows[wrong])
        if node.kind == kernels.TIMESTAMP and (found.found == tokens.VALUE).any():
            seconds, is_number = _spread(found, len(texts))
            is_number[found.slots] = found.found == tokens.VALUE
            made = pc.if_else(pa.array(is_number), pa.array(seconds * 1_000_000).cast(node.type), made)
        return made

    def _texts(self, found: _Found, length: int) -> pa.Array:
        """The texts of the slots, as bytes; null for a slot without text."""
        kinds = np.zeros(length, np.int8)
        starts, ends = np.zeros(length, np.int64), np.zeros(length, np.int64)
        kinds[found.slots], starts[found.slots], ends[found.slots] = found.found, found.first, found.second
        is_text = (kinds == tokens.PLAIN) | (kinds == tokens.ESCAPED) | (kinds == tokens.RAW) | (kinds == tokens.NUMBER)
        size = int((ends - starts)[is_text].sum())
        out, offsets = np.empty(size, np.uint8), np.empty(length + 1, np.int32)
        used = kernels.gather(self._content, kinds, starts, ends, offsets, out)
        buffers = [_validity(is_text), pa.py_buffer(offsets), pa.py_buffer(out[:used])]
        return pa.Array.from_buffers(pa.binary(), length, buffers)


def _kind(data_type: pa.DataType) -> int:
    """The kind of a node. Raises ValueError for a type that JSON does not have."""
    kinds: Sequence[tuple[Any, int]] = (
        (pa.types.is_struct, kernels.STRUCT),
        (pa.types.is_list, kernels.LIST),
        (lambda one: pa.types.is_map(one) and pa.types.is_string(one.key_type), kernels.MAP),
        (pa.types.is_string, kernels.TEXT),
        (pa.types.is_boolean, kernels.BOOLEAN),
        (pa.types.is_signed_integer, kernels.INTEGER),
        (lambda one: one in (pa.float32(), pa.float64()), kernels.FLOAT),
        (pa.types.is_decimal128, kernels.DECIMAL),
        (pa.types.is_binary, kernels.BYTES),
        (pa.types.is_timestamp, kernels.TIMESTAMP),
        (pa.types.is_date32, kernels.DATE),
    )
    for is_one, kind in kinds:
        if is_one(data_type):
            return kind
    raise ValueError(f"the format json has no type {data_type}")


def _fields(data_type: pa.DataType) -> list[pa.Field]:
    return [data_type.field(index) for index in range(data_type.num_fields)]


def _place(name: bytes) -> int:
    if not name:
        return 0
    size = len(name)
    return int(kernels.name_hash(name[0], name[size // 4], name[size // 2], name[size * 3 // 4], name[-1], size))


def _spread(found: _Found, length: int) -> tuple[Numbers, Mask]:
    """(value, whether the slot has one) for each slot."""
    values, valid = np.zeros(length, np.int64), np.zeros(length, np.bool_)
    values[found.slots] = found.first
    valid[found.slots] = found.found == tokens.VALUE
    return values, valid


def _validity(valid: Mask) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _read_only(buffer: pa.Buffer | None, dtype: Any) -> npt.NDArray[Any]:
    """The loops are compiled for read-only arrays."""
    return _frozen(np.frombuffer(b"" if buffer is None else buffer, dtype))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
