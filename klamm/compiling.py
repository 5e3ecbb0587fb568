"""Compiles the loops over bytes with numba, once for each installation where that is possible.

Numba keeps compiled code on disk: beside the module, or, where the module's directory is not writable, in the user's
cache directory (or in NUMBA_CACHE_DIR). An executor may run as a user who can write to neither; then each process
compiles the code itself.

Importing this module imports numba.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False}


def compiled(signature: Any = None) -> Callable[[Function], Function]:
    """Compiles a function for these types at once; without a signature, for the types of its first call.

    The compiled function runs without the GIL and checks no index.
    """

    def compile_(function: Function) -> Function:
        try:
            made: Function = njit(signature, cache=True, **_OPTIONS)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            made = njit(signature, **_OPTIONS)(function)
        return made

    return compile_


def inlined(function: Function) -> Function:
    """For a function that compiled functions call: it becomes a part of each, and is not compiled on its own."""
    made: Function = njit(**_OPTIONS)(function)
    return made
