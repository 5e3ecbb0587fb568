"""Bytes of records as texts: what they are taken for, and that nothing in them hides, moves or reorders a text."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.visible import visible
from klamm.cockpit.value_texts import SHOWN_BYTES, decoded_record, indented, value_text


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"order 17", "text", "order 17"),
        ("Käse\n\tund 🧀".encode(), "text", "Käse\n\tund 🧀"),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
        ("abc\u202etxt.exe".encode(), "text", "abc\\u202etxt.exe"),
        (b"a long line with one \x1b[31m escape", "text", "a long line with one \\u001b[31m escape"),
        (b"\x00\x01", "bytes", "000000  00 01  .."),
        (b"\xff\xfe", "bytes", "000000  ff fe  .."),
        (b'{"a":1}', "json", '{\n  "a": 1\n}'),
        (b" [] ", "json", "[]"),
        (b'{"a":', "text", '{"a":'),
        (b"17", "text", "17"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str, text: str) -> None:
    found = value_text(data)
    assert (found["kind"], found["text"], found["is_cut"]) == (kind, text, False)
    assert found["size_bytes"] == len(data or b"")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"a":{},"b":[],"c":[1,{"d":null}]}',
            '{\n  "a": {},\n  "b": [],\n  "c": [\n    1,\n    {\n      "d": null\n    }\n  ]\n}',
        ),
        (
            '{"n":12345678901234567890123,"f":1.50,"e":1E400}',
            '{\n  "n": 12345678901234567890123,\n  "f": 1.50,\n  "e": 1E400\n}',
        ),
        ('{"twice":1,"twice":2}', '{\n  "twice": 1,\n  "twice": 2\n}'),
        ('{"brackets":"[{,:\\"}]"}', '{\n  "brackets": "[{,:\\"}]"\n}'),
    ],
)
def test_json_is_indented_and_keeps_its_tokens(text: str, expected: str) -> None:
    assert indented(text) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON.filter(lambda value: isinstance(value, list | dict)), st.sampled_from([None, 1, 3]))
def test_any_json_means_the_same_when_it_is_indented(value: object, indent: int | None) -> None:
    assert json.loads(indented(json.dumps(value, indent=indent, ensure_ascii=False))) == value


def test_json_that_nests_without_end_is_shown_and_costs_little() -> None:
    deep = b"[" * 2000 + b"]" * 2000
    found = value_text(deep)
    assert len(found["text"]) < 100 * len(deep)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_nothing_invisible_is_left_of_any_bytes(data: bytes) -> None:
    text = value_text(data)["text"]
    assert not [each for each in text if unicodedata.category(each)[0] in "C" and each not in "\n\t"]
    text.encode()  # No half of a surrogate pair is left.


@given(st.text())
def test_a_visible_text_stays_as_it_is(text: str) -> None:
    once = visible(text)
    assert visible(once) == once
    assert not [each for each in once if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_a_long_value_is_cut_with_its_length_and_not_within_a_character() -> None:
    found = value_text("ä".encode() * SHOWN_BYTES)
    assert (found["kind"], found["is_cut"], found["size_bytes"]) == ("text", True, 2 * SHOWN_BYTES)
    assert set(value_text(b"x" + "ä".encode() * SHOWN_BYTES)["text"]) == {"x", "ä"}
    assert value_text(b'{"a": "' + b"x" * SHOWN_BYTES + b'"}')["kind"] == "text"
    whole = value_text(b'{"a": "' + b"x" * SHOWN_BYTES + b'"}', 2 * SHOWN_BYTES)
    assert (whole["kind"], whole["is_cut"]) == ("json", False)


def test_bytes_have_a_note_of_what_they_may_mean() -> None:
    assert value_text((2**40 + 5).to_bytes(8))["note"] == "as a number of 64 bits: 1099511627781"
    assert value_text((-2).to_bytes(4, signed=True))["note"] == "as a number of 32 bits: -2"
    avro = b"\x00\x00\x00\x00\x11\x06\x00\x01\x02"
    assert value_text(avro)["note"] == "begins as a value of schema 17 of a schema registry does"


def test_records_of_internal_topics_are_decoded() -> None:
    key = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    found = decoded_record("__consumer_offsets", key, None)
    assert found is not None
    assert found[0]["text"] == "offset_commit::group=g,partition=t-3"
    assert found[1]["kind"] == "null"
    assert decoded_record("__consumer_offsets", b"?", None) is None
    assert decoded_record("t", key, None) is None


def test_numbers_that_no_float_holds_stay_as_they_are() -> None:
    text = '{"n": 123456789012345678901234567890, "e": 1.10000000000000000000001, "d": 1e400, "d": -0}'
    assert value_text(text.encode())["text"] == "{\n  " + text[1:-1].replace(", ", ",\n  ") + "\n}"
