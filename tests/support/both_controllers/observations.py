"""What there is to see of a cluster at rest, in words that are the same for both: names instead of numbers that depend
on the machine or on chance, no timestamps. Everything that is left out or renamed is here and in `known.py`."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from support.both_controllers.controllers import BROKER_IDS
from support.both_controllers.recorder import Recorder

LEADER_AND_ISR, UPDATE_METADATA, STOP_REPLICA = "LeaderAndIsr", "UpdateMetadata", "StopReplica"

# Which of the two brokers that may be the controller is alive depends on which one was it.
CANDIDATES = ("one candidate", "other candidate")
_CANDIDATE_PATHS = tuple(f"/brokers/ids/{broker_id}" for broker_id in BROKER_IDS)

State = dict[str, Any]
Heard = tuple[int, str, str]
"""A broker, the name of an API, a partition (`a-0`)."""


class Observation(NamedTuple):
    """`told`: all states that each broker was told in this step, `last`: what it was told last; of the brokers that are
    alive. `live`: the brokers that it takes for alive. `alive` are the brokers that are, `failed` the partitions that
    each has on a disk that fails."""

    answers: list[str]
    znodes: dict[str, Any]
    told: dict[Heard, list[State]]
    last: dict[Heard, State]
    live: dict[int, dict[str, str]]
    alive: frozenset[int]
    failed: dict[int, list[str]]

    def replicas(self) -> dict[str, list[int]]:
        """The assigned replicas of each partition."""
        return {
            f"{path.rpartition('/')[2]}-{number}": ids
            for path, value in self.znodes.items()
            if path.count("/") == 3 and path.startswith("/brokers/topics/") and isinstance(value, dict)
            for number, ids in value["partitions"].items()
        }

    def reassigning(self) -> dict[str, tuple[list[int], list[int]]]:
        """The partitions that are being reassigned: the replicas that come, and those that go."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        for path, value in self.znodes.items():
            if path.count("/") == 3 and path.startswith("/brokers/topics/") and isinstance(value, dict):
                adding, removing = value.get("adding_replicas", {}), value.get("removing_replicas", {})
                for number in adding.keys() | removing.keys():
                    partition = f"{path.rpartition('/')[2]}-{number}"
                    found[partition] = adding.get(number, []), removing.get(number, [])
        return found

    def state(self, partition: str) -> State | None:
        """What ZooKeeper has of its leader and ISR."""
        topic, _, number = partition.rpartition("-")
        state = self.znodes.get(f"/brokers/topics/{topic}/partitions/{number}/state")
        return state if isinstance(state, dict) else None

    def offline(self, partition: str) -> set[int]:
        """The assigned replicas that are dead or on a disk that fails."""
        return {
            id_
            for id_ in self.replicas().get(partition, ())
            if id_ not in self.alive or partition in self.failed.get(id_, ())
        }


class Names:
    """The names of a scenario. Ids that are random get the order of their appearance."""

    def __init__(self, prefix: str, first_epoch: int) -> None:
        self._prefix, self._first_epoch = prefix, first_epoch
        self._ids: dict[str, str] = {}

    def text(self, text: str) -> str:
        return text.replace(self._prefix, "")

    def partition(self, key: tuple[str, int]) -> str:
        return self.text(f"{key[0]}-{key[1]}")

    def controller_epoch(self, epoch: int) -> int:
        return epoch - self._first_epoch

    def topic_id(self, value: "UUID | str | None") -> str:
        if value is None or value == UUID(int=0):
            return "none"
        if isinstance(value, str):
            try:
                topic_id = UUID(bytes=base64.urlsafe_b64decode(value + "=="))
            except (ValueError, binascii.Error):
                return value
        else:
            topic_id = value
        if topic_id.int >> 100 == 1:
            return f"given {topic_id.int & 0xFFFF:x}"
        return self._ids.setdefault(str(topic_id), f"random {len(self._ids)}")


def observe(
    znodes: Mapping[str, tuple[bytes, int]], recorders: Mapping[int, Recorder], answers: Sequence[str], names: Names
) -> Observation:
    candidates = iter(CANDIDATES)
    seen = {}
    for path, (data, _) in znodes.items():
        named = f"/brokers/ids/{next(candidates)}" if path in _CANDIDATE_PATHS else names.text(path)
        seen[named] = _content(path, data, names, recorders)
    told: dict[Heard, list[State]] = {}
    last: dict[Heard, State] = {}
    alive = {id_: recorder for id_, recorder in recorders.items() if recorder.is_alive}
    for broker_id, recorder in alive.items():
        for each in recorder.told:
            states = told.setdefault((broker_id, each.kind, names.partition(each.partition)), [])
            states.append(_state(each.state, names, recorders))
        for (kind, partition), state in recorder.last.items():
            last[broker_id, kind, names.partition(partition)] = _state(state, names, recorders)
    live = {broker_id: _live(recorder.last_live, recorders) for broker_id, recorder in alive.items()}
    failed = {id_: sorted(map(names.partition, recorder.failed)) for id_, recorder in recorders.items()}
    return Observation([*answers], seen, told, last, live, frozenset(alive), failed)


def _state(state: State, names: Names, recorders: Mapping[int, Recorder]) -> State:
    renamed = dict(state)
    if "leader_address" in renamed:
        leader, port = renamed["leader_address"]
        renamed["leader_address"] = None if port is None else _address(recorders, leader, port)
    if "topic_id" in renamed:
        renamed["topic_id"] = names.topic_id(renamed["topic_id"])
    if "controller_epoch" in renamed:
        renamed["controller_epoch"] = names.controller_epoch(renamed["controller_epoch"])
    return renamed


def _live(ports: Mapping[int, int], recorders: Mapping[int, Recorder]) -> dict[str, str]:
    candidates = iter(CANDIDATES)
    return {
        next(candidates) if id_ in BROKER_IDS else str(id_): _address(recorders, id_, port)
        for id_, port in sorted(ports.items())
    }


def _address(recorders: Mapping[int, Recorder], broker_id: int, port: int) -> str:
    return recorders[broker_id].address_name(port) if broker_id in recorders else "its own"


def _content(path: str, data: bytes, names: Names, recorders: Mapping[int, Recorder]) -> Any:
    try:
        value = json.loads(data) if data else None
    except ValueError:
        return data.decode(errors="replace")
    if path == "/controller_epoch":
        return names.controller_epoch(int(data))
    if not isinstance(value, dict):
        return value
    value.pop("timestamp", None)
    if path == "/controller":
        value["brokerid"] = "one of them" if value["brokerid"] in BROKER_IDS else value["brokerid"]
    elif path == "/cluster/id":
        value["id"] = "random"
    elif path.startswith("/brokers/ids/"):
        broker_id = int(path.rpartition("/")[2])
        address = _address(recorders, broker_id, value["port"])
        port = value["port"]
        value["port"] = address
        value["endpoints"] = [endpoint.replace(str(port), address) for endpoint in value["endpoints"]]
    elif path.endswith("/state"):
        value["controller_epoch"] = names.controller_epoch(value["controller_epoch"])
    elif path.startswith("/brokers/topics/"):
        value["topic_id"] = names.topic_id(value.get("topic_id"))
    return json.loads(names.text(json.dumps(value)))
