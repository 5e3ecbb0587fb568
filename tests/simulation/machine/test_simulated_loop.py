import asyncio
import gc
from typing import Any

import pytest

from klamm.simulation.machine import loop
from klamm.simulation.machine.loop import START_S, SimulatedLoop
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World


def run(scenario, **limits):
    return World(1).run(scenario, **limits)


async def pause(delay_s):
    await asyncio.sleep(delay_s)


def test_time_is_virtual_and_jumps():
    async def scenario():
        loop = asyncio.get_running_loop()
        assert loop.time() == START_S
        await asyncio.sleep(3600)
        return loop.time() - START_S

    assert run(scenario()) == 3600


def test_order_is_fifo_and_timers_go_by_time_then_creation():
    async def scenario():
        loop, order = asyncio.get_running_loop(), []
        for delay, name in [(2, "c"), (1, "a"), (2, "d"), (1, "b"), (2, "e")]:
            loop.call_later(delay, order.append, name)
        loop.call_soon(order.append, "1")
        loop.call_soon(order.append, "2")
        cancelled = loop.call_later(1, order.append, "never")
        cancelled.cancel()
        await asyncio.sleep(3)
        return "".join(order)

    assert run(scenario()) == "12abcde"


def test_a_passed_timer_does_not_turn_the_clock_back():
    async def scenario():
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_at(START_S - 10, done.set_result, None)
        await done
        return loop.time()

    assert run(scenario()) == START_S


def test_many_cancelled_timers_are_swept_and_the_others_run():
    async def scenario():
        loop, order = asyncio.get_running_loop(), []
        for number in range(5000):
            timer = loop.call_later(1 + number / 1000, order.append, number)
            if number % 100:
                timer.cancel()
        assert isinstance(loop, SimulatedLoop)
        assert len(loop._timers) < 3000
        await asyncio.sleep(10)
        return order

    assert run(scenario()) == list(range(0, 5000, 100))


def test_asyncio_works_on_it():
    async def scenario():
        lock, queue, event = asyncio.Lock(), asyncio.Queue(1), asyncio.Event()

        async def produce():
            for number in range(3):
                async with lock:
                    await queue.put(number)
            event.set()

        async def consume():
            await asyncio.sleep(1)
            return [await queue.get() for _ in range(3)]

        _, received = await asyncio.gather(produce(), consume())
        await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return received

    assert run(scenario()) == [0, 1, 2]


def test_a_deadlock_says_who_waits_where():
    async def inner():
        await asyncio.Event().wait()

    async def outer():
        await inner()

    async def scenario():
        task = asyncio.create_task(outer(), name="the waiting one")
        await task

    with pytest.raises(SimulationFailure, match=r"deadlock") as failure:
        run(scenario())
    assert "the waiting one: outer (test_simulated_loop.py:" in str(failure.value)
    assert "> inner (test_simulated_loop.py:" in str(failure.value)
    assert failure.value.__notes__ == ["simulation seed 1, after 0 virtual microseconds"]


def test_the_time_limit_says_who_waits():
    async def scenario():
        while True:
            await pause(1)

    with pytest.raises(SimulationFailure, match=r"not done after 60 virtual seconds:\n.*scenario: scenario"):
        run(scenario(), time_limit_s=60)


def test_endless_steps_in_one_instant_fail(monkeypatch):
    monkeypatch.setattr("klamm.simulation.machine.loop.MAX_STEPS_PER_INSTANT", 1000)

    async def scenario():
        while True:
            await pause(0)

    with pytest.raises(SimulationFailure, match="steps and no time passes"):
        run(scenario())


def test_what_the_scenario_raises_is_raised():
    async def scenario():
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError) as failure:
        run(scenario())
    assert failure.value.__notes__ == ["simulation seed 1, after 1000000 virtual microseconds"]


def test_an_exception_in_a_callback_fails_the_run():
    async def scenario():
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailure, match="Exception in callback") as failure:
        run(scenario())
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


async def broken():
    raise KeyError("nobody looks")


def test_an_exception_that_nobody_looks_at_fails_the_run():
    async def scenario():
        task = asyncio.create_task(broken())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailure, match="never retrieved"):
        run(scenario())


def test_it_fails_the_run_even_when_the_task_is_kept_to_the_end():
    kept: list[Any] = []

    async def scenario():
        kept.append(asyncio.create_task(broken()))
        await asyncio.sleep(1)
        cycle: list[Any] = [kept.pop()]
        cycle.append(cycle)

    with pytest.raises(SimulationFailure, match="never retrieved"):
        run(scenario())


def test_a_task_that_everybody_forgets_fails_the_run():
    async def forgotten():
        await asyncio.get_running_loop().create_future()

    async def scenario():
        asyncio.create_task(forgotten())  # noqa: RUF006
        await asyncio.sleep(1)
        gc.collect()
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailure, match="Task was destroyed but it is pending"):
        run(scenario())


def test_tasks_of_the_scenario_must_end_with_it():
    kept: list[Any] = []

    async def scenario():
        kept.append(asyncio.create_task(asyncio.sleep(1), name="late"))
        await asyncio.sleep(0)

    with pytest.raises(SimulationFailure, match="left tasks behind:\nlate: sleep"):
        run(scenario())


def test_a_forgotten_asynchronous_generator_fails_the_run():
    async def numbers():
        yield 1
        yield 2

    async def scenario():
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailure, match="generator was not closed"):
        run(scenario())


@pytest.mark.parametrize(
    "leave",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.add_reader(0, print),
        lambda loop: loop.add_signal_handler(15, print),
        lambda loop: loop.call_soon_threadsafe(print),
        lambda loop: loop.subprocess_shell(None, "ls"),
        lambda loop: loop.sock_accept(None),
        lambda loop: loop.create_datagram_endpoint(None),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(leave):
    async def scenario():
        leave(asyncio.get_running_loop())

    with pytest.raises(SimulationFailure, match=r"loop\.\w+ leaves the simulation"):
        run(scenario())


def test_unnamed_tasks_are_numbered_per_world():
    async def scenario():
        async def name():
            task = asyncio.current_task()
            assert task is not None
            return task.get_name()

        return await asyncio.gather(name(), name())

    assert run(scenario()) == run(scenario()) == ["Task-1", "Task-2"]


def test_the_collector_runs_at_fixed_steps_only():
    async def scenario():
        return gc.isenabled()

    assert gc.isenabled()
    assert run(scenario()) is False
    assert gc.isenabled()


def test_what_the_process_has_frozen_stays_so_and_what_the_loop_freezes_does_not(monkeypatch):
    async def scenario():
        return gc.get_freeze_count() > 0

    frozen = gc.get_freeze_count()
    assert frozen > 0, "support.heap freezes what the tests have imported"
    assert run(scenario())
    assert gc.get_freeze_count() > frozen / 2
    gc.unfreeze()
    monkeypatch.setattr(loop, "_is_kept_frozen", False)
    try:
        assert run(scenario())
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()
