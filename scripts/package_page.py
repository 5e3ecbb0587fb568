"""The package's page on an index such as PyPI: README.md with links and pictures that work from there.

A hook of hatchling. An index shows the page far from the repository, so a relative link needs the repository's address:
`address` beside this hook in pyproject.toml. Until the repository has a public address, the page has the links' texts
alone, and no pictures.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE_OR_LINK = re.compile(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)]*)\)")
PLACES = {"Documentation": "docs/testing.md", "Changelog": "CHANGELOG.md"}


class PackagePage(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = self.config["address"].rstrip("/")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(text, address)}
        metadata["urls"] = urls(address)


def page(text: str, address: str) -> str:
    """The README with whole addresses."""

    def whole(found: re.Match[str]) -> str:
        is_picture, name, path = found.groups()
        if not address:
            return "" if is_picture else name
        return f"{is_picture}[{name}]({address}/{'raw' if is_picture else 'blob'}/main/{path})"

    return PICTURE_OR_LINK.sub(whole, text)


def urls(address: str) -> dict[str, str]:
    """The addresses beside the page."""
    if not address:
        return {}
    return {"Repository": address, **{name: f"{address}/blob/main/{path}" for name, path in PLACES.items()}}
