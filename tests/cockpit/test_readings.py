"""When a reading looks again."""

import asyncio

import pytest

from klamm.cockpit.live import readings
from klamm.cockpit.live.readings import LARGE_SHARE, Reading
from klamm.processes.tool_errors import ToolError


async def test_after_a_look_without_an_answer_the_next_one_comes_soon() -> None:
    is_there = asyncio.Event()

    async def look() -> int:
        await is_there.wait()
        return 5

    reading = Reading(look, 0.0, LARGE_SHARE, timeout_s=0.05)
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
    assert reading.dated.at_ms is None
    began_s = asyncio.get_running_loop().time()
    await reading.renew()
    # It took 5 % of five minutes.
    assert reading._due_s == pytest.approx(began_s + 30)
    # It is known until a look is too late, for which the time that looks take counts.
    await asyncio.sleep(15 + readings.LATE_S + 2 * 15 - 1)
    assert (reading.dated.now, reading.why_not) == (5, None)
    await asyncio.sleep(2)
    assert (reading.dated.now, reading.dated.value) == (None, 5)
    assert reading.why_not == "There has been no answer in time."


async def test_what_was_read_is_not_known_while_its_source_does_not_answer() -> None:
    silence: list[str] = []
    outcomes: list[int | ToolError] = [5, ToolError("torn"), 6]

    async def look() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, ToolError):
            raise outcome
        return outcome

    reading = Reading(look, 0.0, why_silent=lambda: silence[0] if silence else None)
    assert (reading.dated.now, reading.why_not) == (None, "It has not been read yet.")
    await reading.renew()
    assert reading.dated.now == 5
    read_ms = reading.dated.at_ms
    silence.append("No broker answers.")
    assert (reading.dated.now, reading.dated.value, reading.why_not) == (None, 5, "No broker answers.")
    silence.clear()
    reading.hurry()
    await reading.renew()
    assert (reading.dated.now, reading.dated.value, reading.dated.at_ms) == (None, 5, read_ms)
    assert reading.why_not == "torn"
    reading.hurry()
    await reading.renew()
    assert (reading.dated.now, reading.why_not) == (6, None)
