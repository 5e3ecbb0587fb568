"""What many tasks are ready to do, one piece in each turn of the loop."""

import asyncio

from klamm.controller.turns import LoopTurns


async def test_one_turn_for_one_caller_however_many_are_ready() -> None:
    turns, seen = LoopTurns(), []
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
