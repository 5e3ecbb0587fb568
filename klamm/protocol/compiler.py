"""Compiles the notation of `schema.py` into functions: straight-line Python for each message and version.

A decoder and an encoder are one function each: the structs of a message become nested loops, and fields of fixed size
that follow each other are read or written by one `struct` call, together with the length of the next string or array.
Both also exist in steps: the same lines with a `yield` at the end of the loops.

What must stay true:
- A decoder raises `InvalidFrame`, and nothing else, for any bytes that are not such a message: cut or oversized fields,
  null where the schema allows none, text that is not UTF-8, tagged fields out of order or with a wrong size, and bytes
  after the end, except of requests. The error names the path of the field, found by the line of the function that
  failed.
- The work and memory that a frame costs are bounded before they are spent: an array's count must fit into the bytes
  that follow it, and all arrays and tagged fields of a message together hold at most `max_elements` elements.
- The common case is handled inline. Longer, null or invalid values go to the readers in `primitives.py`, which alone
  decide what is valid.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from klamm.base.slices import Steps
from klamm.protocol import primitives
from klamm.protocol.primitives import Buffer, InvalidFrame
from klamm.protocol.schema import ZEROS, Field, Kept, Request, Struct, fields_of

Decoder = Callable[[Buffer, int], Any]
DecoderInSteps = Callable[[Buffer, int], Steps[Any]]
Encoder = Callable[[Any], list[Buffer]]
# Also appends the error codes in a response; 0 if its class has none.
ResponseEncoder = Callable[[Any, list[int]], list[Buffer]]
# Adds how often each error code is in a response.
ErrorCounterInSteps = Callable[[Any, dict[int, int]], Steps[None]]
EncoderInSteps = Callable[[Any], Steps[list[Buffer]]]

# The bytes that one step reads or writes, in at most about a millisecond. Records cost nothing and do not count. A step
# that counts error codes looks at so many elements.
STEP_BYTES = 8 * 1024
# A message with more elements than this is encoded in steps.
LARGE_ELEMENTS = 500
# Copying fewer bytes than this into the head of a frame costs less than another buffer in the system call.
INLINE_BYTES = 4096

# The letters of `struct` for types of a fixed size. UUIDs and bit fields are converted afterwards.
CODES = {
    "Int8": "b",
    "Int16": "h",
    "Uint16": "H",
    "Int32": "i",
    "Int64": "q",
    "Float64": "d",
    "Bool": "?",
    "Uuid": "16s",
    "BitField": "i",
}
_CONVERTED = ("Uuid", "BitField")
_LOWEST_INT32 = -(2**31)
_SHORT = 33


# -- what the functions call ------------------------------------------------------------------------------------------


def _read_tags(data: Buffer, position: int, left: int) -> tuple[dict[int, tuple[int, int]], int, int]:
    elements = [left]
    tags, position = primitives.read_tagged_fields(data, position, elements)
    return tags, position, elements[0]


def _skip_tags(data: Buffer, position: int, left: int) -> tuple[int, int]:
    elements = [left]
    return primitives.skip_tagged_fields(data, position, elements), elements[0]


def _check_count(count: int, element_bytes: int, data: Buffer, position: int, left: int) -> None:
    """Raises InvalidFrame for a count that is negative, does not fit into the frame or means too much work."""
    if count < 0:
        raise InvalidFrame("null where an array is required" if count == -1 else f"a count of {count}", position)
    primitives.check_count(count, element_bytes, data, position, [left])


def _check_null(count: int, position: int) -> None:
    if count != -1:
        raise InvalidFrame(f"a count of {count}", position)


def _read_data(data: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[memoryview | None, int]:
    value, end = primitives.read_records(data, position, flexible)
    if value is None and not nullable:
        raise InvalidFrame(f"-1 bytes of data, but {len(data) - end} are left", end)
    return value, end


def _check_marker(marker: int, position: int) -> None:
    if marker != 1:
        raise InvalidFrame(f"a struct begins with {marker}, allowed are 1 (present) and 255 (null)", position)


def _uuid(value: bytes) -> UUID | None:
    return UUID(bytes=value) if any(value) else None


def _bits(value: int) -> set[int] | None:
    return None if value == _LOWEST_INT32 else {bit for bit in range(32) if value >> bit & 1}


def _bits_of(value: set[int] | None) -> int:
    if value is None:
        return _LOWEST_INT32
    number = sum(1 << bit for bit in value)
    return number - 2**32 if number >= 2**31 else number


_FAULTS = (InvalidFrame, struct.error, IndexError, UnicodeDecodeError)


class _Place(NamedTuple):
    """What a line reads: a path, or the paths of fields that are read together, each with where it ends.

    A part of a path is a name, or the name of the list that holds the elements so far, after a star.
    """

    path: tuple[str, ...]
    run: tuple[tuple[tuple[str, ...], int], ...] = ()


def _explain(error: Exception, places: Sequence[_Place]) -> InvalidFrame:
    """The error for the bytes, with the path of the field that the failing line reads."""
    assert error.__traceback__ is not None
    frame, line = error.__traceback__.tb_frame, error.__traceback__.tb_lineno
    variables = frame.f_locals
    # Otherwise the traceback's variables would keep the frame in memory.
    error.__traceback__ = None
    place, position = places[line], variables["p"]
    cut = [path for path, end in place.run if position + end > len(variables["data"])]
    names = cut[0] if cut else place.path
    path = [f"[{len(variables[name[1:]])}]" if name[0] == "*" else name for name in names]
    if isinstance(error, InvalidFrame):
        return InvalidFrame(error.reason, error.position, *path, *error.path)
    if isinstance(error, UnicodeDecodeError):
        return InvalidFrame(f"text that is not UTF-8 ({error.reason})", position + error.start, *path)
    return InvalidFrame("the frame ends within the field", position, *path)


_HELPERS: dict[str, Any] = {
    "FAULTS": _FAULTS,
    "INLINE": INLINE_BYTES,
    "InvalidFrame": InvalidFrame,
    "STEP": STEP_BYTES,
    "bits": _bits,
    "bits_of": _bits_of,
    "check_count": _check_count,
    "check_end": primitives.check_end,
    "check_marker": _check_marker,
    "check_null": _check_null,
    "explain": _explain,
    "new": object.__new__,
    "pack": struct.pack,
    "read_compact_nullable_string": primitives.read_compact_nullable_string,
    "read_compact_string": primitives.read_compact_string,
    "read_data": _read_data,
    "read_length": primitives.read_length,
    "read_nullable_string": primitives.read_nullable_string,
    "read_string": primitives.read_string,
    "read_tags": _read_tags,
    "skip_tags": _skip_tags,
    "unpack_from": struct.unpack_from,
    "uuid": _uuid,
    "uuid_bytes": primitives.uuid_bytes,
    "varint": primitives.unsigned_varint,
}


# -- writing functions ------------------------------------------------------------------------------------------------


class _Writer:
    """The lines of one function, and the constants it uses."""

    def __init__(self, version: int, flexible: bool, in_steps: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.lines: list[str] = []
        self.places: list[_Place] = [_Place(())]
        self.constants: dict[str, Any] = dict(_HELPERS)
        self.path: tuple[str, ...] = ()
        self._indent = 0
        self._names = 0

    def add(self, line: str, place: _Place | None = None) -> None:
        self.lines.append("    " * self._indent + line)
        self.places.append(place or _Place(self.path))

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def within(self, *path: str) -> Iterator[None]:
        outer = self.path
        self.path = (*outer, *filter(None, path))
        yield
        self.path = outer

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.constants[name] = value
        return name

    def packed(self, method: str, codes: str) -> str:
        """The constant for a method of a `struct.Struct`."""
        name = f"{method}_{codes.replace('?', 'o')}"
        self.constants.setdefault(name, getattr(struct.Struct(">" + codes), method))
        return name

    def short_arrays(self, method: str, code: str) -> str:
        """The constant for such a method by the length of an array, for short ones."""
        name = f"{method}s_{code.replace('?', 'o')}"
        if name not in self.constants:
            self.constants[name] = [getattr(struct.Struct(f">{count}{code}"), method) for count in range(_SHORT)]
        return name

    def function(self, name: str) -> Any:
        source = "\n".join(self.lines)
        exec(compile(source, f"<{name}>", "exec"), self.constants)
        return self.constants["function"]

    def plain_fields(self, struct_class: type[Struct]) -> list[Field]:
        return [one for one in fields_of(struct_class) if one.is_plain_in(self.version)]

    def tagged_fields(self, struct_class: type[Struct]) -> list[Field]:
        tagged = [one for one in fields_of(struct_class) if one.is_tagged_in(self.version)]
        return sorted(tagged, key=lambda one: one.tag or 0) if self.flexible else []

    def least_bytes(self, field: Field) -> int:
        """The fewest bytes that a value of the field takes."""
        if field.is_array:
            return 1 if self.flexible else 4
        if isinstance(field.kind, str):
            if field.kind in CODES:
                return struct.calcsize(">" + CODES[field.kind])
            return 1 if self.flexible else 2 if field.kind == "String" else 4
        return 1 if self.version in field.nullable else self.least_struct_bytes(field.kind)

    def least_struct_bytes(self, struct_class: type[Struct]) -> int:
        return self.has_tags(struct_class) + sum(map(self.least_bytes, self.plain_fields(struct_class)))

    def has_tags(self, struct_class: type[Struct]) -> bool:
        untagged: Any = struct_class
        return self.flexible and self.version not in untagged._untagged

    def group(self, struct_class: type[Struct]) -> tuple[Field, Field, type[Struct]]:
        """The name of a flat array's groups, their list, and the class of its members."""
        name, members = self.plain_fields(struct_class)
        assert not isinstance(members.kind, str)
        return name, members, members.kind

    def default(self, field: Field) -> str:
        """An expression for the default of a field."""
        value = field.default
        if value is None or value == () or isinstance(value, (bool, int, str, bytes)):
            return repr(value)
        if field.makes_list:
            return "[]" if not value else f"[*{self.constant('default', value)}]"
        return self.constant("default", value)


