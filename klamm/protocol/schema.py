"""The notation for messages: one class for all versions of a message, its fields in the order of the wire.

A message is written as Kafka's documentation would list it:

    class MetadataRequest(Request["MetadataResponse"], api=ApiKey.METADATA, versions="0-11", flexible="9+", size=LIST):
        class MetadataRequestTopic(Struct):
            topic_id: Uuid = field("10+", default=None)
            name: String | None = field(nullable="10+")

        topics: list[MetadataRequestTopic] | None = field(nullable="1+")
        allow_auto_topic_creation: Bool = field("4+", default=True)

What must stay true:
- The versions, the flexible versions (KIP-482) and the size of an API are only in the first line of its request.
- A field has a default only if leaving it out has a meaning. mypy refuses a message that lacks a field without a
  default. So does the constructor, for callers that know the class only at run time; this costs nothing, because
  Python checks arguments anyway. A decoder does not use the constructor.
- A field that a version lacks reads as its default in that version. A default list is a new list each time.
- A `Kept` struct does not change once it is in a message.
- Creating a class only stores its annotations: a broker imports hundreds of classes when it starts. `fields_of`
  interprets them when a message is first made, encoded or decoded.

mypy reads the same lines: `Struct` is a dataclass to it (PEP 681), and the types of the wire are aliases of Python's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast, dataclass_transform
from uuid import UUID

Int8: TypeAlias = int
Int16: TypeAlias = int
Uint16: TypeAlias = int
Int32: TypeAlias = int
Int64: TypeAlias = int
Float64: TypeAlias = float
Bool: TypeAlias = bool
String: TypeAlias = str
Bytes: TypeAlias = bytes
Records: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are a part of the frame's memory. Large ones are sent without a copy."""
Uuid: TypeAlias = UUID | None
"""A UUID. None is the UUID of zeros."""
BitField: TypeAlias = set[int] | None
"""The numbers of the bits that are set in an int32; None is the lowest int32, which means "not asked for"."""

ZEROS: dict[str, Any] = {
    "Int8": 0,
    "Int16": 0,
    "Uint16": 0,
    "Int32": 0,
    "Int64": 0,
    "Float64": 0.0,
    "Bool": False,
    "String": "",
    "Bytes": b"",
    "Records": b"",
    "Uuid": None,
    "BitField": None,
}
"""The types of the wire, and the default of a field of each type."""

NEWEST = 2**15 - 1

_REQUIRED: Any = object()


class Size(IntEnum):
    """The size class of a request, by its content."""

    SMALL = 1
    """Neither records nor long lists."""
    LIST = 2
    """Topics and partitions, or a group's state."""
    WHOLE = 3
    """Records: up to `socket.request.max.bytes`."""
    STATE = 4
    """The state of every partition: the same bytes, and more elements."""


SMALL, LIST, WHOLE, STATE = Size.SMALL, Size.LIST, Size.WHOLE, Size.STATE


class Versions:
    """A range of versions: "3", "1-4" or "3+"."""

    __slots__ = ("high", "low")

    def __init__(self, text: str) -> None:
        low, to, high = text.partition("-")
        if low.endswith("+"):
            self.low, self.high = int(low[:-1]), NEWEST
        else:
            self.low, self.high = int(low), int(high) if to else int(low)

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


ALL = Versions("0+")
NEVER = Versions(f"{NEWEST}+")


class Api:
    """The first line of a request. klamm serves `versions`; it can encode and decode `known`."""

    __slots__ = ("flexible", "key", "known", "size", "versions")

    def __init__(self, key: int, versions: str, flexible: str | None, size: Size, known: str | None = None) -> None:
        self.key = key
        self.versions = Versions(versions)
        self.known = self.versions if known is None else Versions(known)
        self.flexible = NEVER if flexible is None else Versions(flexible)
        self.size = size


class _Given:
    """The arguments of `field`."""

    __slots__ = ("default", "flat", "nullable", "tag", "tagged", "versions")

    def __init__(
        self,
        versions: str | None,
        default: Any,
        nullable: str | None = None,
        tag: int | None = None,
        tagged: str | None = None,
        flat: str | None = None,
    ) -> None:
        self.versions = versions
        self.default = default
        self.nullable = nullable
        self.tag = tag
        self.tagged = tagged
        self.flat = flat


def field(
    versions: str | None = None,
    *,
    default: Any = _REQUIRED,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    flat: str | None = None,
) -> Any:
    """A field that only some versions have, or which may be null or is tagged in only some versions.

    A type with `| None` may be null in all versions unless `nullable` names some. `tagged` names the versions in which
    a field with a tag is a tagged field; the default is all versions that have the field. A tagged struct that is None
    is left out. `flat` is for an array of groups, each a name and a list of structs. In the named versions, the wire
    has an array of these structs instead, each after the name of its group.
    """
    return _Given(versions, default, nullable, tag, tagged, flat)


