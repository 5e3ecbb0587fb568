"""Bytes and names of a cluster as texts for the page: keys, values, headers, ids of clients. Pure.

What must stay true:
- Every text goes through `visible`: any client may have written the bytes.
- A JSON text keeps its numbers, its names and their order: it is indented, not parsed and written again.
- The shown text is bounded, however long the value is.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from klamm.base.visible import is_hidden, visible
from klamm.coordinator import record_texts as decoders
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME

# The most that is shown of a value in a list of records, and of a value that is requested whole.
SHOWN_BYTES: Final = 4 * 1024
WHOLE_BYTES: Final = 1024 * 1024

# A text with a larger share of unprintable characters is shown as bytes.
_MOST_UNPRINTABLE: Final = 0.1
_HEX_COLUMNS: Final = 16
# JSON that is nested deeper is indented no further, so that blanks do not exceed the bound.
_DEEPEST: Final = 64
_INDENT: Final = "  "
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
# Confluent's wire format: this byte, then the id of a schema.
_REGISTRY_MAGIC: Final = 0
_REGISTRY_PREFIX_BYTES: Final = 5
_INTEGER_SIZES: Final = (4, 8)


def value_text(data: bytes | None, limit_bytes: int = SHOWN_BYTES) -> dict[str, Any]:
    """A key, value or header as {"kind", "size_bytes", "text", "is_cut"} and maybe "note".

    `kind` is "null", "empty", "json" (indented), "text" or "bytes" (in hexadecimal). At most `limit_bytes` are shown.
    """
    if data is None:
        return _value("null", 0, "", is_cut=False)
    if not data:
        return _value("empty", 0, "", is_cut=False)
    is_cut = len(data) > limit_bytes
    part = data[:limit_bytes]
    text = _text(part, is_cut=is_cut)
    if text is None:
        return {**_value("bytes", len(data), hexadecimal(part), is_cut=is_cut), **_note(data)}
    if not is_cut and text.lstrip()[:1] in ("{", "[") and _is_json(text):
        return _value("json", len(data), visible(indented(text), keep="\n"), is_cut=False)
    return _value("text", len(data), visible(text, keep="\n\t"), is_cut=is_cut)


def decoded_record(topic: str, key: bytes | None, value: bytes | None) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Key and value of a record of Kafka's internal topics, in words; None for other topics and unknown content."""
    decode = {GROUP_METADATA_TOPIC_NAME: decoders.offsets, TRANSACTION_STATE_TOPIC_NAME: decoders.transactions}.get(
        topic
    )
    if decode is None:
        return None
    try:
        texts = decode(key, value)
    except ValueError:
        return None
    return _decoded_text(key, texts[0]), _decoded_text(value, texts[1])


def _decoded_text(data: bytes | None, text: str | None) -> dict[str, Any]:
    if data is None or text is None:
        return value_text(data)
    cut = text[:SHOWN_BYTES]
    return {**_value("text", len(data), visible(cut), is_cut=len(text) > SHOWN_BYTES), "note": "decoded by klamm"}


def _value(kind: str, size_bytes: int, text: str, *, is_cut: bool) -> dict[str, Any]:
    return {"kind": kind, "size_bytes": size_bytes, "text": text, "is_cut": is_cut}


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """The text, or None if the bytes are not text. A cut may fall within a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or len(data) - error.start >= 4 or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    hidden = sum(is_hidden(each) and each not in "\n\r\t" for each in text)
    return None if hidden > _MOST_UNPRINTABLE * len(text) else text


def hexadecimal(data: bytes) -> str:
    """Lines of 16 bytes: position, bytes, and the printable ones as characters."""
    lines = []
    width = 3 * min(len(data), _HEX_COLUMNS) - 1
    for at in range(0, len(data), _HEX_COLUMNS):
        row = data[at : at + _HEX_COLUMNS]
        characters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{width}}  {characters}")
    return "\n".join(lines)


def _note(data: bytes) -> dict[str, str]:
    """A note about the likely meaning of the bytes."""
    if len(data) in _INTEGER_SIZES:
        return {"note": f"as a number of {8 * len(data)} bits: {int.from_bytes(data, signed=True)}"}
    if len(data) > _REGISTRY_PREFIX_BYTES and data[0] == _REGISTRY_MAGIC:
        schema = int.from_bytes(data[1:_REGISTRY_PREFIX_BYTES])
        return {"note": f"begins as a value of schema {schema} of a schema registry does"}
    return {}


# -- JSON -------------------------------------------------------------------------------------------------------------


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def indented(text: str) -> str:
    """Valid JSON, with one element on each line. Its tokens stay as they are."""
    return "".join(_indented(text))


def _indented(text: str) -> Iterator[str]:
    depth, before = 0, ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in "}]":
            depth -= 1
            if before not in ("{", "["):
                yield _line(depth)
        elif before in ("{", "[", ","):
            yield _line(depth)
        yield ": " if token == ":" else token
        if token in "{[":
            depth += 1
        before = token


def _line(depth: int) -> str:
    return "\n" + _INDENT * min(depth, _DEEPEST)
