"""Requests of any API with very many elements in one of their arrays, and one in each other."""

from collections.abc import Iterator
from typing import Any

from klamm.broker.handlers import APIS
from klamm.protocol import messages
from klamm.protocol.messages import ApiKey
from klamm.protocol.schema import Field, Struct, fields_of
from support.one_broker import batch

ELEMENTS = 200

TOPIC = "name-0"
ZEROS: dict[str, Any] = {
    "Int8": 1, "Int16": 0, "Uint16": 0, "Int64": 0, "Float64": 0.0, "Bool": False, "Bytes": b"", "Uuid": None,
    "BitField": None, "Records": bytes(batch(b"x")),
}  # fmt: skip
# What a field must be for the request not to be refused as a whole.
VALUES: dict[str, Any] = {
    "acks": -1, "current_leader_epoch": -1, "generation_id": -1, "generation_id_or_member_epoch": -1, "group_id": "g",
    "group_instance_id": None, "key": "g", "key_type": 0, "member_id": "", "max_bytes": 1000, "max_wait_ms": 0,
    "partition_max_bytes": 1000, "replica_id": -1, "resource_type": 2, "session_epoch": 0, "timeout_ms": 100,
    "timestamp": -1, "transactional_id": None, "validate_only": True,
}  # fmt: skip


def arrays(message: type[Struct], version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all arrays of a message."""
    for field in fields_of(message):
        if version in field.versions and field.is_array:
            yield (*path, field.name)
            if not isinstance(field.kind, str):
                yield from arrays(field.kind, version, (*path, field.name))


class Filling:
    """`elements` of an array are numbered, or all the same: then each text is `text`, and each number 0."""

    def __init__(self, elements: int = ELEMENTS, text: str | None = None, **values: Any) -> None:
        self.elements = elements
        self.text = text
        self.values = VALUES | values

    def message(self, message: type[Struct], version: int, path: tuple[str, ...], index: int = 0) -> Any:
        """A message with the elements in the array of this path, and one in each other."""
        fields = {
            field.name: self._value(field, version, path, index) if version in field.versions else field.default
            for field in fields_of(message)
            if version in field.versions or field.is_required
        }
        return message(**fields)

    def _value(self, field: Field, version: int, path: tuple[str, ...], index: int) -> Any:
        if field.is_array:
            is_on_path = path[:1] == (field.name,)
            count = self.elements if path == (field.name,) else 1
            inner = path[1:] if is_on_path else ()
            return [self._element(field.kind, version, inner, number) for number in range(count)]
        if field.is_left_out_as_none:
            return None
        if field.name in self.values and (self.values[field.name] is not None or version in field.nullable):
            return self.values[field.name]
        return self._element(field.kind, version, (), index)

    def _element(self, kind: str | type[Struct], version: int, path: tuple[str, ...], index: int) -> Any:
        if not isinstance(kind, str):
            return self.message(kind, version, path, index)
        if kind == "String":
            return f"name-{index}" if self.text is None else self.text
        return (index if self.text is None else 0) if kind == "Int32" else ZEROS[kind]


CASES = [(key, path) for key in APIS for path in arrays(messages.request_class(key), APIS[key].max_version)]


def frame_of(key: ApiKey, path: tuple[str, ...], filling: Filling | None = None) -> bytes:
    version = APIS[key].max_version
    request = (filling or Filling()).message(messages.request_class(key), version, path)
    return b"".join(map(bytes, messages.encode_request(key, version, 1, "c", request)))
