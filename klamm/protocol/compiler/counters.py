"""Counts what a message holds: its elements, and the error codes of a response."""

from collections.abc import Callable
from typing import Any

from klamm.base.slices import Steps
from klamm.protocol.compiler.writing import Writer, arrays_of, has_error_codes, has_own_error_code
from klamm.protocol.schema import Struct

# Adds the number of each error code in a response to a dict.
ErrorCounterInSteps = Callable[[Any, dict[int, int]], Steps[None]]
# A message with more elements than this is encoded in steps.
LARGE_ELEMENTS = 500


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
    writer = Writer(0, False, False)
    with writer.block("def function(m):"):
        writer.add("count = 0")
        _count_arrays(writer, struct_class, "m")
        writer.add("return count")
    counter: Callable[[Any], int] = writer.function(f"count {struct_class.__name__}")
    return counter


def _count_arrays(writer: Writer, struct_class: type[Struct], variable: str) -> None:
    for one in arrays_of(struct_class):
        values = writer.name("a")
        writer.add(f"{values} = {variable}.{one.name}")
        with writer.block(f"if {values}:"):
            writer.add(f"count += len({values})")
            if not isinstance(one.kind, str) and arrays_of(one.kind):
                element = writer.name("x")
                with writer.block(f"for {element} in {values}:"):
                    with writer.block(f"if count > {LARGE_ELEMENTS}:"):
                        writer.add("return count")
                    _count_arrays(writer, one.kind, element)


def compile_error_counter_in_steps(response: type[Struct]) -> ErrorCounterInSteps:
    """A function (response, counts) in steps: adds 1 to the count of each error code in it. A response whose class has
    no error code counts as one without an error."""
    writer = Writer(0, False, True)
    with writer.block("def function(m, counts):"):
        writer.add("left = STEP")
        writer.add("yield")
        if has_error_codes(response):
            _count_errors(writer, response, "m")
        else:
            writer.add("counts[0] = counts.get(0, 0) + 1")
    counter: ErrorCounterInSteps = writer.function(f"errors of {response.__name__} in steps")
    return counter


def _count_errors(writer: Writer, struct_class: type[Struct], variable: str) -> None:
    if has_own_error_code(struct_class):
        writer.add(f"code = {variable}.error_code")
        writer.add("counts[code] = counts.get(code, 0) + 1")
    for one in arrays_of(struct_class):
        if not isinstance(one.kind, str) and has_error_codes(one.kind):
            element = writer.name("x")
            with writer.block(f"for {element} in {variable}.{one.name} or ():"):
                writer.add("left -= 1")
                with writer.block("if not left:"):
                    writer.add("left = STEP")
                    writer.add("yield")
                _count_errors(writer, one.kind, element)
