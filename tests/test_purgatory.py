"""The purgatory: an operation completes once, by a key or by its deadline."""

import asyncio

from klamm.purgatory import DelayedOperation, Purgatory


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


def test_what_is_ready_does_not_wait() -> None:
    async def scenario() -> None:
        purgatory: Purgatory[str] = Purgatory()
        switch = Switch()
        switch.on = True
        assert await purgatory.wait(switch, ["a"], 60_000)
        assert len(purgatory) == 0

    asyncio.run(scenario())


def test_without_time_it_does_not_wait() -> None:
    async def scenario() -> None:
        purgatory: Purgatory[str] = Purgatory()
        assert not await purgatory.wait(Switch(), ["a"], 0)
        assert len(purgatory) == 0

    asyncio.run(scenario())


def test_a_check_of_any_key_completes_it_and_forgets_all_keys() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_the_deadline_ends_the_wait() -> None:
    async def scenario() -> None:
        purgatory: Purgatory[str] = Purgatory()
        assert not await purgatory.wait(Switch(), ["a"], 1)
        assert len(purgatory) == 0

    asyncio.run(scenario())


def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        purgatory: Purgatory[str] = Purgatory()
        waiting = asyncio.ensure_future(purgatory.wait(Switch(), ["a", "b"], 60_000))
        await _settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(purgatory) == 0

    asyncio.run(scenario())


def test_waiters_wake_in_the_order_of_their_arrival() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_put_tells_within_the_check_that_makes_it_ready() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_put_tells_of_the_deadline_and_nothing_once_it_is_cancelled() -> None:
    async def scenario() -> None:
        purgatory: Purgatory[str] = Purgatory()
        expired: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heard: list[bool] = []
        cancelled = purgatory.put(Switch(), ["a"], 1, heard.append)
        purgatory.put(Switch(), ["a"], 2, expired.set_result)
        cancelled.cancel()
        assert await expired is False
        assert heard == []
        assert len(purgatory) == 0

    asyncio.run(scenario())


def test_an_operation_that_another_ones_end_completes_is_told_once() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())
