"""docs/unsupported.md names exactly the configuration keys that have no effect."""

from pathlib import Path

from klamm.config.unsupported_table import replace_table, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "unsupported.md"


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert replace_table(text) == text, "run `make docs`"


def test_no_key_is_said_to_be_accepted_that_ends_a_start() -> None:
    brokers, _, refused = table().split("\n\n")
    assert "`authorizer.class.name`" not in brokers
    assert "`authorizer.class.name` (the authorizer would not be asked)" in refused
