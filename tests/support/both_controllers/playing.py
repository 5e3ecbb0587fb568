"""Plays scenarios on both clusters, and shrinks those that differ."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from klamm.base.system_environment import SystemEnvironment
from klamm.simulation.runs.shrinking import fewest
from klamm.zookeeper.server import ZooKeeperServer
from support.both_controllers.comparison import Comparison, Difference
from support.both_controllers.controllers import KafkaControllers, KlammControllers
from support.both_controllers.recorder import SESSION_TIMEOUT_MS
from support.both_controllers.side import NoRest, Side
from support.both_controllers.steps import Scenario, Step


class Outcome(NamedTuple):
    """The differences after the last step that was played, if there are any, and how often known reasons applied.

    `ended_by`: the known reason why both clusters are in different states after that step."""

    scenario: Scenario
    played: int
    differences: list[Difference]
    reasons: dict[str, int]
    ended_by: str = ""

    @property
    def signature(self) -> str:
        return self.differences[0].signature if self.differences else ""


class Pair:
    """Both clusters, for any number of scenarios."""

    def __init__(self, kafka: Side, klamm: Side) -> None:
        self.kafka, self.klamm = kafka, klamm

    async def play(self, scenario: Scenario) -> Outcome:
        """Up to the first step after which something differs."""
        sides = self.kafka, self.klamm
        comparison = Comparison()
        beginning = Step("begin")
        await asyncio.gather(*(side.play(scenario.brokers) for side in sides))
        differences = comparison.compare(beginning, *await asyncio.gather(*(side.observation() for side in sides)))
        played = 0
        for step in scenario.steps:
            if differences or comparison.ended_by:
                break
            played += 1
            seen = await asyncio.gather(*(side.do(step.kind, step.arguments) for side in sides), return_exceptions=True)
            for side, each in zip(sides, seen, strict=True):
                if isinstance(each, NoRest):
                    differences.append(Difference(f"no rest: of {side.name}", str(each), str(each)))
                elif isinstance(each, BaseException):
                    raise each
            if not differences:
                differences = comparison.compare(step, *seen)  # type: ignore[arg-type]
        done = scenario.with_steps(scenario.steps[:played])
        return Outcome(done, played, differences, comparison.reasons, comparison.ended_by)

    async def shrink(self, outcome: Outcome, max_runs: int = 60) -> Outcome:
        """The shortest scenario found that differs in the same way, and how."""
        loop = asyncio.get_running_loop()
        tried = {outcome.scenario.encode(): outcome}

        def differs(steps: Sequence[Step]) -> bool:
            candidate = outcome.scenario.with_steps(steps)
            if candidate.encode() not in tried and len(tried) < max_runs:
                tried[candidate.encode()] = asyncio.run_coroutine_threadsafe(self.play(candidate), loop).result()
            found = tried.get(candidate.encode())
            return found is not None and found.signature == outcome.signature

        steps = await asyncio.to_thread(fewest, outcome.scenario.steps, differs)
        return tried[outcome.scenario.with_steps(steps).encode()]


@asynccontextmanager
async def pair(jars: Path, directory: Path, zookeeper_connect: str = "") -> AsyncIterator[Pair]:
    """Both clusters on one ZooKeeper server: on the given one, which must be new, or on one of klamm's."""
    environment = SystemEnvironment()
    async with AsyncExitStack() as stack:
        stack.callback(environment.close)
        server = None
        if not zookeeper_connect:
            server = ZooKeeperServer(
                environment, str(directory / "zookeeper"), max_session_timeout_ms=SESSION_TIMEOUT_MS
            )
            await server.start()
            stack.push_async_callback(server.stop)
        connect = zookeeper_connect if server is None else f"127.0.0.1:{server.port}"
        on_kafka, on_klamm = f"{connect}/kafka", f"{connect}/klamm"
        kafka = Side(environment, KafkaControllers(jars, directory / "kafka", on_kafka), on_kafka, server)
        klamm = Side(environment, KlammControllers(environment, directory / "klamm", on_klamm), on_klamm, server)
        for side in (kafka, klamm):
            stack.push_async_callback(side.end)
        await asyncio.gather(kafka.begin(), klamm.begin())
        yield Pair(kafka, klamm)
