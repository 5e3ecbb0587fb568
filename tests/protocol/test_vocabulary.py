"""Each word of the protocol is defined once, in the vocabulary."""

import re
from functools import cache
from pathlib import Path

from klamm.protocol import vocabulary

ROOT = Path(__file__).parents[2] / "klamm"
VOCABULARY = Path(vocabulary.__file__)
WORDS = {name: value for name, value in vars(vocabulary).items() if not name.startswith("_") and name.isupper()}
TYPES = {name for name, value in vars(vocabulary).items() if getattr(value, "__module__", "") == vocabulary.__name__}


@cache
def modules() -> dict[str, str]:
    paths = [path for path in sorted(ROOT.glob("**/*.py")) if path != VOCABULARY]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def found(pattern: str) -> list[str]:
    """Where the pattern matches, as file, line and text."""
    return [
        f"{module}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for module, text in modules().items()
        for match in re.finditer(pattern, text, re.MULTILINE)
    ]


def test_no_other_module_defines_a_word_of_the_vocabulary() -> None:
    assert found(rf"^_*({'|'.join(WORDS)})\s*(:[^=\n]+)?=(?!=)") == []
    assert found(rf"^class ({'|'.join(TYPES)})\b") == []


def test_no_other_module_spells_the_names_of_internal_topics() -> None:
    assert found(rf"([\"'])({'|'.join(vocabulary.INTERNAL_TOPICS)})\1") == []
