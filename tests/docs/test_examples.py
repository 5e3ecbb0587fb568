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


def is_test(example: str) -> bool:
    return "def test_" in example


DOCUMENTS = ("README.md", "docs/testing.md", "docs/faults.md")
ALL = {f"{name} {n}": example for name in DOCUMENTS for n, example in enumerate(examples(name, "python"))}
PROGRAMS = {
    name: example for name, example in ALL.items() if not is_test(example) and example != PYTHON["klamm.testing"]
}


def run(directory: Path, *arguments: str) -> str:
    """What Python prints, run as a reader would."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_first_example_of_the_readme_works_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(PYTHON["klamm.testing"], encoding="utf-8")
    run(tmp_path, "example.py")


# Most of an example's time is the start of processes. So the others share one: a run of pytest, and a helper.


def test_the_examples_that_are_tests_pass(tmp_path: Path) -> None:
    tests = [example for example in ALL.values() if is_test(example)]
    for number, example in enumerate(tests):
        (tmp_path / f"test_example_{number}.py").write_text(example, encoding="utf-8")
    assert f"{len(tests)} passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_that_is_a_program_works(name: str, klamm_helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(klamm.testing, "Cluster", partial(klamm.testing.Cluster, helper=klamm_helper))
    exec(compile(PROGRAMS[name], name, "exec"), {"__name__": "example"})


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
