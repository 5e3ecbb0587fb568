"""No step of the controller's events holds the loop for long, however many topics and partitions they touch.

As in `tests/broker/requests/test_longest_background_steps.py`, each work is done at two sizes, with slices as small as
they can be. The brokers that only answer, and the ZooKeeper server, are not counted (`support.opcodes.ELSEWHERE`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.controller.events import AutoPreferredReplicaLeaderElection
from klamm.protocol.vocabulary import ElectionType
from klamm.simulation.machine.small_slices import small_slices
from klamm.znodes import batches
from support.controller.scene import Scene, playing
from support.growing_work import SIZES, Growing, Work, too_long

PARTITIONS = 20_000
# A topic's znode, which names all of its partitions, is decoded in one step.
PARTITIONS_OF_A_TOPIC = 9_000

WORK: dict[str, Growing] = {}
# The others take seconds.
SHORT = ("the_controller_fails", "a_disk_fails")


def work(most: int) -> Callable[[Any], Any]:
    """The largest size at which each step of this work must take less than 20 ms."""

    def register(function: Any) -> Any:
        WORK[function.__name__] = Growing(asynccontextmanager(function), most)
        return function

    return register


@asynccontextmanager
async def topics(directory: Path, size: int) -> AsyncIterator[Scene]:
    """Topics of one partition each on the brokers 2 and 3, of which 2 leads; 1 is the controller."""
    async with playing(directory) as scene:
        await scene.start(1, 2, 3)
        for number in range(size):
            await scene.store.create_topic(f"t{number}", {0: [2, 3]}, scene.environment.random_uuid(), {})
        await scene.until(lambda: led(scene) == size)
        await scene.settled()
        yield scene


def led(scene: Scene, *brokers: int) -> int:
    """How many partitions are led, by one of these if any are given."""
    context = scene.controller.context
    leaders = (context.partition_leadership_info(key) for key in context.all_partitions())
    return sum(1 for state in leaders if state is not None and state.leader in (brokers or (2, 3)))


@work(PARTITIONS_OF_A_TOPIC)
async def a_topic_is_created_and_deleted(directory: Path, size: int) -> AsyncIterator[Work]:
    """Of many partitions."""
    async with playing(directory) as scene:
        await scene.start(1, 2)

        async def create_and_delete() -> None:
            partitions = {number: [1, 2] for number in range(size)}
            await scene.store.create_topic("t", partitions, scene.environment.random_uuid(), {})
            await scene.until(lambda: led(scene, 1) == size)
            await scene.store.mark_topic_for_deletion("t")
            await scene.until(lambda: not scene.controller.context.all_topics)

        yield create_and_delete


@work(PARTITIONS)
async def a_broker_fails_and_comes_back(directory: Path, size: int) -> AsyncIterator[Work]:
    async with topics(directory, size) as scene:

        async def fail() -> None:
            await scene.kill(2)
            assert led(scene, 3) == size
            await scene.start(2)

        yield fail


@work(PARTITIONS)
async def the_controller_fails(directory: Path, size: int) -> AsyncIterator[Work]:
    async with topics(directory, size) as scene:

        async def fail() -> None:
            await scene.kill(1)
            await scene.settled()
            assert led(scene, 2) == size

        yield fail


@work(PARTITIONS)
async def a_broker_shuts_down_and_preferred_leaders_are_elected(directory: Path, size: int) -> AsyncIterator[Work]:
    async with topics(directory, size) as scene:

        async def move() -> None:
            assert not await scene.controller.controlled_shutdown(2, scene.brokers[2].epoch)
            await scene.kill(2)
            assert led(scene, 3) == size
            await scene.start(2)
            for number in range(size):
                await scene.alter_isr(f"t{number}", (2, 3))
            scene.controller.event_manager.put(AutoPreferredReplicaLeaderElection())
            await scene.until(lambda: led(scene, 2) == size)
            keys = scene.controller.context.all_partitions()
            assert len(await scene.controller.elect_leaders(keys, ElectionType.PREFERRED)) == size

        yield move


@work(PARTITIONS)
async def partitions_are_reassigned(directory: Path, size: int) -> AsyncIterator[Work]:
    async with topics(directory, size) as scene:
        keys = [(f"t{number}", 0) for number in range(size)]

        async def reassign() -> None:
            begun = await scene.controller.alter_partition_reassignments(dict.fromkeys(keys, (3, 1)))
            assert begun == dict.fromkeys(keys)
            assert len(await scene.controller.list_partition_reassignments(None)) == size
            for topic, _ in keys:
                await scene.alter_isr(topic, (1, 2, 3))
            await scene.until(lambda: led(scene, 3) == size)
            begun = await scene.controller.alter_partition_reassignments(dict.fromkeys(keys, (3, 2)))
            assert begun == dict.fromkeys(keys)
            await scene.controller.alter_partition_reassignments(dict.fromkeys(keys))
            await scene.settled()

        yield reassign


@work(PARTITIONS)
async def topics_are_deleted(directory: Path, size: int) -> AsyncIterator[Work]:
    async with topics(directory, size) as scene:
        names = [f"t{number}" for number in range(size)]

        async def delete() -> None:
            scene.silent.add(3)
            for name in names:
                await scene.store.mark_topic_for_deletion(name)
            await scene.settled()
            scene.silent.clear()
            held, scene.held = scene.held, []
            for answer in held:
                await asyncio.sleep(0)
                answer()
            await scene.until(lambda: not scene.controller.context.all_topics)

        yield delete


@work(PARTITIONS)
async def a_disk_fails(directory: Path, size: int) -> AsyncIterator[Work]:
    async with topics(directory, size) as scene:

        async def fail() -> None:
            scene.offline |= {((f"t{number}", 0), 2) for number in range(size)}
            await scene.store.report_log_dir_failure(2)
            await scene.until(lambda: led(scene, 3) == size)
            scene.offline.clear()
            await scene.store.report_log_dir_failure(2)
            await scene.settled()

        yield fail


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in WORK])
async def test_no_step_grows_with_the_partitions(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BATCH_OPERATIONS", min(SIZES))
    with small_slices():
        found = await too_long(WORK[name], tmp_path)
    assert found is None, found
