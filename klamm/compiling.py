"""Compiles the loops over bytes with numba, and keeps the machine code on disk.

The code is kept in the first of these directories that can be written to: `NUMBA_CACHE_DIR` (if set), klamm's own
`__pycache__`, the user's cache directory, and a directory of the user's below the system's temporary one. Code in any
of the others is used, too: an image or an archive may bring it where nothing can be written.

What must stay true:
- Code is used only for what it was made of, wherever that lies and whatever its date is: a function's directory is
  named by a hash of the modules that the function needs, and of the versions and the processor.
- A directory has one function, compiled for one signature. numba numbers the files of several, and two processes that
  write at once would give both the same number.
- Files that are damaged or cannot be written cost time, and nothing else: the function is compiled.
- Only this user can write to the temporary directory: numba executes what it reads from there.

Importing this module imports numba.
"""

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numba
from numba.core.registry import cpu_target

from klamm import __version__

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False}

_compiled: list[Any] = []


class Compilations(NamedTuple):
    """How many functions of this process were loaded from disk, and how many were compiled."""

    loaded: int
    compiled: int


def compiled(signature: Any) -> Callable[[Function], Function]:
    """Compiles a function for these types at once. The compiled function runs without the GIL and checks no index."""

    def compile_(function: Function) -> Function:
        made: Function = _loaded_or_compiled(signature, function)
        _compiled.append(made)
        return made

    return compile_


def _loaded_or_compiled(signature: Any, function: Any) -> Any:
    path = _directory_of(function)
    if path is None:
        return _njit(signature, function, cache=False)
    try:
        return _njit(signature, function, cache=True)
    except OSError:
        # The disk is full, for example.
        return _njit(signature, function, cache=False)
    except Exception:
        # A damaged file raises whatever it leads to.
        shutil.rmtree(path, ignore_errors=True)
        return _njit(signature, function, cache=_is_writable(path))


def _njit(signature: Any, function: Any, *, cache: bool) -> Any:
    # numba asks this setting where to keep a function, when it decorates one.
    before = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelDirectory.__name__}"
    try:
        return numba.njit(signature, cache=cache, **_OPTIONS)(function)
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before


def inlined(function: Function) -> Function:
    """For a function that compiled functions call: it becomes a part of each, and is not compiled on its own."""
    made: Function = numba.njit(**_OPTIONS)(function)
    return made


def compilations() -> Compilations:
    statistics = [made.stats for made in _compiled]
    return Compilations(
        sum(sum(each.cache_hits.values()) for each in statistics),
        sum(sum(each.cache_misses.values()) for each in statistics),
    )


def copy_code(target: Path) -> None:
    """Copies the code of this process's functions to a directory, as far as it has been kept elsewhere."""
    for made in _compiled:
        path = _directory_of(made.py_func)
        if path is not None and path.parent != target and not _has_code(target / path.name):
            shutil.copytree(path, target / path.name, dirs_exist_ok=True)


# -- where the code is ------------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The directory that new code goes to; None if no directory can be written to."""
    return _first_writable(tuple(_directories()))


def _directories() -> Iterator[Path]:
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        yield Path(given).absolute() / "klamm"
    yield Path(__file__).parent / "__pycache__" / "compiled"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home):  # a user without an entry has no home directory
        yield Path(home) / "klamm" / "compiled"
    yield _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"klamm-compiled-{os.getuid()}"


@cache
def _first_writable(directories: tuple[Path, ...]) -> Path | None:
    return next((each for each in directories if _is_writable(each)), None)


def _is_writable(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700 if path == _temporary() else 0o777, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path != _temporary() or _is_private(path)
    except OSError:
        return False


def _is_private(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


class KernelDirectory:
    """Where numba keeps one function: numba calls these methods."""

    def __init__(self, path: Path, function: types.FunctionType) -> None:
        self._path = path
        self._function = function

    @classmethod
    def from_function(cls, function: types.FunctionType, _: str) -> "KernelDirectory | None":
        path = _directory_of(function)
        return None if path is None else cls(path, function)

    def ensure_cache_path(self) -> None:
        """The directory is there since `from_function`."""

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return _source_hash(self._function)

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


@cache
def _directory_of(function: types.FunctionType) -> Path | None:
    """The directory with the code of a function, or where it can be kept; None for no directory."""
    name = f"{function.__module__}.{function.__qualname__}-{_source_hash(function)[:16]}"
    for each in _directories():
        if _has_code(each / name) and (each != _temporary() or _is_private(each)):
            return each / name
    home = directory()
    return home / name if home is not None and _is_writable(home / name) else None


def _has_code(path: Path) -> bool:
    try:
        return any(file.suffix == ".nbc" for file in path.iterdir())
    except OSError:
        return False


def _source_hash(function: types.FunctionType) -> str:
    processor = cpu_target.target_context.codegen().magic_tuple()
    found = hashlib.sha256(repr((__version__, numba.__version__, sys.implementation.cache_tag, processor)).encode())
    for name in sorted(_modules(function, set())):
        found.update(name.encode() + b"\0" + _source(name))
    return found.hexdigest()


def _modules(function: types.FunctionType, known: set[str]) -> set[str]:
    """The modules of klamm whose code becomes a part of the function, by the names that it uses."""
    known.add(function.__module__)
    for name in function.__code__.co_names:
        used = function.__globals__.get(name)
        module = getattr(used, "__module__", None)
        if isinstance(module, str) and module.startswith("klamm.") and used is not function:
            inner = getattr(used, "py_func", None)
            if inner is None:
                known.add(module)
            elif inner is not function:
                _modules(inner, known)
    return known


@cache
def _source(module: str) -> bytes:
    specification = sys.modules[module].__spec__
    assert specification is not None
    assert specification.origin is not None
    # The loader reads a module in a zip file, too.
    data: bytes = specification.loader.get_data(specification.origin)  # type: ignore[union-attr]
    return data
