"""The examples of README.md, docs/testing.md and docs/faults.md are run as they stand there."""

import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

import klamm.testing
from klamm.testing import Helper

ROOT = Path(__file__).parents[2]
KLAMM = [sys.executable, "-m", "klamm.cli.main"]


def examples(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [textwrap.dedent(block) for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


def library_of(example: str) -> str:
    imported = re.search(r"^from ([\w.]+) import", example, re.MULTILINE)
    assert imported is not None
    return imported.group(1)


PYTHON = {library_of(example): example for example in examples("README.md", "python")}


def test_each_client_has_an_example_and_the_first_needs_a_few_lines() -> None:
    assert list(PYTHON) == ["klamm.testing", "confluent_kafka", "kafka", "aiokafka"]


@pytest.mark.parametrize("library", PYTHON)
def test_an_example_of_the_readme_works(library: str, tmp_path: Path) -> None:
    run(PYTHON[library], tmp_path)


def run(example: str, directory: Path) -> None:
    """Runs an example as its reader would: with pytest if it has tests."""
    file = directory / "test_example.py"
    file.write_text(example, encoding="utf-8")
    is_test = "def test_" in example
    command = [sys.executable, *(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []), str(file)]
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert not is_test or "1 passed" in done.stdout


@pytest.mark.parametrize("number", range(len(examples("docs/testing.md", "python"))))
def test_an_example_of_the_guide_works(number: int, tmp_path: Path) -> None:
    run(examples("docs/testing.md", "python")[number], tmp_path)


@pytest.mark.parametrize("number", range(len(examples("docs/faults.md", "python"))))
def test_an_example_of_the_faults_works(number: int, klamm_helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process, and with clusters that share a helper: most of an example's time is the start of processes.
    monkeypatch.setattr(klamm.testing, "Cluster", partial(klamm.testing.Cluster, helper=klamm_helper))
    exec(compile(examples("docs/faults.md", "python")[number], f"example {number}", "exec"), {"__name__": "example"})


def test_the_commands_of_the_readme_work(tmp_path: Path) -> None:
    (commands,) = (example for example in examples("README.md", "sh") if "klamm topics create" in example)
    from klamm.testing import Cluster

    with Cluster(3) as cluster:
        (tmp_path / "klamm").write_text(
            f'#!/bin/sh\nexec {" ".join(KLAMM)} "$@" --bootstrap-server {cluster.bootstrap}\n', encoding="utf-8"
        )
        (tmp_path / "klamm").chmod(0o755)
        done = subprocess.run(
            ["sh", "-ec", f'PATH="{tmp_path}:$PATH"\n{commands}'], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Created topic castle."
    assert "the land surveyor" in lines
    partitions = [line for line in lines if line.startswith("\tTopic: castle")]
    assert len(partitions) == 3
    for line in partitions:
        assert re.search(r"\tLeader: [012]\tReplicas: [012],[012],[012]\tIsr: [012],[012],[012]$", line)
