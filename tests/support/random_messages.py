"""Random messages, made from their notation."""

import random
import uuid
from collections.abc import Callable
from typing import Any

from klamm.protocol import apis
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import Field, fields_of

BITS = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
VALUES: dict[str, Callable[[random.Random], object]] = {
    "Uint16": lambda rng: rng.getrandbits(16),
    "Float64": lambda rng: rng.choice([0.0, -1.5, 1e300]),
    "Bool": lambda rng: rng.random() < 0.5,
    "String": lambda rng: "".join(rng.choices("abc.-_é漢🙂", k=rng.choice([0, 1, 5, 200]))),
    "Records": lambda rng: rng.randbytes(rng.choice([0, 1, 300, 10_000])),
    "Bytes": lambda rng: rng.randbytes(rng.choice([0, 1, 10, 300])),
    "Uuid": lambda rng: rng.choice([None, uuid.UUID(int=rng.getrandbits(128) | 1)]),
    "BitField": lambda rng: rng.choice([None, set(), {0, 5, 30}]),
}


def random_value(rng: random.Random, kind: Any, version: int) -> Any:
    if kind in BITS:
        bits = BITS[kind]
        return rng.choice([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.getrandbits(bits - 1)])
    return VALUES[kind](rng) if isinstance(kind, str) else random_struct(rng, kind, version)


def random_field(rng: random.Random, field: Field, version: int) -> Any:
    if version in field.nullable and rng.random() < 0.3:
        return None
    if field.is_array:
        if version in field.flat:
            return random_groups(rng, field.kind, version)
        count = rng.choice([0, 1, 3, 3, 200 if isinstance(field.kind, str) else 3])
        values = [random_value(rng, field.kind, version) for _ in range(count)]
        return tuple(values) if field.is_tuple else values
    return random_value(rng, field.kind, version)


def random_groups(rng: random.Random, group_class: Any, version: int) -> list[Any]:
    """Each with a name of its own and with members: a flat array can say nothing else."""
    name, members = (one for one in fields_of(group_class) if version in one.versions)
    return [
        group_class(
            **dict.fromkeys((one.name for one in fields_of(group_class)), None)
            | {name.name: text, members.name: [random_struct(rng, members.kind, version) for _ in range(count)]}
        )
        for text, count in rng.sample([("", 1), ("a", 4), ("topic-ü", 2), ("x" * 249, 3)], rng.randrange(4))
    ]


def random_struct(rng: random.Random, struct_class: Any, version: int) -> Any:
    """Fields that the version lacks have their defaults, and so have some of the tagged ones."""
    fields = [one for one in fields_of(struct_class) if version in one.versions]
    present = [one for one in fields if not (one.is_tagged_in(version) and rng.random() < 0.5)]
    lacking = {one.name: one.default for one in fields_of(struct_class) if one.is_required}
    return struct_class(**lacking | {one.name: random_field(rng, one, version) for one in present})


def message_class(api_key: ApiKey, kind: str) -> Any:
    return apis.request_class(api_key) if kind == "Request" else apis.response_class(api_key)


def random_message(rng: random.Random, api_key: ApiKey, kind: str, version: int) -> Any:
    return random_struct(rng, message_class(api_key, kind), version)


def is_flexible(api_key: ApiKey, version: int) -> bool:
    return version >= apis.FLEXIBLE_FROM[api_key]
