"""The records of klamm controllers: those of the current controller come as a stream, former controllers keep theirs.

What must stay true:
- While a page is open, former controllers are asked once for each controller epoch, not once for each request.
- A record is used only if it has the fields of its kind (`is_record`): any program may listen on a broker's port.
- At most `MOST_PAST` records of former controllers are kept.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from klamm.access.controller import ControllerAddress, read_events
from klamm.base import json_bytes
from klamm.processes.tool_errors import ToolError
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

if TYPE_CHECKING:
    from klamm.znodes.store import KafkaZooKeeper

Record = Mapping[str, Any]
Look = Callable[[ControllerAddress, float], Sequence[Record]]

MOST_PAST: Final = 20_000
HTTP_TIMEOUT_S: Final = 3.0


class _Any(msgspec.Struct):
    """The fields of records of all kinds."""

    sequence: int
    time_ms: int
    controller: int
    epoch: int
    kind: str


class _OfEvent(_Any):
    event: str
    state: str
    processing_time_ms: float


class _OfPartition(_Any):
    topic: str
    partition: int
    to: str
    leader: int | None
    leader_epoch: int | None
    isr: list[int] | None
    failed: bool
    why: str
    event: str | None
    before: str = msgspec.field(name="from")


class _OfReplica(_OfPartition):
    replica: int


_KINDS: Final[Mapping[str, type[_Any]]] = {"event": _OfEvent, "partition": _OfPartition, "replica": _OfReplica}


def is_record(value: Record) -> bool:
    """Whether a value has the fields of its kind. A kind of a later version needs only the fields of all kinds."""
    try:
        kind = json_bytes.of_form(value, _Any).kind
        json_bytes.of_form(value, _KINDS.get(kind, _Any))
    except json_bytes.JsonError:
        return False
    return True


class ControllerRecords:
    """The records of all controllers that brokers of a live cluster still know."""

    def __init__(self, look: Look = read_events) -> None:
        self._look = look
        self._past: Sequence[Record] = ()
        self._epoch: int | None = None

    async def read(self, znodes: "KafkaZooKeeper | None", followed: Sequence[Record] | None) -> list[Record]:
        """All records, by epoch and number. `followed` are the records of the stream, None while no page is open."""
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
                # The broker runs Apache Kafka, or has stopped.
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
    """The sort key of a record. Each epoch belongs to one controller, which numbers its records; a broker that was
    never the controller has epoch 0."""
    return record["epoch"], record["controller"], record["sequence"]
