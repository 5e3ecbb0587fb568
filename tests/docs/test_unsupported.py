"""docs/unsupported.md names exactly the configuration keys that have no effect, and they have none."""

import re
from pathlib import Path

from klamm.config.broker import BROKER_CONFIG_DEF, DYNAMIC_ONLY_DEF
from klamm.config.definition import attribute
from klamm.config.topic import TOPIC_CONFIG_DEF
from klamm.config.unsupported_table import replace_table, table

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "unsupported.md"
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("klamm/**/*.py"))}


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert replace_table(text) == text, "run `make docs`"


def test_no_key_is_said_to_be_accepted_that_ends_a_start() -> None:
    brokers, _, refused = table().split("\n\n")
    assert "`authorizer.class.name`" not in brokers
    assert "`authorizer.class.name` (the authorizer would not be asked)" in refused


def test_every_key_is_read_somewhere_or_has_its_reason() -> None:
    """A key that is said to act and that no code reads is the worst of both."""
    brokers = {**BROKER_CONFIG_DEF.keys, **DYNAMIC_ONLY_DEF.keys}
    for keys, definitions in ((brokers, "broker_keys.py"), (TOPIC_CONFIG_DEF.keys, "topic.py")):
        texts = [text for path, text in SOURCES.items() if path.name != definitions]
        attributes = {name for text in texts for name in re.findall(r"\.(\w+)", text)}
        quoted = {name for text in texts for name in re.findall(r"\"(?=([\w.-]+)\")", text)}
        read = {
            name
            for name, key in keys.items()
            if (attribute(name) in attributes or name in quoted) and not key.without_effect
        }
        with_reason = {name for name, key in keys.items() if key.without_effect}
        assert sorted(set(keys) - read - with_reason) == []
        assert [name for name in sorted(with_reason) if attribute(name) in attributes] == []
