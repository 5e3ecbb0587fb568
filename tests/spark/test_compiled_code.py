"""Where compiled code is kept, that it is used wherever it was made, and that bad files only cost time.

The functions are small ones in a package of their own, beside klamm's `compiling`. Counted, not timed.
"""

import ctypes
import grp
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.paths import ROOT

KERNELS = """
from klamm.base.compiling import compiled
from klamm.part import twice

@compiled("int64(int64)")
def first(number):
    return twice(number) + 1
"""
PART = """
from klamm.base.compiling import inlined

@inlined
def twice(number):
    return number * 2
"""
PROGRAM = """
from klamm.base import compiling
from klamm.kernels import first

assert first(20) == 41
print(*compiling.compilations(), compiling.directory())
"""
LONG = pytest.mark.long
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


class Found(NamedTuple):
    loaded: int
    compiled: int
    directory: str


def without_rights_over_files() -> None:
    """Makes permissions count for root, too."""
    if os.getuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def without_room() -> None:
    """Makes every file end after 1000 bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def start(
    package: Path,
    temporary: Path,
    cache: Path | str = "",
    before: Callable[[], None] = without_rights_over_files,
    **environment: str,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(package),
            "HOME": "/dev/null",
            "TMPDIR": str(temporary),
            "NUMBA_CACHE_DIR": str(cache),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
        preexec_fn=before,  # noqa: PLW1509  # pytest has one thread
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=temporary,
    )


def end(process: subprocess.Popen[str]) -> Found:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    loaded, compiled, directory = out.split()
    return Found(int(loaded), int(compiled), directory)


def run(
    package: Path,
    temporary: Path,
    cache: Path | str = "",
    before: Callable[[], None] = without_rights_over_files,
    **environment: str,
) -> Found:
    """What is counted with the package, where the user's cache directory cannot be made."""
    return end(start(package, temporary, cache, before, **environment))


def package_at(path: Path) -> Path:
    package = path / "klamm"
    package.mkdir(parents=True)
    (package / "base").mkdir()
    for name in ("__init__.py", "base/__init__.py", "base/compiling.py"):
        shutil.copy(ROOT / "klamm" / name, package / name)
    (package / "kernels.py").write_text(KERNELS)
    (package / "part.py").write_text(PART)
    return path


