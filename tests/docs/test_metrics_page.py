"""docs/metrics.md compares Kafka's metrics with those that klamm registers."""

from pathlib import Path

from support.metrics.page import klamm_shapes, written

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


async def test_the_page_is_current(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text, await klamm_shapes(tmp_path)), "make docs writes it"
