"""What documents and docstrings name exists: files, tests, modules, functions. A name that has moved is found here."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
ROOMS = ("klamm", "tests", "bench", "pyspark_klamm")
SOURCES = [path for room in ROOMS for path in sorted(ROOT.glob(f"{room}/**/*.py"))]
NAMES_OF_OTHERS = ("jute.maxbuffer", "df.write", "from_protobuf", "to_protobuf")  # of ZooKeeper, PySpark and Spark
PLACEHOLDERS = ("NAME", "...", "totals.py")  # the last is what an example writes

# Comments and docstrings; and, so that a `#` or quotes in them begin neither, other texts.
PROSE_OR_TEXT = re.compile(
    r"""(?P<prose>\#[^\n]*|(?<!\w)\"{3}(?:[^\\]|\\.)*?\"{3})|'{3}.*?'{3}|\"{3}(?:[^\\]|\\.)*?\"{3}"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""",
    re.DOTALL,
)


def test_every_file_that_a_document_names_exists() -> None:
    paths = [f"/{path.relative_to(ROOT)}" for path in SOURCES]
    missing = [
        f"{document.name}:{number}: {name}"
        for document in DOCUMENTS
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1)
        for name in re.findall(r"(?<![\w./])[\w/.]*\w\.py\b", line)
        if not any(placeholder in name for placeholder in PLACEHOLDERS)
        if not any(path.endswith(f"/{name.removeprefix('../')}") for path in paths)
    ]
    assert missing == []


def test_every_path_that_a_document_names_exists() -> None:
    missing = [
        f"{document.name}:{number}: {name}"
        for document in DOCUMENTS
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1)
        for name in re.findall(r"(?<![\w./-])(?:klamm|tests|bench|docs|scripts|requirements)/[\w./-]*[\w/]", line)
        if not any(placeholder in name for placeholder in PLACEHOLDERS)
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_every_test_that_a_document_names_stands_in_the_file_named_before_it() -> None:
    missing = []
    for document in DOCUMENTS:
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
            text = ""
            for name in re.findall(r"`(tests/[\w/.]+\.py|test_\w+)`", line):
                if name.startswith("tests/"):
                    text = "" if "NAME" in name else (ROOT / name).read_text(encoding="utf-8")
                elif text and not re.search(rf"def {name}\b", text):
                    missing.append(f"{document.name}:{number}: {name}")
    assert missing == []


def test_every_name_in_a_docstring_or_comment_exists_somewhere() -> None:
    known: set[str] = set()
    prose: list[tuple[Path, int, str]] = []
    for path in SOURCES:
        known.update(path.relative_to(ROOT).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        end, line = 0, 1
        for match in PROSE_OR_TEXT.finditer(text):
            if match["prose"]:
                known.update(re.findall(r"\w+", text[end : match.start()]))
                line += text.count("\n", end, match.start())
                prose.append((path, line, match["prose"]))
                line += match["prose"].count("\n")
                end = match.end()
        known.update(re.findall(r"\w+", text[end:]))
    unknown = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, line, text in prose
        for name in names_in(text)
        if name not in NAMES_OF_OTHERS and not known.issuperset(name.removesuffix(".py").split("."))
    ]
    assert unknown == []


def names_in(text: str) -> Iterator[str]:
    """Names in backticks as Python has them for modules and functions."""
    return (match.group(1) for match in re.finditer(r"`([a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)*)(?:\(\))?`", text))
