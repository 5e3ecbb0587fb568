"""Where compiled code is kept, and that it is used wherever it was made. Counted, not timed."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

PROGRAM = (
    "from klamm import compiling\nfrom klamm.spark.prewarm import prewarm\nprint(*prewarm(), compiling.directory())\n"
)
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


class Found(NamedTuple):
    loaded: int
    compiled: int
    directory: str


def run(package: Path, *, temporary: Path, cache: Path | str = "") -> Found:
    """What prewarming counts with klamm in `package`, where the user's cache directory cannot be made."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(package),
            "HOME": "/dev/null",
            "TMPDIR": str(temporary),
            "NUMBA_CACHE_DIR": str(cache),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        preexec_fn=without_rights_over_files,
        capture_output=True,
        text=True,
        cwd=temporary,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded, compiled, directory = done.stdout.split()
    return Found(int(loaded), int(compiled), directory)


def without_rights_over_files() -> None:
    """Makes permissions count for root, too."""
    if os.getuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def package_at(path: Path) -> Path:
    shutil.copytree(ROOT / "klamm", path / "klamm", ignore=shutil.ignore_patterns("__pycache__"))
    return path


def make_read_only(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        if each.is_dir():
            each.chmod(0o555)


@pytest.fixture(scope="module")
def prewarmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A directory with compiled code, as `klamm pipeline prewarm --directory` makes it, and the number of functions."""
    cache = tmp_path_factory.mktemp("prewarmed")
    package, temporary = package_at(tmp_path_factory.mktemp("package")), tmp_path_factory.mktemp("temporary")
    found = run(package, temporary=temporary, cache=cache)
    assert found.loaded == 0
    assert found.directory == str(cache / "klamm")
    assert run(package, temporary=temporary, cache=cache) == Found(found.compiled, 0, found.directory)
    return cache, found.compiled


def test_code_from_another_place_and_another_time_is_used(prewarmed: tuple[Path, int], tmp_path: Path) -> None:
    cache, functions = prewarmed
    package = package_at(tmp_path / "elsewhere")
    for source in package.rglob("*.py"):
        os.utime(source, (1_000_000_000, 1_000_000_000))
    moved = shutil.copytree(cache, tmp_path / "kernels")
    assert run(package, temporary=tmp_path, cache=moved)[:2] == (functions, 0)


def test_where_nothing_can_be_written_the_code_of_an_image_is_used(prewarmed: tuple[Path, int], tmp_path: Path) -> None:
    """Both in a directory that NUMBA_CACHE_DIR names, and beside klamm."""
    cache, functions = prewarmed
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    package = package_at(tmp_path / "one")
    read_only = shutil.copytree(cache, tmp_path / "kernels")
    for path in (package, read_only):
        make_read_only(path)
    found = run(package, temporary=temporary, cache=read_only)
    assert found == Found(functions, 0, str(temporary / f"klamm-compiled-{os.getuid()}"))

    shutil.rmtree(found.directory)
    package = package_at(tmp_path / "two")
    shutil.copytree(cache / "klamm", package / "klamm" / "__pycache__" / "compiled")
    make_read_only(package)
    assert run(package, temporary=temporary) == found


@pytest.mark.long
def test_code_of_another_source_is_not_used(prewarmed: tuple[Path, int], tmp_path: Path) -> None:
    """Also when the change is in a module whose functions become a part of others."""
    cache, functions = prewarmed
    package = package_at(tmp_path / "package")
    with (package / "klamm" / "protocol" / "compiled_fields.py").open("a") as source:
        source.write("# a change\n")
    found = run(package, temporary=tmp_path, cache=shutil.copytree(cache, tmp_path / "kernels"))
    assert 0 < found.compiled < functions
    assert found.loaded + found.compiled == functions


@pytest.mark.long
def test_a_temporary_directory_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    """Code from it would be executed. Without any directory, functions are compiled and not kept."""
    package = package_at(tmp_path / "package")
    make_read_only(package)
    planted = tmp_path / f"klamm-compiled-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    found = run(package, temporary=tmp_path)
    assert (found.loaded, found.directory) == (0, "None")
    assert found.compiled > 0
    assert list(planted.iterdir()) == []
