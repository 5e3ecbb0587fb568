"""docs/unsupported.md names exactly the configuration keys that have no effect."""

from pathlib import Path

from klamm.config.unsupported_table import replace_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "unsupported.md"


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert replace_table(text) == text, "run `make docs`"
