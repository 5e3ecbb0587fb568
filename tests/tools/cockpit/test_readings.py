"""When a reading looks again."""

import asyncio

import pytest

from klamm.tools.cockpit import readings
from klamm.tools.cockpit.readings import LARGE_SHARE, Reading


async def test_after_a_look_without_an_answer_the_next_one_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "LOOK_TIMEOUT_S", 0.05)
    is_there = asyncio.Event()

    async def look() -> int:
        await is_there.wait()
        return 5

    reading = Reading(look, 0.0, LARGE_SHARE)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await reading.renew()
    ended_s = loop.time()
    assert reading.why_not == "There was no answer within 0.05 s."
    # Not twenty times as long, as after a look that took so long to be made.
    assert reading._due_s - ended_s <= ended_s - began_s
    assert reading._took_s == 0.0
    is_there.set()
    reading.hurry()
    await reading.renew()
    assert (reading.value, reading.why_not) == (5, None)


@pytest.mark.loop("virtual")
async def test_a_slow_look_is_repeated_within_half_a_minute() -> None:
    async def look() -> int:
        await asyncio.sleep(15)
        return 5

    reading = Reading(look, 5.0, LARGE_SHARE)
    assert reading.age_ms is None
    began_s = asyncio.get_running_loop().time()
    await reading.renew()
    # It took 5 % of five minutes.
    assert reading._due_s == pytest.approx(began_s + 30)
    await asyncio.sleep(5)
    assert reading.age_ms == 5_000
