"""Faults as markers and decorators write them: by kind and fields, or as objects.

given_faults("answers.fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
given_faults(Cut(one=(0,), other=(1,)), Delay(one=(0,), other=(2,), ms=100))
"""

from collections.abc import Mapping
from typing import Any

from klamm.faults.commands import Fault, from_json


def given_faults(*faults: str | Fault | Mapping[str, Any], **fields: Any) -> list[Fault]:
    """The faults that the arguments describe. Raises ValueError."""
    if fields and not (len(faults) == 1 and isinstance(faults[0], str)):
        raise ValueError(f"the fields {', '.join(fields)} belong to one fault, whose kind is the only other argument")
    if not faults:
        raise ValueError('a fault is missing; allowed: a kind such as "network.cut" with its fields, or fault objects')
    return [_fault(fault, fields) for fault in faults]


def _fault(fault: str | Fault | Mapping[str, Any], fields: Mapping[str, Any]) -> Fault:
    match fault:
        case Fault():
            return fault
        case str():
            found = from_json({"kind": fault, **_as_json(fields)})
        case Mapping():
            found = from_json(dict(fault))
        case _:
            raise ValueError(f"{fault!r} is not a fault; allowed: a kind with its fields, or fault objects")
    if not isinstance(found, Fault):
        raise ValueError(f"{found.kind} is done once and does not stay: call it in the test")
    return found


def _as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
