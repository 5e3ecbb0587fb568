"""Names and regular expressions as values of options."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import typer

from klamm.base.patterns import InvalidPattern, Pattern

# As Kafka's topics are called. The dot is also a sign of regular expressions.
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def expression(text: str, option: str, flags: int = 0) -> Pattern:
    """Raises typer.BadParameter."""
    try:
        return Pattern(text, flags)
    except InvalidPattern as error:
        raise typer.BadParameter(f"{text!r} is not a valid regular expression: {error}", param_hint=option) from None


def topic_expression(text: str, option: str = "--topic") -> Pattern:
    """For whole names of topics. As in Kafka's tools, commas separate alternatives, and quotes are ignored.

    Raises typer.BadParameter.
    """
    return expression(_unquoted(text).replace(",", "|"), option)


@dataclass(frozen=True, slots=True)
class Named:
    """What a value names: `names` that exist, and what else the rest of it matches as a `pattern`."""

    names: Sequence[str]
    pattern: str | None = None
    matched: Sequence[str] = ()

    @property
    def all(self) -> list[str]:
        return sorted({*self.names, *self.matched})


def named_topics(text: str, topics: Iterable[str], option: str = "--topic") -> Named:
    """The topics that a value names. A name that exists is that name; only the rest is a pattern, as in Kafka's tools.

    Raises typer.BadParameter.
    """
    existing, parts = set(topics), _unquoted(text).split(",")
    names = [part for part in parts if part in existing]
    rest = ",".join(part for part in parts if part not in existing)
    if not rest:
        return Named(names)
    try:
        pattern = topic_expression(rest, option)
    except typer.BadParameter:
        # A comma within the expression: what it separates are no names.
        names, rest, pattern = [], _unquoted(text), topic_expression(text, option)
    return Named(names, rest, [topic for topic in existing if topic not in names and pattern.fullmatch(topic)])


def looks_like_names(pattern: str) -> bool:
    """Whether all parts of a pattern could be names of topics, so that its author may have meant names."""
    return all(_PLAIN_NAME.fullmatch(part) for part in pattern.split(","))


def _unquoted(text: str) -> str:
    return text.strip("\"' ")
