"""Where Spark is not one process: executors of their own, and a client that only speaks Spark Connect."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from producing import numbered, produce

from klamm.testing.cluster import Cluster

PROGRAM = Path(__file__).with_name("run_elsewhere.py")


@pytest.mark.usefixtures("spark_environment")
@pytest.mark.parametrize(("how", "url"), [("master", "local-cluster[2,1,1024]"), ("remote", "local[2]")])
def test_batch_and_stream(
    java: None, cluster: Cluster, topic: Callable[..., str], tmp_path: Path, how: str, url: str
) -> None:
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(50), *numbered(50, partition=1)])
    done = subprocess.run(
        [sys.executable, PROGRAM, how, url, cluster.bootstrap, name],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    expected = [[partition, number, str(number)] for partition in (0, 1) for number in range(50)]
    assert json.loads(done.stdout.splitlines()[-1]) == [expected, expected]
