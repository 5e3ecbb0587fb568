"""Checks the answers of klamm's HTTP ports: any program may listen at a port that a broker has registered.

What must stay true: an accepted answer has all fields that the cockpit uses, with the expected types, so that no answer
can look like a programming error.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from klamm.access.http_reading import WrongAnswer
from klamm.base import json_bytes
from klamm.cockpit.controller_records import is_record

T = TypeVar("T")


class Who(msgspec.Struct):
    active: bool


class WaitingEvent(msgspec.Struct):
    event: str
    state: str
    waits_ms: float


class Queue(msgspec.Struct):
    """The controller's request queue for a broker."""

    broker_id: int
    epoch: int
    shutting_down: bool
    offline_replicas: int
    queue_size: int
    sending: str | None
    sending_for_ms: float
    trouble: str


class Machines(msgspec.Struct):
    partitions: dict[str, int]
    replicas: dict[str, int]


class Election(msgspec.Struct):
    type: str
    partitions: int
    step: str
    for_ms: float
    waits_for: str


class Deletion(msgspec.Struct):
    topic: str
    step: str
    waits_for: str
    started: bool
    replicas: int
    deleted: int


class Reassignment(msgspec.Struct):
    topic: str
    step: str
    waits_for: str
    partition: int
    replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]
    isr: list[int]


class Listed(msgspec.Struct, Generic[T]):
    count: int
    first: list[T]


class Status(Who):
    """The active controller."""

    epoch: int
    now_ms: int
    since_ms: float
    state: str
    event: str | None
    event_for_ms: float
    event_queue_size: int
    event_waits_ms: float
    waiting_events: list[WaitingEvent]
    brokers: list[Queue]
    preferred_replica_imbalance: int
    machines: Machines
    elections: list[Election]
    deletions: Listed[Deletion]
    reassignments: Listed[Reassignment]


class Numbers(msgspec.Struct):
    time_ms: int
    memory_bytes: int | None
    loop_lag_ms: float | None
    longest_loop_lag_ms: float | None
    totals: dict[str, float | None]


def status_of(answer: bytes) -> Mapping[str, Any]:
    """The answer of /controller?brief, with the fields of `Status` if the broker is the active controller. Raises
    WrongAnswer."""
    found = _object(answer)
    _check(found, Who, "The controller's status")
    if found["active"]:
        _check(found, Status, "The controller's status")
    return found


def numbers_of(answer: bytes) -> Mapping[str, Any]:
    """The answer of /broker. Raises WrongAnswer."""
    found = _object(answer)
    _check(found, Numbers, "The broker's status")
    return found


def record_of(line: bytes) -> Mapping[str, Any]:
    """A line of /controller/events: a controller record, or the stream's own idle or missed. Raises WrongAnswer."""
    found = _object(line)
    if found.get("kind") not in ("idle", "missed") and not is_record(found):
        raise WrongAnswer("A record is not as klamm has it, so the program at the port is not klamm.")
    return found


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json_bytes.decode(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WrongAnswer("The answer is not a JSON object, so the program at the port is not klamm.")
    return found


def _check(value: Mapping[str, Any], form: type[msgspec.Struct], what: str) -> None:
    try:
        json_bytes.of_form(value, form)
    except json_bytes.JsonError as error:
        text = f"{what} is not as klamm has it ({error}), so the program at the port is not klamm."
        raise WrongAnswer(text) from None
