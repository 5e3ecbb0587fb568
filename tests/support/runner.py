"""Runs tests that are `async def`, each on a loop of its own. A pytest plugin; tests/conftest.py loads it.

    async def test_...() -> None:                # on asyncio's loop
    @pytest.mark.loop("uvloop")                  # on the loop of a broker process
    @pytest.mark.loop("asyncio", "uvloop")       # on either, as two tests
    @pytest.mark.loop("virtual")                 # on the simulator's: waiting takes no time

A test fails, too, if it leaves a task behind, or if an exception ends in the loop, where nobody sees it.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from klamm.simulation.machine.loop import simulated_loop

# Only a test that hangs takes so long, however busy the machine is.
LIMIT_S = 900
# Callbacks that end what a test has closed.
TURNS_TO_END = 20

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "loop(*names): the loops of an async test: asyncio, uvloop, virtual")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = _loops(metafunc.definition)
    if inspect.iscoroutinefunction(metafunc.function) and len(names) > 1:
        metafunc.fixturenames.append("loop_name")
        metafunc.parametrize("loop_name", names)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    parameters = pyfuncitem.callspec.params if hasattr(pyfuncitem, "callspec") else {}
    name = str(parameters.get("loop_name", _loops(pyfuncitem)[0]))
    arguments = {argument: pyfuncitem.funcargs[argument] for argument in pyfuncitem._fixtureinfo.argnames}
    run(name, pyfuncitem.obj(**arguments))
    return True


def run(loop_name: str, test: Coroutine[Any, Any, None]) -> None:
    if loop_name == "virtual":
        simulated_loop().run_until_complete(test)  # which is as strict
        return
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(_judged(test))


async def _judged(test: Coroutine[Any, Any, None]) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    async with asyncio.timeout(LIMIT_S):
        await test
    for _ in range(TURNS_TO_END):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, "the test left tasks behind:\n" + "\n".join(map(repr, left))
    for context in unseen:
        raise AssertionError(context["message"]) from context.get("exception")


def _loops(item: pytest.Item) -> tuple[str, ...]:
    marker = item.get_closest_marker("loop")
    return marker.args if marker is not None else ("asyncio",)
