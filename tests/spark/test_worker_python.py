"""A virtual environment that is not activated: Spark starts another Python, and klamm says so first."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.spark.readable_errors import MissingPackage, sentences_first
from klamm.spark.worker_python import WorkerPythonError, require_klamm
from klamm.testing.cluster import Cluster
from support.paths import ROOT

BARE = Path(sys.executable).resolve()
TUTORIAL = """
import re
from pathlib import Path

environment = {}
for cell in re.findall(r"^```python\\n(.*?)^```\\n", Path(PAGE).read_text(), re.DOTALL | re.MULTILINE)[:4]:
    exec(cell, environment)
environment["spark"].stop()
environment["cluster"].close()
"""
REGISTERED = """
import os, sys
from pyspark.sql import SparkSession
import klamm.spark

def session():
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.config("spark.driver.memory", "512m").getOrCreate()

spark = session()
try:
    klamm.spark.register(spark)
except ImportError as error:
    print(error)
spark.stop()
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = session()
klamm.spark.register(spark)
print(spark.read.format("klamm").options(**{"kafka.bootstrap.servers": BOOTSTRAP, "subscribe": "t"}).load().count())
"""


def session(python: Path | str, master: str = "local[2]", environment: Any = None) -> Any:
    context = SimpleNamespace(master=master, pythonExec=str(python), environment=environment or {}, _python_includes=[])
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory whose `python3` has no packages."""
    script = tmp_path / "bare" / "python3"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {BARE} -S "$@"\n')
    script.chmod(0o755)
    return script.parent


def test_a_python_without_klamm_is_named_with_the_line_that_helps(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(bare)
    with pytest.raises(WorkerPythonError) as caught:
        require_klamm(session("python3"))
    assert str(caught.value) == (
        f"Spark starts python3 for its workers, which is {bare}/python3, which has no klamm and no pyarrow and no"
        f' numba; this program runs in {sys.executable}. Before the session begins: os.environ["PYSPARK_PYTHON"] ='
        " sys.executable (in a notebook, restart the kernel first)"
    )
    with pytest.raises(WorkerPythonError, match="starts python4 for its workers, which does not exist on the PATH"):
        require_klamm(session("python4"))


def test_workers_that_have_klamm_or_cannot_be_asked_are_not_judged(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bare)
    packages = os.pathsep.join(entry for entry in (str(ROOT), *sys.path) if entry)
    require_klamm(session(sys.executable))
    require_klamm(session(Path(sys.executable).with_name("klamm-python")))
    # What Spark's workers get beside the environment of this process.
    require_klamm(session(bare / "python3", environment={"PYTHONPATH": packages}))
    for master in ("spark://host:7077", "yarn", "k8s://https://host"):
        require_klamm(session("/elsewhere/bin/python3", master))
    # Spark Connect.
    require_klamm(SimpleNamespace())  # type: ignore[arg-type]
    broken = bare / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    require_klamm(session(broken))


def run(program: str, directory: Path, bare: Path, **values: str) -> str:
    """What a program prints that an environment's Python runs and nobody has activated."""
    file = directory / "program.py"
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()) + program)
    java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    done = subprocess.run(
        [sys.executable, file],
        env={"PATH": f"{bare}:/usr/bin:/bin", "HOME": str(directory), "SPARK_LOCAL_IP": "127.0.0.1", **java},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_register_says_the_line_that_helps_and_it_does(
    java: None, cluster: Cluster, tmp_path: Path, bare: Path
) -> None:
    cluster.create_topic("t")
    told, count = run(REGISTERED, tmp_path, bare, BOOTSTRAP=cluster.bootstrap).splitlines()
    assert told.startswith(f"Spark starts python3 for its workers, which is {bare}/python3, which has no klamm")
    assert count == "0"


@pytest.mark.long
def test_the_tutorial_needs_no_activated_environment(java: None, tmp_path: Path, bare: Path) -> None:
    run(TUTORIAL, tmp_path, bare, PAGE=str(ROOT / "docs" / "spark-tutorial.md"))


def test_a_python_that_has_klamm_and_not_what_it_needs_is_named_too() -> None:
    @sentences_first
    class Source:
        def plan(self) -> None:
            raise ModuleNotFoundError("No module named 'numba'", name="numba")

    with pytest.raises(MissingPackage) as caught:
        Source().plan()
    assert str(caught.value) == (
        f"Spark has started {sys.executable}, which has klamm and no numba: pip install 'klamm[spark]' there; or choose"
        ' another Python before the session begins: os.environ["PYSPARK_PYTHON"] = sys.executable'
    )
