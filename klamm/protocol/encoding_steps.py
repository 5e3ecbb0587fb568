"""Encoding a large message of kafka-python's classes in steps.

The library encodes a message in one go: the metadata of 50,000 partitions takes a tenth of a second. Here the arrays of
structs are walked, and what has no further ones inside is left to the library.

What must stay true: the bytes are those of the library's own encoder.
"""

from functools import cache
from typing import Any, NamedTuple

from klamm.protocol.library import message_module
from klamm.protocol.primitives import Buffer, Steps, length_prefix

# Fewer elements than this are encoded in one go.
LARGE_ELEMENTS = 500
# What a step writes: about a millisecond.
STEP_BYTES = 16 * 1024


class _Shape(NamedTuple):
    """A struct in one version, and the arrays of structs in it by their names. Those of one field hold plain values."""

    schema: Any
    arrays: dict[str, "_Shape"]


@cache
def _shape_of(message_class: Any, version: int) -> _Shape:
    return _shape(message_class._struct, version)


def _shape(schema: Any, version: int) -> _Shape:
    return _Shape(
        schema,
        {
            field.name: _shape(field.array_of, version)
            for field in schema.untagged_fields(version)
            if field.is_struct_array() and len(field.array_of.untagged_fields(version)) > 1
        },
    )


def is_large(message: Any, version: int) -> bool:
    """Whether it has so many elements that encoding them may take several milliseconds."""
    message_class: Any = type(message)
    return _count(_shape_of(message_class, version), message) > LARGE_ELEMENTS


def _count(shape: _Shape, item: Any) -> int:
    """The structs in the arrays of `item`; it stops counting soon after `LARGE_ELEMENTS`."""
    count = 0
    for name, element in shape.arrays.items():
        values = getattr(item, name) or ()
        count += len(values)
        if element.arrays:
            for value in values:
                if count > LARGE_ELEMENTS:
                    break
                count += _count(element, value)
    return count


def encode_steps(message: Any, version: int) -> Steps[list[Buffer]]:
    """The body as one buffer. The message's elements are objects of its classes."""
    out = message_module("kafka.protocol.schemas.fields.codecs").EncodeBuffer()
    flexible = message.flexible_version_q(version)
    message_class: Any = type(message)
    yield from _encode(_shape_of(message_class, version), message, version, flexible, out, [STEP_BYTES])
    return [out.buf[: out.pos]]


def _encode(shape: _Shape, item: Any, version: int, flexible: bool, out: Any, step_end: list[int]) -> Steps[None]:
    for field in shape.schema.untagged_fields(version):
        value = getattr(item, field.name)
        element = shape.arrays.get(field.name)
        if element is None or not value:
            field.encode_into(value, out, version=version, compact=flexible, tagged=flexible)
            continue
        _write(out, length_prefix(len(value), flexible))
        encode_element = element.schema.compiled_encode_into(version, compact=flexible, tagged=flexible)
        for one in value:
            if element.arrays and _count(element, one) > LARGE_ELEMENTS:
                yield from _encode(element, one, version, flexible, out, step_end)
            else:
                encode_element(one, out)
            if out.pos >= step_end[0]:
                step_end[0] = out.pos + STEP_BYTES
                yield
    if flexible:
        shape.schema.tagged_fields(version).encode_into(item, out, version=version)


def _write(out: Any, data: bytes) -> None:
    out.ensure(len(data))
    out.buf[out.pos : out.pos + len(data)] = data
    out.pos += len(data)
