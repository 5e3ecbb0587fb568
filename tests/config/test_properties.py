"""Java's .properties syntax, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.properties import PropertiesError, format_properties, parse_properties


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", {}),
        (b"a=1\nb:2\nc 3\nd\t4\ne\n", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        (b"  a  =  1  \n", {"a": "1  "}),  # blanks before a value go, those after it stay
        (b"a = = 1\nb=x=y:z\n", {"a": "= 1", "b": "x=y:z"}),
        (b"# no=1\n  ! no=2\n\n \t\na=1 # part of it", {"a": "1 # part of it"}),
        (b"a=1,\\\n   2,\\\r\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        (b"a=1\\\n# still a\nb=2", {"a": "1# still a", "b": "2"}),
        (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),  # an even number of backslashes continues nothing
        (b"a=1\\", {"a": "1"}),
        (b"a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        (b"a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        (b"a=\\u00e9\\u20AC\\ud83d\\ude00", {"a": "é€😀"}),
        ("a=é".encode("iso-8859-1"), {"a": "é"}),
        (b"a=1\ra=2\r\na=3", {"a": "3"}),  # the last of a key's values counts
        (b"=1\n", {"": "1"}),
    ],
)
def test_parsing(content: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(content) == expected


@pytest.mark.parametrize("content", [b"x=1\na=\\u12", b"x=1\na=\\u12g4", b"x=1\n\\u=a"])
def test_a_bad_escape_names_its_line(content: bytes) -> None:
    with pytest.raises(PropertiesError, match=r"^line 2: .*four hexadecimal digits"):
        parse_properties(content)


def test_writing() -> None:
    written = format_properties({"a b": " x ", "c": "=:#!\\\n", "d": "é😀"}, ["", "made today", "two\nlines"])
    assert written == (b"#\n#made today\n#two\\nlines\na\\ b=\\ x \nc=\\=\\:\\#\\!\\\\\\n\nd=\\u00E9\\uD83D\\uDE00\n")


@given(st.dictionaries(st.text(), st.text()), st.lists(st.text()))
def test_what_is_written_is_read_back(properties: dict[str, str], comments: list[str]) -> None:
    assert parse_properties(format_properties(properties, comments)) == properties


@given(st.one_of(st.binary(), st.text(alphabet="ab=: \\\n\r\t#!u0d8").map(str.encode)))
def test_garbage_is_parsed_or_refused(content: bytes) -> None:
    try:
        parsed = parse_properties(content)
    except PropertiesError:
        return
    assert parse_properties(format_properties(parsed)) == parsed
