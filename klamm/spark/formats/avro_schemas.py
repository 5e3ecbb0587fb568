"""Avro schemas as trees of types, with a bound on the cost of each.

Every client that may write to a registry chooses schemas for readers. So a schema is checked like a record's bytes.

What must stay true:
- Reading a schema takes time in proportion to its text: a named type is read once, however often the schema uses it.
- `require_bounded` accepts a schema only if decoding visits at most VISITS_PER_BYTE types for each byte of a datum, and
  MAX_FREE_VISITS more, whatever the bytes are, and goes at most MAX_DEPTH types deep. fastavro's own recursion has no
  bound. So a type that contains itself is refused, and so is an array whose elements may take too few bytes.
- Importing this module imports no library of a format.

Source: Apache Avro 1.11, "Schema Declaration", "Names"; org.apache.avro.Schema.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from klamm.spark.formats.settings import SchemaError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "enum", "fixed")
# Deeper schemas may exhaust the stack of a worker.
MAX_DEPTH = 100
# The most types in a schema's text: fastavro copies all names for each datum.
MAX_TYPES = 20_000
VISITS_PER_BYTE = 100
MAX_FREE_VISITS = 20_000
# The minimum size of a value in bytes; 1 for other types.
_BYTES = {"null": 0, "float": 4, "double": 8}
_OWN_KEYS = ("type", "name", "namespace", "aliases", "fields", "symbols", "items", "values", "size")


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of a schema. All uses of a name in a schema are the same object.

    - `name`, `aliases`: full names.
    - `items`: of arrays and maps, the type of elements or values.
    - `logical`: the logical type that the attributes name, even if it is not valid for this type.
    - `attributes`: the attributes that do not define the type.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: "tuple[AvroField, ...]" = ()
    items: "AvroType | None" = None
    branches: "tuple[AvroType, ...]" = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def logical(self) -> str:
        found = self.attributes.get("logicalType")
        return found if isinstance(found, str) else ""

    @property
    def decimal(self) -> tuple[int, int] | None:
        """(precision, scale) of a decimal; None for other types, and for an invalid decimal, which is read as bytes."""
        if self.logical != "decimal" or self.kind not in ("bytes", "fixed"):
            return None
        precision, scale = self.attributes.get("precision"), self.attributes.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
            return None
        return precision, scale


class AvroField(NamedTuple):
    """A field of a record; `attributes` has the default, if there is one."""

    name: str
    type: AvroType
    aliases: tuple[str, ...]
    attributes: Mapping[str, Any]


def read_schema(text: str, referenced: Iterable[str] = ()) -> AvroType:
    """The type of a schema's text. `referenced` are the texts whose names it uses. A single name needs no quotes.
    Raises SchemaError."""
    reader = _Reader()
    for other in referenced:
        reader.read(_json(other))
    return reader.read(text.strip() if text.strip() in PRIMITIVES else _json(text))


def write_schema(root: AvroType) -> str:
    """The schema's text, which needs no other text. Raises SchemaError if types are nested too deep."""
    return json.dumps(_written(root, set(), 0))


def require_bounded(root: AvroType) -> None:
    """Raises SchemaError for a schema with which a few bytes could cost much work."""
    bound = _Bounds().of(root, 0)
    if bound.peak > MAX_FREE_VISITS:
        raise SchemaError(f"the Avro schema has more than {MAX_FREE_VISITS} types that a datum without bytes visits")


def an(kind: str) -> str:
    """The kind with its article."""
    return f"{'an' if kind[:1] in 'aei' else 'a'} {kind}"


# -- reading a schema -------------------------------------------------------------------------------------------------


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise SchemaError("the Avro schema is not valid JSON") from None


