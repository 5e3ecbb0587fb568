"""Who finds a mutant: the tests of its module, then those of its room, then random runs of the simulator.

What must stay true:
- The mutant is in a copy of the tree, so that nothing else meets it, and is gone when the hunt is over.
- A mutant counts as found only if the tests of its room pass without it: they run once before the first hunt there.
- A test run that ends by its time limit counts as found: klamm hangs with the mutant.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.mutants.mutants import Mutant

ROOT = Path(__file__).resolve().parents[3]
# A room's tests take less than two minutes on a busy core.
TESTS_LIMIT_S = 600
# 60 seeds of the simulator take less than three minutes on a busy core.
SEEDS_LIMIT_S = 1_800


class Found(NamedTuple):
    """What has found a mutant, and after how many seconds; None if nothing has."""

    by: str | None
    after_s: float


class Tree:
    """A copy of klamm and its tests. `path` is where it lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked: set[str] = set()
        for name in ("klamm", "pyspark_klamm", "tests", "docs"):
            shutil.copytree(ROOT / name, path / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"):
            shutil.copy(ROOT / name, path / name)

    def find(self, module: Path, mutant: Mutant, seeds: int) -> Found:
        """Hunts a mutant of a module of the tree, given relative to it. Raises RuntimeError if a test of the module's
        room fails without it."""
        room = module.parts[1]
        self._check(room)
        file = self.path / module
        source = file.read_text()
        began_s = time.monotonic()
        file.write_text(mutant.applied_to(source))
        try:
            found = self._by_tests(self._tests_of(room, module)) or self._by_tests([Path("tests", room)])
            found = found or self._by_seeds(seeds)
        finally:
            file.write_text(source)
        return Found(found, round(time.monotonic() - began_s, 1))

    def _check(self, room: str) -> None:
        if room not in self._checked and (failing := self._by_tests([Path("tests", room)])) is not None:
            raise RuntimeError(f"without a mutant, {failing} fails too")
        self._checked.add(room)

    def _tests_of(self, room: str, module: Path) -> list[Path]:
        """The test files that are named after the module, or say its name in an import."""
        dotted = ".".join(module.with_suffix("").parts)
        files = sorted((self.path / "tests" / room).rglob("test_*.py"))
        named = [file for file in files if file.stem == f"test_{module.stem}"]
        importing = [file for file in files if dotted in file.read_text() and file not in named]
        return [file.relative_to(self.path) for file in (*named, *importing)]

    def _by_tests(self, tests: Sequence[Path]) -> str | None:
        if not tests:
            return None
        options = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--no-header",
            "--tb",
            "no",
            "--timeout",
            "60",
        ]
        status, output = self._run([sys.executable, "-m", "pytest", *options, *map(str, tests)], TESTS_LIMIT_S)
        if status == 0:
            return None
        if status is None:
            return f"time limit of {', '.join(map(str, tests[:1]))}"
        failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else "the start of the tests"

    def _by_seeds(self, seeds: int) -> str | None:
        if not seeds:
            return None
        command = [sys.executable, "-m", "klamm.simulation", "--seeds", str(seeds)]
        status, output = self._run(command, SEEDS_LIMIT_S)
        if status == 0:
            return None
        if status is None:
            return "time limit of the simulator"
        failed = [line for line in output.splitlines() if line.startswith("failed: seeds ")]
        return f"seed {failed[0].removeprefix('failed: seeds ')}" if failed else "the start of the simulator"

    def _run(self, command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """The exit status, None after the time limit, and the output."""
        environment = {**os.environ, "PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command,
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                return None, ""
        return process.returncode, output
