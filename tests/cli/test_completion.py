"""`klamm completion`: what may stand at each place of a line, and real bash with a cluster that is there or is not."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from klamm.cli import main
from klamm.cli.completion import FILES, Place, PlaceKind, candidates, find_place
from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.processes import free_port

ROOT = get_command(main.app)
IN_CLUSTER = {PlaceKind.TOPICS: ["orders", "others"], PlaceKind.GROUPS: ["g1"], PlaceKind.BROKERS: ["1", "2", "12"]}


def complete(line: str) -> list[str]:
    def look(place: Place) -> Sequence[str]:
        return IN_CLUSTER[place.kind]

    return candidates(find_place(ROOT, line), look)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("klamm st", ["status"]),
        ("klamm nothing ", []),
        ("klamm topics de", ["describe", "delete"]),
        ("klamm topics describe --topi", ["--topic", "--topics-with-overrides"]),
        ("klamm --debug topics describe --topic ", ["orders", "others"]),
        ("klamm topics describe --topic or", ["orders"]),
        ("klamm topics describe --topic=or", ["--topic=orders"]),
        ("klamm topics describe --topic 'or", ["orders"]),
        ("klamm topics describe --topic orders --topi", ["--topics-with-overrides"]),
        ("klamm groups describe --group ", ["g1"]),
        ("klamm groups describe --group g1 --grou", ["--group"]),  # An option that may be repeated.
        ("klamm brokers describe --broker 1", ["1", "12"]),
        ("klamm configs describe --entity-type br", ["brokers", "broker-loggers"]),
        ("klamm configs describe --entity-type topics --entity-name or", ["orders"]),
        ("klamm configs describe --entity-type brokers --entity-name 2", ["2"]),
        ("klamm configs describe --entity-type users --entity-name ", []),
        ("klamm configs alter --topic orders --add-config retention.m", ["retention.ms="]),
        (
            "klamm configs alter --topic orders --delete-config retention.ms,segment.m",
            ["retention.ms,segment.ms"],
        ),
        ("klamm configs alter --broker 1 --add-config ret", []),
        ("klamm configs alter --add-config-file ", [FILES]),
        ("klamm status --command-config=", [FILES]),
        ("klamm broker ", [FILES]),
        ("klamm completion z", ["zsh"]),
        ("klamm comp", ["completion"]),  # The hidden command is not shown.
        ("klamm status --ver", []),
        ('klamm "to', ["topics"]),
        ("klamm topics li\n", ["list"]),
    ],
)
def test_what_may_stand_at_the_end_of_a_line(line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_the_cluster_is_the_one_that_the_line_names() -> None:
    place = find_place(ROOT, "klamm topics describe --bootstrap-server a:1 --command-config=f --topic ")
    assert place.given == {"--bootstrap-server": ["a:1"], "--command-config": ["f"]}


@pytest.mark.parametrize(
    ("shell", "first"), [("bash", "_klamm() {"), ("zsh", "#compdef"), ("fish", "function __klamm")]
)
def test_each_shell_has_its_function(shell: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == 0
    assert capsys.readouterr().out.startswith(first)


# -- real bash ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=1, helper=klamm_helper) as cluster:
        cluster.create_topic("orders")
        yield cluster


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with `klamm` on the path."""
    klamm = tmp_path / "klamm"
    klamm.write_text(f'#!/bin/sh\nexec {sys.executable} -m klamm.cli.main "$@"\n')
    klamm.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb"}


def bash_replies(line: str, environment: dict[str, str]) -> list[str]:
    """What bash's function offers at the end of the line."""
    script = 'eval "$(klamm completion bash)"; COMP_LINE=$1 COMP_POINT=${#1}; _klamm; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_offers_what_a_live_cluster_has(cluster: Cluster, environment: dict[str, str]) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    assert bash_replies(f"klamm topics describe {server} --topic ", environment) == ["orders"]
    # Bash replaces only what follows the "=".
    assert bash_replies(f"klamm topics describe {server} --topic=o", environment) == ["orders"]
    assert bash_replies(f"klamm brokers describe {server} --broker ", environment) == ["0"]


@pytest.mark.parametrize("server", ["127.0.0.1:{port}", "nonsense", "127.0.0.1:99999"])
def test_bash_offers_nothing_when_the_cluster_cannot_be_asked(environment: dict[str, str], server: str) -> None:
    address = server.format(port=free_port())
    assert bash_replies(f"klamm topics describe --bootstrap-server {address} --topic ", environment) == []


def test_a_tab_in_an_interactive_bash_completes_the_topic(cluster: Cluster, environment: dict[str, str]) -> None:
    master, terminal = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""

    def wait_for(text: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + 120
        while text not in shown:
            assert select.select([master], [], [], deadline - time.monotonic())[0], shown
            shown += os.read(master, 4096)

    try:
        os.write(master, b'eval "$(klamm completion bash)"; echo re""ady\n')
        wait_for(b"ready")
        os.write(master, f"klamm topics describe --bootstrap-server {cluster.bootstrap} --topic or\t".encode())
        wait_for(b"--topic orders")
    finally:
        bash.kill()
        bash.wait()
        os.close(master)
