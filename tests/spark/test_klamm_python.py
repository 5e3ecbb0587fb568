"""bin/klamm-python: Python without PySpark's zip files on its path, where PySpark is installed beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("klamm-python")


def path_of(script: Path, *entries: str) -> list[str]:
    """Of these entries of PYTHONPATH those that are left, with what the program printed last."""
    program = f"import sys; print('\\n'.join(e for e in sys.path if e in {entries!r})); print(sys.argv[1])"
    done = subprocess.run(
        [script, "-c", program, "with two  spaces"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entries)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_what_is_taken_off_the_path(tmp_path: Path) -> None:
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    theirs = [str(package / "python" / "lib" / "pyspark.zip"), str(package / "jars" / "spark-core.jar")]
    assert path_of(SCRIPT, *theirs, "/mine with a space", theirs[0], "/other") == [
        "/mine with a space",
        "/other",
        "with two  spaces",
    ]
    assert path_of(SCRIPT, *theirs) == ["", "with two  spaces"]
    (tmp_path / "environment").symlink_to(SCRIPT.parent.parent)
    assert path_of(tmp_path / "environment" / "bin" / SCRIPT.name, *theirs) == ["", "with two  spaces"]


@pytest.mark.parametrize("entries", [("/elsewhere/pyspark/python/lib/pyspark.zip", "/mine"), ("/mine",)])
def test_what_is_left_on_the_path(entries: tuple[str, ...]) -> None:
    assert path_of(SCRIPT, *entries) == [*entries, "with two  spaces"]


def test_where_there_is_no_pyspark(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "klamm-python"
    script.write_bytes(SCRIPT.read_bytes())
    script.chmod(0o755)
    zip_file = str(tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark" / "python" / "lib" / "pyspark.zip")
    assert path_of(script, zip_file, "/mine") == [zip_file, "/mine", "with two  spaces"]
