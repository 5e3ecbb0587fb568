"""Compiles encoders: functions that make the buffers of a frame from a message, at once or in steps."""

from collections.abc import Callable
from functools import cache
from typing import Any

from klamm.base.slices import Steps
from klamm.protocol.compiler.writing import (
    CODES,
    CONVERTED,
    SHORT,
    Writer,
    arrays_of,
    element,
    has_error_codes,
    has_own_error_code,
)
from klamm.protocol.primitives import Buffer
from klamm.protocol.schema import Field, Kept, Request, Struct, fields_of

Encoder = Callable[[Any], list[Buffer]]
# Also appends the response's error codes to the list; 0 if the response's class has no error code.
ResponseEncoder = Callable[[Any, list[int]], list[Buffer]]
EncoderInSteps = Callable[[Any], Steps[list[Buffer]]]


class EncoderWriter(Writer):
    """Writes `function(m)`: `out` is the buffer being filled, `buffers` are the full buffers before it. With
    `tells_errors` the function has one more argument, a list for error codes."""

    def __init__(self, version: int, flexible: bool, in_steps: bool, tells_errors: bool = False) -> None:
        super().__init__(version, flexible, in_steps)
        self._tells_errors = tells_errors
        # Expressions and letters of the values that are packed together.
        self._run: list[tuple[str, str]] = []

    def write(self, message: type[Struct]) -> None:
        with self.block("def function(m, codes):" if self._tells_errors else "def function(m):"):
            if self._tells_errors and not has_error_codes(message):
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
        """Appends the error code of the struct, and the error codes in arrays that this version does not encode."""
        if has_own_error_code(struct_class):
            self.add(f"codes.append({variable}.error_code)")
        for one in arrays_of(struct_class):
            if self.version not in one.versions and not isinstance(one.kind, str) and has_error_codes(one.kind):
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
        if isinstance(kind, str) and kind in CODES and kind not in CONVERTED:
            self.fixed_elements(CODES[kind], values, length)
            return
        value = self.name("x")
        with self.block(f"for {value} in {values}{' or ()' if nullable else ''}:"):
            if isinstance(kind, str):
                self.field(element(kind), value)
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
            with self.block(f"if {length} < {SHORT}:"):
                self.add(f"out += {self.short_arrays('pack', code)}[{count}](*{values})")
            with self.block("else:"):
                self.add(f"out += pack(f'>{{{count}}}{code}', *{values})")


@cache
def _kept_encoder(struct_class: type[Struct], version: int, flexible: bool) -> Callable[[Any], bytes]:
    writer = EncoderWriter(version, flexible, False)
    with writer.block("def function(m):"):
        writer.add("out = bytearray()")
        writer.structure(struct_class, "m")
        writer.flush()
        writer.add("return bytes(out)")
    encoder: Callable[[Any], bytes] = writer.function(f"encode {struct_class.__name__} {version}")
    return encoder


def compile_encoder(message: type[Struct], version: int, flexible: bool) -> Encoder:
    """A function message -> buffers of its body, for one version. Large records are not copied."""
    writer = EncoderWriter(version, flexible, False)
    writer.write(message)
    encoder: Encoder = writer.function(f"encode {message.__name__} {version}")
    return encoder


def compile_response_encoder(message: type[Struct], version: int, flexible: bool) -> ResponseEncoder:
    """Like `compile_encoder`: a function (message, list of error codes) -> buffers."""
    writer = EncoderWriter(version, flexible, False, tells_errors=True)
    writer.write(message)
    encoder: ResponseEncoder = writer.function(f"encode {message.__name__} {version}")
    return encoder


def compile_encoder_in_steps(message: type[Struct], version: int, flexible: bool) -> EncoderInSteps:
    """Like `compile_encoder`, in steps of `STEP_BYTES`."""
    writer = EncoderWriter(version, flexible, True)
    writer.write(message)
    encoder: EncoderInSteps = writer.function(f"encode {message.__name__} {version} in steps")
    return encoder
