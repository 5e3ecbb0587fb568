"""A topic's name is that name, and what is a pattern is said to be one."""

from dataclasses import replace

import pytest
import typer

from klamm.cli.shared.patterns import Named, named_topics
from klamm.cli.topics.selection import Selection, select
from klamm.processes.tool_errors import ToolError

TOPICS = ["a.b", "axb", "castle-1", "castle-2", "__consumer_offsets", "x,y"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b", Named(["a.b"], None, [])),
        ("a.c", Named([], "a.c", [])),
        ("castle.1", Named([], "castle.1", ["castle-1"])),
        ("castle-.*", Named([], "castle-.*", ["castle-1", "castle-2"])),
        ("a.b,castle-.", Named(["a.b"], "castle-.", ["castle-1", "castle-2"])),
        ("'a.b' ", Named(["a.b"], None, [])),
        ("(a.b,castle-1)", Named([], "(a.b,castle-1)", ["a.b", "axb", "castle-1"])),
        ("a.b,(axb,castle-1)", Named(["a.b"], "(axb,castle-1)", ["axb", "castle-1"])),
    ],
)
def test_a_name_that_exists_is_that_name_and_the_rest_is_a_pattern(text: str, expected: Named) -> None:
    named = named_topics(text, TOPICS)
    assert replace(named, matched=sorted(named.matched)) == expected


@pytest.mark.parametrize(
    ("text", "selected"),
    [("a.b", ["a.b"]), ("a.c", []), ("castle.1", []), ("(castle.1)", ["castle-1"]), ("castle-.", []), (".*", TOPICS)],
)
def test_a_command_that_changes_topics_takes_no_name_for_a_pattern(text: str, selected: list[str]) -> None:
    selection = select(text, only_marked_patterns=True)
    assert selection.of(TOPICS) == sorted(selected)
    assert list(selection.pattern_lines(TOPICS)) == (
        [f"The pattern '{text}' matches {len(selected)} topic{'s'[: len(selected) > 1]}:"]
        if selected not in ([], ["a.b"])
        else []
    )


def test_what_a_name_would_match_as_a_pattern_is_told() -> None:
    topics = ["axb", "ayb"]
    with pytest.raises(ToolError) as raised:
        select("a.b", only_marked_patterns=True).require(topics, if_exists=False)
    assert str(raised.value) == (
        "Topic 'a.b' does not exist as expected; as a pattern it matches axb, ayb: if you mean that, write '(a.b)'"
    )
    select("a.b", only_marked_patterns=True).require(topics, if_exists=True)
    with pytest.raises(ToolError, match=r"^Topic 'b' does not exist as expected$"):
        select("b").require(topics, if_exists=False)


def test_all_topics_with_and_without_internal_ones() -> None:
    assert Selection(None).of(TOPICS) == sorted(TOPICS)
    assert "__consumer_offsets" not in select(".*", exclude_internal=True).of(TOPICS)


def test_a_bad_expression_is_a_wrong_call() -> None:
    with pytest.raises(typer.BadParameter, match="is not a valid regular expression"):
        select("castle-(")
