"""docs/protocol.md says what the broker serves."""

from pathlib import Path

from klamm.broker.handlers import APIS
from klamm.broker.start import protocol_table
from klamm.protocol.messages import ApiKey

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_document_is_current():
    assert DOCUMENT.read_text() == protocol_table.render(APIS), (
        "run: python -m klamm.broker.start.protocol_table > docs/protocol.md"
    )


def test_rows():
    document = protocol_table.render({ApiKey.FETCH: APIS[ApiKey.FETCH]})
    assert "| 1 | Fetch | 4-12 | 0-12 | " in document
    assert "| 45 | AlterPartitionReassignments |  | 0 |  |" in document
    assert "| 66 | ListTransactions |  | none; 3.8 has 0-1 |  |" in document
    assert document.count("\n| ") == 58 + 1
