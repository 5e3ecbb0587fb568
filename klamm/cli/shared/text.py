"""Records as text: a line of `klamm produce` becomes a record, and a record a line of `klamm consume`. Pure."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from klamm.client.consumer.consumer import ConsumerRecord

HEADERS_END = b"\t"
READ_SIZE_BYTES = 1 << 20

Headers = list[tuple[str, bytes | None]]


class BadRecord(ValueError):
    """A line does not have the form that the options require."""


def parse_separator(option: str, text: str) -> bytes:
    """A separator with escapes as in Python (`\\t`, `\\n`, `\\0`, `\\x1f`). Raises typer.BadParameter."""
    try:
        separator = text.encode("utf-8").decode("unicode_escape").encode("latin-1") if text.isascii() else text.encode()
    except UnicodeError as error:
        raise typer.BadParameter(f"{text!r} has a bad escape: {error}", param_hint=option) from None
    if not separator:
        raise typer.BadParameter("must not be empty", param_hint=option)
    return separator


def split_records(read: Callable[[int], bytes], separator: bytes, limit_bytes: int) -> Iterator[list[bytes]]:
    """The parts of a stream between separators, a list for each read. The rest after the last separator is a record
    unless it is empty. A part over the limit, which no broker would accept, is cut, and ends the reading.

    `read(size_bytes)` returns the next bytes, and b"" at the end.
    """
    rest = bytearray()
    while chunk := read(READ_SIZE_BYTES):
        # The separator may begin in the bytes that were read before.
        begin = max(0, len(rest) - len(separator) + 1)
        rest += chunk
        if rest.find(separator, begin) >= 0:
            *records, last = bytes(rest).split(separator)
            yield records
            rest = bytearray(last)
        if len(rest) > limit_bytes:
            break
    if rest:
        yield [bytes(rest)]


def parse_record(
    line: bytes, *, key_separator: bytes | None, with_headers: bool
) -> tuple[bytes | None, bytes, Headers]:
    """Key, value and headers of a line: `name:value,name:value TAB key KEY_SEPARATOR value`. Raises BadRecord."""
    headers: Headers = []
    if with_headers:
        text, found, line = line.partition(HEADERS_END)
        if not found:
            raise BadRecord("no tab after the headers")
        headers = [_parse_header(header) for header in text.split(b",")] if text else []
    if key_separator is None:
        return None, line, headers
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadRecord(f"no key separator {key_separator.decode('utf-8', 'backslashreplace')!r}")
    return key, value, headers


def _parse_header(header: bytes) -> tuple[str, bytes]:
    name, colon, value = header.partition(b":")
    if not colon:
        raise BadRecord(f"header {header.decode('utf-8', 'backslashreplace')!r} is not of the form name:value")
    try:
        return name.decode(), value
    except UnicodeDecodeError:
        raise BadRecord("the name of a header is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """Which parts of a record are printed, in the form of kafka-console-consumer."""

    key: bool = False
    headers: bool = False
    offset: bool = False
    timestamp: bool = False
    separator: bytes = b"\n"

    def format(self, record: "ConsumerRecord") -> bytes:
        """One line for a record."""
        parts: list[bytes] = []
        if self.timestamp:
            kind = "LogAppendTime" if record.is_log_append_time else "CreateTime"
            parts.append(f"{kind}:{record.timestamp_ms}".encode())
        if self.offset:
            parts += [f"Partition:{record.partition}".encode(), f"Offset:{record.offset}".encode()]
        if self.headers:
            parts.append(b",".join(_header_line(header) for header in record.headers) or b"NO_HEADERS")
        if self.key:
            parts.append(b"null" if record.key is None else record.key)
        parts.append(b"null" if record.value is None else record.value)
        return b"\t".join(parts) + self.separator


def _header_line(header: Sequence[Any]) -> bytes:
    name, value = header
    return str(name).encode() + b":" + (b"null" if value is None else bytes(value))


def record_json(record: "ConsumerRecord") -> bytes:
    """One line of JSON for a record; bytes that are not UTF-8 appear as base64 under a name that says so."""
    headers: list[dict[str, Any]] = [{"name": name, **_text("value", value)} for name, value in record.headers]
    return (
        json.dumps(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "timestamp_type": "LogAppendTime" if record.is_log_append_time else "CreateTime",
                **_text("key", record.key),
                **_text("value", record.value),
                "headers": headers,
            }
        ).encode()
        + b"\n"
    )


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