class _Reader:
    """Reads schemas. Later schemas may use the names of earlier ones."""

    def __init__(self) -> None:
        self._names: dict[str, AvroType] = {}
        self._primitives = {kind: AvroType(kind) for kind in PRIMITIVES}
        self._count = 0

    def read(self, schema: Any, namespace: str = "", level: int = 0) -> AvroType:
        self._count += 1
        if self._count > MAX_TYPES:
            raise SchemaError(f"the Avro schema has more than {MAX_TYPES} types")
        if level > MAX_DEPTH:
            raise SchemaError(f"the Avro schema is nested deeper than {MAX_DEPTH} types")
        if isinstance(schema, list):
            return self._union(schema, namespace, level)
        if isinstance(schema, str):
            return self._primitives.get(schema) or self._find(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError(f"the Avro schema has {_shown(schema)} where a type should be")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, namespace, level + 1)
        attributes = {key: value for key, value in schema.items() if key not in _OWN_KEYS}
        if kind in NAMED:
            return self._named(schema, AvroType(kind, attributes=attributes), namespace, level)
        if kind in ("array", "map"):
            items = self.read(_part(schema, "items" if kind == "array" else "values", kind), namespace, level + 1)
            return AvroType(kind, items=items, attributes=attributes)
        if kind in PRIMITIVES:
            return AvroType(kind, attributes=attributes)
        return self.read(kind, namespace, level + 1)

    def _union(self, branches: list[Any], namespace: str, level: int) -> AvroType:
        found = tuple(self.read(branch, namespace, level + 1) for branch in branches)
        kinds = [branch.name or branch.kind for branch in found]
        if "union" in kinds or len(set(kinds)) < len(kinds):
            raise SchemaError("the Avro schema has a union with a union in it, or with one type twice")
        return AvroType("union", branches=found)

    def _named(self, schema: dict[str, Any], made: AvroType, namespace: str, level: int) -> AvroType:
        name, own = _part(schema, "name", made.kind), schema.get("namespace", namespace)
        if not _is_name(name) or not (own in (None, "") or _is_name(own)):
            raise SchemaError(f"the Avro schema has the name {_shown(name)} in {_shown(own)}, which is not valid")
        made.name = _full_name(name, own)
        if made.name in self._names or made.name in PRIMITIVES:
            raise SchemaError(f"the Avro schema defines the name {_shown(made.name)} twice")
        # A type may contain itself here; `require_bounded` refuses it.
        self._names[made.name] = made
        inner = made.name.rpartition(".")[0]
        made.aliases = tuple(_full_name(alias, inner) for alias in _names(schema.get("aliases", [])))
        if made.kind == "enum":
            made.symbols = tuple(_names(_part(schema, "symbols", made.kind)))
        elif made.kind == "fixed":
            made.size = _part(schema, "size", made.kind)
            if not _is_int(made.size) or not 0 <= made.size < 2**31:
                raise SchemaError(f"the Avro schema has a fixed of {_shown(made.size)} bytes; allowed: 0 to 2147483647")
        else:
            made.fields = self._fields(_part(schema, "fields", made.kind), inner, level)
        return made

    def _fields(self, fields: Any, namespace: str, level: int) -> tuple[AvroField, ...]:
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise SchemaError("the Avro schema has a record whose fields are not a list of objects")
        found = []
        for each in fields:
            (name,) = _names([_part(each, "name", "field")])
            data_type = self.read(_part(each, "type", "field"), namespace, level + 1)
            attributes = {key: value for key, value in each.items() if key not in ("name", "type", "aliases")}
            found.append(AvroField(name, data_type, tuple(_names(each.get("aliases", []))), attributes))
        if len({each.name for each in found}) < len(found):
            raise SchemaError("the Avro schema has a record with two fields of one name")
        return tuple(found)

    def _find(self, name: str, namespace: str) -> AvroType:
        for candidate in (_full_name(name, namespace), name):
            if candidate in self._names:
                return self._names[candidate]
        raise SchemaError(f"the Avro schema has an unknown type {_shown(name)}")


def _full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _part(schema: Mapping[str, Any], key: str, kind: str) -> Any:
    if key not in schema:
        raise SchemaError(f"the Avro schema has {an(kind)} without {key}")
    return schema[key]


