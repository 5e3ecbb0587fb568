"""Where compiled code is kept, that it is used wherever it was made, and that bad files only cost time.

The functions are small ones in a package of their own, beside klamm's `compiling`. Counted, not timed.
"""

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

KERNELS = """
from klamm.compiling import compiled
from klamm.part import twice

@compiled("int64(int64)")
def first(number):
    return twice(number) + 1
"""
PART = """
from klamm.compiling import inlined

@inlined
def twice(number):
    return number * 2
"""
PROGRAM = """
from klamm import compiling
from klamm.kernels import first

assert first(20) == 41
print(*compiling.compilations(), compiling.directory())
"""
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
    for name in ("__init__.py", "compiling.py"):
        shutil.copy(ROOT / "klamm" / name, package)
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
    for environment in ({}, {"NUMBA_CPU_NAME": "generic"}):
        assert run(package, tmp_path, cache, **environment)[:2] == (1, 0)


@pytest.mark.long
def test_processes_that_compile_at_once_leave_code_for_all(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "kernels"
    names = ["", "generic"] * 3
    for found in [end(each) for each in [start(package, tmp_path, cache, NUMBA_CPU_NAME=name) for name in names]]:
        assert sum(found[:2]) == 1
    for name in names[:2]:
        assert run(package, tmp_path, cache, NUMBA_CPU_NAME=name)[:2] == (1, 0)


@pytest.mark.long
def test_a_temporary_directory_that_others_can_write_to_is_not_used(package: Path, tmp_path: Path) -> None:
    """Code from it would be executed. Without any directory, functions are compiled and not kept."""
    make_read_only(package)
    planted = tmp_path / f"klamm-compiled-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    assert run(package, tmp_path)[::2] == (0, "None")
    assert list(planted.iterdir()) == []
