"""Watches what a linter cannot see: while a world runs, klamm's code may not touch the real machine.

Python reports files, sockets, threads and processes to audit hooks. A hook can never be removed, so there is one for
the whole process, armed only while a world runs. It judges by the innermost frame of klamm's own code: the simulator
and the tests may do what they like, and so may Python when it loads a module or prints a traceback.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from klamm.simulation.process import SimulationFailure

FORBIDDEN_EVENTS = frozenset({"open", "_thread.start_new_thread", "time.sleep"})
FORBIDDEN_FAMILIES = frozenset({"os", "shutil", "socket", "subprocess", "tempfile", "fcntl", "mmap", "glob", "pathlib"})

# Loading modules and printing tracebacks reads files.
_LOADERS = ("importlib", "linecache", "tokenize", "traceback")

_fail: Callable[[str], None] | None = None
_installed = False


@contextmanager
def armed(fail: Callable[[str], None]) -> Iterator[None]:
    """Inside, forbidden events raise SimulationFailure where they happen, and are told to `fail`."""
    global _fail, _installed  # noqa: PLW0603  # the hook is one for the whole process, whatever we do
    if not _installed:
        sys.addaudithook(_judge)
        _installed = True
    if _fail is not None:
        raise RuntimeError("only one world can run at a time")
    _fail = fail
    try:
        yield
    finally:
        _fail = None


def _judge(event: str, arguments: tuple[object, ...]) -> None:
    fail = _fail
    if fail is None or not (event in FORBIDDEN_EVENTS or event.partition(".")[0] in FORBIDDEN_FAMILIES):
        return
    culprit = _culprit(sys._getframe(1))
    if culprit is not None:
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
