"""docs/clients.md says of the clients what the tests here show."""

import re
from pathlib import Path

from support.group_clients.hosts import CLIENTS

DOCUMENT = Path(__file__).parents[3] / "docs" / "clients.md"


def test_the_table_is_current() -> None:
    table = re.search(r"<!-- begin: clients -->\n(.*)<!-- end: clients -->", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert table is not None
    rows = []
    for name, client in CLIENTS.items():
        cells = (
            name,
            ", ".join(client.assignors),
            client.commits_async,
            "yes" if client.tells_lost else "no",
            "yes" if client.commits_in_callbacks else "no",
        )
        rows.append(f"| {' | '.join(cells)} |")
    assert table.group(1).splitlines()[2:] == rows
