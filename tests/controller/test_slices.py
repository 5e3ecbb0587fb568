"""Slices: every item once, turns of the loop in between, and no work behind the caller's back."""

import asyncio
from collections.abc import Sequence

import pytest

from klamm.controller import slices


@pytest.fixture(autouse=True)
def slices_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE", 2)


def test_others_have_a_turn_after_each_slice() -> None:
    async def scenario() -> None:
        seen: list[object] = []
        asyncio.get_running_loop().call_soon(seen.append, "other")
        async for piece in slices.slices([1, 2, 3, 4, 5]):
            seen.append(list(piece))
        assert seen == [[1, 2], "other", [3, 4], [5]]

    asyncio.run(scenario())


def test_results_come_in_order_whoever_is_ready_first() -> None:
    async def scenario() -> None:
        second = asyncio.Event()

        async def work(piece: Sequence[int]) -> int:
            if piece[0] == 1:
                await second.wait()
            else:
                second.set()
            return sum(piece)

        assert await slices.for_slices([1, 2, 3], work) == [3, 3]
        assert await slices.for_slices([], work) == []

    asyncio.run(scenario())


def test_the_first_failure_is_raised_when_all_are_through() -> None:
    async def scenario() -> None:
        done = []

        async def work(piece: Sequence[int]) -> None:
            if piece[0] == 3:
                await asyncio.sleep(0)
                done.append(piece)
            else:
                raise ValueError(piece[0])

        with pytest.raises(ValueError, match="1"):
            await slices.for_slices([1, 2, 3, 4, 5, 6], work)
        assert done == [[3, 4]]

    asyncio.run(scenario())


def test_work_ends_when_its_caller_is_cancelled() -> None:
    async def scenario() -> None:
        ended = []

        async def work(piece: Sequence[int]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(piece[0])

        for turns in (1, 2, 5):
            task = asyncio.create_task(slices.for_slices([1, 2, 3, 4, 5], work))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_one_turn_for_one_caller_however_many_are_ready() -> None:
    async def scenario() -> None:
        turns, seen = slices.Turns(), []
        loop = asyncio.get_running_loop()

        async def work(name: str) -> None:
            await turns.wait()
            seen.append(name)

        def other() -> None:
            if len(seen) < 3:
                seen.append("-")
                loop.call_soon(other)

        cancelled = [asyncio.ensure_future(work(name)) for name in "abc"][1]
        await asyncio.sleep(0)
        cancelled.cancel()
        loop.call_soon(other)
        for _ in range(10):
            await asyncio.sleep(0)
        assert [name for name in seen if name != "-"] == ["a", "c"]
        assert seen.index("c") - seen.index("a") > 1

    asyncio.run(scenario())
