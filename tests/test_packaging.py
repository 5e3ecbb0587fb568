"""What a clone becomes: a wheel, which pip, uv and pipx install, and virtual environments that hold no more than is
needed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

import klamm

ROOT = Path(__file__).parents[1]
SHORT_RECIPES = "the_answer_to_an_append_is_lost or the_third_append_is_refused_once"
PROGRAM = ROOT / "tests" / "support" / "installed.py"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("", "spark", "formats", "delta", "iceberg", "objects", "spark,formats,delta,iceberg,objects")
UV = str(Path(sys.executable).with_name("uv"))
PARTS = ("klamm", "pyspark_klamm", "bin", "scripts", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build reads, without what tests and earlier builds have left here."""
    directory = tmp_path_factory.mktemp("clone")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, directory / part)
    return directory


def files(directory: Path) -> list[Path]:
    """What is there, without the bytecode that a build may write."""
    found = (path.relative_to(directory) for path in directory.rglob("*"))
    return sorted(path for path in found if "__pycache__" not in path.parts)


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the clone."""
    return built(clone, tmp_path_factory.mktemp("wheel"))


def built(clone: Path, directory: Path) -> Path:
    before = files(clone)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(directory), "."]
    subprocess.run(pip, cwd=clone, check=True)
    assert files(clone) == before, "a build leaves nothing in the clone"
    (wheel,) = directory.glob("klamm-*.whl")
    return wheel


def test_the_wheel_has_what_the_sources_have(clone: Path, wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(path) for path in files(clone) if path.parts[0] in ("klamm", "pyspark_klamm") and path.suffix}
    assert {name for name in packed if ".dist-info/" not in name and ".data/" not in name} == expected
    assert [name for name in packed if name.endswith("/LICENSE")]
    assert {Path(name).name for name in packed if ".data/scripts/" in name} == {"klamm-python"}


@pytest.mark.parametrize(("target", "built"), [("run", "base"), ("check", "dev"), ("test", "dev"), ("venv", "dev")])
def test_make_installs_no_more_than_a_target_needs(target: str, built: str, tmp_path: Path) -> None:
    for part in ("Makefile", "bin", "pyproject.toml", "requirements", "scripts"):
        (tmp_path / part).symlink_to(ROOT / part)
    printed = subprocess.run(["make", "--dry-run", target], cwd=tmp_path, check=True, capture_output=True, text=True)
    commands = [line for line in printed.stdout.splitlines() if line.startswith("scripts/make-venv")]
    assert commands == [f"scripts/make-venv {built}"]


def test_ci_and_the_hooks_before_a_commit_run_the_commands_of_make() -> None:
    printed = subprocess.run(["make", "--dry-run", "check"], cwd=ROOT, check=True, capture_output=True, text=True)
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == [
        line for line in printed.stdout.splitlines() if line.startswith(".venv/bin/")
    ]
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["sudo scripts/system-packages", ".ci/run"]
    assert all(os.access(ROOT / path, os.X_OK) for path in ("scripts/system-packages", ".ci/run"))


def test_make_interop_runs_every_test_that_is_long() -> None:
    """Some rooms whole, and of all the others, whichever they are, what is marked so."""
    printed = subprocess.run(["make", "--dry-run", "interop"], cwd=ROOT, check=True, capture_output=True, text=True)
    commands = [shlex.split(line) for line in printed.stdout.splitlines() if " -m pytest " in line]
    (every, *rooms), (only, *others) = (line[line.index("-m", 3) + 1 :] for line in commands)
    assert (every, only) == ("long or not long", "long")
    assert rooms and all((ROOT / room).is_dir() for room in rooms)
    assert others == [f"--ignore={room}" for room in rooms]


def test_the_environment_of_a_run_has_no_client_spark_or_linter() -> None:
    names = [line.partition("==")[0] for line in (ROOT / "requirements/base.txt").read_text().splitlines()]
    not_needed = {
        "pyspark",
        "mypy",
        "aiokafka",
        "confluent-kafka",
        "kafka-python",
        "pytest",
        "ruff",
        "numba",
        "pyarrow",
        "kazoo",
    }
    assert "uvloop" in names
    assert not_needed.isdisjoint(names)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(packed.read(name))


def test_the_page_of_the_package_has_no_link_that_only_works_in_the_repository(wheel: Path) -> None:
    found = metadata(wheel)
    assert "Framework :: Pytest" in found.get_all("Classifier", [])
    page = str(found.get_payload())
    assert "A cluster in your tests" in page
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", page) == []


def test_with_an_address_the_page_has_whole_links_and_pictures(clone: Path, tmp_path: Path) -> None:
    shutil.copytree(clone, tmp_path / "clone")
    project = tmp_path / "clone" / "pyproject.toml"
    project.write_text(
        re.sub(r'^address = ""', 'address = "https://forge.example/o/klamm"', project.read_text(), flags=re.M)
    )
    found = metadata(built(tmp_path / "clone", tmp_path / "wheel"))
    page = str(found.get_payload())
    assert "](https://forge.example/o/klamm/raw/main/docs/pictures/failover.png)" in page
    assert "[docs/recipes.md](https://forge.example/o/klamm/blob/main/docs/recipes.md)" in page
    links = re.findall(r"\]\((https://forge.example/o/klamm/(?:raw|blob)/main/)([^)]*)\)", page)
    assert len(links) > 10
    assert [path for _, path in links if not (ROOT / path.partition("#")[0]).exists()] == []
    assert "Repository, https://forge.example/o/klamm" in found.get_all("Project-URL", [])


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel. Other packages come from this environment, without a registry."""
    directory = tmp_path_factory.mktemp("installed")
    python = directory / "bin" / "python"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, directory], check=True)
    subprocess.run([UV, "pip", "install", "-q", "--no-deps", "--offline", "--python", python, wheel], check=True)
    (packages,) = directory.glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_the_wheel_brings_its_commands(installed: Path) -> None:
    assert done(installed.with_name("klamm"), "--version") == f"klamm {klamm.__version__}\n"
    found = done(installed.with_name("klamm-python"), "-P", "-c", "import klamm; print(klamm.__file__)")
    assert Path(found).is_relative_to(installed.parents[1])


