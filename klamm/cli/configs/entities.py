"""Which entity the options name: Kafka's entity types, names and defaults, in the long and the short form. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

TOPICS, BROKERS, BROKER_LOGGERS = "topics", "brokers", "broker-loggers"
CLIENTS, USERS, IPS = "clients", "users", "ips"
TYPES = (TOPICS, CLIENTS, USERS, BROKERS, IPS, BROKER_LOGGERS)
# The entity types that have quotas.
QUOTA_TYPES = (USERS, CLIENTS, IPS)
# The entity types that have a default.
DEFAULT_TYPES = (CLIENTS, USERS, BROKERS, IPS)

DEFAULT = ""
"""The name of the default of a type."""

_PRINCIPALS = {USERS: "user-principal", CLIENTS: "client-id", IPS: "ip"}


@dataclass(frozen=True, slots=True)
class Part:
    """A type and a name: `DEFAULT`, or None for all entities of the type."""

    type: str
    name: str | None

    @property
    def principal(self) -> str:
        """The type as Kafka names it in the descriptions of quotas."""
        return _PRINCIPALS[self.type]

    @property
    def options(self) -> list[str]:
        """The options that name this part in a command line."""
        named = [] if self.name is None else ["--entity-name", self.name]
        return ["--entity-type", self.type, *(["--entity-default"] if self.name == DEFAULT else named)]


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity with a configuration. The clients of a user have two parts, the user first."""

    parts: tuple[Part, ...]

    @property
    def first(self) -> Part:
        return self.parts[0]

    @property
    def type(self) -> str:
        return self.parts[0].type

    @property
    def is_user(self) -> bool:
        """Whether this is a user, and not the clients of a user."""
        return self.type == USERS and len(self.parts) == 1

    def __str__(self) -> str:
        """For plans and errors: `topic orders`, `default of brokers`, `user alice, default of clients`."""
        return ", ".join(_part_text(part) for part in self.parts)


def _part_text(part: Part) -> str:
    if part.name is None:
        return f"all {part.type}"
    return f"default of {part.type}" if part.name == DEFAULT else f"{part.type[:-1]} {part.name}"


def one(entity_type: str, name: str | None) -> Entity:
    return Entity((Part(entity_type, name),))


def parse_entity(
    types: Sequence[str], names: Sequence[str], short: Sequence[Part], *, to_alter: bool, zookeeper: bool
) -> Entity:
    """The entity of --entity-type and --entity-name (`DEFAULT` for --entity-default), or of the short options.

    Raises BadParameter for what Kafka's tool refuses.
    """
    if short and (types or names):
        raise typer.BadParameter(
            "--entity-type, --entity-name and --entity-default do not go with the short options such as --topic"
        )
    if not short:
        for each in types:
            if each not in TYPES:
                allowed = ", ".join(TYPES)
                raise typer.BadParameter(f"{each!r} is not one of {allowed}", param_hint="--entity-type")
        if len(names) > len(types):
            raise typer.BadParameter("there are more names than types", param_hint="--entity-name")
        short = [Part(each, names[at] if at < len(names) else None) for at, each in enumerate(types)]
    if not short:
        raise typer.BadParameter("name an entity: --topic, --broker or --entity-type, for example")
    kinds = [part.type for part in short]
    if len(set(kinds)) < len(kinds):
        raise typer.BadParameter(f"an entity type is given twice: {', '.join(kinds)}")
    if len(kinds) > 1 and set(kinds) != {USERS, CLIENTS}:
        raise typer.BadParameter(f"only users and clients may be combined, not {', '.join(kinds)}")
    for part in short:
        _check_part(part, to_alter=to_alter, zookeeper=zookeeper)
    return Entity(tuple(sorted(short, key=lambda part: part.type == CLIENTS)))


def _check_part(part: Part, *, to_alter: bool, zookeeper: bool) -> None:
    kind, name = part.type, part.name
    if kind == BROKER_LOGGERS and zookeeper:
        raise typer.BadParameter("only the broker itself knows its loggers: use --bootstrap-server")
    if name is None and (to_alter or kind == BROKER_LOGGERS):
        default = " or --entity-default" if kind in DEFAULT_TYPES else ""
        raise typer.BadParameter(f"{kind} need --entity-name{default}")
    if name == DEFAULT and kind not in DEFAULT_TYPES:
        raise typer.BadParameter(f"{kind} have no default, only {', '.join(DEFAULT_TYPES)}")
    if name and kind in (BROKERS, BROKER_LOGGERS) and not (name.isascii() and name.isdecimal() and len(name) < 11):
        raise typer.BadParameter(f"{name!r} is not a broker's id, which is a whole number")
