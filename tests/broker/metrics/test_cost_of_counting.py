"""What counting adds to a produce, in opcodes, because a time differs from run to run: see `bench/metrics.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

# A produce without counting has about 3,900, told line by line (support.opcodes). One takes some ten nanoseconds.
MOST_OPCODES = 119


@pytest.fixture
def uncounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of klamm that does not count."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import uncounted

    uncounted.make(ROOT, tmp_path / "uncounted")
    return tmp_path / "uncounted"


def opcodes_of_a_produce(source: Path, directory: Path) -> int:
    directory.mkdir()
    program = [sys.executable, "-m", "support.produce_opcodes", str(directory)]
    environment = {"PYTHONPATH": f"{source}:{ROOT / 'tests'}", "PATH": ""}
    # Not the checkout, which would come first on the program's path.
    done = subprocess.run(
        program, cwd=directory, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout)


def test_counting_executes_few_opcodes(uncounted: Path, tmp_path: Path) -> None:
    counted = opcodes_of_a_produce(ROOT, tmp_path / "counted-broker")
    plain = opcodes_of_a_produce(uncounted, tmp_path / "plain-broker")
    assert 0 < counted - plain <= MOST_OPCODES
