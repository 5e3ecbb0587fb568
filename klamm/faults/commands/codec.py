"""The base of all commands: their kinds, the check of their fields, and their JSON form.

A command is a frozen dataclass. Its JSON form is an object with its kind and its fields: `{"kind": "network.cut",
"servers": [0, 1]}`. Fields that have their default value are left out.

What must stay true: every command object is valid. The same check of the fields serves all interfaces. It raises
ValueError with a sentence that names the field, the value and what is allowed.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from klamm.processes.local_cluster import Server

Json = Any
"""A JSON value."""

C = TypeVar("C", bound="Command")

# The maximum length of a list and of a text in a command, so that a command fits into a line of an agent.
MAX_ITEMS = 10_000
MAX_CHARACTERS = 10_000
MAX_INTEGER = 2**63 - 1
# Errors name this many characters of a value.
_SHOWN = 80

_kinds: "dict[str, type[Command]]" = {}


@dataclasses.dataclass(frozen=True)
class Command:
    """A fault or an action. `kind` is its name in JSON; `field_types` has the type of each field."""

    kind: ClassVar[str]
    field_types: ClassVar[Mapping[str, Any]]

    def __post_init__(self) -> None:
        for name, hint in self.field_types.items():
            value = getattr(self, name)
            if not _fits(hint, value):
                raise ValueError(f"{self.kind}: {name}={_shown(value)} is not allowed; allowed: {_words(hint)}")

    def __str__(self) -> str:
        return f"{type(self).__name__}({_arguments(self._changed())})"

    def to_json(self) -> dict[str, Json]:
        """The JSON form."""
        return {"kind": self.kind} | {
            name: list(value) if isinstance(value, tuple) else value for name, value in self._changed().items()
        }

    def named_brokers(self) -> tuple[int, ...]:
        """The ids of the brokers that the command names."""
        broker: int | None = getattr(self, "broker", None)
        return () if broker is None else (broker,)

    def _changed(self) -> dict[str, Any]:
        """The fields that do not have their default value."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


class Fault(Command):
    """A fault that stays until it is removed.

    `method` is the method of a Cluster that installs it, with the fields as arguments, if there is one. `named` are the
    arguments that the method needs even if they have their default value.
    """

    method: ClassVar[str] = ""
    named: ClassVar[tuple[str, ...]] = ()

    def python(self) -> str:
        """The Python that injects this fault into a cluster `c`, for a report."""
        if not self.method:
            return f"c.faults.install({self})"
        fields = {name: getattr(self, name) for name in self.named} | self._changed()
        return f"c.{self.method}({_arguments(fields)})"

    def concerns(self, server: Server) -> bool:
        """Whether this server must know the fault."""
        return True


class Action(Command):
    """An action that one server carries out once, with a result."""

    def concerns(self, server: Server) -> bool:
        """Whether this server may be able to perform it."""
        return True

    def python(self, server: Server | None) -> str:
        """The Python that has a server of the cluster `c` perform this action, for a report."""
        return f"c.faults.perform({server!r}, {self})"


def command(kind: str) -> Callable[[type[C]], type[C]]:
    """Makes a frozen dataclass a command of this kind."""

    def register(cls: type[C]) -> type[C]:
        if kind in _kinds:
            raise TypeError(f"two commands are called {kind}")
        hints = typing.get_type_hints(cls)
        cls.kind = kind
        cls.field_types = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
        _kinds[kind] = cls
        return cls

    return register


def kinds() -> Mapping[str, type[Command]]:
    """All commands by their kinds, sorted."""
    return dict(sorted(_kinds.items()))


def from_json(value: Json) -> Command:
    """The command with this JSON form. Raises ValueError."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError(f'a command is an object such as {{"kind": "network.cut", ...}}, not {_shown(value)}')
    cls = _kinds.get(value["kind"])
    if cls is None:
        raise ValueError(f"there is no command {_shown(value['kind'])}; {nearest(value['kind'], list(kinds()))}")
    arguments = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    del arguments["kind"]
    names = list(cls.field_types)
    for name in arguments:
        if name not in names:
            raise ValueError(f"{cls.kind} has no field {_shown(name)}; {nearest(name, names)}")
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in arguments:
            raise ValueError(f"{cls.kind} needs the field {field.name}: {_words(cls.field_types[field.name])}")
    return cls(**arguments)


def _arguments(values: Mapping[str, Any]) -> str:
    """The values as the arguments of a call."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _fits(hint: Any, value: object) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(argument, value) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and len(value) <= MAX_ITEMS and all(_fits(arguments[0], item) for item in value)
    match value:
        case None | bool():
            return type(value) is hint
        case int():
            return hint in (int, float) and abs(value) <= MAX_INTEGER
        case float():
            return hint is float and math.isfinite(value)
        case str():
            return hint is str and len(value) <= MAX_CHARACTERS
    return False


_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "an integer of 64 bits",
    float: "a number",
    str: f"a string of at most {MAX_CHARACTERS:,} characters",
    type(None): "nothing",
}


def _words(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return ", ".join(map(repr, arguments))
    if origin is tuple:
        return f"a list of at most {MAX_ITEMS:,} items, each {_words(arguments[0])}"
    return _WORDS[hint]


def nearest(name: str, allowed: list[str]) -> str:
    """The allowed names, the nearest first."""
    near = get_close_matches(name, allowed)
    return "allowed: " + ", ".join([*near, *(other for other in allowed if other not in near)])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
