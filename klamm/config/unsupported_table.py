"""Prints the table of configuration keys that have no effect yet, for docs/unsupported.md.

`python -m klamm.config.unsupported_table docs/unsupported.md` rewrites the table in that file.
"""

import sys

from klamm.config.broker import BROKER_CONFIG_DEF
from klamm.config.definition import ConfigDef
from klamm.config.topic import TOPIC_CONFIG_DEF

BEGIN = "<!-- begin: keys without effect -->\n"
END = "<!-- end: keys without effect -->\n"


def table() -> str:
    """The keys of brokers and of topics without effect, as Markdown."""
    return f"**Brokers:** {_names(BROKER_CONFIG_DEF)}.\n\n**Topics:** {_names(TOPIC_CONFIG_DEF)}.\n"


def _names(definition: ConfigDef) -> str:
    return ", ".join(f"`{name}`" for name in sorted(definition.ineffective()))


def replace_table(text: str) -> str:
    """`text` with the table between its two markers brought up to date."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        content = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(replace_table(content))
