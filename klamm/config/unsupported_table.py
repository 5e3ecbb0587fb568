"""Prints the table of configuration keys that have no effect yet, for docs/unsupported.md.

`python -m klamm.config.unsupported_table docs/unsupported.md` rewrites the table in that file.
"""

import sys

from klamm.config.broker import BROKER_CONFIG_DEF, DYNAMIC_ONLY_DEF, PROTECTIONS
from klamm.config.definition import ConfigDef
from klamm.config.topic import TOPIC_CONFIG_DEF

BEGIN = "<!-- begin: keys without effect -->\n"
END = "<!-- end: keys without effect -->\n"


def table() -> str:
    """The keys of brokers and of topics without effect, as Markdown, and those that must not be set."""
    brokers, topics = _names(BROKER_CONFIG_DEF, DYNAMIC_ONLY_DEF), _names(TOPIC_CONFIG_DEF)
    refused = ", ".join(f"`{name}` ({consequence})" for name, consequence in sorted(PROTECTIONS.items()))
    return (
        f"**Brokers:** {brokers}.\n\n**Topics:** {topics}.\n\n"
        f"**Refused:** a broker does not start with one of these, because something would be less protected than it"
        f" seems: {refused}.\n"
    )


def _names(*definitions: ConfigDef) -> str:
    names = sorted(name for definition in definitions for name in definition.ineffective() if name not in PROTECTIONS)
    return ", ".join(f"`{name}`" for name in names)


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
