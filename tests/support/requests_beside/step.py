"""A request as a seed draws it: fields by name, in which symbols stand for what earlier answers have given.

What must stay true:
- A step is JSON, and says the same to both programs: ids, epochs, generations and sessions are symbols, each program
  gets its own.
- `fields` is the request as a client means it, `spoils` are the changes to it. Without spoils it is a request as
  clients send it, at a moment that may be wrong.
- Names begin with `~`, which stands for a prefix that no other run has: runs do not meet.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import parse_header, write_header
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.schema import Field, Struct, fields_of

Json = Any
Path = tuple[str | int, ...]

BITS = {"Int8": 8, "Int16": 16, "Uint16": 16, "Int32": 32, "Int64": 64}
BASE_MS = round(time.time() - 7200) * 1000
"""The timestamps of records begin here: so long ago that no program takes one for a time of its own."""

# What a symbol means as long as no answer has given it a value.
UNBOUND: dict[str, Any] = {
    "id": 5_000_000, "epoch": 0, "member": "nobody", "generation": 1, "session": 0, "offset": 0,
}  # fmt: skip
# Of a batch: who wrote it, what is in it, and what is wrong with it.
BATCH: dict[str, Any] = {
    "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "is_transactional": False, "is_control": False,
    "count": 1, "key": None, "codec": 0, "timestamp": 0, "flaw": None,
}  # fmt: skip
FLAWS = (None, "checksum", "magic 1", "magic 3", "count", "last offset", "base offset", "log append time", "short")


def symbol(name: str, kind: str, plus: int = 0) -> Json:
    """What the last answer bound to this name has given, plus a number."""
    return {"symbol": f"{name}.{kind}"} | ({"plus": plus} if plus else {})


@dataclass(frozen=True)
class Spoil:
    """Another value of a field, or of an array."""

    path: Path
    value: Json


@dataclass(frozen=True)
class Step:
    """One request of a client. Its answer is bound to the name `binds`."""

    client: int
    api: ApiKey
    version: int
    fields: Json
    binds: str | None = None
    spoils: tuple[Spoil, ...] = ()

    def spoiled(self) -> Json:
        """The fields as they are sent."""
        fields = self.fields
        for spoil in self.spoils:
            fields = replaced_at(fields, spoil.path, spoil.value)
        return fields

    def message(self, prefix: str, values: dict[str, Any]) -> Any:
        """The request with these values of the symbols."""
        return _Builder(prefix, values).struct(messages.request_class(self.api), self.spoiled(), self.version)

    def symbols(self) -> set[str]:
        """The names of the symbols that it has."""
        return {value["symbol"].partition(".")[0] for value in _dicts(self.spoiled()) if "symbol" in value}

    def to_json(self) -> Json:
        return {
            "client": self.client,
            "api": self.api.name,
            "version": self.version,
            "fields": self.fields,
            "binds": self.binds,
            "spoils": [[list(spoil.path), spoil.value] for spoil in self.spoils],
        }

    @classmethod
    def from_json(cls, value: Json) -> "Step":
        spoils = tuple(Spoil(tuple(path), spoiled) for path, spoiled in value["spoils"])
        return cls(**{**value, "api": ApiKey[value["api"]], "spoils": spoils})

    def __str__(self) -> str:
        bound = f" -> {self.binds}" if self.binds else ""
        return f"client {self.client}: {self.api.message_name} v{self.version} {shown(self.spoiled())}{bound}"


def shown(value: Json) -> str:
    """JSON with symbols as they are spoken of."""
    if isinstance(value, dict):
        if "symbol" in value:
            return f"{value['symbol']}{value['plus']:+}" if "plus" in value else str(value["symbol"])
        return "{" + ", ".join(f"{name}: {shown(part)}" for name, part in value.items()) + "}"
    return (
        "[" + ", ".join(map(shown, value)) + "]"
        if isinstance(value, list)
        else repr(value)
        if len(str(value)) < 100
        else f"{value[:3]!r} * {len(value)}"
    )


def replaced_at(fields: Json, path: Path, value: Json) -> Json:
    """JSON with another value at this path; unchanged if the path is not there."""
    if not path:
        return value
    if isinstance(fields, dict) and isinstance(path[0], str) and (len(path) == 1 or path[0] in fields):
        return {**fields, path[0]: replaced_at(fields.get(path[0]), path[1:], value)}
    if isinstance(fields, list) and isinstance(path[0], int) and path[0] < len(fields):
        return [*fields[: path[0]], replaced_at(fields[path[0]], path[1:], value), *fields[path[0] + 1 :]]
    return fields


def _dicts(value: Json) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _dicts(part)


def places(struct_class: type[Struct], fields: Json, version: int, path: Path = ()) -> Iterator[tuple[Path, Field]]:
    """Where a request can be spoiled: the paths of its fields, elements of arrays, and parts of batches."""
    for field in fields_of(struct_class):
        if not field.is_plain_in(version):
            continue
        here = (*path, field.name)
        yield here, field
        value = fields.get(field.name)
        if field.is_array and value:
            for number, element in enumerate(value):
                if isinstance(field.kind, str):
                    yield (*here, number), field
                else:
                    yield from places(field.kind, element, version, (*here, number))
        elif field.kind == "Records" and value:
            for number in range(len(value)):
                yield from (((*here, number, part), field) for part in BATCH)


def value_at(fields: Json, path: Path) -> Json:
    for part in path:
        fields = fields.get(part) if isinstance(fields, dict) else fields[part]
    return fields


class _Builder:
    """Makes messages of JSON."""

    def __init__(self, prefix: str, values: dict[str, Any]) -> None:
        self._prefix, self._values = prefix, values

    def struct(self, struct_class: Any, fields: Json, version: int) -> Any:
        made: dict[str, Any] = {}
        for field in fields_of(struct_class):
            if field.name not in fields:
                made[field.name] = (
                    list(field.default) if field.is_array and field.default is not None else field.default
                )
            elif fields[field.name] is None and field.kind != "Uuid" and version not in field.nullable:
                # A version in which the field may not be null.
                made[field.name] = [] if field.is_array else "" if field.kind == "String" else b""
            elif field.is_array and fields[field.name] is not None:
                made[field.name] = [self._value(field.kind, element, version) for element in fields[field.name]]
            else:
                made[field.name] = self._value(field.kind, fields[field.name], version)
        return struct_class(**made)

    def _value(self, kind: str | type[Struct], value: Json, version: int) -> Any:
        if value is None:
            return None
        if not isinstance(kind, str):
            return self.struct(kind, value, version)
        if kind == "Records":
            return b"".join(self._batch(batch) for batch in value)
        value = self._resolved(value)
        if kind in BITS:
            half = 1 << (BITS[kind] - 1)
            return (int(value) + half) % (2 * half) - half
        return str(value).encode() if kind == "Bytes" else value

    def _resolved(self, value: Json) -> Any:
        if isinstance(value, dict):
            name = value["symbol"]
            found = self._values.get(name, UNBOUND[name.partition(".")[2]])
            return found + value["plus"] if "plus" in value else found
        return self._prefix + value[1:] if isinstance(value, str) and value.startswith("~") else value

    def _batch(self, fields: Json) -> bytes:
        batch = BATCH | {name: self._resolved(value) for name, value in fields.items()}
        key = batch["key"]
        records = [
            Record(None if key is None else key.encode(), f"v{number}".encode(), BASE_MS + batch["timestamp"] + number)
            for number in range(batch["count"])
        ]
        half = 1 << 15
        made = build_batch(
            records,
            codec=CompressionType(batch["codec"]),
            producer_id=batch["producer_id"],
            producer_epoch=(batch["producer_epoch"] + half) % (2 * half) - half,
            base_sequence=batch["base_sequence"],
            is_transactional=batch["is_transactional"],
            is_control=batch["is_control"],
        )
        return bytes(_flawed(made, batch["flaw"]))


def _flawed(batch: bytearray, flaw: str | None) -> bytearray:
    header = parse_header(batch)
    changed: dict[str | None, Callable[[], Any]] = {
        "count": lambda: header._replace(record_count=header.record_count + 1),
        "last offset": lambda: header._replace(last_offset_delta=header.last_offset_delta + 1),
        "base offset": lambda: header._replace(base_offset=7),
        "log append time": lambda: header._replace(attributes=header.attributes | 8),
    }
    if flaw in changed:
        write_header(batch, 0, changed[flaw]())
    elif flaw == "checksum":
        batch[-1] ^= 1
    elif flaw == "short":
        del batch[-3:]
    elif flaw is not None:
        batch[16] = int(flaw[-1])
    return batch


def without_spoil(step: Step, number: int) -> Step:
    return replace(step, spoils=step.spoils[:number] + step.spoils[number + 1 :])
