"""Compiles decoders: functions that make messages from frames, at once or in steps."""

import struct
from collections.abc import Callable
from typing import Any

from klamm.base.slices import Steps
from klamm.protocol.compiler.writing import CODES, CONVERTED, SHORT, Place, Writer, element, nothing_kept
from klamm.protocol.primitives import Buffer
from klamm.protocol.schema import Field, Kept, Struct, fields_of

Decoder = Callable[[Buffer, int], Any]
DecoderInSteps = Callable[[Buffer, int], Steps[Any]]


class DecoderWriter(Writer):
    """Writes `function(data, p)`: `p` is the position, `size` the frame's size, `left` the elements still allowed."""

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
        """Makes an object in which all fields except these have their defaults."""
        self.add(f"{variable} = new({self.constant('C', struct_class)})")
        if issubclass(struct_class, Kept):
            self.add(f"{variable}._encoded = {nothing_kept(struct_class)}")
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
        place = Place(self.path, tuple(ends))
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
        elif field.kind in CONVERTED:
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
        """Reads a length together with the pending fields. Reads only the first byte of a compact length."""
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
        if isinstance(kind, str) and kind in CODES and kind not in CONVERTED:
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
                self.field(element(kind), value)
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
        with self.block(f"if {count} < {SHORT}:"):
            self.add(f"{target} = {first}{self.short_arrays('unpack_from', code)}[{count}](data, p){last}")
        with self.block("else:"):
            self.add(f"{target} = {first}unpack_from(f'>{{{count}}}{code}', data, p){last}")
        self.add(f"p += {count}" if size == 1 else f"p += {count} * {size}")


def compile_decoder(
    message: type[Struct], version: int, flexible: bool, max_elements: int, *, has_end: bool = True
) -> Decoder:
    """A function (frame, position of the body) -> message, for one version.

    With `has_end`, bytes after the message are an error; without, they are ignored.
    """
    writer = DecoderWriter(version, flexible, False)
    writer.write(message, max_elements, has_end)
    decoder: Decoder = writer.function(f"decode {message.__name__} {version}")
    return decoder


def compile_decoder_in_steps(
    message: type[Struct], version: int, flexible: bool, max_elements: int, *, has_end: bool = True
) -> DecoderInSteps:
    """Like `compile_decoder`, in steps of `STEP_BYTES`."""
    writer = DecoderWriter(version, flexible, True)
    writer.write(message, max_elements, has_end)
    decoder: DecoderInSteps = writer.function(f"decode {message.__name__} {version} in steps")
    return decoder
