"""The loop in a thread: what a caller is told when the thread ends or dies."""

import asyncio
import sys
import threading

import pytest

from klamm.processes.loop_thread import LoopEnded, LoopThread


async def answer() -> int:
    return 42


async def hang() -> None:
    await asyncio.sleep(3600)


@pytest.fixture
def dead_loop(monkeypatch: pytest.MonkeyPatch) -> LoopThread:
    """A loop whose thread an error has ended while a coroutine ran."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    loop = LoopThread("dying")
    loop.call_soon(lambda: loop.call_soon(sys.exit))
    with pytest.raises(LoopEnded, match="the thread of the loop has died"):
        loop.run(hang())
    return loop


def test_a_coroutine_is_run() -> None:
    loop = LoopThread("t")
    assert loop.run(answer()) == 42
    loop.close()
    with pytest.raises(LoopEnded):
        loop.run(answer())


def test_nobody_waits_for_a_thread_that_has_died(dead_loop: LoopThread) -> None:
    began = []

    async def begin() -> None:
        began.append(True)

    with pytest.raises(LoopEnded, match="the thread of the loop has died"):
        dead_loop.run(begin())
    dead_loop.close()
    assert not began, "what was refused has been run"
    with pytest.raises(LoopEnded, match="the loop has ended"):
        dead_loop.run(answer())
