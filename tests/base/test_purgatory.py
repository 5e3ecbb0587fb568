"""The purgatory: an operation completes once, by a key or by its deadline."""

import asyncio
from itertools import pairwise

from klamm.base.purgatory import KEYS_PER_SLICE, DelayedOperation, Purgatory


class Switch(DelayedOperation):
    """Ready once it is switched on; counts how often it was asked."""

    def __init__(self) -> None:
        self.on = False
        self.asked = 0

    def is_ready(self) -> bool:
        self.asked += 1
        return self.on


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_is_ready_does_not_wait() -> None:
    purgatory: Purgatory[str] = Purgatory()
    switch = Switch()
    switch.on = True
    assert await purgatory.wait(switch, ["a"], 60_000)
    assert len(purgatory) == 0


async def test_without_time_it_does_not_wait() -> None:
    purgatory: Purgatory[str] = Purgatory()
    assert not await purgatory.wait(Switch(), ["a"], 0)
    assert len(purgatory) == 0


async def test_a_check_of_any_key_completes_it_and_forgets_all_keys() -> None:
    purgatory: Purgatory[str] = Purgatory()
    switch = Switch()
    waiting = asyncio.ensure_future(purgatory.wait(switch, ["a", "b"], 60_000))
    await _settle()
    assert len(purgatory) == 2
    purgatory.check("a")  # not ready yet: stays
    await _settle()
    assert not waiting.done()
    switch.on = True
    purgatory.check("other")  # not its key
    await _settle()
    assert not waiting.done()
    purgatory.check("b")
    assert len(purgatory) == 0
    assert await waiting
    asked = switch.asked
    purgatory.check("a")
    assert switch.asked == asked


async def test_the_deadline_ends_the_wait() -> None:
    purgatory: Purgatory[str] = Purgatory()
    assert not await purgatory.wait(Switch(), ["a"], 1)
    assert len(purgatory) == 0


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    purgatory: Purgatory[str] = Purgatory()
    waiting = asyncio.ensure_future(purgatory.wait(Switch(), ["a", "b"], 60_000))
    await _settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(purgatory) == 0


async def test_waiters_wake_in_the_order_of_their_arrival() -> None:
    purgatory: Purgatory[str] = Purgatory()
    switch = Switch()
    order: list[int] = []

    async def wait(number: int) -> None:
        await purgatory.wait(switch, ["a"], 60_000)
        order.append(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(20)]
    await _settle()
    switch.on = True
    purgatory.check("a")
    await asyncio.gather(*tasks)
    assert order == list(range(20))


async def test_put_tells_within_the_check_that_makes_it_ready() -> None:
    purgatory: Purgatory[str] = Purgatory()
    switch = Switch()
    heard: list[bool] = []
    purgatory.put(switch, ["a", "b"], 60_000, heard.append)
    purgatory.check("a")
    assert heard == []
    switch.on = True
    purgatory.check("b")
    assert heard == [True]
    purgatory.check("a")
    assert heard == [True]
    assert len(purgatory) == 0


async def test_put_tells_of_the_deadline_and_nothing_once_it_is_cancelled() -> None:
    purgatory: Purgatory[str] = Purgatory()
    expired: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    heard: list[bool] = []
    cancelled = purgatory.put(Switch(), ["a"], 1, heard.append)
    purgatory.put(Switch(), ["a"], 2, expired.set_result)
    cancelled.cancel()
    assert await expired is False
    assert heard == []
    assert len(purgatory) == 0


async def test_an_operation_that_another_ones_end_completes_is_told_once() -> None:
    purgatory: Purgatory[str] = Purgatory()
    switch = Switch()
    switch.on = True
    heard: list[str] = []
    second = purgatory.put(switch, ["a"], 60_000, lambda _: heard.append("second"))
    second.cancel()

    def first_done(_is_ready: bool) -> None:
        heard.append("first")
        purgatory.check("a")

    purgatory.put(switch, ["a"], 60_000, first_done)
    purgatory.put(switch, ["a"], 60_000, lambda _: heard.append("third"))
    purgatory.check("a")
    assert heard == ["first", "third"]
    assert len(purgatory) == 0


async def test_what_waited_under_very_many_keys_leaves_the_lists_in_slices() -> None:
    purgatory: Purgatory[int] = Purgatory()
    switch = Switch()
    keys = range(5 * KEYS_PER_SLICE)
    waiting = asyncio.ensure_future(purgatory.wait(switch, keys, 60_000))
    await _settle()
    switch.on = True
    purgatory.check(keys[-1])
    left = [len(purgatory)]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(len(purgatory))
    assert await waiting
    assert [before - after for before, after in pairwise([len(keys), *left])] == [KEYS_PER_SLICE] * 5
    # What is over is asked no more, though it is still in a list.
    assert switch.asked == 2


async def test_what_registers_in_slices_becomes_ready_by_the_first_of_its_keys() -> None:
    purgatory: Purgatory[str] = Purgatory()
    switch = Switch()
    with purgatory.watching(switch, 60_000) as watch:
        watch.add(["a"])
        await _settle()
        switch.on = True
        purgatory.check("a")
        watch.add(["b"])
        assert len(purgatory) == 0
        assert await watch.future


async def test_nobody_waits_any_more_when_the_block_of_a_watch_is_left() -> None:
    purgatory: Purgatory[str] = Purgatory()
    with purgatory.watching(Switch(), 60_000) as watch:
        watch.add(["a"])
        assert len(purgatory) == 1
    assert len(purgatory) == 0


async def test_pairs_and_operations_are_counted_in_steps() -> None:
    purgatory: Purgatory[int] = Purgatory()
    keys = range(KEYS_PER_SLICE)
    waiting = [purgatory.put(Switch(), keys, 60_000, lambda is_ready: None) for _ in range(2)]
    waiting.append(purgatory.put(Switch(), [0], 60_000, lambda is_ready: None))
    steps, count = purgatory.count(), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert end.value == (2 * KEYS_PER_SLICE + 1, 3)
            break
        count += 1
    assert count >= 2
    for operation in waiting:
        operation.cancel()


async def test_operations_that_expire_are_counted() -> None:
    purgatory: Purgatory[int] = Purgatory()
    switch = Switch()
    ready = asyncio.ensure_future(purgatory.watch(switch, [0], 60_000))
    await asyncio.sleep(0)
    switch.on = True
    purgatory.check(0)
    assert await ready
    assert not await purgatory.watch(Switch(), [0], 1)
    assert purgatory.expired_count == 1