class _StructType(type):
    """Makes slots from a struct's annotations, and keeps the values that are assigned to them.

    The constructor of a struct with `kw_only=False` also takes fields by position, which costs half. This is for
    structs that are made by the thousand. In the versions `untagged`, a struct of a flexible message has no tagged
    fields.
    """

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        *,
        kw_only: bool = True,
        untagged: str | None = None,
        **options: Any,
    ) -> _StructType:
        names = [name for name, kind in body.get("__annotations__", {}).items() if not kind.startswith("ClassVar")]
        body["_notes"] = {name: body.pop(name, _REQUIRED) for name in names}
        body["_wire"] = None
        body["_kw_only"] = kw_only
        body["_untagged"] = NEVER if untagged is None else Versions(untagged)
        body["__slots__"] = tuple(names)
        return super().__new__(mcs, name, bases, body, **options)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class _Noted(metaclass=_StructType):
    pass


class Struct(_Noted):
    """A part of a message, or a message: fields by name."""

    __slots__: ClassVar[tuple[str, ...]]

    def __init__(self, *places: Any, **values: Any) -> None:
        # The first instance of a class makes the class's own `__init__`.
        from klamm.protocol.compiler.methods import compile_init

        compile_init(type(self))
        self.__init__(*places, **values)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        # The first comparison makes the class's own `__eq__`.
        from klamm.protocol.compiler.methods import compile_eq

        compile_eq(type(self))
        return self.__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__slots__)
        return f"{type(self).__name__}({values})"

    def replaced(self, **changes: Any) -> Self:
        """A copy with other values in some fields."""
        return type(self)(**{name: getattr(self, name) for name in type(self).__slots__} | changes)


class _Encoded:
    __slots__ = ("_encoded",)
    _encoded: Any


class Kept(Struct, _Encoded):
    """A struct whose encoding is kept with it, so that all messages that hold it share the encoding."""


class Response(Struct):
    """The body of a response."""


Answer_co = TypeVar("Answer_co", covariant=True)


class Answered(Generic[Answer_co]):
    """A request as its sender sees it: the response is an `Answer_co`."""

    __slots__ = ()
    api: ClassVar[Api]


class Request(Struct, Answered[Answer_co]):
    """The body of a request. Copies of a `Kept` request share the encoding of the fields after `kept_behind`."""

    kept_behind: ClassVar[str]

    def __init_subclass__(
        cls, *, api: int, versions: str, flexible: str | None, size: Size, known: str | None = None
    ) -> None:
        super().__init_subclass__()
        cls.api = Api(api, versions, flexible, size, known)


# -- fields -----------------------------------------------------------------------------------------------------------


class Field:
    """One field of a struct. `kind` is a type of the wire by its name, or the class of a struct."""

    __slots__ = (
        "default",
        "flat",
        "is_array",
        "is_required",
        "is_tuple",
        "kind",
        "name",
        "nullable",
        "tag",
        "tagged",
        "versions",
    )

    def __init__(self, owner: type[Struct], name: str, annotation: str, note: Any) -> None:
        given = note if isinstance(note, _Given) else _Given(None, note)
        kind = annotation.removesuffix(" | None")
        may_be_null = kind != annotation
        self.is_tuple = kind.startswith("tuple[")
        self.is_array = self.is_tuple or kind.startswith("list[")
        if self.is_array:
            kind = kind[6:-6] if self.is_tuple else kind[5:-1]
        self.name = name
        self.kind: str | type[Struct] = kind if kind in ZEROS else _struct_class(owner, kind)
        self.versions = ALL if given.versions is None else Versions(given.versions)
        self.tag = given.tag
        if not may_be_null or self.is_left_out_as_none:
            self.nullable = NEVER
        else:
            self.nullable = ALL if given.nullable is None else Versions(given.nullable)
        self.tagged = NEVER if given.tag is None else ALL if given.tagged is None else Versions(given.tagged)
        self.flat = NEVER if given.flat is None else Versions(given.flat)
        self.is_required = given.default is _REQUIRED
        if not self.is_required:
            self.default = given.default
        elif self.is_array:
            self.default = () if self.is_tuple else []
        else:
            self.default = ZEROS[kind] if isinstance(self.kind, str) else None

    @property
    def makes_list(self) -> bool:
        """Whether the default is a list; every message needs a list of its own."""
        return isinstance(self.default, list)

    @property
    def is_left_out_as_none(self) -> bool:
        """Whether the field is a tagged struct: None leaves it out, because a tagged field cannot be null."""
        return self.tag is not None and not self.is_array and not isinstance(self.kind, str)

    def is_plain_in(self, version: int) -> bool:
        """Whether this version has the field outside its tagged fields."""
        return version in self.versions and version not in self.tagged

    def is_tagged_in(self, version: int) -> bool:
        return version in self.versions and version in self.tagged


def _struct_class(owner: type[Struct], name: str) -> type[Struct]:
    found = vars(owner).get(name) or vars(sys.modules[owner.__module__]).get(name)
    if found is None:
        raise TypeError(f"{owner.__qualname__}: no type {name}")
    return cast(type[Struct], found)


def fields_of(struct_class: type[Struct]) -> list[Field]:
    """The fields of a struct in the order of the wire."""
    noted: Any = struct_class
    if noted._wire is None:
        annotations = vars(struct_class)["__annotations__"]
        noted._wire = [Field(struct_class, name, annotations[name], note) for name, note in noted._notes.items()]
    fields: list[Field] = noted._wire
    return fields
