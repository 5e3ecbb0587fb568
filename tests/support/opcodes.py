"""How much Python a step of the loop, or a block, executes: the same on every machine, unlike a time."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Self


class Steps:
    """The opcodes of the longest step so far, and the function in which most of them were."""

    def __init__(self) -> None:
        self.opcodes = 0
        self.function = ""
        self._counts: dict[CodeType, int] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            if "/zookeeper/server/" in frame.f_code.co_filename:
                return None  # another process, outside of tests
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            code = frame.f_code
            self._counts[code] = self._counts.get(code, 0) + 1
        return self.trace

    @contextmanager
    def step(self) -> Iterator[None]:
        self._counts = {}
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(None)
            opcodes = sum(self._counts.values())
            if opcodes > self.opcodes:
                self.opcodes = opcodes
                self.function = max(self._counts, key=lambda code: self._counts[code]).co_qualname


@contextmanager
def counted_steps() -> Iterator[Steps]:
    """Counts in every step of asyncio's loop inside the block."""
    steps = Steps()
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def counted(handle: asyncio.Handle) -> None:
        with steps.step():
            run(handle)

    asyncio.Handle._run = counted  # type: ignore[attr-defined]
    try:
        yield steps
    finally:
        asyncio.Handle._run = run  # type: ignore[attr-defined]


class Opcodes:
    """Counts the opcodes of a block: `with Opcodes() as found: ...; found.count`. Fails as soon as there are more than
    `most`.
    """

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self._most = most

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.count += 1
            if self._most is not None and self.count > self._most:
                raise AssertionError(f"more than {self._most} opcodes, now in {frame.f_code.co_qualname}")
        return self._trace
