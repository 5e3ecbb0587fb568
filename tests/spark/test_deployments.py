"""Where Spark is not one process: executors of their own, and a client that only speaks Spark Connect."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.testing.cluster import Cluster
from support.paths import TESTS
from support.present import present
from support.spark.producing import numbered, produce
from support.spark.reading import values_read
from support.spark.standalone import standalone_cluster

PROGRAM = TESTS / "support" / "spark" / "run_elsewhere.py"
VALUES = [b"%d" % number for number in range(50)]


@pytest.fixture
def source(cluster: Cluster, topic: Callable[..., str]) -> str:
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(50), *numbered(50, partition=1)])
    return name


def reads_all(directory: Path, *arguments: str, **environment: str) -> bool:
    """Whether the program reads everything in `source`, once, each time that it reads."""
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=directory,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [[partition, number, str(number)] for partition in (0, 1) for number in range(50)]
    found = json.loads(done.stdout.splitlines()[-1])
    return len(found) >= 2 and all(each == expected for each in found)


@pytest.mark.long
@pytest.mark.usefixtures("spark_environment")
def test_executors_of_their_own(
    java: None, cluster: Cluster, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    """There Spark repeats tasks, also speculatively, and each row is read once.

    What a failed attempt wrote stays, and comes before all rows, in order, once.

    The workers' Python is the ordinary one; other tests have klamm-python.
    """
    target, streamed = topic(), topic()
    with standalone_cluster(tmp_path) as url:
        arguments = ("master", url, cluster.bootstrap, source, target, streamed)
        assert reads_all(tmp_path, *arguments, PYSPARK_PYTHON=sys.executable)
    every = [b"%d" % number * 300 for number in range(20_000)]
    found = values_read(cluster, target)[0]
    first_attempt, second_attempt = found[: -len(every)], found[-len(every) :]
    assert second_attempt == every
    assert first_attempt == every[: len(first_attempt)]
    # A stream wrote them once, and tasks of which Spark ran two attempts at least once.
    times = Counter(values_read(cluster, streamed)[0])
    assert set(times) == set(VALUES)
    assert min(times.values()) >= 4


def test_spark_connect(
    spark_connect: str, cluster: Cluster, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    target, streamed = topic(), topic()
    assert reads_all(tmp_path, "remote", spark_connect, cluster.bootstrap, source, target, streamed)
    for written in (target, streamed):
        assert sorted(map(present, values_read(cluster, written)[0])) == sorted([*VALUES, *VALUES])
