"""Computes an entity's stored configuration after AlterClientQuotas, or refuses the alteration. Pure.

What must stay true: only readable quotas are stored. (Kafka stores NaN and negative quotas, and then ignores them.)

Source: kafka.server.ZkAdminManager.alterClientQuotas.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from klamm.broker.quotas.entities import CLIENT_ID, IP, USER, Named, can_be_stored, quotas_of
from klamm.config.definition import ConfigError, ConfigKey, ConfigType, format_value
from klamm.protocol.error_codes import ErrorCode, KafkaError

# A double counts as a whole number within this distance.
EPSILON = 1e-6

Operations = Sequence[tuple[str, float | None]]
"""Keys and their new values; None removes a key."""


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """The entity that consists of these types and names. Raises KafkaError INVALID_REQUEST."""
    entity = dict(parts)
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for entity_type, name in entity.items():
        if entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise _invalid(f"Empty {entity_type} not supported")
        if not can_be_stored(entity_type, name):
            raise _invalid(f"{entity_type} {name!r} is not supported, because ZooKeeper has no znode of that name")
    if IP in entity and len(entity) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be used with user/client ID entity.")
    return entity


def altered(entity: Named, stored: Mapping[str, str], operations: Operations) -> dict[str, str]:
    """The configuration after these operations. Raises KafkaError INVALID_REQUEST."""
    wanted = dict(stored)
    keys = quotas_of(entity).keys
    for name, value in operations:
        if value is None:
            wanted.pop(name, None)
        elif name not in keys:
            raise _invalid(f"Invalid configuration key {name}; allowed are {', '.join(keys)}")
        else:
            wanted[name] = _text(keys[name], value)
    return wanted


def _text(key: ConfigKey, value: float) -> str:
    """The stored form of the value."""
    if not math.isfinite(value):
        raise _invalid(f"{key.name}={value} is not a number")
    text = format_value(ConfigType.DOUBLE, value) or ""
    if key.type is not ConfigType.DOUBLE:
        number = math.floor(value + EPSILON)
        if abs(number - value) > EPSILON:
            raise _invalid(f"Configuration {key.name} must be a {key.type.name} value, not {text}")
        text = str(number)
    try:
        key.parse(text)
    except ConfigError as error:
        raise _invalid(str(error)) from None
    return text


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
