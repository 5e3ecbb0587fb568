"""What of an answer is compared, and what is not.

Everything is compared but what this module names, with the reason.
"""

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import decode_records
from klamm.protocol.schema import Struct, fields_of
from support.requests_beside.step import BASE_MS, Json, Path

IGNORED = {
    "throttle_time_ms": "the clocks of two programs",
    "error_message": "klamm has texts of its own; the rooms of the handlers test them",
    "batch_index_error_message": "the same",
    "documentation": "the same",
    "port": "each broker has its own",
}
"""Fields that are not compared, and why. `Side` says what else is not, because it is not of one answer."""

UNORDERED = "Kafka collects topics, partitions, members and groups in hash tables: lists are compared without order"
PASSING = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
"""Answers that mean: not yet. How long a coordinator writes markers is a matter of time, so it is asked again."""

# What stands for an answer where there is none.
CLOSED = "the connection closes"
NOTHING = "no answer, as asked"
NO_ANSWER = "no answer"

NOW_IS_WITHIN_MS = 3_600_000
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass
class Names:
    """What one program calls things that the other calls otherwise, numbered as they appear."""

    prefix: str
    seen: dict[tuple[str, object], str] = field(default_factory=dict)

    def copy(self) -> "Names":
        return replace(self, seen=dict(self.seen))

    def name(self, kind: str, value: object) -> str:
        return self.seen.setdefault((kind, value), f"{kind} {sum(1 for of, _ in self.seen if of == kind)}")


def plain(answer: Any, api: ApiKey, version: int, names: Names) -> Json:
    """An answer as JSON that is equal if both programs have answered the same."""
    if isinstance(answer, str):
        return answer
    return _struct(answer, api, version, names)


def _struct(struct: Any, api: ApiKey, version: int, names: Names) -> Json:
    return {
        one.name: _value(one.name, one.kind, getattr(struct, one.name), api, version, names)
        for one in fields_of(type(struct))
        if version in one.versions and one.name not in IGNORED
    }


def _value(name: str, kind: str | type[Struct], value: Any, api: ApiKey, version: int, names: Names) -> Json:
    if isinstance(value, list | tuple):
        parts = [_value(name, kind, part, api, version, names) for part in value]
        return sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
    if isinstance(value, Struct):
        return _struct(value, api, version, names)
    if kind == "Records":
        return [*_batches(bytes(value or b""), names)]
    if name == "producer_id" and value >= 0:
        return names.name("producer", value)
    if name == "session_id" and value:
        return names.name("session", value)
    if name.endswith("error_code"):
        return ErrorCode(value).name
    if kind == "Int64":
        return _time_or_number(value)
    if isinstance(value, uuid.UUID):
        return names.name("uuid", value)
    if isinstance(value, str):
        return _text(value, names)
    return bytes(value).decode("latin-1") if isinstance(value, bytes | bytearray | memoryview) else value


def _text(value: str, names: Names) -> str:
    return _UUID.sub(
        lambda found: names.name("uuid", found[0]), value.replace(names.prefix, "~") if names.prefix else value
    )


def _time_or_number(value: int) -> Json:
    """Two programs have no common time; records have the timestamps that their producer gives them."""
    if abs(value - time.time() * 1000) < NOW_IS_WITHIN_MS:
        return "now"
    return f"base {value - BASE_MS:+}" if abs(value - BASE_MS) < NOW_IS_WITHIN_MS else value


def _batches(data: bytes, names: Names) -> Iterator[Json]:
    """Where the bytes end within a batch, a client has only the whole ones before it."""
    for position, header in iterate_batches(data, allow_partial_end=True):
        told = header._asdict()
        # The length of compressed records is the library's.
        for left_out in ("crc", "batch_length"):
            told.pop(left_out)
        told["base_timestamp"] = _time_or_number(header.base_timestamp)
        told["max_timestamp"] = _time_or_number(header.max_timestamp)
        if header.producer_id >= 0:
            told["producer_id"] = names.name("producer", header.producer_id)
        try:
            records: Json = [
                [
                    one.offset,
                    _time_or_number(one.timestamp_ms),
                    repr(one.key),
                    repr(one.value),
                    one.headers,
                ]
                for one in decode_records(data, position, header)
            ]
        except KafkaError as error:
            records = f"not decoded: {error.code}"
        yield told | {"records": records}


@dataclass(frozen=True)
class Difference:
    """Where two answers differ first. `within` is what has the field in klamm's answer."""

    step: int
    api: str
    path: Path
    kafka: Json
    klamm: Json
    within: Json = None

    @property
    def place(self) -> str:
        """The same for differences that have one cause, presumably."""
        path = ".".join(part for part in self.path if isinstance(part, str))
        return f"{self.api} {path}: Kafka {_short(self.kafka)}, klamm {_short(self.klamm)}"


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def first_difference(kafka: Json, klamm: Json, path: Path = ()) -> tuple[Path, Json, Json] | None:
    if isinstance(kafka, dict) and isinstance(klamm, dict) and kafka.keys() == klamm.keys():
        # Errors first: they say what the rest means.
        for name in sorted(kafka, key=lambda name: not name.endswith("error_code")):
            if found := first_difference(kafka[name], klamm[name], (*path, name)):
                return found
        return None
    if isinstance(kafka, list) and isinstance(klamm, list) and len(kafka) == len(klamm):
        for number, pair in enumerate(zip(kafka, klamm, strict=True)):
            if found := first_difference(*pair, (*path, number)):
                return found
        return None
    return None if kafka == klamm else (path, kafka, klamm)


def error_names(answer: Json) -> set[str]:
    """The names of all errors in an answer as JSON."""
    if isinstance(answer, list):
        return {name for part in answer for name in error_names(part)}
    if not isinstance(answer, dict):
        return set()
    own = {value for name, value in answer.items() if name.endswith("error_code")}
    return own.union(*(error_names(value) for value in answer.values()))
