"""Long work as a generator that pauses every few milliseconds. `klamm.base.slices` runs it beside other work."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that pauses every few milliseconds, so that its caller may do other work in between."""


def in_one_go(steps: Generator[object, None, T]) -> T:
    """Takes all steps of some work without a pause. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
