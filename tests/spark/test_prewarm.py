"""`klamm pipeline prewarm`: which loops it compiles, and what the command prints."""

import json
import re
from pathlib import Path

import pytest

from klamm.base import compiling
from klamm.cli import main
from klamm.spark import prewarm
from support.paths import ROOT


def test_every_module_of_sparks_that_compiles_is_prewarmed() -> None:
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "klamm" / "spark").rglob("*.py")
        if re.search(r"^@compiled\b", path.read_text(), re.MULTILINE)
    }
    assert found == set(prewarm.KERNELS)


def test_no_other_module_compiles() -> None:
    """`compiled` keeps the code; numba's own decorators would compile again in each process."""
    pattern = re.compile(r"@(numba\.)?(n?jit|vectorize|guvectorize|cfunc|generated_jit)\b")
    assert [path for path in (ROOT / "klamm").rglob("*.py") if pattern.search(path.read_text())] == []


def test_the_command_says_where_the_code_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["pipeline", "prewarm"]) == 0
    text = capsys.readouterr().out
    assert main.run(["pipeline", "prewarm", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert Path(value["directory"]).is_dir()
    assert text == f"Compiled {value['compiled']} functions and found {value['loaded']} in {value['directory']}.\n"


def test_the_directory_gets_code_that_was_found_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    assert main.run(["pipeline", "prewarm", "--directory", str(tmp_path / "kernels")]) == 0
    functions = {each.parent.name for each in (tmp_path / "kernels" / "klamm").glob("*/*.nbc")}
    assert len(functions) == sum(compiling.compilations())


def test_a_directory_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    assert main.run(["pipeline", "prewarm", "--directory", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"klamm: --directory: {tmp_path / 'file'} cannot be written to\n"
