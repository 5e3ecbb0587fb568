"""klamm-pyspark.pth: PySpark's processes import the installed PySpark, not its zip files."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from klamm.spark.installed_pyspark import without_zip_files
from support.paths import ROOT

PACKAGE = Path(pyspark.__file__).resolve().parent
ZIP_FILES = sorted(map(str, (PACKAGE / "python" / "lib").glob("*.zip")))


def path_at_start(*entries: str) -> list[str]:
    """Of these entries of PYTHONPATH those that are left after the .pth file of an installed klamm was run."""
    program = (
        "import site, sys; sys.path.append(sys.argv[1]); site.addsitedir(sys.argv[2]);"
        f"print('\\n'.join(entry for entry in sys.path if entry in {entries!r}));"
        "import pyspark, py4j; print(pyspark.__file__); print(py4j.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, PACKAGE.parent, ROOT / "bin"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((*entries, str(ROOT)))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [os.path.realpath(line) for line in done.stdout.split()]


def test_python_imports_the_installed_pyspark() -> None:
    assert len(ZIP_FILES) == 2
    jar = str(PACKAGE / "jars" / "spark-core.jar")
    found = [str(PACKAGE / "__init__.py"), str(PACKAGE.parent / "py4j" / "__init__.py")]
    assert path_at_start(*ZIP_FILES, jar, "/mine") == ["/mine", *found]


@pytest.mark.parametrize("linked", [False, True])
def test_only_what_lies_in_the_installed_pyspark_leaves_the_path(tmp_path: Path, linked: bool) -> None:
    environment = tmp_path / "environment"
    for package in ("pyspark", "py4j"):
        (environment / package).mkdir(parents=True)
        (environment / package / "__init__.py").touch()
    if linked:
        (tmp_path / "link").symlink_to(environment)
        environment = tmp_path / "link"
    of_it = str(environment / "pyspark" / "python" / "lib" / "pyspark.zip")
    others = ["/opt/spark/python/lib/pyspark.zip", str(environment / "pyspark_other"), str(environment)]
    assert without_zip_files([of_it, *others]) == others
    # Without py4j beside it, the zip files are needed.
    (environment / "py4j" / "__init__.py").unlink()
    assert without_zip_files([of_it, *others]) == [of_it, *others]


def test_the_zip_files_of_a_pyspark_stay_where_another_one_would_be_imported(tmp_path: Path) -> None:
    for name in ("older", "newer"):
        for package in ("pyspark", "py4j"):
            (tmp_path / name / package).mkdir(parents=True)
            (tmp_path / name / package / "__init__.py").touch()
    older, newer = str(tmp_path / "older"), str(tmp_path / "newer")
    of_newer = str(tmp_path / "newer" / "pyspark" / "python" / "lib" / "pyspark.zip")
    assert without_zip_files([of_newer, older, newer]) == [of_newer, older, newer]
    assert without_zip_files([of_newer, newer, older]) == [newer, older]