# -- decoding ---------------------------------------------------------------------------------------------------------


class _DecoderWriter(_Writer):
    """Writes `function(data, p)`: `p` is the position, `size` the frame's, `left` the elements still allowed."""

    def __init__(self, version: int, flexible: bool, in_steps: bool) -> None:
        super().__init__(version, flexible, in_steps)
        # Fields of fixed size that are read together: target, letter, path; and the lines that follow the read.
        self._run: list[tuple[str, str, tuple[str, ...]]] = []
        self._after: list[str] = []

    def write(self, message: type[Struct], max_elements: int, has_end: bool) -> None:
        with self.block("def function(data, p):"):
            self.add("size = len(data)")
            self.add(f"left = {max_elements}")
            if self.in_steps:
                self.add("stop = p + STEP")
            with self.block("try:"):
                self.structure(message, "m")
                if has_end:
                    with self.block("if p != size:"):
                        self.add("check_end(data, p)")
                self.add("return m")
            with self.block("except FAULTS as error:"):
                self.add("raise explain(error, places) from None")
            if self.in_steps:
                self.add("yield")
        self.constants["places"] = self.places

    def structure(self, struct_class: type[Struct], variable: str) -> None:
        """Reads a struct into a new object."""
        fields = self.plain_fields(struct_class)
        tagged = self.tagged_fields(struct_class)
        self.new(struct_class, variable, fields)
        for one in fields:
            self.field(one, f"{variable}.{one.name}")
        if self.has_tags(struct_class):
            self.tags(tagged, variable)
        self.flush()

    def new(self, struct_class: type[Struct], variable: str, fields: list[Field]) -> None:
        """Makes an object that has everything but these fields."""
        self.add(f"{variable} = new({self.constant('C', struct_class)})")
        if issubclass(struct_class, Kept):
            self.add(f"{variable}._encoded = {_nothing_kept(struct_class)}")
        for one in fields_of(struct_class):
            if one not in fields:
                self.add(f"{variable}.{one.name} = {self.default(one)}")

    def tags(self, tagged: list[Field], variable: str) -> None:
        with self.within("tagged fields"):
            count = self.name("t")
            self.fixed(count, "B")
            self.flush()
            with self.block(f"if {count}:"):
                if not tagged:
                    self.add("p, left = skip_tags(data, p - 1, left)")
                    return
                self.add(f"{count}, p, left = read_tags(data, p - 1, left)")
        with self.block(f"if {count}:"):
            end = self.name("end")
            self.add(f"{end} = p")
            tag, start, stop = self.name("tag"), self.name("start"), self.name("stop")
            with self.block(f"for {tag}, ({start}, {stop}) in {count}.items():"):
                for one in tagged:
                    with self.block(f"if {tag} == {one.tag}:"):
                        self.add(f"p = {start}")
                        self.field(one, f"{variable}.{one.name}")
                        self.flush()
                        with self.within(one.name), self.block(f"if p != {stop}:"):
                            reason = f"f'a tagged field of {{{stop} - {start}}} bytes, not {{p - {start}}}'"
                            self.add(f"raise InvalidFrame({reason}, {start})")
            self.add(f"p = {end}")

    def fixed(self, target: str, code: str, *path: str) -> None:
        self._run.append((target, code, (*self.path, *filter(None, path))))

    def flush(self) -> None:
        """Reads the pending fields of fixed size."""
        if not self._run:
            return
        codes = "".join(code for _, code, _ in self._run)
        size = struct.calcsize(">" + codes)
        ends, end = [], 0
        for _, code, path in self._run:
            end += struct.calcsize(">" + code)
            ends.append((path, end))
        place = _Place(self.path, tuple(ends))
        targets = [target for target, _, _ in self._run]
        if codes == "B":
            self.add(f"{targets[0]} = data[p]", place)
        else:
            self.add(
                f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = "
                f"{self.packed('unpack_from', codes)}(data, p)",
                place,
            )
        self.add(f"p += {size}")
        for line in self._after:
            self.add(line)
        self._run, self._after = [], []

    def field(self, field: Field, target: str) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self.array(field, target, nullable)
        elif not isinstance(field.kind, str):
            with self.within(field.name):
                self.inner_struct(field.kind, target, nullable)
        elif field.kind in _CONVERTED:
            value = self.name("f")
            self.fixed(value, CODES[field.kind], field.name)
            self._after.append(f"{target} = {'uuid' if field.kind == 'Uuid' else 'bits'}({value})")
        elif field.kind in CODES:
            self.fixed(target, CODES[field.kind], field.name)
        elif field.kind == "String":
            self.text(target, nullable, field.name)
        else:
            self.data(field.kind, target, nullable, field.name)

    def inner_struct(self, struct_class: type[Struct], target: str, nullable: bool) -> None:
        self.flush()
        variable = self.name("s")
        if not nullable:
            self.structure(struct_class, variable)
            self.add(f"{target} = {variable}")
            return
        with self.block("if data[p] == 255:"):
            self.add(f"{target} = None")
            self.add("p += 1")
        with self.block("else:"):
            self.add("check_marker(data[p], p)")
            self.add("p += 1")
            self.structure(struct_class, variable)
            self.add(f"{target} = {variable}")

    def length(self, name: str, code: str) -> str:
        """Reads a length with the pending fields; of a compact length the first byte."""
        variable = self.name("n")
        self.fixed(variable, "B" if self.flexible else code, name)
        self.flush()
        return variable

    def text(self, target: str, nullable: bool, name: str) -> None:
        length = self.length(name, "h")
        kind = ("compact_" if self.flexible else "") + ("nullable_" if nullable else "")
        with self.within(name):
            if self.flexible:
                condition = f"0 < {length} < 128 and (e := p + {length} - 1) <= size"
            else:
                condition = f"0 <= {length} and (e := p + {length}) <= size"
            with self.block(f"if {condition}:"):
                self.add(f"{target} = str(data[p:e], 'utf-8')")
                self.add("p = e")
            if nullable:
                with self.block(f"elif {length} == {0 if self.flexible else -1}:"):
                    self.add(f"{target} = None")
            with self.block("else:"):
                self.add(f"{target}, p = read_{kind}string(data, p - {1 if self.flexible else 2})")

    def data(self, kind: str, target: str, nullable: bool, name: str) -> None:
        self.length(name, "i")
        with self.within(name):
            self.add(f"e, p = read_data(data, p - {1 if self.flexible else 4}, {self.flexible}, {nullable})")
        if self.in_steps and kind == "Records":
            with self.block("if e:"):
                self.add("stop += len(e)")
        self.add(f"{target} = e" if kind == "Records" else f"{target} = None if e is None else bytes(e)")

    def array(self, field: Field, target: str, nullable: bool) -> None:
        count = self.length(field.name, "i")
        with self.within(field.name):
            if self.flexible:
                with self.block(f"if 0 < {count} < 128:"):
                    self.add(f"{count} -= 1")
                with self.block("else:"):
                    self.add(f"{count}, p = read_length(data, p - 1)")
            if nullable:
                with self.block(f"if {count} < 0:"):
                    self.add(f"check_null({count}, p)")
                    self.add(f"{target} = None")
                with self.block("else:"):
                    self.elements(field, target, count)
            else:
                self.elements(field, target, count)

    def elements(self, field: Field, target: str, count: str) -> None:
        kind = field.kind
        is_flat = self.version in field.flat
        if is_flat:
            assert not isinstance(kind, str)
            name, _, member = self.group(kind)
            least = self.least_bytes(name) + self.least_struct_bytes(member)
        elif not isinstance(kind, str):
            least = max(1, self.least_struct_bytes(kind))
        elif kind in CODES:
            least = struct.calcsize(">" + CODES[kind])
        else:
            least = 1 if self.flexible else 2 if kind == "String" else 4
        product = count if least == 1 else f"{count} * {least}"
        with self.block(f"if {count} < 0 or {product} > size - p or {count} > left:"):
            self.add(f"check_count({count}, {least}, data, p, left)")
        self.add(f"left -= {count}")
        if isinstance(kind, str) and kind in CODES and kind not in _CONVERTED:
            self.fixed_elements(field, target, count, least)
            return
        if is_flat:
            self.flat_elements(kind, target, count)
            return
        values, add = self.name("a"), self.name("add")
        self.add(f"{target} = {values} = []")
        self.add(f"{add} = {values}.append")
        with self.block(f"for _ in range({count}):"), self.within(f"*{values}"):
            if isinstance(kind, str):
                value = self.name("v")
                self.field(_element(kind), value)
                self.flush()
            else:
                value = self.name("s")
                self.structure(kind, value)
            self.add(f"{add}({value})")
            self.may_pause()

    def flat_elements(self, group_class: Any, target: str, count: str) -> None:
        name, members, member_class = self.group(group_class)
        groups, key, group, value = (self.name(prefix) for prefix in ("a", "v", "g", "s"))
        self.add(f"{groups} = {{}}")
        with self.block(f"for _ in range({count}):"):
            self.text(key, False, name.name)
            self.structure(member_class, value)
            self.add(f"{group} = {groups}.get({key})")
            with self.block(f"if {group} is None:"):
                self.new(group_class, group, [name, members])
                self.add(f"{group}.{name.name} = {key}")
                self.add(f"{group}.{members.name} = []")
                self.add(f"{groups}[{key}] = {group}")
            self.add(f"{group}.{members.name}.append({value})")
            self.may_pause()
        self.add(f"{target} = [*{groups}.values()]")

    def may_pause(self) -> None:
        if self.in_steps:
            with self.block("if p >= stop:"):
                self.add("stop = p + STEP")
                self.add("yield")

    def fixed_elements(self, field: Field, target: str, count: str, size: int) -> None:
        code = CODES[field.kind]  # type: ignore[index]
        first, last = ("", "") if field.is_tuple else ("[*", "]")
        with self.block(f"if {count} < {_SHORT}:"):
            self.add(f"{target} = {first}{self.short_arrays('unpack_from', code)}[{count}](data, p){last}")
        with self.block("else:"):
            self.add(f"{target} = {first}unpack_from(f'>{{{count}}}{code}', data, p){last}")
        self.add(f"p += {count}" if size == 1 else f"p += {count} * {size}")


