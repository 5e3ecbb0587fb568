"""A JSON Schema as Spark's types, for readers that take their schema from a registry.

Objects are structs (maps, where only additional properties have a schema), arrays are arrays; integers are bigint,
numbers double, booleans boolean. Everything else is a string: text as it is, other values as their JSON.

What must stay true: work is bounded, also for schemas that refer to themselves, or repeatedly to a large part.
"""

import json
from typing import Any

MAX_DEPTH = 30
MAX_FIELDS = 20_000
# The most characters of a schema's text: names of fields may be long.
MAX_CHARS = 1_000_000


def ddl(text: str) -> str:
    """The fields of the documents, as `StructType.fromDDL` takes them. Raises ValueError."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the registry's JSON Schema is no JSON") from None
    fields = _Types(schema).fields(schema)
    if not fields:
        raise ValueError("the registry's JSON Schema has no properties; give the schema of the rows with .schema()")
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in fields)


class _Types:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._fields = self._chars = 0

    def fields(self, schema: Any, depth: int = MAX_DEPTH) -> list[tuple[str, str]]:
        schema = self._plain(schema)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        found = properties if isinstance(properties, dict) else {}
        self._count(len(found))
        self._chars += sum(map(len, found))
        if self._chars > MAX_CHARS:
            raise ValueError(f"the registry's JSON Schema has names of more than {MAX_CHARS} characters")
        return [(name, self._type(one, depth - 1)) for name, one in found.items()]

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise ValueError(f"the registry's JSON Schema has more than {MAX_FIELDS} properties")

    def _type(self, schema: Any, depth: int) -> str:
        schema = self._plain(schema)
        if not isinstance(schema, dict) or depth == 0:
            return "STRING"
        types = schema.get("type")
        names = [name for name in (types if isinstance(types, list) else [types]) if name != "null"]
        match names:
            case ["integer"]:
                return "BIGINT"
            case ["number"] | ["integer", "number"] | ["number", "integer"]:
                return "DOUBLE"
            case ["boolean"]:
                return "BOOLEAN"
            case ["array"] if "items" in schema:
                return f"ARRAY<{self._type(schema['items'], depth - 1)}>"
            case ["object"]:
                return self._object(schema, depth)
        return "STRING"

    def _object(self, schema: Any, depth: int) -> str:
        fields = self.fields(schema, depth)
        if fields:
            return f"STRUCT<{', '.join(f'{_quoted(name)}: {kind}' for name, kind in fields)}>"
        if isinstance(schema.get("additionalProperties"), dict):
            return f"MAP<STRING, {self._type(schema['additionalProperties'], depth - 1)}>"
        return "STRING"

    def _plain(self, schema: Any) -> Any:
        """Resolves references within the document, and a choice between a schema and null."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return schema
            choices = schema.get("oneOf") or schema.get("anyOf")
            if isinstance(choices, list):
                self._count(len(choices))
                others = [one for one in choices if one != {"type": "null"}]
                if len(others) != 1:
                    return {}
                schema = others[0]
            elif isinstance(schema.get("$ref"), str):
                schema = self._referred(schema["$ref"])
            else:
                return schema
        return {}

    def _referred(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return {}
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
            found = found.get(part) if isinstance(found, dict) else None
        return found if found is not None else {}


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
