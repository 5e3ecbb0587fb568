"""The parts of docs/style.md that a program can check, in the prose of klamm, the documents and the changelog."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("docs/*.md")), *(ROOT / name for name in ("CONTRIBUTING.md", "README.md"))]
CHANGELOG = ROOT / "CHANGELOG.md"

# Each phrase, and what to write instead.
PHRASES = {
    r"\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody|[Ww]ho(?:so)?ever)\b": "name the broker, client or caller",
    r"\b(?:for|to|from|of|as|by|tells|told) who\b(?! (?:it|he|they)\b)": "name the broker, client or caller",
    r"\b(?:whoever|whichever) it (?:is|was)\b|\bdoes no longer\b": "name the subject",
    r"(?<!there )\b(?:is|are) none[.;]": "say what it is not",
    r"\bany more\b": "no longer",
    r"\bunder way\b": "in progress, pending",
    r"\bpassed over\b": "ignored, skipped",
    r"\bgo(?:es)? on\b": "continue",
    r'(?:"""|# |\. )(?:Who|Whose|Of) [a-z]|(?:"""|# |\. )So many [a-z]': "begin with the subject",
}
# The official of "The Castle", in README.md.
QUOTED = ("whom nobody ever reaches",)
# The least number of words in a row that a page may not say twice.
REPEATED_WORDS = 12
LOWER_CASE = ("klamm", "kill -9", "memcpy", "unclean.leader.election.enable")


SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("klamm/**/*.py"))}


def _lines_with(phrase: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    documents = {path: path.read_text(encoding="utf-8") for path in (*DOCUMENTS, CHANGELOG)}
    for path, text in (SOURCES | documents).items():
        for number, line in enumerate(text.splitlines() if phrase.search(text) else (), 1):
            # The style page quotes what it forbids.
            if phrase.search(line) and not (path.name == "style.md" and (line.startswith("|") or '"' in line)):
                yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_sentence_has_a_phrase_that_hides_its_subject() -> None:
    any_phrase = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES))
    found = [
        f"{where}: {line.strip()[:100]} ({'; '.join(PHRASES[phrase] for phrase in PHRASES if re.search(phrase, line))})"
        for where, line in _lines_with(any_phrase)
        if not any(quote in line for quote in QUOTED)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("sentence", "is_found"),
    [
        ("It does no longer. Without an epoch: whichever it was.", True),
        ("The line is none.", True),
        ("As `send`, for who authenticates: it has the turn already.", True),
        ("What has begun goes on, whoever asked for it.", True),
        ("# Of so many blocks the entries are kept, but of so many bytes at most.", True),
        ("The current controller; None if there is none.", False),
        ("This broker no longer leads the partition. None means any epoch.", False),
        ("The request decides for whom it is.", False),
    ],
)
def test_the_phrases_are_those_of_the_style_page(sentence: str, is_found: bool) -> None:
    assert any(re.search(phrase, sentence) for phrase in PHRASES) == is_found


def test_every_docstring_begins_like_a_sentence() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {beginning[1]}"
        for path, text in SOURCES.items()
        for beginning in re.finditer(r'^ *"""([a-z].{0,80})', text, re.MULTILINE)
        if not beginning[1].startswith(LOWER_CASE)
    ]
    assert found == []


def test_the_changelog_has_short_entries_under_known_headings() -> None:
    lines = CHANGELOG.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120] == []
    headings = [line for line in lines if line.startswith("### ")]
    assert [line for line in headings if line[4:] not in ("Added", "Changed", "Removed", "Fixed")] == []
    first = lines.index("## Unreleased")
    body = lines[next(number for number in range(first, len(lines)) if lines[number].startswith("### ")) :]
    entries = [line for line in body if line and not line.startswith(("#", "- ")) and line[:1].isspace()]
    assert entries == [], "an entry is one line"
    assert [line for line in body if line.startswith("- ") and not line.endswith(".")] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_a_page_says_nothing_twice(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = " ".join(line for line in prose.splitlines() if not line.startswith(("|", "#"))).split()
    runs = [" ".join(words[start : start + REPEATED_WORDS]) for start in range(len(words) - REPEATED_WORDS + 1)]
    assert next((run for run, count in Counter(runs).items() if count > 1), None) is None
