"""Lines about what others do: each once, repetitions counted, in bounded log and memory."""

import asyncio
import logging

import pytest

from klamm.base import repeated_lines
from klamm.base.repeated_lines import MAX_CHARACTERS, MAX_NEW_LINES, MAX_REMEMBERED, WINDOW_S, RepeatedLines

LOGGER = logging.getLogger("klamm.repeated")


@pytest.mark.loop("virtual")
async def test_a_line_is_written_once_and_its_repetitions_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    lines = RepeatedLines(LOGGER)
    for position in range(5):
        lines.warn("10.0.0.1", f"no request at byte {position}")
    lines.warn("10.0.0.2", "no request at byte 7")
    assert caplog.messages == ["10.0.0.1: no request at byte 0", "10.0.0.2: no request at byte 7"]
    await asyncio.sleep(WINDOW_S + 1)
    assert caplog.messages[2:] == ["10.0.0.1: no request at byte 0 (4 more)"]
    await asyncio.sleep(10 * WINDOW_S)
    lines.warn("10.0.0.2", "no request at byte 8")
    lines.close()
    assert caplog.messages[3:] == ["10.0.0.2: no request at byte 7 (1 more)"]


@pytest.mark.loop("virtual")
async def test_others_fill_neither_the_log_nor_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    lines = RepeatedLines(LOGGER)
    rounds = 2 * MAX_REMEMBERED // MAX_NEW_LINES
    for number in range(rounds):
        for client in "abcdefghij" * MAX_NEW_LINES:
            lines.warn(f"{number} {client}" * MAX_CHARACTERS, "a reason" * MAX_CHARACTERS)
        for length in range(MAX_NEW_LINES):
            lines.warn(f"{number} {'x' * length}", "a reason")
        await asyncio.sleep(WINDOW_S + 1)
    lines.close()
    assert len(lines._lines) <= MAX_REMEMBERED
    assert max(map(len, caplog.messages)) < 3 * MAX_CHARACTERS
    assert len(caplog.messages) <= rounds * (MAX_NEW_LINES + 11)
    assert caplog.messages[-1] == "10 more lines of this kind are left out"


@pytest.mark.loop("virtual")
async def test_without_repetitions_nothing_runs(caplog: pytest.LogCaptureFixture) -> None:
    lines = RepeatedLines(LOGGER)
    lines.warn("a", "once")
    await asyncio.sleep(2 * repeated_lines.WINDOW_S)
    assert lines._timer is None and caplog.messages == ["a: once"]
    lines.close()
