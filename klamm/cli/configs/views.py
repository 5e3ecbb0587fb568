"""Descriptions of configurations as the lines of kafka-configs, and as values for --json. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from klamm.cli.configs.entities import CLIENTS, DEFAULT, TOPICS, USERS, Entity, Part

if TYPE_CHECKING:
    from klamm.client.admin.configs import ConfigEntry


@dataclass(frozen=True, slots=True)
class ResourceConfigs:
    """A broker's description of a topic, a broker, the default of all brokers, or a broker's loggers."""

    entity: Entity
    entries: "tuple[ConfigEntry, ...]"
    is_all: bool = False

    def lines(self) -> Iterator[str]:
        kind, name = self.entity.type, self.entity.first.name
        if name == DEFAULT:
            yield f"Default configs for {kind} in the cluster are:"
        else:
            yield f"{'All' if self.is_all else 'Dynamic'} configs for {kind[:-1]} {name} are:"
        for entry in self.entries:
            synonyms = ", ".join(f"{each.source.name}:{each.name}={_java(each.value)}" for each in entry.synonyms)
            yield (
                f"  {entry.name}={_java(entry.value)} sensitive={str(entry.is_sensitive).lower()}"
                f" synonyms={{{synonyms}}}"
            )

    def value(self) -> dict[str, Any]:
        return {
            "entity": _entity_value(self.entity),
            "configs": [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source.name,
                    "sensitive": entry.is_sensitive,
                    "read_only": entry.is_read_only,
                    "synonyms": [
                        {"name": each.name, "value": each.value, "source": each.source.name} for each in entry.synonyms
                    ],
                }
                for entry in self.entries
            ],
        }


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of users, clients or IP addresses that a broker reports."""

    entity: Entity
    quotas: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        names = ", ".join(
            f"the default {part.principal}" if part.name == DEFAULT else f"{part.principal} '{part.name}'"
            for part in self.entity.parts
        )
        yield f"Quota configs for {names} are {_pairs(self.quotas, ', ')}"

    def value(self) -> dict[str, Any]:
        return {"entity": _entity_value(self.entity), "quotas": {key: float(text) for key, text in self.quotas.items()}}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The mechanisms of a user's SCRAM credentials, with their iterations."""

    user: str
    iterations: Mapping[str, int]

    def lines(self) -> Iterator[str]:
        texts = ", ".join(f"{mechanism}=iterations={count}" for mechanism, count in self.iterations.items())
        yield f"SCRAM credential configs for user-principal '{self.user}' are {texts}"

    def value(self) -> dict[str, Any]:
        return {"entity": {USERS: self.user}, "scram": dict(self.iterations)}


@dataclass(frozen=True, slots=True)
class StoredConfigs:
    """An entity's configuration as ZooKeeper stores it."""

    entity: Entity
    configs: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        names = ", ".join(_stored_name(part) for part in self.entity.parts)
        yield f"Configs for {names} are {_pairs(self.configs, ',')}"

    def value(self) -> dict[str, Any]:
        return {"entity": _entity_value(self.entity), "configs": dict(self.configs)}


Description = ResourceConfigs | Quotas | Credentials | StoredConfigs


def completed_line(entity: Entity, *, zookeeper: bool) -> str:
    """The line that Kafka's tool prints after a change."""
    first = entity.first
    if zookeeper:
        return f"Completed updating config for entity: {', '.join(_stored_name(part) for part in entity.parts)}."
    if first.name == DEFAULT:
        return f"Completed updating default config for {first.type} in the cluster."
    return f"Completed updating config for {first.type[:-1]} {first.name}."


def _entity_value(entity: Entity) -> dict[str, str | None]:
    """Names by type; null is the default."""
    return {part.type: part.name or None for part in entity.parts}


def _stored_name(part: Part) -> str:
    kind = {TOPICS: "topic", USERS: "user-principal", CLIENTS: "client-id"}.get(part.type, part.type)
    return f"default {kind}" if part.name == DEFAULT else f"{kind} '{part.name}'"


def _pairs(configs: Mapping[str, str], separator: str) -> str:
    return separator.join(f"{key}={value}" for key, value in configs.items())


def _java(value: str | None) -> str:
    return "null" if value is None else value
