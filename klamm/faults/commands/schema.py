"""Makes a JSON Schema from the dataclasses of the faults, for editors and generators of client code."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from klamm.faults.commands.codec import MAX_CHARACTERS, MAX_INTEGER, MAX_ITEMS, Command, Fault, kinds

_TYPES: Mapping[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
    float: {"type": "number"},
    str: {"type": "string", "maxLength": MAX_CHARACTERS},
    type(None): {"type": "null"},
}


def schema() -> dict[str, Any]:
    """The schema of a command: a fault, or an action."""
    commands = kinds()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Faults and actions of a klamm cluster",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in commands],
        "$defs": {kind: _definition(command) for kind, command in commands.items()},
    }


def _definition(command: type[Command]) -> dict[str, Any]:
    properties: dict[str, Any] = {"kind": {"const": command.kind}}
    required = ["kind"]
    for field in dataclasses.fields(command):
        properties[field.name] = _type(command.field_types[field.name])
        if "values" in field.metadata:
            properties[field.name]["enum"] = list(field.metadata["values"])
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        else:
            default = field.default
            properties[field.name]["default"] = list(default) if isinstance(default, tuple) else default
    return {
        "title": "a fault, until it is removed" if issubclass(command, Fault) else "an action, done once",
        "description": " ".join((command.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _type(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(argument) for argument in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0]), "maxItems": MAX_ITEMS}
    return dict(_TYPES[hint])
