"""What all tests share: options, and the rule for tests that need Java.

A test marked `java`, as all of tests/interop are, is skipped without a Java runtime; where one exists, a skip is a
failure.
"""

import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import oracles

pytest_plugins = ["support.heap", "support.runner", "support.scheduling"]

# A background job of a shell ignores Ctrl-C, and so would every command that a test starts to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("klamm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("klamm")


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