@pytest.mark.parametrize("chosen", [SHORT_RECIPES, pytest.param("", marks=pytest.mark.long)], ids=["two", "all"])
def test_the_recipes_run_in_an_empty_project_with_the_wheel(installed: Path, tmp_path: Path, chosen: str) -> None:
    """Each recipe of the page in a file of its own, and the line for conftest.py that the page shows."""
    conftest, *recipes = re.findall(r"```python\n(.*?)```", (ROOT / "docs/recipes.md").read_text(), re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    for number, recipe in enumerate(recipes, 1):
        (tmp_path / f"test_recipe_{number}.py").write_text(recipe)
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "."], cwd=tmp_path, check=False
    )
    assert linted.returncode == 0  # no name that the recipe does not import
    command = [str(installed), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    count = len(chosen.split(" or ")) if chosen else len(recipes)
    assert f"{count} passed" in ran.stdout, ran.stdout
    assert len(recipes) == 20


@pytest.mark.long
def test_a_release_is_built_checked_and_not_pushed(tmp_path: Path) -> None:
    """In a clone of what is committed here; a release without a heading in the changelog is refused."""
    clone = tmp_path / "clone"
    done("git", "clone", "-q", ROOT, clone)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    refused = subprocess.run(["scripts/release"], cwd=clone, capture_output=True, text=True, check=False)
    heading = f"## {klamm.__version__}"
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"CHANGELOG.md has no heading '{heading}'" in refused.stderr
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased", heading, 1))
    author = ("-c", "user.name=t", "-c", "user.email=t@t.example")
    done("git", "-C", clone, *author, "commit", "-qam", "Release")
    said = subprocess.run(["scripts/release"], cwd=clone, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert f"git push origin main v{klamm.__version__}" in said.stdout
    packed = {path.name for path in (clone / "dist").iterdir()}
    assert packed == {f"klamm-{klamm.__version__}.tar.gz", f"klamm-{klamm.__version__}-py3-none-any.whl"}
    assert done("git", "-C", clone, "tag", "-l") == done("git", "-C", ROOT, "tag", "-l")


def done(*command: str | Path, **environment: str) -> str:
    """What a command prints. A Spark session of this process has put the source on PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def interpreter(version: str) -> str:
    """The path of this Python, if the machine has it. A version of pyenv that is not chosen is not on the PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for python in pyenv.glob(f"versions/{version}.*/bin/python"):
        return str(python)
    command = [UV, "python", "find", "--no-python-downloads", "--no-project", "--system", version]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"Python {version} is not installed here")
    return found.stdout.strip()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("version", VERSIONS)
def test_uv_installs_the_wheel_with_each_extra_alone(wheel: Path, version: str, extra: str, tmp_path: Path) -> None:
    directories = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    tool = f"klamm[{extra}] @ file://{wheel}" if extra else str(wheel)
    done(UV, "tool", "install", "-q", "--python", interpreter(version), tool, **directories)
    python = tmp_path / "tools" / "klamm" / "bin" / "python"
    assert done(python, PROGRAM, extra, tmp_path / "bin" / "klamm") == "works\n"
    # Linked from the directory of commands, it is the Python of the tool.
    prefix = done(tmp_path / "bin" / "klamm-python", "-c", "import sys; print(sys.prefix)")
    assert Path(prefix.strip()) == tmp_path / "tools" / "klamm"


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_pip_and_pipx_install_the_wheel(wheel: Path, version: str, tmp_path: Path) -> None:
    done(interpreter(version), "-m", "venv", tmp_path / "pip")
    done(tmp_path / "pip" / "bin" / "pip", "install", "-q", wheel, "pipx")
    assert done(tmp_path / "pip" / "bin" / "python", PROGRAM, "", tmp_path / "pip" / "bin" / "klamm") == "works\n"

    directories = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    done(tmp_path / "pip" / "bin" / "pipx", "install", "-q", wheel, **directories)
    python = tmp_path / "pipx" / "venvs" / "klamm" / "bin" / "python"
    assert done(python, PROGRAM, "", tmp_path / "bin" / "klamm") == "works\n"
