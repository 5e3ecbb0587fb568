"""Finds out before a query fails whether the Python that Spark starts for its workers has klamm.

PySpark starts the Python that `PYSPARK_PYTHON` names, or else the `python3` of the PATH. If a virtual environment is
not activated (a kernel of Jupyter, cron, systemd), this is another Python. Spark then only reports that it finds no
data source `klamm`, or that a worker has no module `klamm`.

What must stay true:
- Only workers on this machine are checked, by running their Python in the environment that Spark gives it. A Python
  that cannot be run is not judged.
- Importing this module imports nothing heavy.
"""

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# The packages that workers need to read and write records. Spark brings PySpark.
NEEDED = ("klamm", "pyarrow", "numba")
TIMEOUT_S = 60.0
_PROGRAM = f"from importlib.util import find_spec as f; print(*[m for m in {NEEDED!r} if f(m) is None])"
REMEDY = 'os.environ["PYSPARK_PYTHON"] = sys.executable'


class WorkerPythonError(ImportError):
    """Spark's workers on this machine cannot import klamm. The message has the line that helps."""


def require_klamm(spark: "SparkSession") -> None:
    """Raises WorkerPythonError if the session's workers are on this machine, and their Python lacks klamm."""
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    # A session of Spark Connect has no SparkContext. Executors on other machines have their own Python.
    if context is None or not str(context.master).startswith("local"):
        return
    found = shutil.which(context.pythonExec)
    if found is None:
        raise _error(context.pythonExec, "does not exist on the PATH")
    if os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    missing = _missing(context, found)
    if missing:
        raise _error(context.pythonExec, f"is {found}, which has no {' and no '.join(missing)}")


def _missing(context: "SparkContext", python: str) -> list[str]:
    """The needed packages that the Python lacks; empty if it cannot be asked."""
    from pyspark import SparkFiles

    sent = [os.path.join(SparkFiles.getRootDirectory(), name) for name in context._python_includes or ()]
    environment = {**os.environ, **context.environment}
    path = os.pathsep.join(filter(None, [*sent, environment.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM],
            env={**environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()


def _error(name: str, problem: str) -> WorkerPythonError:
    return WorkerPythonError(
        f"Spark starts {name} for its workers, which {problem}; this program runs in {sys.executable}. Before the"
        f" session begins: {REMEDY} (in a notebook, restart the kernel first)"
    )
