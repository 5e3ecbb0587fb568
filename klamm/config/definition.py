"""Defines configuration keys: type, default, allowed values, importance, documentation and update mode.

A configuration is a frozen dataclass whose fields are declared by the functions below; the field's name is the
key with underscores for dots (`log.segment.bytes` -> `log_segment_bytes`), so each key is defined once:

    log_segment_bytes: int = integer(1 << 30, "Size at which ...", at_least(14), importance=HIGH)

`ConfigDef` collects the fields and turns text into checked values. Pure.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308


class ConfigError(ValueError):
    """One or more configuration values are not allowed. `problems` has one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class ConfigSource(IntEnum):
    """The source of a value. The number is the protocol's config_source."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class ConfigType(IntEnum):
    """A key's type; the number is DescribeConfigs' config_type."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """Whether a key may change while brokers run: for one broker, for the whole cluster, or not at all."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


HIGH, MEDIUM, LOW = Importance
PER_BROKER, CLUSTER_WIDE = UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE


@dataclass(frozen=True, slots=True)
class Validator:
    """`accepts` decides; `allowed` describes the accepted values for people ("at least 1")."""

    allowed: str
    accepts: Callable[[Any], bool]


def at_least(minimum: int) -> Validator:
    return Validator(f"at least {minimum}", lambda value: value >= minimum)


def between(minimum: float, maximum: float) -> Validator:
    return Validator(f"{minimum} to {maximum}", lambda value: minimum <= value <= maximum)


def one_of(*choices: str) -> Validator:
    return Validator("one of " + ", ".join(choices), lambda value: value in choices)


def all_of(*choices: str) -> Validator:
    """For lists: each element is one of the choices."""
    return Validator("a list of " + ", ".join(choices), lambda value: all(element in choices for element in value))


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. A `default` of None means not set. `without_effect` is the reason why the key is stored but changes
    nothing; empty if it acts."""

    name: str
    type: ConfigType
    default: Any
    documentation: str
    validator: Validator | None
    importance: Importance
    update_mode: UpdateMode
    without_effect: str

    @property
    def sensitive(self) -> bool:
        """True when the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> Any:
        """The typed value of `text`. Raises ConfigError naming the key, the value and what is allowed."""
        trimmed = text.strip()
        try:
            value = _PARSERS[self.type](trimmed)
        except ValueError as error:
            raise ConfigError([f"{self.name}={trimmed} is not {error}{self._and_allowed()}"]) from None
        if self.validator is not None and not self.validator.accepts(value):
            raise ConfigError([f"{self.name}={trimmed} is not allowed; allowed: {self.validator.allowed}"])
        return value

    def _and_allowed(self) -> str:
        return "" if self.validator is None else f"; allowed: {self.validator.allowed}"


class ConfigDef:
    """The keys that a dataclass declares, in its order. `separator` is what keys have where attributes have "_"."""

    def __init__(self, config_class: type, separator: str = ".") -> None:
        fields = dataclasses.fields(config_class)
        self.keys: dict[str, ConfigKey] = {
            (name := field.name.replace("_", separator)): ConfigKey(name=name, **field.metadata["config"])
            for field in fields
            if "config" in field.metadata
        }

    def parse(self, properties: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """The value of every key, by key, and a sentence for each bad value.

        A key that is missing in `properties`, or has a bad value there, gets its default. Unknown properties are
        ignored.
        """
        values: dict[str, Any] = {}
        problems: list[str] = []
        for name, key in self.keys.items():
            text = properties.get(name)
            if text is None:
                values[name] = key.default
                continue
            try:
                values[name] = key.parse(text)
            except ConfigError as error:
                values[name] = key.default
                problems += error.problems
        return values, problems

    def ineffective(self) -> dict[str, str]:
        """The keys that are accepted and stored but change nothing, with the reason (docs/unsupported.md)."""
        return {name: key.without_effect for name, key in self.keys.items() if key.without_effect}


def attribute(key: str) -> str:
    """The attribute that holds a key's value."""
    return key.replace(".", "_")


def _declare(
    config_type: ConfigType,
    default: Any,
    documentation: str,
    validator: Validator | None,
    importance: Importance,
    update_mode: UpdateMode,
    without_effect: str,
) -> Any:
    return dataclasses.field(
        metadata={
            "config": {
                "type": config_type,
                "default": default,
                "documentation": documentation,
                "validator": validator,
                "importance": importance,
                "update_mode": update_mode,
                "without_effect": without_effect,
            }
        }
    )


def _declarer(config_type: ConfigType) -> Callable[..., Any]:
    def declare(
        default: Any,
        documentation: str,
        validator: Validator | None = None,
        importance: Importance = MEDIUM,
        update_mode: UpdateMode = UpdateMode.READ_ONLY,
        without_effect: str = "",
    ) -> Any:
        return _declare(config_type, default, documentation, validator, importance, update_mode, without_effect)

    return declare


boolean = _declarer(ConfigType.BOOLEAN)
string = _declarer(ConfigType.STRING)
integer = _declarer(ConfigType.INT)
short = _declarer(ConfigType.SHORT)
long = _declarer(ConfigType.LONG)
double = _declarer(ConfigType.DOUBLE)
list_of = _declarer(ConfigType.LIST)
class_name = _declarer(ConfigType.CLASS)
password = _declarer(ConfigType.PASSWORD)


def format_value(config_type: ConfigType, value: Any) -> str | None:
    """A value as DescribeConfigs shows it: Java's text form; None stays None."""
    if value is None or isinstance(value, str):
        return value
    if config_type is ConfigType.BOOLEAN:
        return "true" if value else "false"
    if config_type is ConfigType.LIST:
        return ",".join(value)
    if config_type is ConfigType.DOUBLE:
        return _format_double(value)
    return str(value)


def _format_double(value: float) -> str:
    """Java's Double.toString: an exponent below 10^-3 and from 10^7 on, always a digit after the point."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{int(exponent) + len(rest)}"


_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("a boolean (true or false)")
    return lowered == "true"


def _integer_parser(name: str, bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        # The length is checked first: Python parses a very long number slowly, or refuses it.
        if len(text) > 32 or not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
            raise ValueError(f"{name} (a whole number from {-limit} to {limit - 1})")
        return int(text)

    return parse


def _parse_double(text: str) -> float:
    if not _DOUBLE.fullmatch(text):
        raise ValueError("a double (a decimal number)")
    return float(text)


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(re.split(r"\s*,\s*", text)) if text else ()


_PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer_parser("an int", 32),
    ConfigType.SHORT: _integer_parser("a short", 16),
    ConfigType.LONG: _integer_parser("a long", 64),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: _parse_list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
}
