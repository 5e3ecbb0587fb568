"""klamm in a project that has kafka-python 2.x, or none: every process that klamm starts here has a broken `kafka`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
    from klamm.testing import Cluster
    from klamm.cli import main

    with Cluster(brokers=1) as cluster:
        address = ("--bootstrap-server", cluster.bootstrap)
        assert main.run(["topics", "create", "--topic", "letters", *address]) == 0
        assert main.run(["produce", "--topic", "letters", "--file", "letters.txt", *address]) == 0
        for group in ([], ["--group", "village"]):
            arguments = ["--topic", "letters", "--from-beginning", "--max-messages", "2", *group, *address]
            assert main.run(["consume", *arguments]) == 0
        assert main.run(["groups", "describe", "--group", "village", *address]) == 0
        assert main.run(["controller", "status", *address]) == 0
"""
IMPORT_ALL = """
    import importlib, pkgutil, klamm

    for module in pkgutil.walk_packages(klamm.__path__, "klamm."):
        if not module.name.startswith("klamm.spark") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a `kafka` that cannot be imported, and some input."""
    package = tmp_path / "packages" / "kafka"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise ImportError("kafka was imported")\n')
    (tmp_path / "letters.txt").write_text("one\ntwo\n")
    return tmp_path


def python(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={"PYTHONPATH": f"{directory / 'packages'}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def code(text: str) -> str:
    return "\n".join(line[4:] for line in text.splitlines())


def test_clusters_and_commands_need_no_kafka_python(directory: Path) -> None:
    assert "kafka was imported" in python(directory, "-c", "import kafka").stderr
    done = python(directory, "-c", code(USE))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("one\ntwo\n") == 2


def test_no_module_imports_kafka_python(directory: Path) -> None:
    done = python(directory, "-c", code(IMPORT_ALL))
    assert done.returncode == 0, done.stderr


def test_the_pytest_fixture_gives_no_warning(directory: Path) -> None:
    """Where warnings are errors, as in many projects."""
    (directory / "test_letters.py").write_text(
        "import pytest\n\n\n"
        "@pytest.mark.klamm(brokers=1)\n"
        "def test_a_cluster(klamm_cluster):\n"
        "    klamm_cluster.create_topic('letters')\n"
        "    assert klamm_cluster.topics() == ['letters']\n"
    )
    done = python(directory, "-W", "error", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
