"""Whether data of one schema can be read with another.

Avro: the rules of schema resolution in Avro's specification, complete. JSON Schema: types, required properties and
properties of closed and open content, of objects and arrays. Protobuf: the types of fields with the same number, and
required fields. A construct that is not named here counts as compatible.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)


def problems(level: str, kind: str, new: Any, earlier: Sequence[Any]) -> list[str]:
    """Why `new` is not compatible with the `earlier` schemas (oldest first) at this level."""
    if level == "NONE":
        return []
    against = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    found: list[str] = []
    for old in against:
        if level.startswith(("BACKWARD", "FULL")):
            found += unreadable(kind, reader=new, writer=old)
        if level.startswith(("FORWARD", "FULL")):
            found += unreadable(kind, reader=old, writer=new)
    return found


def unreadable(kind: str, *, reader: Any, writer: Any) -> list[str]:
    """Why data that `writer` wrote cannot be read by `reader`."""
    checks: dict[str, Callable[[Any, Any], Iterator[str]]] = {"AVRO": _avro, "JSON": _json, "PROTOBUF": _protobuf}
    return list(checks[kind](reader, writer))


# -- Avro -------------------------------------------------------------------------------------------------------------

_PROMOTIONS = {
    ("long", "int"),
    ("float", "int"),
    ("float", "long"),
    ("double", "int"),
    ("double", "long"),
    ("double", "float"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def _avro(reader: Any, writer: Any) -> Iterator[str]:
    yield from _Avro(reader[1], writer[1]).problems(reader[0], writer[0], "/")


class _Avro:
    """Compares two schemas, each with the types that it names."""

    def __init__(self, reader_names: dict[str, Any], writer_names: dict[str, Any]) -> None:
        self._reader_names, self._writer_names = reader_names, writer_names
        self._seen: set[tuple[str, str]] = set()

    def problems(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        reader, writer = _resolved(reader, self._reader_names), _resolved(writer, self._writer_names)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(reader, branch, path)
            return
        if isinstance(reader, list):
            if not any(self._fits(branch, writer, path) for branch in reader):
                yield f"no branch of the union at {path} reads {_avro_type(writer)}"
            return
        kinds = _avro_type(reader), _avro_type(writer)
        if kinds in _PROMOTIONS:
            return
        if kinds[0] != kinds[1]:
            yield f"type at {path} was {kinds[1]} and is {kinds[0]}"
        elif kinds[0] in ("record", "enum", "fixed"):
            yield from self._named(kinds[0], reader, writer, path)
        elif kinds[0] == "array":
            yield from self.problems(reader["items"], writer["items"], path + "items/")
        elif kinds[0] == "map":
            yield from self.problems(reader["values"], writer["values"], path + "values/")

    def _fits(self, reader: Any, writer: Any, path: str) -> bool:
        # A trial must not leave names behind as compared.
        trial = _Avro(self._reader_names, self._writer_names)
        trial._seen = set(self._seen)
        return not list(trial.problems(reader, writer, path))

    def _named(self, kind: str, reader: Any, writer: Any, path: str) -> Iterator[str]:
        names = reader["name"], writer["name"]
        if names in self._seen:
            return
        self._seen.add(names)
        aliases = {alias.rsplit(".", 1)[-1] for alias in reader.get("aliases", ())}
        if names[1].rsplit(".", 1)[-1] not in {names[0].rsplit(".", 1)[-1], *aliases}:
            yield f"name at {path} was {names[1]} and is {names[0]}"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield f"size at {path} was {writer['size']} and is {reader['size']}"
        elif kind == "enum" and "default" not in reader:
            missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if missing:
                yield f"the enum at {path} lacks {', '.join(missing)}"
        elif kind == "record":
            written = {field["name"]: field for field in writer["fields"]}
            for field in reader["fields"]:
                known = [name for name in (field["name"], *field.get("aliases", ())) if name in written]
                if known:
                    yield from self.problems(field["type"], written[known[0]]["type"], f"{path}{field['name']}/")
                elif "default" not in field:
                    yield f"the field {field['name']} at {path} has no default value and was not written"


def _resolved(schema: Any, names: dict[str, Any]) -> Any:
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _avro_type(schema: Any) -> str:
    found = schema["type"] if isinstance(schema, dict) else schema
    return _avro_type(found) if isinstance(found, dict) else str(found)


# -- JSON Schema ------------------------------------------------------------------------------------------------------


def _json(reader: Any, writer: Any, path: str = "#") -> Iterator[str]:
    if reader is True or reader == {} or not isinstance(reader, dict) or not isinstance(writer, dict):
        return
    wanted, written = _json_types(reader), _json_types(writer)
    if wanted is not None and (written is None or written - wanted):
        yield f"type at {path} was narrowed to {sorted(wanted)}"
        return
    missing = sorted(set(reader.get("required", ())) - set(writer.get("required", ())))
    for name in missing:
        if "default" not in reader.get("properties", {}).get(name, {}):
            yield f"the property {name} at {path} has become required"
    reader_properties, writer_properties = reader.get("properties", {}), writer.get("properties", {})
    for name, schema in reader_properties.items():
        if name in writer_properties:
            yield from _json(schema, writer_properties[name], f"{path}/{name}")
        elif writer.get("additionalProperties", True) is True and schema not in (True, {}):
            yield f"the property {name} at {path} was added to an open content model"
    if reader.get("additionalProperties", True) is False:
        for name in writer_properties.keys() - reader_properties.keys():
            yield f"the property {name} at {path} was removed from a closed content model"
    if isinstance(reader.get("items"), dict):
        yield from _json(reader["items"], writer.get("items", {}), f"{path}/items")


def _json_types(schema: dict[str, Any]) -> set[str] | None:
    found = schema.get("type")
    if found is None:
        return None
    types = {found} if isinstance(found, str) else set(found)
    return types | {"integer"} if "number" in types else types


# -- Protobuf ---------------------------------------------------------------------------------------------------------

# Types of one group are written alike.
_GROUPS = ({3, 4, 5, 8, 13, 14}, {17, 18}, {9, 12}, {7, 15}, {6, 16})


def _protobuf(reader: Any, writer: Any) -> Iterator[str]:
    for name, message in writer.message_types_by_name.items():
        if name in reader.message_types_by_name:
            yield from _message(reader.message_types_by_name[name], message, frozenset())
        else:
            yield f"the message {name} was removed"


def _message(reader: Any, writer: Any, seen: frozenset[str]) -> Iterator[str]:
    if writer.full_name in seen:
        return
    for number, field in reader.fields_by_number.items():
        old = writer.fields_by_number.get(number)
        if old is None:
            if field.is_required:
                yield f"the required field {field.name} of {reader.full_name} was added"
        elif old.type != field.type and not any({old.type, field.type} <= group for group in _GROUPS):
            yield f"the type of the field {field.name} of {reader.full_name} was changed"
        elif old.is_repeated != field.is_repeated and field.message_type is None and field.type not in (9, 12):
            yield f"the field {field.name} of {reader.full_name} is not repeated in both"
        elif old.message_type is not None:
            yield from _message(field.message_type, old.message_type, seen | {writer.full_name})
