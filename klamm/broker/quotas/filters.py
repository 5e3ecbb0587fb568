"""The filter of a DescribeClientQuotas request. Pure.

A filter has at most one component for each type. An entity matches if each component finds its type in it: a name, the
default, or any name. A strict filter finds only entities without other types.

Source: kafka.server.ZkAdminManager.describeClientQuotas.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from klamm.broker.quotas.entities import CLIENT_ID, IP, USER, Named, can_be_stored
from klamm.protocol.error_codes import ErrorCode, KafkaError


class MatchType(IntEnum):
    """The names of a type that match."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class Component:
    """A filter's condition on one type. `name` is None for the default, and for any name."""

    match_type: MatchType
    name: str | None

    def matches(self, name: str | None) -> bool:
        return self.match_type is MatchType.ANY or name == self.name


class QuotaFilter:
    """A filter of (type, match type, name). Raises KafkaErrors INVALID_REQUEST and UNSUPPORTED_VERSION."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        self._strict = strict
        self._components: dict[str, Component] = {}
        for entity_type, match_type, name in components:
            if entity_type in self._components:
                raise _invalid(f"Duplicate {entity_type} filter component entity type")
            if not entity_type:
                raise _invalid("Unexpected empty filter component entity type")
            if entity_type not in (USER, CLIENT_ID, IP):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{entity_type}' not supported")
            self._components[entity_type] = _component(entity_type, match_type, name)
        if IP in self._components and len(self._components) > 1:
            raise _invalid(
                "Invalid entity filter component combination, IP filter component should not be used with user or"
                " clientId filter component."
            )

    @property
    def only_entity(self) -> dict[str, str | None] | None:
        """The only entity that can match, empty if no entity can; None if several can."""
        components = self._components
        if not self._strict or any(each.match_type is MatchType.ANY for each in components.values()):
            return None
        if not all(can_be_stored(entity_type, each.name) for entity_type, each in components.items()):
            return {}
        return {entity_type: each.name for entity_type, each in components.items()}

    def matches(self, entity: Named) -> bool:
        """Whether the filter finds the entity."""
        components = self._components
        if any(entity_type not in entity for entity_type in components):
            return False
        return all(
            components[entity_type].matches(name) if entity_type in components else not self._strict
            for entity_type, name in entity.items()
        )


def _component(entity_type: str, match_type: int, name: str | None) -> Component:
    try:
        kind = MatchType(match_type)
    except ValueError:
        allowed = ", ".join(f"{each.value} ({each.name})" for each in MatchType)
        raise _invalid(f"match type {match_type} of {entity_type}: allowed are {allowed}") from None
    if kind is MatchType.EXACT and name is None:
        raise _invalid(f"the name of {entity_type} is null; match type {MatchType.DEFAULT.value} is for the default")
    return Component(kind, name if kind is MatchType.EXACT else None)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
