"""Compiles the methods of a message's class: `__init__` and `__eq__`."""

from typing import Any

from klamm.protocol.compiler.writing import Writer, nothing_kept
from klamm.protocol.schema import Kept, Struct, fields_of


def compile_init(struct_class: type[Struct]) -> None:
    """Gives a struct its own `__init__`, which takes fields by name; with `kw_only=False` also by position. A field
    without a default must be given."""
    writer = Writer(0, False, False)
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
            writer.add(f"self._encoded = {nothing_kept(struct_class)}")
        writer.add("return None")
    made.__init__ = writer.function(f"{struct_class.__name__}.__init__")
    # Errors about arguments show this name.
    made.__init__.__qualname__ = f"{struct_class.__qualname__}.__init__"


def compile_eq(struct_class: type[Struct]) -> None:
    """Gives a struct its own `__eq__`: the same class, and equal fields."""
    writer = Writer(0, False, False)
    writer.constants["C"] = struct_class
    with writer.block("def function(self, other):"):
        with writer.block("if type(other) is not C:"):
            writer.add("return NotImplemented")
        compared = [f"self.{one.name} == other.{one.name}" for one in fields_of(struct_class)]
        writer.add(f"return {' and '.join(compared) or 'True'}")
    made: Any = struct_class
    made.__eq__ = writer.function(f"{struct_class.__name__}.__eq__")