def make_read_only(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        if each.is_dir():
            each.chmod(0o555)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return package_at(tmp_path / "package")


@pytest.fixture(scope="module")
def prewarmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with compiled code, as `klamm pipeline prewarm --directory` makes it."""
    cache, temporary = tmp_path_factory.mktemp("prewarmed"), tmp_path_factory.mktemp("temporary")
    assert run(package_at(temporary / "package"), temporary, cache) == Found(0, 1, str(cache / "klamm"))
    return cache


def test_code_from_another_place_and_another_time_is_used(prewarmed: Path, package: Path, tmp_path: Path) -> None:
    for source in package.rglob("*.py"):
        os.utime(source, (1_000_000_000, 1_000_000_000))
    moved = shutil.copytree(prewarmed, tmp_path / "kernels")
    assert run(package, tmp_path, moved)[:2] == (1, 0)


def test_a_damaged_file_is_written_again(prewarmed: Path, package: Path, tmp_path: Path) -> None:
    cache = shutil.copytree(prewarmed, tmp_path / "kernels")
    (code,) = cache.rglob("*.nbc")
    code.write_bytes(code.read_bytes()[:1000])
    assert run(package, tmp_path, cache)[:2] == (0, 1)
    assert run(package, tmp_path, cache)[:2] == (1, 0)


def test_a_full_disk_only_costs_time(package: Path, tmp_path: Path) -> None:
    assert run(package, tmp_path, tmp_path / "kernels", without_room)[:2] == (0, 1)
    assert [each for each in (tmp_path / "kernels").rglob("*") if each.is_file() and ".tmp" in each.name] == []


@pytest.mark.long
def test_where_nothing_can_be_written_the_code_of_an_image_is_used(
    prewarmed: Path, package: Path, tmp_path: Path
) -> None:
    """Both in a directory that NUMBA_CACHE_DIR names, and beside klamm. Damaged code is compiled each time."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    read_only = shutil.copytree(prewarmed, tmp_path / "kernels")
    for path in (package, read_only):
        make_read_only(path)
    found = run(package, temporary, read_only)
    assert found == Found(1, 0, str(temporary / f"klamm-compiled-{os.getuid()}"))

    image = package_at(tmp_path / "image")
    shutil.copytree(prewarmed / "klamm", image / "klamm" / "__pycache__" / "compiled")
    make_read_only(image)
    assert run(image, temporary) == found

    for index in image.rglob("*.nbi"):
        index.write_bytes(b"")
    assert run(image, temporary)[0] == 0


@pytest.mark.long
def test_code_of_another_source_is_not_used(prewarmed: Path, package: Path, tmp_path: Path) -> None:
    """Also when the change is in a module whose functions become a part of others."""
    with (package / "klamm" / "part.py").open("a") as source:
        source.write("# a change\n")
    assert run(package, tmp_path, shutil.copytree(prewarmed, tmp_path / "kernels"))[:2] == (0, 1)


@pytest.mark.long
def test_code_of_another_version_or_processor_is_not_used(prewarmed: Path, package: Path, tmp_path: Path) -> None:
    """It stays where it is, and is used again by those that it was made for."""
    cache = shutil.copytree(prewarmed, tmp_path / "kernels")
    assert run(package, tmp_path, cache, NUMBA_CPU_NAME="generic")[:2] == (0, 1)
    other = package_at(tmp_path / "other")
    (other / "klamm" / "__init__.py").write_text("__version__ = '0.0.1'")
    assert run(other, tmp_path, cache)[:2] == (0, 1)
    assert run(package, tmp_path, cache)[:2] == (1, 0)
    assert run(package, tmp_path, cache, NUMBA_CPU_NAME="generic")[:2] == (1, 0)


@pytest.mark.long
def test_processes_that_compile_at_once_leave_code_for_all(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "kernels"
    names = ["", "generic"] * 3
    for found in [end(each) for each in [start(package, tmp_path, cache, NUMBA_CPU_NAME=name) for name in names]]:
        assert sum(found[:2]) == 1
    for name in names[:2]:
        assert run(package, tmp_path, cache, NUMBA_CPU_NAME=name)[:2] == (1, 0)


@pytest.mark.parametrize("place", ["HOME", *(pytest.param(name, marks=LONG) for name in ("NUMBA_CACHE_DIR", "TMPDIR"))])
def test_code_where_others_can_write_is_not_executed(
    prewarmed: Path, package: Path, tmp_path: Path, place: str
) -> None:
    """Without any directory that is safe, functions are compiled and not kept."""
    make_read_only(package)
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    planted = {
        "NUMBA_CACHE_DIR": shared / "klamm",
        "HOME": shared / ".cache" / "klamm" / "compiled",
        "TMPDIR": shared / f"klamm-compiled-{os.getuid()}",
    }[place]
    shutil.copytree(prewarmed / "klamm", planted)
    (planted if place == "TMPDIR" else shared).chmod(0o777)
    temporary.mkdir()
    given: dict[str, Any] = {"HOME": "/dev/null", "NUMBA_CACHE_DIR": "", "TMPDIR": str(temporary), place: str(shared)}
    private = "None" if place == "TMPDIR" else str(temporary / f"klamm-compiled-{os.getuid()}")
    assert run(package, temporary, **given) == Found(0, 1, private)


def made(path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    return path


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A directory with the code of a function."""
    directory = made(tmp_path / "a" / "b")
    for name in ("f.nbi", "f.nbc"):
        (directory / name).touch(0o644)
    return directory


def test_who_may_change_code_that_is_executed(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from klamm.base import compiling

    assert compiling._has_code(kept)
    # A directory above it, the directory, a file.
    for path in (kept.parent, kept, kept / "f.nbi"):
        mode = path.stat().st_mode
        for more in (0o002, 0o022):
            path.chmod(mode | more)
            assert not compiling._has_code(kept), (path, more)
        path.chmod(mode)
    kept.parent.chmod(0o1777)
    assert compiling._has_code(kept)
    assert compiling.why_unsafe(kept.parent) == f"others may write to {kept.parent}"
    (kept / "f.nbc").rename(tmp_path / "f.nbc")
    (kept / "f.nbc").symlink_to(tmp_path / "f.nbc")
    assert not compiling._has_code(kept)
    (tmp_path / "link").symlink_to(kept)
    assert compiling.why_unsafe(tmp_path / "link") == f"{tmp_path / 'link'} is a symbolic link"
    monkeypatch.setattr(compiling, "_trusted_users", lambda: frozenset({os.getuid() + 1}))
    # Which one is named depends on where klamm is: the directories above its own code are not checked.
    assert re.fullmatch(r"(/.*) belongs to the user \d+", compiling.why_unsafe(kept) or "")


def test_who_can_change_klamm_can_change_its_compiled_code(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /usr/local, for example, belongs to a group. Directories beside klamm's code are checked."""
    from klamm.base import compiling

    made(kept.parent, 0o777)
    assert not compiling._has_code(kept)
    monkeypatch.setattr(compiling, "__file__", str(kept.parent / "compiling.py"))
    compiling._code_directories.cache_clear()
    assert compiling._has_code(kept)
    made(kept, 0o777)
    assert not compiling._has_code(kept)
    compiling._code_directories.cache_clear()


def test_a_group_may_write_if_it_is_the_users_own(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from klamm.base import compiling

    user = pwd.struct_passwd(("ann", "x", os.getuid(), 7, "", "/", "/bin/sh"))
    groups = {7: ("ann", []), 8: ("ann", ["ann"]), 9: ("users", []), 10: ("ann", ["ann", "bob"])}
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setattr(
        grp, "getgrgid", lambda group: grp.struct_group((groups[group][0], "x", group, groups[group][1]))
    )
    kept.chmod(0o775)
    for group, is_allowed in ((0, True), (7, True), (8, True), (9, False), (10, False), (11, False)):
        found = os.stat_result((0o040775, 0, 0, 0, os.getuid(), group, 0, 0, 0, 0))
        compiling._is_own_group.cache_clear()
        assert compiling._others_can_write(found) == (not is_allowed)
    compiling._is_own_group.cache_clear()


@pytest.mark.long
def test_new_files_belong_to_their_user_alone_whatever_the_umask_is(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "kernels"

    def careless() -> None:
        without_rights_over_files()
        os.umask(0)

    assert run(package, tmp_path, cache, careless)[:2] == (0, 1)
    assert [each for each in cache.rglob("*") if each.stat().st_mode & 0o022] == []
    assert run(package, tmp_path, cache, careless)[:2] == (1, 0)
