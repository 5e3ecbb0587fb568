"""Long work in slices, one after the other; what is short waits for nobody."""

import asyncio
from collections.abc import Generator, Sequence

import pytest

from klamm.slices import SLICE_MS, Slices, Turns, each, for_slices, slices


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


def test_a_slice_is_over_after_so_many_pieces() -> None:
    slices = Slices(3)
    assert [slices.is_over() for _ in range(6)] == [False, False, True] * 2
    assert slices.is_over(5)


def test_a_slice_is_over_when_its_pieces_take_long() -> None:
    now_ms = 0.0
    slices = Slices(100, lambda: now_ms / 1000)
    assert not slices.is_over()
    now_ms += SLICE_MS
    assert slices.is_over()
    # Others have the loop for long; that is no part of the next slice.
    now_ms += 1000
    assert not slices.is_over()
    now_ms += SLICE_MS - 1
    assert not slices.is_over()
    now_ms += 1
    assert slices.is_over()


def test_others_have_the_loop_between_two_pieces_but_not_for_the_sake_of_the_last() -> None:
    async def scenario() -> None:
        loop, seen = asyncio.get_running_loop(), list[object]()
        loop.call_soon(seen.append, "another")
        seen += [piece async for piece in slices([1, 2], 2)]
        assert seen == [[1, 2]]
        async for piece in slices([3, 4, 5], 2):
            seen.append(piece)
        assert seen == [[1, 2], [3, 4], "another", [5]]
        assert [item async for item in each(range(5), 2)] == [0, 1, 2, 3, 4]
        assert [piece async for piece in slices([], 2)] == []

    asyncio.run(scenario())


def test_when_one_slice_fails_the_others_are_waited_for() -> None:
    async def scenario() -> None:
        ended: list[int] = []

        async def work(piece: Sequence[int]) -> int:
            await asyncio.sleep(0.001 * piece[0])
            ended.append(piece[0])
            if piece[0] == 1:
                raise ValueError
            return sum(piece)

        assert await for_slices([2, 3, 4], work, 2) == [5, 4]
        ended.clear()
        with pytest.raises(ValueError):
            await for_slices([1, 9, 5], work, 1)
        assert ended == [1, 5, 9]

    asyncio.run(scenario())
