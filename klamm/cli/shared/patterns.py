"""Names and regular expressions as values of options."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import typer

from klamm.base.patterns import InvalidPattern, Pattern

# A legal topic name. The dot also has a meaning in regular expressions.
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def expression(text: str, option: str, flags: int = 0) -> Pattern:
    """Raises typer.BadParameter."""
    try:
        return Pattern(text, flags)
    except InvalidPattern as error:
        raise typer.BadParameter(f"{text!r} is not a valid regular expression: {error}", param_hint=option) from None


def topic_expression(text: str, option: str = "--topic") -> Pattern:
    """A pattern for whole topic names. As in Kafka's tools, commas separate alternatives, and quotes are ignored.

    Raises typer.BadParameter.
    """
    return expression(_unquoted(text).replace(",", "|"), option)


@dataclass(frozen=True, slots=True)
class Named:
    """The topics of a value: existing `names`, and the topics that the rest of the value matches as a `pattern`."""

    names: Sequence[str]
    pattern: str | None = None
    matched: Sequence[str] = ()

    @property
    def all(self) -> list[str]:
        return sorted({*self.names, *self.matched})


def named_topics(text: str, topics: Iterable[str], option: str = "--topic") -> Named:
    """The topics of a value. An existing name means that topic; only the rest is a pattern, as in Kafka's tools.

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
        # The comma belongs to a regular expression, so the parts are not names.
        names, rest, pattern = [], _unquoted(text), topic_expression(text, option)
    return Named(names, rest, [topic for topic in existing if topic not in names and pattern.fullmatch(topic)])


def looks_like_names(pattern: str) -> bool:
    """Whether all parts of a pattern could be topic names, so that the user may have meant names."""
    return all(_PLAIN_NAME.fullmatch(part) for part in pattern.split(","))


def _unquoted(text: str) -> str:
    return text.strip("\"' ")
