"""Enforces at run time what a linter cannot: while a world runs, klamm's code may not touch the real machine.

Python reports files, sockets, threads and processes to audit hooks. A hook can never be removed, so the process has one
hook, armed only while a world runs, for the thread in which it runs. The hook judges by the innermost frame of klamm's
own code: the simulator and the tests may use the real machine, and so may Python when it loads a module or prints a
traceback.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from klamm.simulation.machine.process import SimulationFailure

FORBIDDEN_EVENTS = frozenset({"open", "time.sleep"})
FORBIDDEN_FAMILIES = frozenset({"os", "shutil", "socket", "subprocess", "tempfile", "fcntl", "mmap", "glob", "pathlib"})

# The file of a map that has no file.
_ANONYMOUS = -1

# Loading modules and printing tracebacks reads files.
_LOADERS = ("importlib", "linecache", "tokenize", "traceback")

_fail: Callable[[str], None] | None = None
_thread = -1
_installed = False


@contextmanager
def armed(fail: Callable[[str], None]) -> Iterator[None]:
    """Inside this context, forbidden events raise SimulationFailure where they happen, and are reported to `fail`."""
    global _fail, _thread, _installed  # noqa: PLW0603  # the hook is one for the whole process, whatever we do
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    if _fail is not None:
        raise RuntimeError("only one world can run at a time")
    _fail, _thread = fail, threading.get_ident()
    start_thread = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        # Python's audit event for a new thread differs between versions; before 3.12 there is none.
        _judge("threading.Thread.start", (thread.name,), sys._getframe(1))
        start_thread(thread)

    threading.Thread.start = start  # type: ignore[method-assign, assignment]  # put back below
    try:
        yield
    finally:
        threading.Thread.start = start_thread  # type: ignore[method-assign]
        _fail = None


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event == "mmap.__new__" and arguments[0] == _ANONYMOUS:
        return  # An anonymous map is memory, not a file.
    if _fail is not None and (event in FORBIDDEN_EVENTS or event.partition(".")[0] in FORBIDDEN_FAMILIES):
        _judge(event, arguments, sys._getframe(1))


def _judge(event: str, arguments: tuple[object, ...], frame: FrameType) -> None:
    if threading.get_ident() != _thread:
        return  # Another thread, for example of a real cluster in this process.
    culprit = _culprit(frame)
    if culprit is not None and (fail := _fail) is not None:
        where = f"{culprit.f_code.co_filename.rpartition('/')[2]}:{culprit.f_lineno}"
        message = f"{where} leaves the simulation: {event}{arguments!r}"
        fail(message)
        raise SimulationFailure(message)


def _culprit(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of klamm's production code, unless the simulator or a loader comes first."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_LOADERS) or name.startswith("klamm.simulation"):
            return None
        if name.startswith("klamm."):
            return frame
        frame = frame.f_back
    return None
