"""What klamm controllers have recorded: of the present one as it comes on the stream, of former ones as they keep it.

What must stay true:
- While a page is open, former controllers are asked once for each epoch of the controller, not for each question.
- A record is used only if it has the fields of its kind (`is_record`): any program may serve the port of a broker.
- At most `MOST_PAST` records of former controllers are kept.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from klamm.access.controller import ControllerAddress, read_events
from klamm.processes.tool_errors import ToolError
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

if TYPE_CHECKING:
    from klamm.znodes.store import KafkaZooKeeper

Record = Mapping[str, Any]
Look = Callable[[ControllerAddress, float], Sequence[Record]]

MOST_PAST: Final = 20_000
HTTP_TIMEOUT_S: Final = 3.0
_ALL_HAVE: Final[Mapping[str, tuple[type, ...]]] = {
    "sequence": (int,),
    "time_ms": (int,),
    "controller": (int,),
    "epoch": (int,),
    "kind": (str,),
}
_NONE: Final = type(None)
_OF_A_PARTITION: Final[Mapping[str, tuple[type, ...]]] = {
    "topic": (str,),
    "partition": (int,),
    "from": (str,),
    "to": (str,),
    "leader": (int, _NONE),
    "leader_epoch": (int, _NONE),
    "isr": (list, _NONE),
    "failed": (bool,),
    "why": (str,),
    "event": (str, _NONE),
}
_OF_KINDS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "event": {"event": (str,), "state": (str,), "processing_time_ms": (int, float)},
    "partition": _OF_A_PARTITION,
    "replica": {**_OF_A_PARTITION, "replica": (int,)},
}


def is_record(value: Record) -> bool:
    """Whether a value has what records of its kind have. Kinds of later versions have what all records have."""
    if not _has(value, _ALL_HAVE) or not _has(value, _OF_KINDS.get(value["kind"], {})):
        return False
    return all(isinstance(each, int) for each in value.get("isr") or ())


def _has(value: Record, fields: Mapping[str, tuple[type, ...]]) -> bool:
    return all(name in value and isinstance(value[name], kinds) for name, kinds in fields.items())


class ControllerRecords:
    """The records of all controllers that brokers of a live cluster still know."""

    def __init__(self, look: Look = read_events) -> None:
        self._look = look
        self._past: Sequence[Record] = ()
        self._epoch: int | None = None

    async def read(self, znodes: "KafkaZooKeeper | None", followed: Sequence[Record] | None) -> list[Record]:
        """In the order of their epochs and numbers. `followed` are those of the stream, None while no page is open."""
        now = followed or ()
        epoch = now[-1]["epoch"] if now else None
        if znodes is not None and (epoch is None or epoch != self._epoch):
            found = [each for each in await self._ask(znodes) if is_record(each)]
            self._past = sorted(found, key=number)[-MOST_PAST:]
            self._epoch = epoch
        known = {number(each) for each in now}
        return sorted([*(each for each in self._past if number(each) not in known), *now], key=number)

    async def _ask(self, znodes: "KafkaZooKeeper") -> list[Record]:
        """The newest records of each broker: a former controller keeps its records while it runs."""
        loop = asyncio.get_running_loop()

        def of(broker_id: int, host: str, port: int) -> Sequence[Record]:
            try:
                return self._look(ControllerAddress(broker_id, -1, 0, host, port), HTTP_TIMEOUT_S)
            except ToolError:
                # It runs Apache Kafka, or has gone.
                return []

        try:
            live = await znodes.live_brokers()
        except ZooKeeperError:
            return []
        places = [
            (broker_id, endpoint.host, each.registration.jmx_port)
            for broker_id, each in live.items()
            for endpoint in each.registration.endpoints[:1]
            if each.registration.jmx_port > 0
        ]
        answers = await asyncio.gather(*(loop.run_in_executor(None, of, *place) for place in places))
        return [record for answer in answers for record in answer]


def number(record: Record) -> tuple[int, int, int]:
    """Each epoch belongs to one controller, which numbers its records. A broker that was never the controller has 0."""
    return record["epoch"], record["controller"], record["sequence"]
