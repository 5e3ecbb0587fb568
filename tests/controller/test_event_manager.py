"""The queue of events: order, preemption, faults, and the end."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import ControllerEvent, ControllerState
from klamm.controller.state_change_log import StateChangeLog


class Log(list[str]):
    """Can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.grown = asyncio.Event()

    def append(self, entry: str) -> None:
        super().append(entry)
        self.grown.set()

    async def wait_for(self, entry: str) -> None:
        async with asyncio.timeout(120):
            while entry not in self:
                self.grown.clear()
                await self.grown.wait()


class Event(ControllerEvent):
    """Writes down what becomes of it. Its processing waits for `gate`, if it has one, and then raises `error`."""

    def __init__(
        self,
        name: str,
        log: Log,
        gate: asyncio.Event | None = None,
        error: Exception | None = None,
        state: ControllerState = ControllerState.TOPIC_CHANGE,
    ) -> None:
        self.state = state  # type: ignore[misc]  # one class for events of all states
        self.name = name
        self.log = log
        self.gate = gate
        self.error = error

    def preempt(self) -> None:
        self.log.append(f"preempt {self.name}")

    async def process(self) -> None:
        self.log.append(f"begin {self.name}")
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.log.append(f"end {self.name}")


class Scene:
    def __init__(self) -> None:
        self.log = Log()
        self.failures: list[BaseException] = []
        self.records = StateChangeLog(lambda: 1)
        self.manager = ControllerEventManager(self._process, self.failures.append, self.records, lambda: 7)

    async def _process(self, event: ControllerEvent) -> None:
        assert isinstance(event, Event)
        assert self.manager.state is event.state
        await event.process()

    def put(
        self,
        name: str,
        gate: asyncio.Event | None = None,
        error: Exception | None = None,
        state: ControllerState = ControllerState.TOPIC_CHANGE,
    ) -> None:
        self.manager.put(Event(name, self.log, gate, error, state))


@asynccontextmanager
async def playing() -> AsyncIterator[Scene]:
    scene = Scene()
    try:
        yield scene
    finally:
        await scene.manager.close()


async def test_a_processed_event_is_not_kept_until_the_next_one() -> None:
    """It may be a response about all partitions, and the next event may be hours away."""
    async with playing() as scene:
        event = Event("a", scene.log)
        kept = weakref.ref(event)
        scene.manager.start()
        scene.manager.put(event)
        del event
        await scene.log.wait_for("end a")
        await asyncio.sleep(0)
        assert kept() is None


def outcomes(scene: Scene) -> list[str]:
    records = [record.record.described() for record in scene.records.records()]
    assert {(record["kind"], record["event"], record["state"]) for record in records} == {
        ("event", "Event", "TopicChange")
    }
    return [record["outcome"] for record in records]


async def test_one_after_another_in_order() -> None:
    async with playing() as scene:
        gate = asyncio.Event()
        scene.put("early")
        assert scene.manager.state is ControllerState.IDLE
        scene.manager.start()
        scene.put("a", gate)
        scene.put("b")
        await scene.log.wait_for("begin a")
        assert (scene.manager.state, scene.manager.queue_size) == (ControllerState.TOPIC_CHANGE, 1)
        gate.set()
        await scene.log.wait_for("end b")
        assert scene.log == [f"{what} {name}" for name in ("early", "a", "b") for what in ("begin", "end")]
        assert (scene.manager.state, scene.manager.queue_size) == (ControllerState.IDLE, 0)
        scene.put("later")
        await scene.log.wait_for("end later")


async def test_a_change_of_brokers_waits_only_for_the_event_in_progress_and_for_elections() -> None:
    async with playing() as scene:
        gate = asyncio.Event()
        scene.manager.start()
        scene.put("a", gate)
        await scene.log.wait_for("begin a")
        scene.put("election", state=ControllerState.CONTROLLER_CHANGE)
        for name in ("b", "c"):
            scene.put(name)
        await asyncio.sleep(0.01)
        for name in ("first", "second"):
            scene.put(name, state=ControllerState.BROKER_CHANGE)
        scene.put("last", state=ControllerState.CONTROLLER_CHANGE)
        assert scene.manager.oldest_waits_ms >= 10
        gate.set()
        await scene.log.wait_for("end last")
        begun = [entry.removeprefix("begin ") for entry in scene.log if entry.startswith("begin ")]
        assert begun == ["a", "election", "first", "second", "b", "c", "last"]


async def test_clearing_preempts_what_waits_but_not_what_runs() -> None:
    async with playing() as scene:
        gate = asyncio.Event()
        scene.manager.start()
        scene.put("a", gate)
        await scene.log.wait_for("begin a")
        scene.put("b")
        scene.put("c")
        scene.manager.clear_and_put(Event("last", scene.log))
        assert scene.log == ["begin a", "preempt b", "preempt c"]
        gate.set()
        await scene.log.wait_for("end last")
        assert scene.log[3:] == ["end a", "begin last", "end last"]
        # A record of each; those that were thrown away first.
        assert outcomes(scene)[:3] == ["preempted", "preempted", "processed"]


@pytest.mark.loop("virtual")
async def test_how_long_events_waited_is_forgotten_when_none_comes_for_five_minutes() -> None:
    loop = asyncio.get_running_loop()
    scene = Scene()
    scene.put("a")
    await asyncio.sleep(2)
    scene.manager.start()
    await scene.log.wait_for("end a")
    ended_at = loop.time()
    await asyncio.sleep(299)
    assert scene.manager.queue_time_ms.quantiles([0.99]) == [2000]
    await asyncio.sleep(ended_at + 300.001 - loop.time())
    assert scene.manager.queue_time_ms.quantiles([0.99]) == [0]
    assert (scene.manager.queue_time_ms.count, scene.manager.queue_time_ms.total) == (1, 2000)
    await scene.manager.close()


@pytest.mark.parametrize("started", [True, False])
async def test_closing_preempts_everything(started: bool) -> None:
    async with playing() as scene:
        if started:
            scene.manager.start()
        scene.put("a", asyncio.Event())
        scene.put("b")
        if started:
            await scene.log.wait_for("begin a")
        await scene.manager.close()
        await scene.manager.close()
        assert scene.log == (["begin a"] if started else []) + ["preempt a", "preempt b"]
        assert scene.manager.state is ControllerState.CONTROLLER_SHUTDOWN
        scene.put("late")
        assert scene.log[-1] == "preempt late"
        assert outcomes(scene) == (["cut short"] if started else ["preempted"]) + ["preempted"] * 2
        assert scene.failures == []


async def test_a_fault_ends_the_processing() -> None:
    async with playing() as scene:
        error = ValueError("broken")
        scene.manager.start()
        scene.put("a", error=error)
        scene.put("b")
        await scene.log.wait_for("preempt a")
        await asyncio.sleep(0)
        assert scene.failures == [error]
        assert scene.log == ["begin a", "preempt a"]
        await scene.manager.close()
        assert scene.log[-1] == "preempt b"
