"""Keeps the garbage collector away from what lives as long as the tests. A pytest plugin; tests/conftest.py loads it.

Each run of the simulator's loop ends with a full collection, which reports what nobody has awaited. It looks at every
object of the process: thousands of tests that pytest has found, modules, caches. That takes a third of a second, for
each of hundreds of tests and for each of their examples. Frozen objects are not looked at.

What must stay true: garbage is collected before the rest is frozen, so that it is reported in the file that made it.
"""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is found while tests are collected stays, so a collector that looks through it finds nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    _freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file's tests have imported and cached stays."""
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
