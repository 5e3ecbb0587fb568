"""What a clone becomes: a wheel, and virtual environments that hold no more than is needed."""

import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("klamm", "pyspark_klamm", "bin", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build reads, without what tests and earlier builds have left here."""
    directory = tmp_path_factory.mktemp("clone")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, directory / part)
    return directory


def files(directory: Path) -> list[Path]:
    return sorted(path.relative_to(directory) for path in directory.rglob("*"))


def test_an_installation_leaves_nothing_in_the_clone(clone: Path, tmp_path: Path) -> None:
    before = files(clone)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=clone, check=True)
    assert files(clone) == before

    (wheel,) = tmp_path.glob("klamm-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(path) for path in before if path.parts[0] in ("klamm", "pyspark_klamm") and path.suffix}
    assert {name for name in packed if ".dist-info/" not in name and ".data/" not in name} == {
        *expected,
        "klamm-pyspark.pth",
    }
    assert [name for name in packed if name.endswith("/LICENSE")]
    assert {Path(name).name for name in packed if ".data/scripts/" in name} == {"klamm-python"}


@pytest.mark.parametrize(("target", "built"), [("run", "base"), ("check", "dev"), ("test", "dev"), ("venv", "dev")])
def test_make_installs_no_more_than_a_target_needs(target: str, built: str, tmp_path: Path) -> None:
    for part in ("Makefile", "pyproject.toml", "requirements", "scripts"):
        (tmp_path / part).symlink_to(ROOT / part)
    printed = subprocess.run(["make", "--dry-run", target], cwd=tmp_path, check=True, capture_output=True, text=True)
    commands = [line for line in printed.stdout.splitlines() if line.startswith("scripts/make-venv")]
    assert commands == [f"scripts/make-venv {built}"]


def test_make_interop_runs_every_test_that_is_long() -> None:
    """Some rooms whole, and of all the others, whichever they are, what is marked so."""
    printed = subprocess.run(["make", "--dry-run", "interop"], cwd=ROOT, check=True, capture_output=True, text=True)
    commands = [shlex.split(line) for line in printed.stdout.splitlines() if " -m pytest " in line]
    (every, *rooms), (only, *others) = (line[line.index("-m", 3) + 1 :] for line in commands)
    assert (every, only) == ("long or not long", "long")
    assert rooms and all((ROOT / room).is_dir() for room in rooms)
    assert others == [f"--ignore={room}" for room in rooms]


def test_the_environment_of_a_run_has_no_client_spark_or_linter() -> None:
    names = [line.partition("==")[0] for line in (ROOT / "requirements/base.txt").read_text().splitlines()]
    not_needed = {
        "pyspark",
        "mypy",
        "aiokafka",
        "confluent-kafka",
        "kafka-python",
        "pytest",
        "ruff",
        "numba",
        "pyarrow",
        "kazoo",
    }
    assert "uvloop" in names
    assert not_needed.isdisjoint(names)
