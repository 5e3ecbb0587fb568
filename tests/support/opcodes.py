"""How much work a step of the loop, or a block, does: the same on every machine, unlike a time.

The measure is the opcode of Python. If asked for, what a step does outside of Python counts as opcodes too, as far as
it is named in `COSTS`: calls of the disk, bytes that are copied or checked, and entries of indexes. The loop's clock
stands still in a step, so slices that end by the clock end by their number of pieces.
"""

import asyncio
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any, Self

from klamm.storage.segments.search_index import SearchIndex

Cost = Callable[[Mapping[str, Any]], int]

# Known once: a block may begin within a step, in which the clock stands still.
_CLOCK = asyncio.BaseEventLoop.time

# So many opcodes take less than 20 ms.
MAX_OPCODES = 1_200_000
# One call of the disk takes some ten microseconds; to create a file takes a hundred.
_DISK_CALL = 600
_CREATION = 6_000
# A byte that is copied to or from the page cache; one that is checked.
_COPIED_PER_OPCODE = 20
_CHECKED_PER_OPCODE = 200
# An index entry that is unpacked and compared with the one before.
_INDEX_ENTRY = 4

_FILE_CALLS = ("size", "truncate", "allocate", "sync", "close")
_FILE_SYSTEM_CALLS = (
    "exists", "is_directory", "list_directory", "make_directories", "size", "modified_time_ms", "set_modified_time_ms",
    "rename", "remove", "remove_tree", "sync_directory",
)  # fmt: skip


def _index_entries(index: SearchIndex) -> int:
    path = index.file.path
    return os.path.getsize(path) // index.ENTRY.size * _INDEX_ENTRY if os.path.exists(path) else 0


# The functions that do more than their opcodes, and how much more with these arguments.
COSTS: dict[str, Cost] = {
    **{f"SystemFile.{name}": lambda _: _DISK_CALL for name in _FILE_CALLS},
    **{f"SystemFileSystem.{name}": lambda _: _DISK_CALL for name in _FILE_SYSTEM_CALLS},
    "SystemFileSystem.open": lambda arguments: _DISK_CALL if os.path.exists(arguments["path"]) else _CREATION,
    "SystemFile.read": lambda arguments: _DISK_CALL + arguments["size_bytes"] // _COPIED_PER_OPCODE,
    "SystemFile.read_cached": lambda arguments: _DISK_CALL + arguments["size_bytes"] // _COPIED_PER_OPCODE,
    "SystemFile.write": lambda arguments: _DISK_CALL + sum(map(len, arguments["buffers"])) // _COPIED_PER_OPCODE,
    "SearchIndex.read_entries": lambda arguments: _index_entries(arguments["self"]),
    "_crc": lambda arguments: arguments["size_bytes"] // _CHECKED_PER_OPCODE,
}
_FILES_WITH_COSTS = (
    "/klamm/base/system_environment.py",
    "/klamm/protocol/record/record_batch.py",
    "/klamm/storage/segments/search_index.py",
)


# Room for what the interpreter learns about an opcode, which does not run.
_CACHE = 0

# Other processes, outside of tests: they are not counted.
ELSEWHERE = ("/zookeeper/server/", "/tests/support/controller/")


@cache
def _rests_of_lines(code: CodeType) -> list[int]:
    """For each place in the code: the opcodes of its line from there on."""
    rests: list[int] = []
    by_line: Counter[int | None] = Counter()
    for opcode, (line, *_) in reversed([*zip(code.co_code[::2], code.co_positions(), strict=True)]):
        by_line[line] += opcode != _CACHE
        rests.append(by_line[line])
    return rests[::-1]


class Steps:
    """The opcodes of the longest step so far, and the function in which most of them were.

    A line counts with all its opcodes as soon as it begins: some more than run, but told by a fifth of the calls, which
    take nearly all of the time of such a test. Comprehensions, which loop within a line, are counted opcode by opcode.
    """

    def __init__(self, costs: Mapping[str, Cost] | None = None) -> None:
        self.opcodes = 0
        self.function = ""
        self._costs = costs or {}
        self._counts: Counter[CodeType] = Counter()
        self._traces: dict[CodeType, Any] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._traces:
            self._traces[code] = self._trace_of(code)
        if code.co_name.startswith("<"):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        cost = self._costs.get(code.co_qualname)
        if cost is not None and code.co_filename.endswith(_FILES_WITH_COSTS):
            self._counts[code] += cost(frame.f_locals)
        return self._traces[code]

    def _trace_of(self, code: CodeType) -> Any:
        """Counts the lines of a function."""
        if any(place in code.co_filename for place in ELSEWHERE):
            return None
        counts, rests = self._counts, _rests_of_lines(code)

        def count(frame: FrameType, event: str, argument: Any) -> None:
            if event == "line":
                counts[code] += rests[frame.f_lasti // 2]
            elif event == "opcode":
                counts[code] += 1

        return count

    @contextmanager
    def step(self) -> Iterator[None]:
        self._counts.clear()
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(None)
            opcodes = self._counts.total()
            if opcodes > self.opcodes:
                self.opcodes = opcodes
                self.function = max(self._counts, key=lambda code: self._counts[code]).co_qualname


@contextmanager
def counted_steps(costs: Mapping[str, Cost] | None = None) -> Iterator[Steps]:
    """Counts in every step of this thread's loop inside the block. No garbage is collected there: what earlier tests
    have left behind would end in one of the steps."""
    steps = Steps(costs)
    run = asyncio.Handle._run
    thread = threading.get_ident()

    def counted(handle: asyncio.Handle) -> None:
        # The loop of a cluster that other tests share runs beside this one.
        if threading.get_ident() != thread:
            run(handle)
            return
        now_s = _CLOCK(handle._loop)  # type: ignore[attr-defined]
        asyncio.BaseEventLoop.time = lambda _: now_s  # type: ignore[method-assign,assignment]  # steps take no time
        try:
            with steps.step():
                run(handle)
        finally:
            asyncio.BaseEventLoop.time = _CLOCK  # type: ignore[method-assign]

    asyncio.Handle._run = counted  # type: ignore[method-assign,assignment]  # every step
    gc.disable()
    try:
        yield steps
    finally:
        gc.enable()
        asyncio.Handle._run = run  # type: ignore[method-assign]  # as before


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
