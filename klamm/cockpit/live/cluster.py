"""A live cluster as the source of pages: readings of the brokers, of ZooKeeper and of the controller's records.

| reading       | from                                                  | how often at most                          |
|---------------|-------------------------------------------------------|--------------------------------------------|
| pulse         | each broker by itself: Metadata without topics        | 1 s                                        |
| registrations | ZooKeeper: the controller, live brokers, their ports  | 1 s                                        |
| status        | klamm's controller: /controller?brief                 | 1 s                                        |
| numbers       | klamm's brokers: /broker                              | 1 s                                        |
| partitions    | Metadata, any broker                                  | 1 s, and 5 % of the time, 30 s at most     |
| reassignments | ListPartitionReassignments, while there are any       | 5 s, when a reading or a page wants them   |
| facts         | the protocol, as klamm status                         | 5 s, and 5 % of the time, 30 s at most     |
| groups        | the protocol                                          | 5 s, and 5 % of the time, 30 s at most     |
| records       | klamm's controller: /controller/events?follow         | as they come                               |

The facts use the metadata of the map's reading, so the cluster is asked once for both. Findings are made from the
newest facts and the current map.

What must stay true:
- Nothing is read while no page is open. Many pages cause no more reading than one page.
- A value that cannot be read is null in the document, with the reason. A broker that does not answer gets no other
  request meanwhile (`ClusterClient.avoid`), so that it delays no other reading.
- One decision about which brokers are live serves the map and everything else: ZooKeeper's, or without ZooKeeper the
  metadata's.
- Brokers' answers are checked (`http_answers`). So an exception in a task is a programming error: `on_failure` gets it
  and ends the process.
- Clocks of different machines are not compared: the controller's states are shown against the time in the controller's
  status.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.access.controller import ControllerAddress, read_controller, zookeeper_of_brokers
from klamm.access.http_reading import WrongAnswer
from klamm.access.zookeeper import open_znodes
from klamm.base.slices import each, in_slices
from klamm.base.tasks import OnFailure, start_task
from klamm.cockpit.live.document import (
    Digest,
    Place,
    Read,
    Registrations,
    controller_id,
    digested,
    kind_of,
    now_document,
)
from klamm.cockpit.live.group_lags import read_groups
from klamm.cockpit.live.http_answers import numbers_of, record_of, status_of
from klamm.cockpit.live.http_reading import read_answer, read_lines
from klamm.cockpit.live.pulse import Pulse
from klamm.cockpit.live.readings import HURRIED_SHARE, LARGE_SHARE, Dated, Reading
from klamm.cockpit.live.topic_limits import TopicLimitsInTurns
from klamm.cockpit.page_json import encoded_json
from klamm.cockpit.partition_map import PartitionMap, states_of
from klamm.cockpit.reassignments import Reassignments
from klamm.cockpit.source import NOW, PARTITIONS, RECORD, Subscription
from klamm.diagnosis.cluster_facts import read_facts
from klamm.diagnosis.cluster_view import view_of
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.diagnosis.cluster_facts import ClusterFacts
    from klamm.net.client import Address
    from klamm.znodes.store import KafkaZooKeeper, LiveBroker

PUBLISH_EVERY_S: Final = 1.0
SLOW_EVERY_S: Final = 5.0
HTTP_TIMEOUT_S: Final = 2.0
# A working ZooKeeper answers at once.
ZOOKEEPER_TIMEOUT_S: Final = 5.0
# The controller's stream has a line at least every three seconds.
SILENCE_S: Final = 10.0
# How long the first page waits for the first values.
FIRST_LOOK_S: Final = 3.0
# How long the connections may take to close at the end.
CLOSE_TIMEOUT_S: Final = 0.5
KEPT_RECORDS: Final = 20_000
# The size as JSON. In memory the records take several times as much.
KEPT_BYTES: Final = 16 * 1024 * 1024
# A record takes about 25 microseconds.
RECORDS_PER_SLICE: Final = 200
KEPT_STATES: Final = 300
# After a burst the page shows only the newest events; the map reflects all of them.
RECORDS_PER_EVENT: Final = 1_000
EVENT_BYTES: Final = 1024 * 1024


class State(NamedTuple):
    """A state of the controller, and its begin by the clock of the controller of `epoch`."""

    began_ms: int
    name: str
    epoch: int


class Clock(NamedTuple):
    """How far the clock of the controller of `epoch` is ahead of this process's monotonic clock."""

    epoch: int
    ahead_ms: int


