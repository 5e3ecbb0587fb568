"""Jobs for the worker process of tests/base/test_worker.py, which imports them there."""

import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any


def count(to: int) -> Generator[int, None, int]:
    """As many steps."""
    for _ in range(to):
        yield 0
    return to


def pid() -> Generator[int, None, int]:
    yield 0
    return os.getpid()


def fail(error: Exception) -> Generator[int, None, None]:
    yield 0
    raise error


def die() -> Generator[int, None, None]:
    yield 0
    os.kill(os.getpid(), signal.SIGKILL)


def mark_steps(path: str) -> Generator[int, None, None]:
    """Without end; each step makes the file longer."""
    with Path(path).open("ab", buffering=0) as file:
        while True:
            file.write(b".")
            time.sleep(0.001)
            yield 0


def echo(value: Any) -> Generator[int, None, Any]:
    yield 0
    return value


def tidy(path: str) -> Generator[int, None, None]:
    """Without end; whoever ends it early can read that in the file."""
    Path(path).write_text("begun")
    try:
        while True:
            time.sleep(0.001)
            yield 0
    finally:
        Path(path).write_text("tidied")
