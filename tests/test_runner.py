"""The runner of async tests: a test that went wrong fails, whatever the way."""

import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT, TESTS

PLANTED = """
import asyncio
import pytest
from hypothesis import given, strategies

async def wrong():
    assert False

async def test_an_assertion():
    await wrong()

@pytest.mark.loop("asyncio", "uvloop")
async def test_an_assertion_on_two_loops():
    await wrong()

@pytest.mark.loop("virtual")
async def test_an_assertion_on_the_virtual_loop():
    await wrong()

@pytest.mark.parametrize("number", [1, 2])
async def test_each_case(number):
    assert number > 2

@given(strategies.integers())
async def test_a_property(number):
    await wrong()

async def test_a_coroutine_that_nobody_awaits():
    assert wrong()

def test_a_coroutine_that_is_returned():
    return wrong()

async def test_a_generator():
    yield
    assert False

async def test_an_exception_in_a_task():
    asyncio.create_task(wrong())
    await asyncio.sleep(0)

async def test_an_exception_in_a_callback():
    asyncio.get_running_loop().call_soon(lambda: [][0])

async def test_a_task_that_is_left():
    asyncio.get_running_loop().kept = asyncio.create_task(asyncio.sleep(100))

@pytest.mark.loop("virtual")
async def test_a_task_that_is_left_on_the_virtual_loop():
    asyncio.create_task(asyncio.sleep(100))

async def test_an_assertion_after_its_cancellation():
    asyncio.current_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        await wrong()

@pytest.fixture
async def number():
    yield 1

async def test_a_fixture_that_is_async(number):
    assert number == 1
"""


def test_a_test_that_went_wrong_fails_whatever_the_way(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    options = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "support.runner", "-rA", "-q"]
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{TESTS}"}
    ran = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    outcomes = [line.split()[:2] for line in ran.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR "))]
    assert len(outcomes) == 16, ran.stdout
    assert [test for outcome, test in outcomes if outcome == "PASSED"] == []
