"""Takes from a Python process what only Linux has.

Python imports this module when it starts with the module's directory on PYTHONPATH: a cluster that is started so runs
on such a Python, with all its processes.

What must stay true: only the interpreter and the C library are changed, no module of klamm.
"""

import builtins
import ctypes
import fcntl
import os
import resource
import sys
from collections import namedtuple
from typing import Any

# The limits of open files on macOS: at the start, and the highest.
OPEN_FILES = 256
OPEN_MAX = 10_240
C_FUNCTIONS = frozenset({"fallocate", "mallopt", "statfs", "syncfs"})
Uname = namedtuple("Uname", "sysname nodename release version machine")


def take_away() -> None:
    for name in ("RWF_NOWAIT", "fdatasync", "sched_getaffinity"):
        delattr(os, name)
    os.uname = lambda: Uname("Darwin", "host", "23.0.0", "", "arm64")  # type: ignore[assignment,return-value]
    sys.platform = "darwin"
    # The command of macOS whose effect fsync has on Linux.
    fcntl.F_FULLFSYNC = fcntl.F_GETFD  # type: ignore[attr-defined]
    ctypes.CDLL.__getattr__ = _c_function  # type: ignore[method-assign]
    builtins.open = _open
    resource.setrlimit = _setrlimit
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _c_function(self: ctypes.CDLL, name: str) -> Any:
    if name in C_FUNCTIONS:
        raise AttributeError(name)
    return _of_library(self, name)


def _open(file: Any, *arguments: Any, **options: Any) -> Any:
    if str(file).startswith("/proc/"):
        raise FileNotFoundError(file)
    return _opened(file, *arguments, **options)


def _setrlimit(kind: int, limits: tuple[int, int]) -> None:
    if kind == resource.RLIMIT_NOFILE and limits[0] > OPEN_MAX:
        raise ValueError("current limit exceeds maximum limit")
    _limited(kind, limits)


_of_library, _opened, _limited = ctypes.CDLL.__getattr__, builtins.open, resource.setrlimit
take_away()
