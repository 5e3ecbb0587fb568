"""A start does not wait for what a broker does not need: containers often have no bytecode, and compile all imports."""

import subprocess
import sys

NOT_NEEDED = {
    # Of users' programs, of the commands, of what only a mistake or a scrape needs.
    "kafka", "confluent_kafka", "aiokafka", "kazoo", "typer", "rich", "prometheus_client", "h11", "difflib",
    "numpy", "numba", "pyarrow", "pyspark", "pydantic", "http.client", "urllib.request", "sqlite3", "multiprocessing",
    "argparse", "csv", "email", "importlib.metadata", "zipfile",
    "klamm.cli", "klamm.testing", "klamm.spark", "klamm.simulation", "klamm.zookeeper.server",
}  # fmt: skip


def test_a_broker_imports_only_what_it_needs() -> None:
    code = "import sys, klamm.broker.start.broker; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "klamm.broker.start.broker" in imported
    assert sorted(NOT_NEEDED.intersection(imported)) == []
