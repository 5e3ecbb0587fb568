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
    """The keys of brokers and of topics without effect, with the reasons, as Markdown; and the refused keys."""
    brokers, topics = _rows(BROKER_CONFIG_DEF, DYNAMIC_ONLY_DEF), _rows(TOPIC_CONFIG_DEF)
    refused = ", ".join(f"`{name}` ({consequence})" for name, consequence in sorted(PROTECTIONS.items()))
    return (
        f"| keys of brokers | why they change nothing |\n|---|---|\n{brokers}\n"
        f"| keys of topics | why they change nothing |\n|---|---|\n{topics}\n"
        f"**Refused:** a broker does not start with one of these, because something would be less protected than it"
        f" seems: {refused}.\n"
    )


def _rows(*definitions: ConfigDef) -> str:
    """A row for each reason, the reason with the fewest keys first."""
    names: dict[str, list[str]] = {}
    for definition in definitions:
        for name, reason in definition.ineffective().items():
            if name not in PROTECTIONS:
                names.setdefault(reason, []).append(name)
    rows = sorted((len(keys), reason, ", ".join(f"`{key}`" for key in sorted(keys))) for reason, keys in names.items())
    return "".join(f"| {keys} | {reason} |\n" for _, reason, keys in rows)


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