def _element(kind: str) -> Field:
    """A nameless field for an element of an array of this type."""
    return Field(Struct, "", kind, ZEROS[kind])


# -- encoding ---------------------------------------------------------------------------------------------------------


class _EncoderWriter(_Writer):
    """Writes `function(m)`: `out` is the buffer being filled, `buffers` are the full ones before it. If it tells
    errors, the function has one more argument, a list for error codes."""

    def __init__(self, version: int, flexible: bool, in_steps: bool, tells_errors: bool = False) -> None:
        super().__init__(version, flexible, in_steps)
        self._tells_errors = tells_errors
        # Expressions and letters of the values that are packed together.
        self._run: list[tuple[str, str]] = []

    def write(self, message: type[Struct]) -> None:
        with self.block("def function(m, codes):" if self._tells_errors else "def function(m):"):
            if self._tells_errors and not _has_error_codes(message):
                self.add("codes.append(0)")
            self.add("out = bytearray()")
            self.add("buffers = []")
            if self.in_steps:
                self.add("stop = STEP")
            self.structure(message, "m")
            self.flush()
            self.add("buffers.append(out)")
            self.add("return buffers")
            if self.in_steps:
                self.add("yield")

    def structure(self, struct_class: type[Struct], variable: str) -> None:
        if self._tells_errors:
            self._tell_errors(struct_class, variable)
        fields = self.plain_fields(struct_class)
        if issubclass(struct_class, Kept) and issubclass(struct_class, Request):
            self.kept_request(struct_class, fields)
            return
        self.fields(struct_class, fields, variable)

    def kept_request(self, request: Any, fields: list[Field]) -> None:
        """Encodes the fields behind `kept_behind` once."""
        names = [one.name for one in fields_of(request)]
        own = [one for one in fields if names.index(one.name) <= names.index(request.kept_behind)]
        for one in own:
            self.field(one, f"m.{one.name}")
        self.flush()
        self.add("buffers.append(out)")
        self.add(f"out = m._encoded.get({self.version})")
        with self.block("if out is None:"):
            self.add("out = bytearray()")
            if self.in_steps:
                self.add("stop = STEP")
            self.fields(request, fields[len(own) :], "m")
            self.flush()
            self.add(f"m._encoded[{self.version}] = out")

    def fields(self, struct_class: type[Struct], fields: list[Field], variable: str) -> None:
        """Writes these fields, and the tagged ones."""
        for one in fields:
            self.field(one, f"{variable}.{one.name}")
        if not self.has_tags(struct_class):
            return
        tagged = self.tagged_fields(struct_class)
        if not tagged:
            self._run.append(("", "x"))
            return
        self.flush()
        count = self.name("t")
        present = [f"({variable}.{one.name} != {self.default(one)})" for one in tagged]
        self.add(f"{count} = {' + '.join(present)}")
        self.add(f"out.append({count})")
        with self.block(f"if {count}:"):
            for one, condition in zip(tagged, present, strict=True):
                with self.block(f"if {condition}:"):
                    outer = self.name("out")
                    self.add(f"{outer}, out = out, bytearray()")
                    self.field(one, f"{variable}.{one.name}")
                    self.flush()
                    self.add(f"{outer} += varint({one.tag}) + varint(len(out)) + out")
                    self.add(f"out = {outer}")

    def _tell_errors(self, struct_class: type[Struct], variable: str) -> None:
        """Tells what the struct itself has, and what is in its arrays that this version leaves out."""
        if _has_own_error_code(struct_class):
            self.add(f"codes.append({variable}.error_code)")
        for one in _arrays_of(struct_class):
            if self.version not in one.versions and not isinstance(one.kind, str) and _has_error_codes(one.kind):
                element = self.name("x")
                with self.block(f"for {element} in {variable}.{one.name} or ():"):
                    self._tell_errors(one.kind, element)

    def flush(self) -> None:
        if not self._run:
            return
        codes = "".join(code for _, code in self._run)
        values = ", ".join(value for value, _ in self._run if value)
        if codes == "x":
            self.add("out.append(0)")
        elif codes == "B":
            self.add(f"out.append({values})")
        else:
            self.add(f"out += {self.packed('pack', codes)}({values})")
        self._run = []

    def field(self, field: Field, source: str) -> None:
        nullable = self.version in field.nullable
        if self.version in field.flat:
            self.flat_array(field.kind, source)
        elif field.is_array:
            self.array(field.kind, source, nullable)
        elif not isinstance(field.kind, str):
            self.inner_struct(field.kind, source, nullable)
        elif field.kind == "Uuid":
            self._run.append((f"uuid_bytes({source})", "16s"))
        elif field.kind == "BitField":
            self._run.append((f"bits_of({source})", "i"))
        elif field.kind in CODES:
            self._run.append((source, CODES[field.kind]))
        elif field.kind == "String":
            self.text(source, nullable)
        else:
            self.data(field.kind, source, nullable)

    def inner_struct(self, struct_class: type[Struct], source: str, nullable: bool) -> None:
        variable = self.name("s")
        self.add(f"{variable} = {source}")
        if not nullable:
            self.structure(struct_class, variable)
            return
        self.flush()
        with self.block(f"if {variable} is None:"):
            self.add("out.append(255)")
        with self.block("else:"):
            self._run.append(("1", "B"))
            self.structure(struct_class, variable)
            self.flush()

    def length(self, value: str, nullable: bool, code: str) -> str:
        """Writes the length of `value` with the pending fields. Returns its name; a compact length is one larger."""
        length = self.name("n")
        measured = f"len({value}) + 1" if self.flexible else f"len({value})"
        if nullable:
            self.add(f"{length} = {0 if self.flexible else -1} if {value} is None else {measured}")
        else:
            self.add(f"{length} = {measured}")
        self.prefix(length, code)
        return length

    def prefix(self, length: str, code: str) -> None:
        if not self.flexible:
            self._run.append((length, code))
            self.flush()
            return
        before = list(self._run)
        with self.block(f"if {length} < 128:"):
            self._run.append((length, "B"))
            self.flush()
        with self.block("else:"):
            self._run = before
            self.flush()
            self.add(f"out += varint({length})")

    def text(self, source: str, nullable: bool) -> None:
        value = self.name("v")
        if nullable:
            self.add(f"{value} = {source}")
            with self.block(f"if {value} is not None:"):
                self.add(f"{value} = {value}.encode()")
        else:
            self.add(f"{value} = {source}.encode()")
        self.length(value, nullable, "h")
        if nullable:
            with self.block(f"if {value}:"):
                self.add(f"out += {value}")
        else:
            self.add(f"out += {value}")

    def data(self, kind: str, source: str, nullable: bool) -> None:
        value = self.name("v")
        self.add(f"{value} = {source}")
        length = self.length(value, nullable, "i")
        if kind != "Records":
            with self.block(f"if {value}:"):
                self.add(f"out += {value}")
            return
        with self.block(f"if {length} < INLINE:"), self.block(f"if {value}:"):
            self.add(f"out += {value}")
            if self.in_steps:
                self.add(f"stop += {length}")
        with self.block("else:"):
            self.add(f"buffers += (out, {value})")
            if self.in_steps:
                self.add("stop -= len(out)")
            self.add("out = bytearray()")

    def array(self, kind: str | type[Struct], source: str, nullable: bool) -> None:
        values = self.name("a")
        self.add(f"{values} = {source}")
        length = self.length(values, nullable, "i")
        if isinstance(kind, str) and kind in CODES and kind not in _CONVERTED:
            self.fixed_elements(CODES[kind], values, length)
            return
        value = self.name("x")
        with self.block(f"for {value} in {values}{' or ()' if nullable else ''}:"):
            if isinstance(kind, str):
                self.field(_element(kind), value)
            else:
                self.element(kind, value)
            self.flush()
            self.may_pause()

    def element(self, kind: type[Struct], value: str) -> None:
        if not issubclass(kind, Kept):
            self.structure(kind, value)
            return
        self.flush()
        encode = self.constant("encode", _kept_encoder(kind, self.version, self.flexible))
        kept = self.name("k")
        self.add(f"{kept} = {value}._encoded")
        with self.block(f"if {kept} is None or {kept}[0] != {self.version}:"):
            self.add(f"{kept} = {value}._encoded = ({self.version}, {encode}({value}))")
        self.add(f"out += {kept}[1]")

    def flat_array(self, kind: Any, source: str) -> None:
        name, members, member_class = self.group(kind)
        groups, group, length, value, outer, key = (self.name(prefix) for prefix in ("a", "g", "n", "x", "out", "v"))
        self.add(f"{groups} = {source}")
        self.add(f"{length} = {int(self.flexible)} + sum([len({group}.{members.name}) for {group} in {groups}])")
        self.prefix(length, "i")
        with self.block(f"for {group} in {groups}:"):
            self.add(f"{outer}, out = out, bytearray()")
            self.text(f"{group}.{name.name}", False)
            self.add(f"{key}, out = out, {outer}")
            with self.block(f"for {value} in {group}.{members.name}:"):
                self.add(f"out += {key}")
                self.element(member_class, value)
                self.flush()
                self.may_pause()

    def may_pause(self) -> None:
        if self.in_steps:
            with self.block("if len(out) >= stop:"):
                self.add("stop = len(out) + STEP")
                self.add("yield")

    def fixed_elements(self, code: str, values: str, length: str) -> None:
        first = 1 if self.flexible else 0
        with self.block(f"if {length} > {first}:"):
            count = f"{length} - 1" if self.flexible else length
            with self.block(f"if {length} < {_SHORT}:"):
                self.add(f"out += {self.short_arrays('pack', code)}[{count}](*{values})")
            with self.block("else:"):
                self.add(f"out += pack(f'>{{{count}}}{code}', *{values})")


