"""A standalone Spark cluster of two workers, each on a host of its own: 127.0.0.2 and 127.0.0.3.

Spark runs a task a second time, beside a slow attempt, only on another host: in `local` and `local-cluster`, whose
executors share one, it never does.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from support.processes import ManagedProcess

HOSTS = ("127.0.0.2", "127.0.0.3")
READY_TIMEOUT_S = 120


@contextlib.contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """The master's URL. Each worker has one core and 1 GB, and its Python is this one."""
    home = Path(pyspark.__file__).parent
    program = home / "bin" / "spark-class"
    environment = os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with contextlib.ExitStack() as running:

        def start(name: str, *arguments: str, **env: str) -> ManagedProcess:
            log = directory / f"{name}.log"
            process = ManagedProcess(name, [program, *arguments], log, env=environment | env)
            running.callback(process.kill)
            return process

        master = start(
            "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        url = master.wait_for(r"Starting Spark master at (spark://\S+)", READY_TIMEOUT_S)[1]
        workers = [
            start(
                f"worker-{host}",
                *("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(directory / host), url),
                SPARK_LOCAL_IP=host,
            )
            for host in HOSTS
        ]
        for worker in workers:
            worker.wait_for("Successfully registered with master", READY_TIMEOUT_S)
        yield url
