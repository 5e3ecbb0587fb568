"""Whatever the bytes are, reading them gives a value or JsonError, and only a value of the form that was asked for."""

from typing import NamedTuple

import msgspec
import pytest

from klamm.base import json_bytes


class Point(NamedTuple):
    x: int
    names: tuple[str, ...] = ()


class Found(msgspec.Struct):
    points: list[tuple[str, Point]]
    why: str | None


NOT_JSON = [
    b"",
    b"{",
    b'{"a":}',
    b"{}x",
    b"NaN",
    b"\xff",
    b'"\xff"',
    b'{"\xff":1}',
    b'"\\ud800"',
    b"1e999",
    b"[" * 100_000,
]
NOT_JSON += [b"9" * 10_000, b"\xef\xbb\xbf{}", b'"\x01"', b"01", b"[1,]"]


@pytest.mark.parametrize("text", NOT_JSON)
def test_what_is_not_json_is_an_error(text: bytes) -> None:
    with pytest.raises(json_bytes.JsonError):
        json_bytes.decode(text)


def test_a_value_is_of_its_form_or_the_error_says_where_it_is_not() -> None:
    value = json_bytes.decode(b'{"points":[["a",[1,["n"]]]],"why":null,"of a later version":1}')
    assert json_bytes.of_form(value, Found) == Found([("a", Point(1, ("n",)))], None)
    true = {"points": [["a", [True]]], "why": ""}
    for wrong, where in (({"why": ""}, "points"), (true, r"\$\.points\[0\]\[1\]\[0\]")):
        with pytest.raises(json_bytes.JsonError, match=where):
            json_bytes.of_form(wrong, Found)


def test_what_json_does_not_have_is_an_error() -> None:
    for value in (object(), "\ud800"):
        with pytest.raises((TypeError, ValueError)):
            json_bytes.encode(value)
    text = json_bytes.encode({"a": (2**70, float("nan"), "\x7f\u2028\0")})
    assert text == b'{"a":[1180591620717411303424,null,"\x7f\xe2\x80\xa8\\u0000"]}'