def _nothing_kept(struct_class: type[Struct]) -> str:
    """The value of `_encoded` before a `Kept` is encoded."""
    return "{}" if issubclass(struct_class, Request) else "None"


@cache
def _kept_encoder(struct_class: type[Struct], version: int, flexible: bool) -> Callable[[Any], bytes]:
    writer = _EncoderWriter(version, flexible, False)
    with writer.block("def function(m):"):
        writer.add("out = bytearray()")
        writer.structure(struct_class, "m")
        writer.flush()
        writer.add("return bytes(out)")
    encoder: Callable[[Any], bytes] = writer.function(f"encode {struct_class.__name__} {version}")
    return encoder


# -- the functions ----------------------------------------------------------------------------------------------------


def compile_decoder(
    message: type[Struct], version: int, flexible: bool, max_elements: int, *, has_end: bool = True
) -> Decoder:
    """A function (frame, position of the body) -> message, for one version.

    With `has_end`, bytes after the message are an error; without, they are ignored.
    """
    writer = _DecoderWriter(version, flexible, False)
    writer.write(message, max_elements, has_end)
    decoder: Decoder = writer.function(f"decode {message.__name__} {version}")
    return decoder


def compile_decoder_in_steps(
    message: type[Struct], version: int, flexible: bool, max_elements: int, *, has_end: bool = True
) -> DecoderInSteps:
    """Like `compile_decoder`, in steps of `STEP_BYTES`."""
    writer = _DecoderWriter(version, flexible, True)
    writer.write(message, max_elements, has_end)
    decoder: DecoderInSteps = writer.function(f"decode {message.__name__} {version} in steps")
    return decoder


