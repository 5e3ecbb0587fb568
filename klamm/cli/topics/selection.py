"""The topics that a command works on: all, or those that `--topic` names. Pure.

What must stay true: a command that changes topics does not take a name for a pattern. In a regular expression, the dot
of `a.b` matches any character: if the topic `a.b` is gone, `a.b` must not mean the topic `axb`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from klamm.base.words import counted
from klamm.cli.shared.patterns import Named, looks_like_names, named_topics, topic_expression
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Selection:
    """`text` is the option's value; None means all topics. With `only_marked_patterns`, a text that could be a name
    counts as a name."""

    text: str | None
    exclude_internal: bool = False
    only_marked_patterns: bool = False

    def of(self, topics: Iterable[str]) -> list[str]:
        """The selected names, sorted."""
        found = list(topics) if self.text is None else self._named(topics).all
        return sorted(name for name in found if not (self.exclude_internal and name in INTERNAL_TOPICS))

    def require(self, topics: Iterable[str], *, if_exists: bool) -> None:
        """Raises ToolError when `--topic` selects no topic."""
        if self.text is None or if_exists or self.of(existing := list(topics)):
            return
        told = f"Topic '{self.text}' does not exist as expected"
        if matched := sorted(named_topics(self.text, existing).matched):
            told += f"; as a pattern it matches {', '.join(matched)}: if you mean that, write '({self.text})'"
        raise ToolError(told)

    def pattern_lines(self, topics: Iterable[str]) -> Iterator[str]:
        """The line that says that the text is a pattern, and how many topics it matches."""
        if self.text is not None and (named := self._named(topics)).matched:
            yield f"The pattern '{named.pattern}' matches {counted(len(named.matched), 'topic')}:"

    def _named(self, topics: Iterable[str]) -> Named:
        assert self.text is not None
        named = named_topics(self.text, topics)
        if self.only_marked_patterns and named.pattern is not None and looks_like_names(named.pattern):
            return Named(named.names)
        return named


def select(text: str | None, *, exclude_internal: bool = False, only_marked_patterns: bool = False) -> Selection:
    """Raises typer.BadParameter."""
    if text is not None:
        topic_expression(text)
    return Selection(text, exclude_internal, only_marked_patterns)
