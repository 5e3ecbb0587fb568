"""Long work in slices, one after the other; what is short waits for nobody."""

import asyncio
import sys
from collections.abc import Generator, Sequence

import pytest

from klamm.base.slices import SLICE_MS, Slices, Turns, each, for_slices, slices


def work(name: str, steps: int, taken: list[str]) -> Generator[None, None, str]:
    for _ in range(steps):
        taken.append(name)
        yield
    return name


async def test_long_work_is_done_one_after_the_other_and_short_work_at_once() -> None:
    turns, taken = Turns(), list[str]()
    long = [asyncio.ensure_future(turns.take(work(name, 4, taken))) for name in "abc"]
    await asyncio.sleep(0)
    assert await turns.take(work("short", 0, taken)) == "short"
    assert await asyncio.gather(*long) == ["a", "b", "c"]
    # Of each the first step, which tells whether it is long.
    assert "".join(taken) == "abcaaabbbccc"


async def test_work_that_is_cancelled_or_fails_gives_its_turn_to_the_next() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError

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


def test_a_slice_is_over_after_so_many_pieces() -> None:
    slices = Slices(3)
    assert [slices.spend() for _ in range(6)] == [False, False, True] * 2
    assert slices.spend(5)


def test_a_slice_is_over_when_its_pieces_take_long() -> None:
    now_ms = 0.0
    slices = Slices(100, lambda: now_ms / 1000)
    assert not slices.spend()
    now_ms += SLICE_MS
    assert slices.spend()
    # Others have the loop for long; that is no part of the next slice.
    now_ms += 1000
    assert not slices.spend()
    now_ms += SLICE_MS - 1
    assert not slices.spend()
    now_ms += 1
    assert slices.spend()


async def test_others_have_a_turn_after_each_slice() -> None:
    seen: list[object] = []
    asyncio.get_running_loop().call_soon(seen.append, "other")
    async for piece in slices([1, 2, 3, 4, 5], 2):
        seen.append(list(piece))
    assert seen == [[1, 2], "other", [3, 4], [5]]
    asyncio.get_running_loop().call_soon(seen.append, "later")
    assert [item async for item in each(range(4), 4)] == [0, 1, 2, 3]
    assert seen[-1] == [5]  # Nobody waits after the last piece.


async def test_nested_loops_share_a_slice_in_which_items_may_weigh_more() -> None:
    seen: list[object] = []

    def other() -> None:
        seen.append("other")
        asyncio.get_running_loop().call_soon(other)

    other()
    sliced = Slices(3)
    for letter in "abcd":
        async for item in each([letter], sliced):
            seen.append(item)
            if item == "c":
                sliced.count(2)
            if item == "d":
                sliced.count(2)
    async for item in each("e", sliced):
        seen.append(item)
    assert seen == ["other", "a", "b", "c", "other", "d", "other", "e"]


async def test_a_slice_of_items_is_over_when_they_take_long() -> None:
    now_s = [0.0]
    seen: list[object] = []
    asyncio.get_running_loop().call_soon(seen.append, "other")
    async for item in each(range(4), Slices(100, lambda: now_s[0])):
        seen.append(item)
        now_s[0] += SLICE_MS / 2000
    assert seen == [0, 1, "other", 2, 3]


async def test_the_items_of_an_iterator_are_taken_one_by_one() -> None:
    made: list[int] = []
    async for item in each(made.append(number) or number for number in range(3)):
        assert made == list(range(item + 1))


async def test_results_come_in_order_whoever_is_ready_first() -> None:
    second = asyncio.Event()

    async def work(piece: Sequence[int]) -> int:
        if piece[0] == 1:
            await second.wait()
        else:
            second.set()
        return sum(piece)

    assert await for_slices([1, 2, 3], work, 2) == [3, 3]
    assert await for_slices([], work, 2) == []


async def test_the_first_failure_is_raised_when_all_are_through() -> None:
    done = []

    async def work(piece: Sequence[int]) -> None:
        if piece[0] == 3:
            await asyncio.sleep(0)
            done.append(list(piece))
        else:
            raise ValueError(piece[0])

    with pytest.raises(ValueError, match="1"):
        await for_slices([1, 2, 3, 4, 5, 6], work, 2)
    assert done == [[3, 4]]


async def test_work_ends_when_its_caller_is_cancelled() -> None:
    ended = []

    async def work(piece: Sequence[int]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(piece[0])

    for turns in (1, 2, 5):
        task = asyncio.create_task(for_slices([1, 2, 3, 4, 5], work, 2))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1


async def test_a_loop_that_ends_early_leaves_nothing_to_be_closed() -> None:
    forgotten: list[object] = []
    sys.set_asyncgen_hooks(finalizer=forgotten.append)
    async for _ in slices(range(9), 2):
        break
    async for _ in each(range(9), 2):
        break
    assert forgotten == []