def compile_encoder(message: type[Struct], version: int, flexible: bool) -> Encoder:
    """A function message -> buffers of its body, for one version. Large records are not copied."""
    writer = _EncoderWriter(version, flexible, False)
    writer.write(message)
    encoder: Encoder = writer.function(f"encode {message.__name__} {version}")
    return encoder


def compile_response_encoder(message: type[Struct], version: int, flexible: bool) -> ResponseEncoder:
    """As `compile_encoder`: a function (message, list of error codes) -> buffers."""
    writer = _EncoderWriter(version, flexible, False, tells_errors=True)
    writer.write(message)
    encoder: ResponseEncoder = writer.function(f"encode {message.__name__} {version}")
    return encoder


def compile_encoder_in_steps(message: type[Struct], version: int, flexible: bool) -> EncoderInSteps:
    """Like `compile_encoder`, in steps of `STEP_BYTES`."""
    writer = _EncoderWriter(version, flexible, True)
    writer.write(message)
    encoder: EncoderInSteps = writer.function(f"encode {message.__name__} {version} in steps")
    return encoder


def is_large(message: Struct) -> bool:
    """Whether the message has so many elements that encoding them may take several milliseconds."""
    message_class = type(message)
    count = _COUNTERS.get(message_class)
    if count is None:
        count = _COUNTERS[message_class] = _compile_counter(message_class)
    return count(message) > LARGE_ELEMENTS


