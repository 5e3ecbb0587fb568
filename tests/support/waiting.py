"""Waiting for what another process does, in tests that have no event to wait for."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], timeout_s: float = 120) -> None:
    """Returns when `holds()` is true. AssertionError when that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.2)
