"""The line with the credentials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.net.jaas import JaasError, parse_login_module

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (f'{PLAIN} required username="alice" password="secret";', {"username": "alice", "password": "secret"}),
        (f"{PLAIN} REQUIRED username='alice' password=secret ;\n", {"username": "alice", "password": "secret"}),
        (f'\n {PLAIN}\toptional\n  username = "a b;="\n  password="x";\n', {"username": "a b;=", "password": "x"}),
        (f'{PLAIN} required a="\\"\\\\\\\'\\t\\101\\x";', {"a": "\"\\'\tAx"}),
        (f'{PLAIN} required /* user="no"; */ a="/* yes */" // the end\n ;', {"a": "/* yes */"}),
        (f'{PLAIN} requisite a="one" a="ü-two";', {"a": "ü-two"}),
        (f"{PLAIN} sufficient;", {}),
    ],
)
def test_lines(line: str, options: dict[str, str]) -> None:
    module = parse_login_module(line)
    assert (module.name, module.options) == (PLAIN, options)
    assert "secret" not in repr(module)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "at its end: the login module is missing; allowed: LoginModule required"),
        ("  ", "at its end: the login module is missing"),
        ('"secret" required;', "at character 1: the login module is missing"),
        (f"{PLAIN}", "at its end: the word required is missing"),
        (f"{PLAIN} secret;", f"at character {len(PLAIN) + 2}: the word required is missing"),
        (f"{PLAIN} required", "at its end: an option or a semicolon is missing"),
        (f'{PLAIN} required a="secret"', "at its end: an option or a semicolon is missing"),
        (f"{PLAIN} required secret;", "an option is followed by = and its value"),
        (f"{PLAIN} required a=;", "a value in quotation marks is missing"),
        (f"{PLAIN} required a=5secret;", "a value in quotation marks is missing"),
        (f'{PLAIN} required a="secret;', "a value in quotation marks is missing"),
        (f'{PLAIN} required a="secret\n";', "a value in quotation marks is missing"),
        (f'{PLAIN} required a="secret"; {PLAIN} required;', "nothing comes after its semicolon"),
        (f"{PLAIN} required /* secret", "an option or a semicolon is missing"),
    ],
)
def test_lines_that_are_none(line: str, told: str) -> None:
    with pytest.raises(JaasError) as caught:
        parse_login_module(line)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


@given(
    st.text() | st.lists(st.sampled_from([PLAIN, "required", "a", "=", '"x"', "'", '"', ";", " ", "\\", "/*", "\n"]))
)
def test_garbage_is_an_error_or_a_module(tokens: str | list[str]) -> None:
    try:
        module = parse_login_module("".join(tokens))
    except JaasError:
        return
    assert module.name


@given(st.text(), st.text())
def test_whatever_is_quoted_comes_back(username: str, password: str) -> None:
    def quoted(text: str) -> str:
        for character in '\\"':
            text = text.replace(character, "\\" + character)
        return '"' + text.replace("\n", "\\n").replace("\r", "\\r") + '"'

    line = f"{PLAIN} required username={quoted(username)} password={quoted(password)};"
    assert parse_login_module(line).options == {"username": username, "password": password}