_COUNTERS: dict[type[Struct], Callable[[Any], int]] = {}


def _compile_counter(struct_class: type[Struct]) -> Callable[[Any], int]:
    """A function message -> how many elements its arrays have; it stops soon after `LARGE_ELEMENTS`.

    Arrays of numbers do not count: each is written in one call.
    """
    writer = _Writer(0, False, False)
    with writer.block("def function(m):"):
        writer.add("count = 0")
        _count_arrays(writer, struct_class, "m")
        writer.add("return count")
    counter: Callable[[Any], int] = writer.function(f"count {struct_class.__name__}")
    return counter


def _count_arrays(writer: _Writer, struct_class: type[Struct], variable: str) -> None:
    for one in _arrays_of(struct_class):
        values = writer.name("a")
        writer.add(f"{values} = {variable}.{one.name}")
        with writer.block(f"if {values}:"):
            writer.add(f"count += len({values})")
            if not isinstance(one.kind, str) and _arrays_of(one.kind):
                element = writer.name("x")
                with writer.block(f"for {element} in {values}:"):
                    with writer.block(f"if count > {LARGE_ELEMENTS}:"):
                        writer.add("return count")
                    _count_arrays(writer, one.kind, element)


def _arrays_of(struct_class: type[Struct]) -> list[Field]:
    """The arrays that need a loop."""
    return [one for one in fields_of(struct_class) if one.is_array and one.kind not in CODES]


