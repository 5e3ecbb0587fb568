"""Regular expressions as values of options."""

import re

import typer


def expression(text: str, option: str) -> re.Pattern[str]:
    """Raises typer.BadParameter."""
    try:
        return re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is not a valid regular expression: {error}", param_hint=option) from None


def topic_expression(text: str, option: str = "--topic") -> re.Pattern[str]:
    """For whole names of topics. As in Kafka's tools, commas separate alternatives, and quotes are ignored.

    Raises typer.BadParameter.
    """
    return expression(text.strip("\"' ").replace(",", "|"), option)
