"""JSON znodes, read strictly: a missing or wrong field is an error that names the znode and the field. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from klamm.base import json_bytes

INT16_MAX = 2**15 - 1
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MAX = 2**63 - 1


class ZnodeError(Exception):
    """A znode's content is not what Kafka writes there. The message is for operators."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"znode {path}: {problem}")
        self.path = path
        self.problem = problem


class Fields:
    """A JSON object inside the znode `path`. `where` is its place in the znode, "" for the top."""

    def __init__(self, path: str, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            raise ZnodeError(path, f"{where or 'the content'} is {_kind(value)}, not an object")
        self.path = path
        self.values: Mapping[str, Any] = value
        self._where = where

    @classmethod
    def parse(cls, path: str, data: bytes) -> "Fields":
        try:
            return cls(path, json_bytes.decode(data))
        except json_bytes.JsonError as error:
            raise ZnodeError(path, f"not JSON: {error}") from None

    def problem(self, key: str, problem: str) -> ZnodeError:
        return ZnodeError(self.path, f"{self._name(key)} {problem}")

    def integer(self, key: str, minimum: int = INT32_MIN, maximum: int = INT32_MAX) -> int:
        return self._checked_integer(self._name(key), self._value(key), minimum, maximum)

    def text(self, key: str) -> str:
        value = self._value(key)
        if not isinstance(value, str):
            raise self.problem(key, f"is {_kind(value)}, not a string")
        return value

    def text_integer(self, key: str, minimum: int = 0, maximum: int = INT64_MAX) -> int:
        """A number that Kafka writes as a string."""
        text = self.text(key)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            raise self.problem(key, f"is {text!r}, not a number")
        return self._checked_integer(self._name(key), int(text), minimum, maximum)

    def integers(self, key: str, minimum: int = 0) -> tuple[int, ...]:
        values = self._list(key)
        for index, value in enumerate(values):
            # The assignments of a large cluster have hundreds of thousands of integers.
            if type(value) is not int or not minimum <= value <= INT32_MAX:
                self._checked_integer(f"{self._name(key)}[{index}]", value, minimum, INT32_MAX)
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._list(key)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self.problem(f"{key}[{index}]", f"is {_kind(value)}, not a string")
        return tuple(values)

    def nested(self, key: str) -> "Fields":
        return Fields(self.path, self._value(key), self._name(key))

    def optional(self, key: str) -> "Fields | None":
        """None when the field is absent or null."""
        return None if self.values.get(key) is None else self.nested(key)

    def each(self, key: str) -> Iterator["Fields"]:
        for index, value in enumerate(self._list(key)):
            yield Fields(self.path, value, f"{self._name(key)}[{index}]")

    def has(self, key: str) -> bool:
        """Whether the field exists and is not null."""
        return self.values.get(key) is not None

    def version(self, minimum: int = 1) -> int:
        """The `version` field. As in Kafka, readers accept every version from `minimum` on."""
        return self.integer("version", minimum)

    def _name(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise self.problem(key, "is missing")
        return self.values[key]

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.problem(key, f"is {_kind(self._value(key))}, not a list")
        return value

    def _checked_integer(self, name: str, value: object, minimum: int, maximum: int) -> int:
        if type(value) is not int:
            raise ZnodeError(self.path, f"{name} is {_kind(value)}, not an integer")
        if not minimum <= value <= maximum:
            raise ZnodeError(self.path, f"{name} is {value}; allowed are {minimum} to {maximum}")
        return value


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "an integer"}
    return "null" if value is None else kinds.get(type(value), "a number")
