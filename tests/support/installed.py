"""What an installed klamm can do; the Python of the installation runs it, with its extras and the command's path.

    installed.py spark,delta /home/me/.local/bin/klamm

It imports nothing that the installation does not have.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

from klamm.testing import Cluster

# What an extra is for.
MODULES = {
    "spark": ("numba", "pyarrow", "pyspark", "yaml"),
    "formats": ("confluent_kafka.schema_registry", "fastavro", "google.protobuf"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg.catalog",),
    "objects": ("obstore.store",),
}
RECORDS = ["one", "two", "three"]


def main(extras: list[str], command: str) -> None:
    with Cluster(brokers=1) as cluster:
        cluster.create_topic("t")
        address = ("--bootstrap-server", cluster.bootstrap)
        run(command, "produce", *address, "--topic", "t", lines=RECORDS)
        options = ("--topic", "t", "--from-beginning", "--max-messages", "3")
        assert run(command, "consume", *address, *options).stdout.splitlines() == RECORDS
        for extra in extras:
            for module in MODULES[extra]:
                import_module(module)
        if "spark" in extras:
            read(cluster.bootstrap)
        else:
            refused = run(command, "pipeline", "archive", *address, "--topic", "t", "--directory", "archive", code=1)
            assert "pip install 'klamm[spark]'" in refused.stderr, refused.stderr
    print("works")


def run(*command: str, lines: Sequence[str] = (), code: int = 0) -> "subprocess.CompletedProcess[str]":
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def read(bootstrap: str) -> None:
    """Reads the topic as Arrow batches, and with Spark where there is a Java for it."""
    from klamm.spark import arrow

    assert arrow.read(bootstrap, subscribe="t").read_all().num_rows == len(RECORDS)
    if shutil.which("java"):
        from pyspark.sql import SparkSession

        os.environ |= {"PYSPARK_PYTHON": f"{sys.prefix}/bin/klamm-python", "SPARK_LOCAL_IP": "127.0.0.1"}
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}
        assert spark.read.format("klamm").options(**options).load().count() == len(RECORDS)
        spark.stop()


if __name__ == "__main__":
    main([extra for extra in sys.argv[1].split(",") if extra in MODULES], sys.argv[2])
