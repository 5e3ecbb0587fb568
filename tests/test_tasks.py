"""Long work in turns: one after the other, and what is short waits for nobody."""

import asyncio
from collections.abc import Generator

import pytest

from klamm.tasks import Turns


def work(name: str, steps: int, taken: list[str]) -> Generator[None, None, str]:
    for _ in range(steps):
        taken.append(name)
        yield
    return name


def test_long_work_is_done_one_after_the_other_and_short_work_at_once() -> None:
    async def scenario() -> None:
        turns, taken = Turns(), list[str]()
        long = [asyncio.ensure_future(turns.take(work(name, 4, taken))) for name in "abc"]
        await asyncio.sleep(0)
        assert await turns.take(work("short", 0, taken)) == "short"
        assert await asyncio.gather(*long) == ["a", "b", "c"]
        # Of each the first step, which tells whether it is long.
        assert "".join(taken) == "abcaaabbbccc"

    asyncio.run(scenario())


def test_work_that_is_cancelled_or_fails_gives_its_turn_to_the_next() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError

    async def scenario() -> None:
        turns, taken = Turns(), list[str]()
        running = asyncio.ensure_future(turns.take(work("a", 1000, taken)))
        waiting = asyncio.ensure_future(turns.take(work("b", 1000, taken)))
        fails = asyncio.ensure_future(turns.take(failing()))
        last = asyncio.ensure_future(turns.take(work("d", 3, taken)))
        await asyncio.sleep(0)
        waiting.cancel()
        running.cancel()
        with pytest.raises(ValueError):
            await fails
        assert await last == "d"
        assert len(taken) < 10

    asyncio.run(scenario())
