"""The data source with each minor version of PySpark that klamm supports, in an environment of its own from PyPI.

The environments stay in the user's cache directory (about 500 MB each). Without PyPI the tests are skipped.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.testing.cluster import Cluster
from support.paths import ROOT, TESTS
from support.spark.producing import numbered, produce

VERSIONS = ("4.0", "4.1", "4.2", "4.3")
PROGRAM = TESTS / "support" / "spark" / "run_any_version.py"
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
NO_LIMIT = (
    "option maxOffsetsPerTrigger needs PySpark 4.2 or newer, because older ones cannot limit a micro-batch; this is"
    " PySpark 4."
)
PACKAGES = ("crc32c", "cramjam", "msgspec", "uvloop", "prometheus-client", "typer<0.29", "rich", "numba", "pyarrow>=18")

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(1200)]


def environment(version: str) -> Path:
    """The Python of an environment with this PySpark, which is made if there is none yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "klamm-tests" / f"pyspark-{version}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python = directory / "bin" / "python"
    if not (directory / "complete").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, directory], check=True)
        install = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            f"pyspark[connect]=={version}.*",
            *PACKAGES,
        ]
        done = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode and not pypi_answers():
            pytest.skip(f"PyPI cannot be reached, so nothing is tested with PySpark {version}: {done.stderr[-500:]}")
        assert done.returncode == 0, done.stderr
        (directory / "complete").touch()
    return python


def pypi_answers() -> bool:
    try:
        with socket.create_connection(("pypi.org", 443), timeout=10):
            return True
    except OSError:
        return False


def run(version: str, steps: str, cluster: Cluster, source: str, target: str, directory: Path) -> dict[str, Any]:
    """What each step found with this version."""
    python = environment(version)
    done = subprocess.run(
        [python, PROGRAM, steps, cluster.bootstrap, source, target, directory],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=directory,
        env=os.environ
        | {
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def source(java: None, cluster: Cluster, topic: Callable[..., str]) -> str:
    """100 records in two partitions; the first has a header."""
    name = topic(partitions=2)
    first, *rest = numbered(50)
    records = [{**first, "headers": [("h", b"1")], "timestamp": 1_600_000_000_000}, *rest, *numbered(50, partition=1)]
    produce(cluster.bootstrap, name, [{**each, "timestamp": 1_600_000_000_000} for each in records])
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_can_do(
    version: str, cluster: Cluster, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    written, streamed = topic(), topic()
    rows = [[partition, number, str(number)] for partition in (0, 1) for number in range(50)]
    found = run(version, "batch,write,table,stream,limited_stream,running_stream", cluster, source, written, tmp_path)
    assert found["batch"] == {
        "columns": COLUMNS,
        "rows": rows,
        "timestamps": [[100, True]],
        "chosen": [["value", "offset"], 100],
        "headers": [["h", "1"]],
        "nothing": 0,
    }
    assert found["write"] == [["k", "one", [["h", "1"]]], [None, "two", []]]
    assert found["table"] == rows
    assert found["stream"] == rows
    if version in ("4.0", "4.1"):
        assert NO_LIMIT in found["limited_stream"]
    else:
        assert found["limited_stream"] == [40, 40, 20]
    assert found["running_stream"] == [100, 101]

    copied = run(version, "stream_write", cluster, written, streamed, tmp_path)
    assert copied["stream_write"] == ["one", "two"]


def test_a_newer_version_continues_the_checkpoint_of_an_older_one(
    cluster: Cluster, source: str, tmp_path: Path
) -> None:
    """Each version reads what was written since the version before it, once."""
    everything = [[partition, number, str(number)] for partition in (0, 1) for number in range(50)]
    assert run("4.0", "stream", cluster, source, "", tmp_path)["stream"] == everything
    for first, version in ((50, "4.0"), (60, "4.1"), (70, "4.2"), (80, "4.3")):
        produce(cluster.bootstrap, source, numbered(10, first=first))
        new = [[0, number, str(number)] for number in range(first, first + 10)]
        assert run(version, "stream", cluster, source, "", tmp_path)["stream"] == new
