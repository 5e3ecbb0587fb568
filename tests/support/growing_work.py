"""How the longest step of some work grows with what there is to do: segments of a log, producers, batches, bytes.

`prepare(directory, size)` sets the scene for work of that size, which is not counted, and hands out the work.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

from support.opcodes import COSTS, MAX_OPCODES, Steps, counted_steps

Work = Callable[[], Awaitable[object]]
Prepare = Callable[[Path, int], AbstractAsyncContextManager[Work]]

# With steps as small as they can be, so much work shows whether a step grows with it.
SIZES = (25, 75)
# With the usual slices: more than any of them has pieces.
LARGE_SIZES = (5_500, 8_000)


class Growing(NamedTuple):
    """Work, and the largest size at which each of its steps must stay short."""

    prepare: Prepare
    most: int


async def longest_step(prepare: Prepare, directory: Path, size: int) -> Steps:
    directory.mkdir(parents=True)
    async with prepare(directory, size) as work:
        with counted_steps(COSTS) as steps:
            await asyncio.ensure_future(work())  # In steps of its own: the present one is not counted.
    return steps


async def too_long(growing: Growing, directory: Path, sizes: tuple[int, int] = SIZES) -> str | None:
    """Which step would be too long at the largest size, if any: judged by how it grows between two sizes.

    The work is done once before: what the first one compiles would count at one size only, and hide what grows. What
    grows does so twice. Threads that end together add a few opcodes once, and the largest size multiplies them by
    thousands.
    """
    (directory / "unmeasured").mkdir()
    async with growing.prepare(directory / "unmeasured", min(*SIZES, growing.most)) as work:
        await work()
    first = await _grown(growing, directory / "first", sizes)
    return first and await _grown(growing, directory / "second", sizes)


async def _grown(growing: Growing, directory: Path, sizes: tuple[int, int]) -> str | None:
    if growing.most <= max(sizes):
        sizes = 0, growing.most
    (few, before), (many, after) = [
        (size, await longest_step(growing.prepare, directory / str(size), size) if size else Steps()) for size in sizes
    ]
    for_each = max(0, after.opcodes - before.opcodes) / (many - few) if few else 0
    fixed = after.opcodes - for_each * many
    if fixed + for_each * growing.most <= MAX_OPCODES:
        return None
    limit = max(0, int((MAX_OPCODES - fixed) / for_each)) if for_each else 0
    return (
        f"{for_each:.1f} opcodes for each of up to {growing.most:,}: a step is too long from {limit:,} on,"
        f" most of it in {after.function}"
    )


async def first_too_long(growing: Growing, directory: Path) -> str | None:
    """The same, tried at sizes that double up to the largest one."""
    size = min(growing.most, max(SIZES))
    while True:
        steps = await longest_step(growing.prepare, directory / f"size-{size}", size)
        if steps.opcodes > MAX_OPCODES:
            return f"a step of {steps.opcodes:,} opcodes at {size:,}, most of it in {steps.function}"
        if size == growing.most:
            return None
        size = min(2 * size, growing.most)