def compile_error_counter_in_steps(response: type[Struct]) -> ErrorCounterInSteps:
    """A function (response, counts) in steps: adds 1 to the count of each error code in it. A response whose class has
    no error code counts as one without an error."""
    writer = _Writer(0, False, True)
    with writer.block("def function(m, counts):"):
        writer.add("left = STEP")
        writer.add("yield")
        if _has_error_codes(response):
            _count_errors(writer, response, "m")
        else:
            writer.add("counts[0] = counts.get(0, 0) + 1")
    counter: ErrorCounterInSteps = writer.function(f"errors of {response.__name__} in steps")
    return counter


def _count_errors(writer: _Writer, struct_class: type[Struct], variable: str) -> None:
    if _has_own_error_code(struct_class):
        writer.add(f"code = {variable}.error_code")
        writer.add("counts[code] = counts.get(code, 0) + 1")
    for one in _arrays_of(struct_class):
        if not isinstance(one.kind, str) and _has_error_codes(one.kind):
            element = writer.name("x")
            with writer.block(f"for {element} in {variable}.{one.name} or ():"):
                writer.add("left -= 1")
                with writer.block("if not left:"):
                    writer.add("left = STEP")
                    writer.add("yield")
                _count_errors(writer, one.kind, element)


def _has_own_error_code(struct_class: type[Struct]) -> bool:
    return any(one.name == "error_code" for one in fields_of(struct_class))