class LiveCluster:
    """Reads the cluster of a client. `zookeeper` is the connect string; None asks a broker for it. `on_failure` gets
    programming errors in the tasks that read."""

    def __init__(self, client: "ClusterClient", zookeeper: str | None, on_failure: OnFailure) -> None:
        self._client = client
        # Slow answers must not hold up quick ones, and a broker answers the requests of a connection in order.
        self._slow_client = client.another()
        self._slow_client.metadata = client.metadata
        self._on_failure = on_failure
        self._connect = zookeeper
        self._opened: AsyncExitStack | None = None
        self._znodes: KafkaZooKeeper | None = None
        self._subscriptions: dict[Subscription, None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._addresses: dict[int, Address] = {}
        self._pulse = Pulse(client, self._addresses_to_ask, self._answers_changed, on_failure)
        self._registrations = Reading(self._look_at_registrations, 1.0, timeout_s=ZOOKEEPER_TIMEOUT_S)
        self._status = Reading(self._look_at_status, 1.0)
        self._numbers = Reading(self._look_at_numbers, 1.0)
        self._partitions = Reading(self._look_at_partitions, 1.0, LARGE_SHARE, why_silent=self._why_silent)
        self._facts = Reading(self._look_at_facts, SLOW_EVERY_S, LARGE_SHARE, why_silent=self._why_silent)
        self._digest: Digest | None = None
        # The inputs of the current digest, and when the next digest may be made.
        self._digested: tuple[object, ...] = ()
        self._digest_due_s = 0.0
        self._map_turn = asyncio.Lock()
        self._reassignments = Reassignments(self._slow_client, on_failure, self._has_no_reassignments)
        self._topic_limits = TopicLimitsInTurns(self._slow_client)
        self._groups = Reading(
            lambda: read_groups(self._slow_client), SLOW_EVERY_S, LARGE_SHARE, why_silent=self._why_silent
        )
        self._last_totals: dict[int, tuple[int, Mapping[str, float | None]]] = {}
        self._states: deque[State] = deque(maxlen=KEPT_STATES)
        self._clock: Clock | None = None
        self._heard_controller_ms: int | None = None
        self._cluster_id: str | None = None
        self._last_record = (-1, -1)
        self._sizes: deque[int] = deque()
        self._kept_bytes = 0
        self.records: deque[Mapping[str, Any]] = deque()
        """The newest controller records that came while a page was open, as /controller/events has them."""
        self.partitions = PartitionMap()

    @property
    def client(self) -> "ClusterClient":
        return self._client

    @property
    def znodes(self) -> "KafkaZooKeeper | None":
        return self._znodes

    @property
    def reassignments(self) -> Reassignments:
        return self._reassignments

    async def now(self) -> Mapping[str, Any]:
        if not self._tasks:
            # ZooKeeper names the ports for other readings, and the metadata names the brokers.
            await self._wait_for(self._registrations.renew(), self._facts.renew(), self._pulse.ask_once())
            await self._wait_for(
                self._status.renew(), self._numbers.renew(), self._groups.renew(), self._pulse.ask_once()
            )
            await self._renew_digest()
        return self._document()

    async def map(self, *, is_known: bool = False) -> PartitionMap:
        if not self._tasks or self._partitions.value is None:
            await self._wait_for(self._partitions.renew())
        if self._partitions.value is None:
            raise ToolError(f"The map of partitions is not known yet. {self._partitions.why_not}")
        if is_known and self._partitions.why_not is not None:
            raise ToolError(f"The partitions are not known now: {self._partitions.why_not}")
        return self.partitions

    async def _wait_for(self, *renewals: Coroutine[Any, Any, None]) -> None:
        """Waits for the renewals up to `FIRST_LOOK_S`; unfinished renewals continue."""
        await asyncio.wait([start_task(each, self._on_failure) for each in renewals], timeout=FIRST_LOOK_S)

    def followed(self) -> Sequence[Mapping[str, Any]] | None:
        return self.records if self._tasks and self.records else None

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self._subscriptions[subscription] = None
        if self.partitions.version > 0:
            # The page may have read its map long before its stream is opened.
            subscription.put(PARTITIONS, encoded_json(self.partitions.no_changes().value()))
        if not self._tasks:
            readings = (self._registrations, self._status, self._numbers, self._partitions, self._facts, self._groups)
            work = [
                *(each.keep() for each in readings),
                self._pulse.keep(),
                self._keep_publishing(),
                self._keep_following(),
            ]
            self._tasks = [start_task(each, self._on_failure) for each in work]
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        if not self._subscriptions:
            self._stop_reading()

    def _stop_reading(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        self._stop_reading()
        self._reassignments.close()
        # A server that hangs cannot delay the end: the process closes its connections when it exits.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._slow_client.close()
                await self._client.close()
                if closing := self._drop_znodes():
                    await closing

    # -- publishing ---------------------------------------------------------------------------------------------

    async def _keep_publishing(self) -> None:
        while True:
            self._publish_changes()
            await self._renew_digest()
            self._publish(NOW, encoded_json(self._document()))
            await asyncio.sleep(PUBLISH_EVERY_S)

    def _publish_changes(self) -> None:
        changes = self.partitions.take_changes()
        if changes is not None:
            self._publish(PARTITIONS, encoded_json(changes.value()))

    async def _renew_digest(self) -> None:
        """Renews the findings if the facts or the map have changed, using only a part of the time."""
        facts, loop = self._facts.value, asyncio.get_running_loop()
        if facts is None:
            return
        place, silent = Place(self.partitions.version, self.partitions.sequence), self._pulse.silent
        made_of = (id(facts), place, self.partitions.live, tuple(sorted(silent.items())), controller_id(self._read()))
        if made_of == self._digested or loop.time() < self._digest_due_s:
            return
        began_s = loop.time()
        found = self.partitions.snapshot()
        # In a thread, because it takes a part of a second in a large cluster.
        self._digest = await asyncio.to_thread(digested, facts, found, silent, made_of[-1], place)
        self._digested = made_of
        self._digest_due_s = loop.time() + (loop.time() - began_s) / HURRIED_SHARE

    def _publish(self, event: str, data: bytes) -> None:
        for subscription in self._subscriptions:
            subscription.put(event, data)

    def _document(self) -> dict[str, Any]:
        return now_document(self._read())

    def _read(self) -> Read:
        facts, partitions = self._facts.dated, self._partitions.dated
        return Read(
            time.time_ns() // 1_000_000,
            self._pulse.heard,
            self._registrations.dated,
            self._status.dated,
            self._numbers.dated,
            Dated(None if partitions.value is None else self.partitions.totals, partitions.at_ms, partitions.why_not),
            Dated(self._digest, facts.at_ms, facts.why_not or partitions.why_not),
            self._groups.dated,
            self.partitions.live,
            self.partitions.brokers,
            [(state.began_ms, state.name) for state in self._states],
            None if self._clock is None else _monotonic_ms() + self._clock.ahead_ms,
            self._heard_controller_ms,
            self.partitions.leaderless(GROUP_METADATA_TOPIC_NAME),
        )

    def _kind(self) -> str | None:
        return None if self._facts.value is None else kind_of(self._facts.value)

    # -- which brokers answer, and which are live ---------------------------------------------------------------

    def _addresses_to_ask(self) -> "Mapping[int, Address]":
        """All brokers that the metadata has named, except those that are gone for good."""
        named, registrations = self._client.metadata.brokers, self._registrations.dated.now
        self._addresses |= named
        if registrations is not None:
            heard = self._pulse.heard
            for broker_id in self._addresses.keys() - named.keys() - registrations.live.keys():
                if broker_id not in heard or heard[broker_id].why_not is not None:
                    del self._addresses[broker_id]
        return self._addresses

    def _answers_changed(self) -> None:
        addresses = self._addresses
        silent = {addresses[each]: why_not for each, why_not in self._pulse.silent.items() if each in addresses}
        for client in (self._client, self._slow_client):
            client.avoid(silent)
        for reading in (self._partitions, self._facts, self._groups):
            reading.hurry()

    def _why_silent(self) -> str | None:
        """Why no broker answers; None while a broker answers."""
        heard = self._pulse.heard
        if not heard or any(each.why_not is None for each in heard.values()):
            return None
        broker_id, first = next(iter(heard.items()))
        return f"no broker answers (broker {broker_id}: {first.why_not})."

    def _live(self) -> frozenset[int]:
        """The brokers that are up."""
        registrations = self._registrations.dated.now
        return frozenset(self._client.metadata.brokers if registrations is None else registrations.live)

    # -- ZooKeeper ----------------------------------------------------------------------------------------------

    async def _look_at_registrations(self) -> Registrations:
        from klamm.znodes.fields import ZnodeError
        from klamm.zookeeper.keeper_exceptions import ZooKeeperError

        try:
            znodes = self._znodes or await self._open_znodes()
            found = await read_controller(znodes)
            live = await znodes.live_brokers()
        except (ZooKeeperError, ZnodeError, asyncio.CancelledError, ToolError) as error:
            # An expired session cannot be used again.
            self._drop_znodes()
            if isinstance(error, (ZooKeeperError, ZnodeError)):
                raise ToolError(f"ZooKeeper at {self._connect}: {error}") from error
            raise
        before = self._registrations.value
        if before is not None and found is not None and before.controller != found[0]:
            self._reassignments.forget()
            self._facts.hurry()
        if self.partitions.version and self.partitions.live != frozenset(live):
            for reading in (self._partitions, self._facts, self._groups):
                reading.hurry()
            async with self._map_turn:
                await in_slices(self.partitions.relive(live))
        return Registrations(None if found is None else found[0], live)

    async def _open_znodes(self) -> "KafkaZooKeeper":
        if self._connect is None:
            self._connect = await zookeeper_of_brokers(self._client)
        stack = AsyncExitStack()
        self._znodes = await stack.enter_async_context(open_znodes(self._connect))
        self._opened = stack
        return self._znodes

    def _drop_znodes(self) -> "asyncio.Task[None] | None":
        """Closes the connection in a task: closing waits for a ZooKeeper that does not answer."""
        opened, self._opened, self._znodes = self._opened, None, None

        async def close(opened: AsyncExitStack) -> None:
            with suppress(ToolError):
                await opened.aclose()

        return None if opened is None else start_task(close(opened), self._on_failure)

    # -- klamm's HTTP ports -------------------------------------------------------------------------------------

    def _controller(self) -> ControllerAddress | None:
        """The controller, if the cluster is known to be klamm's and the controller serves HTTP."""
        found = self._registrations.value
        controller = None if found is None else found.controller
        if controller is None or controller.port is None or self._kind() != "klamm":
            return None
        return controller

    async def _look_at_status(self) -> Mapping[str, Any]:
        controller = self._controller()
        if controller is None or controller.port is None:
            raise ToolError("The controller serves no status.")
        try:
            status = status_of(await read_answer(controller.host, controller.port, "/controller?brief", HTTP_TIMEOUT_S))
        except ToolError as error:
            raise ToolError(f"Controller {controller.broker_id}: {error}") from error
        if status["active"]:
            self._take_clock(Clock(status["epoch"], status["now_ms"] - _monotonic_ms()))
            self._heard_controller_ms = status["now_ms"]
        return status

    def _take_clock(self, clock: Clock) -> None:
        """Takes the new controller's clock, and converts the states of earlier controllers to it."""
        before, self._clock = self._clock, clock
        if before is None or before.epoch == clock.epoch:
            return
        moved_ms = clock.ahead_ms - before.ahead_ms
        for index, state in enumerate(self._states):
            if state.epoch < clock.epoch:
                self._states[index] = state._replace(began_ms=state.began_ms + moved_ms)

    async def _look_at_numbers(self) -> Mapping[int, Mapping[str, Any]]:
        found = self._registrations.value
        if found is None or self._kind() != "klamm":
            return {}
        asked = list(found.live)
        answers = await asyncio.gather(*(self._numbers_of(found.live[each]) for each in asked))
        return dict(zip(asked, answers, strict=True))

    async def _numbers_of(self, broker: "LiveBroker") -> Mapping[str, Any]:
        registration = broker.registration
        host = next((endpoint.host for endpoint in registration.endpoints if endpoint.host), "")
        if registration.jmx_port <= 0:
            return {"why_not": "its klamm.metrics.port is -1"}
        try:
            numbers = numbers_of(await read_answer(host, registration.jmx_port, "/broker", HTTP_TIMEOUT_S))
        except ToolError as error:
            return {"why_not": str(error)}
        totals, at_ms = numbers["totals"], numbers["time_ms"]
        before_ms, before = self._last_totals.get(registration.broker_id, (at_ms, {}))
        self._last_totals[registration.broker_id] = (at_ms, totals)
        return {**numbers, "why_not": None, **_rates(before, totals, at_ms - before_ms)}

    async def _keep_following(self) -> None:
        """Follows the records of the current controller."""
        while True:
            address = self._followed_address()
            if address is not None:
                with suppress(ToolError):
                    await self._follow(*address)
            await asyncio.sleep(PUBLISH_EVERY_S)

    def _followed_address(self) -> tuple[str, int] | None:
        controller = self._controller()
        return None if controller is None or controller.port is None else (controller.host, controller.port)

    async def _follow(self, host: str, port: int) -> None:
        """Takes all records. Pages get the new records; at the first time, those after the controller's backlog."""
        is_new = self._last_record > (-1, -1)
        unpublished: deque[Mapping[str, Any]] = deque(maxlen=RECORDS_PER_EVENT)
        new, new_bytes, published_at_s = 0, 0, 0.0
        loop = asyncio.get_running_loop()
        async with aclosing(read_lines(host, port, "/controller/events?follow", SILENCE_S)) as read:
            async for lines in read:
                if self._followed_address() != (host, port):
                    # The broker is no longer the controller, and its stream would never end.
                    return
                async for line in each(lines, RECORDS_PER_SLICE):
                    record = record_of(line)
                    if record["kind"] == "idle":
                        is_new = True
                    elif record["kind"] == "missed":
                        self._partitions.hurry()
                    elif self._take(record, len(line)) and is_new:
                        unpublished.append(record)
                        new += 1
                        new_bytes += len(line)
                # The controller writes records in slices; a page wants few large events.
                if new and (new_bytes > EVENT_BYTES or loop.time() - published_at_s > PUBLISH_EVERY_S / 5):
                    left_out = new - len(unpublished)
                    self._publish(RECORD, encoded_json({"records": list(unpublished), "left_out": left_out}))
                    self._publish_changes()
                    unpublished.clear()
                    new, new_bytes, published_at_s = 0, 0, loop.time()

    def _take(self, record: Mapping[str, Any], size_bytes: int) -> bool:
        """Takes a record; returns whether it is new. Raises WrongAnswer for a record of another cluster."""
        # Epochs only grow. Each belongs to one run of one broker, which numbers its records.
        key = (record["epoch"], record["sequence"])
        if key <= self._last_record:
            return False
        known = self._registrations.value
        if known is not None and known.controller is not None and record["epoch"] > known.controller.epoch:
            # A broker of another cluster may have taken over the port. With its higher epoch, no record of this cluster
            # would count any longer. A new controller of this cluster is followed once ZooKeeper has named it.
            raise WrongAnswer(f"a record of epoch {record['epoch']} is not of this cluster's controller")
        self._last_record = key
        self._keep(record, size_bytes)
        if record["kind"] == "event":
            self._take_state(record)
        elif record["kind"] == "partition" and not record["failed"]:
            isr, leader = record.get("isr"), record["leader"]
            if (
                isr is None
                or leader is None
                or not self.partitions.change(record["topic"], record["partition"], leader, isr)
            ):
                self._partitions.hurry()
        return True

    def _keep(self, record: Mapping[str, Any], size_bytes: int) -> None:
        self.records.append(record)
        self._sizes.append(size_bytes)
        self._kept_bytes += size_bytes
        while len(self.records) > KEPT_RECORDS or self._kept_bytes > KEPT_BYTES:
            self.records.popleft()
            self._kept_bytes -= self._sizes.popleft()

    def _take_state(self, record: Mapping[str, Any]) -> None:
        ended_ms, epoch = record["time_ms"], record["epoch"]
        began_ms = ended_ms - round(record["processing_time_ms"])
        last = self._states[-1] if self._states else None
        if last is not None and last.epoch == epoch and last.name == "Idle" and last.began_ms >= began_ms:
            self._states.pop()
        if not self._states or self._states[-1].name != record["state"]:
            self._states.append(State(began_ms, record["state"], epoch))
        self._states.append(State(ended_ms, "Idle", epoch))

    # -- the protocol -------------------------------------------------------------------------------------------

    async def _look_at_facts(self) -> "ClusterFacts":
        await self._partitions.renew()
        if self._partitions.why_not is not None:
            raise ToolError(self._partitions.why_not)
        metadata = self._client.metadata
        if metadata.cluster_id != self._cluster_id:
            # Another cluster has taken the addresses of the former one. Its epochs start at 1 again.
            self._cluster_id, self._last_record = metadata.cluster_id, (-1, -1)
            self._states.clear()
            self._clock = None
            self.records.clear()
            self._sizes.clear()
            self._kept_bytes = 0
        # In a thread, because it takes a part of a second in a large cluster.
        view = await asyncio.to_thread(view_of, metadata)
        # Waits long: a controller that does not answer becomes a finding.
        listing = partial(self._reassignments.read, SLOW_EVERY_S)
        return await read_facts(self._slow_client, view, listing, self._topic_limits.read)

    def _has_no_reassignments(self) -> bool:
        """Whether a klamm controller's status says that there are no reassignments."""
        status = self._status.dated.now
        return status is not None and status.get("reassignments", {}).get("count") == 0

    async def _look_at_partitions(self) -> bool:
        self.partitions.begin_look()
        # One attempt: the next look tries again, and meanwhile the page shows the error.
        await self._client.refresh_metadata_once()
        metadata = self._client.metadata
        if metadata.controller_id < 0 and not metadata.topics:
            # A broker that has just started answers so, whatever the cluster has.
            await self._client.refresh_metadata_once(elsewhere=True)
            if metadata.controller_id < 0 and not metadata.topics:
                raise ToolError("The brokers have not been told of the cluster by a controller yet.")
        # Without a controller, or without permission, the map shows replicas without their reassignments.
        moving = (await self._reassignments.read()).moving

        states = await in_slices(states_of(metadata, moving))
        async with self._map_turn:
            is_new = await in_slices(self.partitions.look(states, self._live()))
        if is_new:
            self._publish(PARTITIONS, encoded_json(self.partitions.no_changes().value()))
        return True


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _rates(
    before: Mapping[str, float | None], totals: Mapping[str, float | None], passed_ms: int
) -> dict[str, float | None]:
    """The growth of each total per second. A restarted broker counts from 0 again."""
    rates: dict[str, float | None] = {}
    for name, total in totals.items():
        last = before.get(name)
        known = total is not None and last is not None and passed_ms > 0 and total >= last
        rates[f"{name}_per_s"] = round((total - last) * 1000 / passed_ms, 1) if known else None  # type: ignore[operator]
    return rates


async def open_cluster(client: "ClusterClient", zookeeper: str | None, on_failure: OnFailure) -> LiveCluster:
    """Raises ToolError when no broker answers."""
    cluster = LiveCluster(client, zookeeper, on_failure)
    await cluster.now()
    return cluster
