"""What all tests share: options, and the rule for tests that need Java.

A test marked `java`, as all of tests/interop are, is skipped without a Java runtime; where one exists, a skip is a
failure.
"""

import logging
import re
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import oracles

# What the modules of the clients in Go need.
OLDEST_GO = (1, 25)

pytest_plugins = [
    "klamm.testing.recipes.plugin",
    "support.browser",
    "support.heap",
    "support.leftovers",
    "support.runner",
    "support.scheduling",
]

# A background job of a shell ignores Ctrl-C, and so would every command that a test starts to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("klamm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("klamm")


@pytest.fixture(autouse=True)
def the_level_of_logging() -> Generator[None]:
    """Programs that a test runs in this process ask for lines that other tests do not expect."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bootstrap",
        metavar="HOST:PORT",
        help="run tests/clients against this broker instead of klamm; `kafka`: against Apache Kafka 2.8.2",
    )
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="tests/controller/test_transcripts.py writes down what the controller does now, to be reviewed",
    )
    parser.addoption(
        "--every-step",
        action="store_true",
        help="tests/faults kills the controller at each of its writes instead of at some",
    )
    parser.addoption(
        "--stream-minutes",
        type=float,
        default=1.0,
        help="how long brokers die under the stream of tests/spark/read/test_wide_stream.py",
    )


@pytest.fixture(scope="session")
def java() -> None:
    """Skips the test where there is no Java runtime."""
    if not oracles.java_available():
        pytest.skip("no Java runtime on this machine")


@pytest.fixture(scope="session")
def kafka_jars(java: None) -> Path:
    """Directory with the jars of Apache Kafka 2.8.2, its tools and ZooKeeper 3.5.9."""
    return oracles.kafka_jars()


@pytest.fixture(scope="session")
def kafka4_jars(java: None) -> Path:
    """Directory with the jars of Apache Kafka 4.3 and its tools."""
    return oracles.kafka4_jars()


@pytest.fixture(scope="session")
def zookeeper39_jars(java: None) -> Path:
    """Directory with the jars of Apache ZooKeeper 3.9."""
    return oracles.zookeeper39_jars()


@pytest.fixture(scope="session")
def kafka_clients4_jars(java: None) -> Path:
    """Directory with the jars of the Java clients of Apache Kafka 4.4."""
    return oracles.kafka_clients4_jars()


@pytest.fixture(scope="session")
def go() -> None:
    """Skips the test where there is no Go that can build the clients: their modules need Go 1.25 or newer."""
    if shutil.which("go") is None:
        pytest.skip("no Go on this machine")
    said = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GO:
        pytest.skip("the clients in Go need Go {}.{}, this machine has: {}".format(*OLDEST_GO, said.strip()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    marked = item.get_closest_marker("java") is not None
    if marked and report.skipped and not hasattr(report, "wasxfail") and oracles.java_available():
        report.outcome = "failed"
        report.longrepr = f"Java is installed, so this test may not be skipped: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skip is a promise that was not checked, so their number is always said, zero included."""
    terminalreporter.write_line(f"skipped tests: {len(terminalreporter.stats.get('skipped', []))}")