def _names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"the Avro schema has {_shown(names)} where names should be")
    return names


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """The beginning of a value's text, without formatting all of it."""
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) < 80 else f"{text[:80]}..."


def _written(found: AvroType, defined: set[str], level: int) -> Any:
    if level > MAX_DEPTH:
        raise SchemaError(f"the Avro schema is nested deeper than {MAX_DEPTH} types")
    if found.kind == "union":
        return [_written(branch, defined, level + 1) for branch in found.branches]
    if found.name in defined:
        return found.name
    if not found.name and found.items is None:
        return {"type": found.kind, **found.attributes} if found.attributes else found.kind
    made: dict[str, Any] = {"type": found.kind, **found.attributes}
    if found.items is not None:
        made["items" if found.kind == "array" else "values"] = _written(found.items, defined, level + 1)
        return made
    defined.add(found.name)
    made["name"] = found.name
    if found.aliases:
        made["aliases"] = list(found.aliases)
    if found.kind == "enum":
        made["symbols"] = list(found.symbols)
    elif found.kind == "fixed":
        made["size"] = found.size
    else:
        made["fields"] = [
            {
                **each.attributes,
                "name": each.name,
                "type": _written(each.type, defined, level + 1),
                **({"aliases": list(each.aliases)} if each.aliases else {}),
            }
            for each in found.fields
        ]
    return made


# -- what decoding costs ----------------------------------------------------------------------------------------------


class _Bound(NamedTuple):
    """The visits that decoding a datum takes beyond VISITS_PER_BYTE for each of its bytes.

    - `excess`: the most at the end of the datum. Negative if the bytes allow more visits than the datum takes.
    - `peak`: the most at any moment, because a datum may end too early.
    - `depth`: how deep types are nested.
    """

    excess: int
    peak: int
    depth: int


class _Bounds:
    """Bounds of types, each found once."""

    def __init__(self) -> None:
        self._known: dict[int, _Bound] = {}
        self._open: set[int] = set()

    def of(self, found: AvroType, level: int) -> _Bound:
        if id(found) in self._open:
            raise SchemaError(f"the Avro schema has a type within itself, {found.name}")
        if id(found) not in self._known:
            self._open.add(id(found))
            self._known[id(found)] = self._found(found, level)
            self._open.remove(id(found))
        bound = self._known[id(found)]
        if level + bound.depth > MAX_DEPTH:
            raise SchemaError(f"the Avro schema is nested deeper than {MAX_DEPTH} types")
        return bound

    def _found(self, found: AvroType, level: int) -> _Bound:
        if level >= MAX_DEPTH:
            raise SchemaError(f"the Avro schema is nested deeper than {MAX_DEPTH} types")
        one_byte = 1 - VISITS_PER_BYTE
        if found.kind == "record":
            excess, peak, depth = 1, 1, 0
            for each in found.fields:
                bound = self.of(each.type, level + 1)
                peak = max(peak, excess + bound.peak)
                excess += bound.excess
                depth = max(depth, bound.depth)
            return _Bound(excess, peak, depth + 1)
        if found.kind == "union":
            bounds = [self.of(branch, level + 1) for branch in found.branches]
            excess = one_byte + max((bound.excess for bound in bounds), default=0)
            peak = max([1, *(one_byte + bound.peak for bound in bounds)])
            return _Bound(excess, peak, 1 + max((bound.depth for bound in bounds), default=0))
        if found.items is not None:
            bound = self.of(found.items, level + 1)
            key = VISITS_PER_BYTE - 1 if found.kind == "map" else 0
            if bound.excess > key:
                raise SchemaError(
                    f"the Avro schema has {an(found.kind)} of elements that take no bytes, or few for the types that"
                    " they have, which has no bound"
                )
            return _Bound(one_byte, max(1, one_byte + bound.peak), bound.depth + 1)
        size = found.size if found.kind == "fixed" else _BYTES.get(found.kind, 1)
        return _Bound(1 - VISITS_PER_BYTE * size, 1, 1)
