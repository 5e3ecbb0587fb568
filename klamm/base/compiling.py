"""Compiles the loops over bytes with numba, and keeps the machine code on disk.

New code is kept in the first writable and safe directory of these: `NUMBA_CACHE_DIR` (if set), klamm's own
`__pycache__`, the user's cache directory, and a directory of the user below the system's temporary directory. Code in
the other directories is used, too: an image or an archive may bring code in a directory that cannot be written to.

What must stay true:
- Code is used only for the source that it was compiled from, wherever the source lies and whatever its date is: the
  name of a function's directory has a hash of the modules that the function needs, of the versions and of the
  processor.
- A directory has one function, compiled for one signature. For several signatures numba numbers the files, and two
  processes that write at the same time would use the same number.
- Damaged or unwritable files only cost time: the function is compiled.
- numba executes the files that it reads. So a directory is used only if it is safe: only this user, root and the owner
  of klamm's own code can change the directory, its files and every directory above it. The directories of klamm's own
  code are not checked: a user who can change these can change klamm. The directories are resolved once, so later
  changes of symbolic links have no effect.

Importing this module imports numba.
"""

import grp
import hashlib
import os
import pwd
import shutil
import stat
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from klamm import __version__

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

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
    with _files_of_ones_own():
        path = _directory_of(function)
        if path is None:
            return _njit(signature, function, cache=False)
        try:
            return _njit(signature, function, cache=True)
        except OSError:
            # For example, the disk is full.
            return _njit(signature, function, cache=False)
        except Exception:
            # A damaged file may raise any exception.
            shutil.rmtree(path, ignore_errors=True)
            return _njit(signature, function, cache=_is_writable(path))


def _njit(signature: Any, function: Any, *, cache: bool) -> Any:
    # When numba decorates a function, it takes the directory from this setting.
    before = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelDirectory.__name__}"
    try:
        return numba.njit(signature, cache=cache, **_OPTIONS)(function)
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before


def inlined(function: Function) -> Function:
    """Marks a function that compiled functions call. It is inlined into them, and not compiled on its own."""
    made: Function = numba.njit(**_OPTIONS)(function)
    return made


def compilations() -> Compilations:
    statistics = [made.stats for made in _compiled]
    return Compilations(
        sum(sum(each.cache_hits.values()) for each in statistics),
        sum(sum(each.cache_misses.values()) for each in statistics),
    )


def copy_code(target: Path) -> None:
    """Copies the kept code of this process's functions to another directory."""
    with _files_of_ones_own():
        for made in _compiled:
            path = _directory_of(made.py_func)
            if path is not None and path.parent != target and not _has_code(target / path.name):
                shutil.copytree(path, target / path.name, dirs_exist_ok=True)


# -- directories of the code ------------------------------------------------------------------------------------------


def directory() -> Path | None:
    """The directory for new code; None if no directory is writable and safe."""
    with _files_of_ones_own():
        return _first_writable(tuple(_directories()))


def why_unsafe(path: Path) -> str | None:
    """Why the code in a directory is not used; None if it is safe."""
    for each in (*reversed(path.parents), path):
        if each in _code_directories():
            continue
        try:
            found = each.lstat()
        except OSError:
            return None  # It does not exist, and the directories above decide who may create it.
        if stat.S_ISLNK(found.st_mode):
            return f"{each} is a symbolic link"
        if found.st_uid not in _trusted_users():
            return f"{each} belongs to the user {found.st_uid}"
        # In a sticky directory users can only replace their own files.
        is_sticky = each != path and found.st_mode & stat.S_ISVTX
        if not is_sticky and _others_can_write(found):
            return f"others may write to {each}"
    return None


def _directories() -> Iterator[Path]:
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        yield _real(Path(given) / "klamm")
    yield _real(Path(__file__).parent / "__pycache__" / "compiled")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(home):  # a user without an entry has no home directory
        yield _real(Path(home) / "klamm" / "compiled")
    yield _temporary()


def _temporary() -> Path:
    return _real(Path(tempfile.gettempdir())) / f"klamm-compiled-{os.getuid()}"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@cache
def _first_writable(directories: tuple[Path, ...]) -> Path | None:
    return next((each for each in directories if _is_writable(each)), None)


def _is_writable(path: Path) -> bool:
    """Whether the directory is writable and safe. Creates a missing directory."""
    try:
        if why_unsafe(path) is not None:
            return False
        path.mkdir(mode=0o700 if path == _temporary() else 0o777, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return why_unsafe(path) is None
    except OSError:
        return False


@cache
def _code_directories() -> frozenset[Path]:
    """The directories from which Python executes this module, and those above them."""
    module = _real(Path(__file__))
    return frozenset({module.parent / "__pycache__", *module.parents})


@cache
def _trusted_users() -> frozenset[int]:
    """This user, root, and the owner of this module, whose code is executed anyway."""
    return frozenset({0, os.getuid(), os.stat(_real(Path(__file__)).parent).st_uid})


def _others_can_write(found: os.stat_result) -> bool:
    """Whether other users can write. The group may write if it is root's or this user's own group."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid != 0 and not _is_own_group(found.st_gid)


@cache
def _is_own_group(group_id: int) -> bool:
    """Whether this is a user's private group: one with the user's name and without other members."""
    try:
        name, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


@contextmanager
def _files_of_ones_own() -> Iterator[None]:
    """Others cannot write to new files and directories, whatever the user's umask is.

    All threads share the umask, so only one thread at a time changes it.
    """
    with global_compiler_lock:
        before = os.umask(0o077)
        os.umask(before | _OTHERS_WRITE)
        try:
            yield
        finally:
            os.umask(before)


class KernelDirectory:
    """The directory of one function. numba calls these methods."""

    def __init__(self, path: Path, function: types.FunctionType) -> None:
        self._path = path
        self._function = function

    @classmethod
    def from_function(cls, function: types.FunctionType, _: str) -> "KernelDirectory | None":
        path = _directory_of(function)
        return None if path is None else cls(path, function)

    def ensure_cache_path(self) -> None:
        """Does nothing: `from_function` has created the directory."""

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return _source_hash(self._function)

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


@cache
def _directory_of(function: types.FunctionType) -> Path | None:
    """The directory that has the code of a function, or that can keep it; None if no directory can."""
    name = f"{function.__module__}.{function.__qualname__}-{_source_hash(function)[:16]}"
    for each in _directories():
        if _has_code(each / name):
            return each / name
    home = directory()
    return home / name if home is not None and _is_writable(home / name) else None


def _has_code(path: Path) -> bool:
    """Whether the directory has code that may be executed."""
    try:
        files = list(path.iterdir())
    except OSError:
        return False
    return any(file.suffix == ".nbc" for file in files) and why_unsafe(path) is None and all(map(_is_safe, files))


def _is_safe(file: Path) -> bool:
    try:
        found = file.lstat()
    except OSError:
        return True  # Another process has just replaced the file.
    return stat.S_ISREG(found.st_mode) and found.st_uid in _trusted_users() and not _others_can_write(found)


def _source_hash(function: types.FunctionType) -> str:
    processor = cpu_target.target_context.codegen().magic_tuple()
    found = hashlib.sha256(repr((__version__, numba.__version__, sys.implementation.cache_tag, processor)).encode())
    for name in sorted(_modules(function, set())):
        found.update(name.encode() + b"\0" + _source(name))
    return found.hexdigest()


def _modules(function: types.FunctionType, known: set[str]) -> set[str]:
    """The modules of klamm whose code the function includes, found by the names that it uses."""
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
