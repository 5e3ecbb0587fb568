"""bin/klamm-python: Python without PySpark's zip files on its path, where PySpark is installed beside it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

INSTALLED = Path(sys.executable).with_name("klamm-python")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script in an environment that has PySpark and py4j."""
    with_pyspark(tmp_path / "lib" / "python3.11" / "site-packages")
    (tmp_path / "bin").mkdir()
    return Path(shutil.copy(ROOT / "bin" / "klamm-python", tmp_path / "bin"))


def with_pyspark(directory: Path) -> str:
    for package in ("pyspark", "py4j"):
        (directory / package).mkdir(parents=True)
        (directory / package / "__init__.py").touch()
    return str(directory)


def path_of(script: Path, *entries: str) -> list[str]:
    """Of these entries of PYTHONPATH those that are left."""
    program = f"import sys; print(*(e for e in sys.path if e in {entries!r}), sys.argv[1], sep='\\n')"
    done = subprocess.run(
        [script, "-c", program, "with two  spaces"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entries)},
        capture_output=True,
        text=True,
        check=True,
    )
    *left, last = done.stdout.splitlines()
    assert last == "with two  spaces"
    return left


def test_the_installed_pyspark_is_imported() -> None:
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    zip_files = [str(path) for path in (package / "python" / "lib").glob("*.zip")]
    assert len(zip_files) == 2
    done = subprocess.run(
        [INSTALLED, "-c", "import pyspark, py4j; print(pyspark.__file__, py4j.__file__)"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(zip_files)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [os.path.realpath(path) for path in done.stdout.split()] == [
        str(package / "__init__.py"),
        str(package.parent / "py4j" / "__init__.py"),
    ]


def test_what_lies_in_the_installed_pyspark_leaves_the_path(script: Path, tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    theirs = [f"{packages}/pyspark/python/lib/pyspark.zip", f"{packages}/pyspark/jars/spark-core.jar"]
    assert path_of(script, *theirs, "/mine with a space", theirs[0], str(packages), "/other") == [
        "/mine with a space",
        str(packages),
        "/other",
    ]
    (tmp_path / "link").symlink_to(tmp_path)
    assert path_of(tmp_path / "link" / "bin" / script.name, *theirs, "/mine") == ["/mine"]
    (tmp_path / "linked").symlink_to(script)
    assert path_of(tmp_path / "linked", *theirs, "/mine") == ["/mine"]


@pytest.mark.parametrize("entries", [("/elsewhere/pyspark/python/lib/pyspark.zip", "/mine"), ("/mine",)])
def test_what_lies_elsewhere_stays(script: Path, entries: tuple[str, ...]) -> None:
    assert path_of(script, *entries) == [*entries]


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_zip_files_stay_where_a_package_is_not_installed(script: Path, tmp_path: Path, missing: str) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    shutil.rmtree(packages / missing)
    zip_file = f"{packages}/pyspark/python/lib/pyspark.zip"
    assert path_of(script, zip_file, "/mine") == [zip_file, "/mine"]


def test_zip_files_stay_where_another_pyspark_would_be_imported(script: Path, tmp_path: Path) -> None:
    other = with_pyspark(tmp_path / "other")
    zip_file = f"{tmp_path}/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip"
    assert path_of(script, zip_file, other) == [zip_file, other]