def _has_error_codes(struct_class: type[Struct]) -> bool:
    return _has_own_error_code(struct_class) or any(
        not isinstance(one.kind, str) and _has_error_codes(one.kind) for one in _arrays_of(struct_class)
    )


def compile_init(struct_class: type[Struct]) -> None:
    """Gives a struct its own `__init__`, which takes fields by name; with `kw_only=False` also by their place. A field
    without a default must be given."""
    writer = _Writer(0, False, False)
    fields = fields_of(struct_class)
    parameters = [
        one.name if one.is_required else f"{one.name}={'NEW' if one.makes_list else writer.default(one)}"
        for one in fields
    ]
    writer.constants["NEW"] = object()
    made: Any = struct_class
    if parameters and made._kw_only:
        parameters.insert(0, "*")
    with writer.block(f"def function({', '.join(['self', *parameters])}):"):
        for one in fields:
            is_new = one.makes_list and not one.is_required
            value = f"{writer.default(one)} if {one.name} is NEW else {one.name}" if is_new else one.name
            writer.add(f"self.{one.name} = {value}")
        if issubclass(struct_class, Kept):
            writer.add(f"self._encoded = {_nothing_kept(struct_class)}")
        writer.add("return None")
    made.__init__ = writer.function(f"{struct_class.__name__}.__init__")
    # Errors about arguments show this name.
    made.__init__.__qualname__ = f"{struct_class.__qualname__}.__init__"


def compile_eq(struct_class: type[Struct]) -> None:
    """Gives a struct its own `__eq__`: the same class, and equal fields."""
    writer = _Writer(0, False, False)
    writer.constants["C"] = struct_class
    with writer.block("def function(self, other):"):
        with writer.block("if type(other) is not C:"):
            writer.add("return NotImplemented")
        compared = [f"self.{one.name} == other.{one.name}" for one in fields_of(struct_class)]
        writer.add(f"return {' and '.join(compared) or 'True'}")
    made: Any = struct_class
    made.__eq__ = writer.function(f"{struct_class.__name__}.__eq__")
