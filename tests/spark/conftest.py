"""One Spark session for all tests of a run, and one klamm cluster that they share: use topics of your own.

Starting a session costs several seconds of both cores, a topic milliseconds.
"""

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from klamm.processes.helper import Helper
from klamm.testing.cluster import Cluster
from support.paths import ROOT, TESTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = "tests/spark/"

_topic_numbers = count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(HERE) and {"spark", "java"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session")
def spark_environment(java: None) -> dict[str, str]:
    """What Spark and its workers need to find this Python and these packages, however they are installed."""
    environment = {
        "PYSPARK_PYTHON": str(Path(sys.executable).with_name("klamm-python")),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # PySpark looks for pyspark_klamm in ordinary directories only, where an editable install does not put it;
        # the programs of tests look for `support`.
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT), str(TESTS)])),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Spark's programs end before what a better compiler costs has paid for itself.
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    os.environ.update(environment)
    return environment


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A local session with two cores. The format klamm is not registered: PySpark must find it.

    It is a server of Spark Connect, too, for programs of their own: `spark_connect`.
    """
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("klamm tests")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataProgressEventInterval", "100ms")
        .config("spark.sql.streaming.checkpointLocation", str(tmp_path_factory.mktemp("checkpoints")))
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    let_workers_take_their_time(session)
    yield session
    session.stop()


def let_workers_take_their_time(session: "SparkSession") -> None:
    """Spark has no setting for how long a Python worker that it starts may take to connect back: ten seconds."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    find = getattr(jvm.java.lang.Class, "forName")  # noqa: B009  # a name of Java's
    of_unsafe = find("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    of_unsafe.setAccessible(True)
    unsafe = of_unsafe.get(None)
    limit = find("org.apache.spark.api.python.PythonWorkerFactory$").getDeclaredField("PROCESS_WAIT_TIMEOUT_MS")
    unsafe.putInt(unsafe.staticFieldBase(limit), unsafe.staticFieldOffset(limit), 300_000)


@pytest.fixture(scope="session")
def spark_connect(spark: "SparkSession") -> str:
    """The URL for `SparkSession.builder.remote`, in a process that has no other session."""
    assert spark.sparkContext._jvm is not None
    package = spark.sparkContext._jvm.org.apache.spark.sql.connect.service
    # That is how Java sees an object of Scala's.
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture(scope="session")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """A cluster of one broker that stays up, and keeps records however old their timestamps are."""
    with Cluster(1, helper=klamm_helper, properties={"log.retention.ms": -1}) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> Callable[..., str]:
    """Makes a topic that no other test uses, and returns its name: `topic(partitions=2, **{"retention.ms": 1})`."""

    def create(partitions: int = 1, **configs: object) -> str:
        name = f"topic-{next(_topic_numbers)}"
        cluster.create_topic(name, partitions=partitions, configs=configs)
        return name

    return create
