"""Comparisons with a user's regular expression end, whatever the expression and the name."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base import patterns
from klamm.base.patterns import InvalidPattern, Pattern, PatternTooSlow


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("castle-.*", "castle-1", "castl"),
        ("a.b", "axb", "ab"),
        ("a|b", "b", "c"),
        ("(?!__).*", "orders", "__offsets"),
        ("(a|b)+c", "abac", "ab"),
        (r"(.)\1", "aa", "ab"),
        ("x*y*z*", "xxz", "zx"),
        ("(?s)a.*", "a\nb", "b"),
    ],
)
def test_they_say_what_pythons_engine_says(text: str, matching: str, other: str) -> None:
    pattern = Pattern(text)
    assert pattern.fullmatch(matching) and not pattern.fullmatch(other)
    assert pattern.search(f"-{matching}") == (re.search(text, f"-{matching}") is not None)


@pytest.mark.parametrize("text", ["(", "a{99999999999}", "[", "(?<x"])
def test_what_is_no_expression_is_told(text: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(text)


SLOW = ["(a+)+b", "(a|aa)*b", "(.*)*b", "a?" * 40 + "a" * 40, "(a|a)(a|a)" * 20 + "b", r"(a*)*\1b", ".*.*.*.*.*.*.*b"]


@pytest.mark.parametrize("text", SLOW)
def test_an_expression_with_too_many_ways_to_match_ends(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LIMIT_S", 0.1)
    pattern = Pattern(text)
    assert not pattern.fullmatch("c"), "a short name is no problem"
    with pytest.raises(PatternTooSlow, match="it can match a name in too many ways"):
        for _ in range(1000):
            pattern.fullmatch("a" * 249)
    with pytest.raises(PatternTooSlow):
        pattern.fullmatch("c")


# Signs of expressions, so that many of the texts are some.
EXPRESSIONS = st.text(st.sampled_from("ab.()[]*+?{}|\\^$,1"), max_size=12)


@pytest.mark.long
@settings(max_examples=3000)
@given(EXPRESSIONS)
def test_what_is_compared_in_this_process_is_quick(text: str) -> None:
    try:
        pattern = Pattern(text)
    except InvalidPattern:
        return
    if pattern._is_harmless:
        begun_s = time.process_time()
        for name in ("a" * 249, "ab" * 124, "b" * 248 + "a"):
            pattern.fullmatch(name)
        # What is harmful takes for ever, and this is some thousand times what is harmless takes.
        assert time.process_time() - begun_s < patterns.LIMIT_S
