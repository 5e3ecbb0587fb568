"""What klamm's HTTP ports answer, checked: any program may listen at a port that a broker has registered.

What must stay true: what passes here has all that the cockpit uses, of the types that it expects, so that no answer is
taken for a fault of this program.
"""

from collections.abc import Mapping
from typing import Any, Final

from klamm.access.http_reading import WrongAnswer
from klamm.base import json_bytes
from klamm.cockpit.controller_records import is_record

_TEXT: Final = (str,)
_TEXT_OR_NONE: Final = (str, type(None))
_INTEGER: Final = (int,)
_INTEGER_OR_NONE: Final = (int, type(None))
_NUMBER: Final = (int, float)
_NUMBER_OR_NONE: Final = (int, float, type(None))
_YES_OR_NO: Final = (bool,)
_IDS: Final = [_INTEGER]

_LISTED_WORK: Final = {"topic": _TEXT, "step": _TEXT, "waits_for": _TEXT}
_COUNTS: Final = {str: _INTEGER}

# A tuple has the types of a value, a list the shape of each item, a mapping those of its keys, all of which must be
# there; the key `str` stands for any.
WHO: Final = {"active": _YES_OR_NO}
STATUS: Final = {
    "epoch": _INTEGER,
    "now_ms": _INTEGER,
    "since_ms": _NUMBER,
    "state": _TEXT,
    "event": _TEXT_OR_NONE,
    "event_for_ms": _NUMBER,
    "event_queue_size": _INTEGER,
    "event_waits_ms": _NUMBER,
    "waiting_events": [{"event": _TEXT, "state": _TEXT, "waits_ms": _NUMBER}],
    "brokers": [
        {
            "broker_id": _INTEGER,
            "epoch": _INTEGER,
            "shutting_down": _YES_OR_NO,
            "offline_replicas": _INTEGER,
            "queue_size": _INTEGER,
            "sending": _TEXT_OR_NONE,
            "sending_for_ms": _NUMBER,
            "trouble": _TEXT,
        }
    ],
    "preferred_replica_imbalance": _INTEGER,
    "machines": {"partitions": _COUNTS, "replicas": _COUNTS},
    "elections": [{"type": _TEXT, "partitions": _INTEGER, "step": _TEXT, "for_ms": _NUMBER, "waits_for": _TEXT}],
    "deletions": {
        "count": _INTEGER,
        "first": [{**_LISTED_WORK, "started": _YES_OR_NO, "replicas": _INTEGER, "deleted": _INTEGER}],
    },
    "reassignments": {
        "count": _INTEGER,
        "first": [
            {
                **_LISTED_WORK,
                "partition": _INTEGER,
                "replicas": _IDS,
                "adding_replicas": _IDS,
                "removing_replicas": _IDS,
                "isr": _IDS,
            }
        ],
    },
}
NUMBERS: Final = {
    "time_ms": _INTEGER,
    "memory_bytes": _INTEGER_OR_NONE,
    "loop_lag_ms": _NUMBER_OR_NONE,
    "longest_loop_lag_ms": _NUMBER_OR_NONE,
    "totals": {str: _NUMBER_OR_NONE},
}


def status_of(answer: bytes) -> Mapping[str, Any]:
    """The answer of /controller?brief: all of `STATUS` of a broker that is active. Raises WrongAnswer."""
    found = _object(answer)
    _check(found, WHO, "The controller's status")
    if found["active"]:
        _check(found, STATUS, "The controller's status")
    return found


def numbers_of(answer: bytes) -> Mapping[str, Any]:
    """The answer of /broker. Raises WrongAnswer."""
    found = _object(answer)
    _check(found, NUMBERS, "The broker's status")
    return found


def record_of(line: bytes) -> Mapping[str, Any]:
    """A line of /controller/events: a record of the controller, or of the kind idle or missed, which are the stream's.
    Raises WrongAnswer."""
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


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, tuple):
        # A bool is an int in Python.
        is_right = isinstance(value, shape) and (not isinstance(value, bool) or bool in shape)
        if not is_right:
            raise WrongAnswer(f"{where} is not as klamm has it, so the program at the port is not klamm.")
    elif isinstance(shape, list):
        _check(value, (list,), where)
        for each in value:
            _check(each, shape[0], where)
    else:
        _check(value, (dict,), where)
        for name, inner in shape.items():
            if name is str:
                for each in value.values():
                    _check(each, inner, where)
            else:
                _check(value.get(name, _ABSENT), inner, f"{where}: {name}")


_ABSENT: Final = object()
