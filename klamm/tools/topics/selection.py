"""Which topics a command is about: all, or those that `--topic` matches. Pure."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from klamm.processes.errors import ToolError
from klamm.protocol.vocabulary import INTERNAL_TOPICS
from klamm.tools.patterns import topic_expression


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics whose whole name matches `expression`. `text` is what the option says."""

    text: str | None
    expression: re.Pattern[str] | None
    exclude_internal: bool = False

    def of(self, names: Iterable[str]) -> list[str]:
        """The selected names, sorted."""
        return sorted(
            name
            for name in names
            if not (self.exclude_internal and name in INTERNAL_TOPICS)
            and (self.expression is None or self.expression.fullmatch(name))
        )

    def require(self, found: Collection[str], *, if_exists: bool) -> None:
        """Raises ToolError when `--topic` matches no topic."""
        if self.text is not None and not found and not if_exists:
            raise ToolError(f"Topic '{self.text}' does not exist as expected")


def select(text: str | None, *, exclude_internal: bool = False) -> Selection:
    """Raises typer.BadParameter."""
    return Selection(text, None if text is None else topic_expression(text), exclude_internal)
