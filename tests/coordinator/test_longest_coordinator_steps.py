"""No step of a coordinator's own work holds the loop for long, however many groups, offsets or transactions it has.

As in `test_longest_background_steps.py`, each work is done at two sizes, with slices as small as they can be.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.base.purgatory import DelayedOperation, Purgatory
from klamm.base.slices import in_slices
from klamm.coordinator.groups.offset_expiration import expire
from klamm.simulation.machine.small_slices import small_slices
from support.coordination import NOW_MS, Coordination
from support.growing_work import Growing, Work, first_too_long, too_long
from support.one_broker import until
from support.transactions import Transactions

SIZE_OF_COMMIT = 20
# With usual slices: many slices of each work.
MOST_WITH_USUAL_SLICES = 5_000

WORK: dict[str, Growing] = {}


def work(most: int) -> Callable[[Any], Any]:
    """The largest size at which each step of this work must take less than 20 ms."""

    def register(function: Any) -> Any:
        prepare = asynccontextmanager(function)
        WORK[function.__name__] = Growing(prepare, most)
        return prepare

    return register


# -- groups


async def with_groups(count: int, offsets: int = 1) -> Coordination:
    """A coordinator of groups without members, each with so many offsets."""
    coordination = await Coordination.elected()
    for group in range(count):
        for first in range(0, offsets, SIZE_OF_COMMIT):
            partitions = [("t", number) for number in range(first, min(first + SIZE_OF_COMMIT, offsets))]
            committed = dict.fromkeys(partitions, coordination.an_offset(1))
            await coordination.coordinator.commit_offsets(f"g{group}", -1, "", None, committed)
    return coordination


async def with_members(count: int) -> Coordination:
    """A coordinator of a stable group with so many members."""
    coordination = await Coordination.elected(group_initial_rebalance_delay_ms=300)
    await coordination.stable(count, session_s=300)
    return coordination


@work(most=100_000)
async def groups_are_loaded(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_groups(size)
    coordination.resign()
    await until(lambda: not coordination.manager.groups())

    async def load() -> None:
        coordination.coordinator.on_election(0, 1)
        await until(lambda: len(list(coordination.manager.groups())) == size)

    yield load
    await coordination.stop()


@work(most=1_000_000)
async def offsets_are_loaded(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_groups(1, size)
    coordination.resign()
    await until(lambda: not coordination.manager.groups())

    async def load() -> None:
        coordination.coordinator.on_election(0, 1)
        await until(lambda: list(coordination.manager.groups()))

    yield load
    await coordination.stop()


@work(most=100_000)
async def a_coordinator_of_groups_resigns(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_groups(size)

    async def resign() -> None:
        coordination.resign()
        await until(lambda: not coordination.manager.groups())

    yield resign
    await coordination.stop()


@work(most=1_000_000)
async def offsets_of_a_group_expire(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_groups(1, size)

    async def run() -> None:
        assert await in_slices(expire(coordination.manager, NOW_MS + 10**9, 1)) == size

    yield run
    await coordination.stop()


@work(most=100_000)
async def groups_expire(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_groups(size)

    async def run() -> None:
        assert await in_slices(expire(coordination.manager, NOW_MS + 10**9, 1)) == size

    yield run
    await coordination.stop()


@work(most=5_000)
async def members_join_and_are_told(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await Coordination.elected(group_initial_rebalance_delay_ms=300)

    async def join() -> None:
        await coordination.stable(size, session_s=300)

    yield join
    coordination.resign()
    await coordination.stop()


@work(most=5_000)
async def a_coordinator_of_members_resigns(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_members(size)

    async def resign() -> None:
        coordination.resign()
        await until(lambda: not coordination.manager.groups())

    yield resign
    await coordination.stop()


@work(most=5_000)
async def a_group_with_members_is_loaded(_: Path, size: int) -> AsyncIterator[Work]:
    coordination = await with_members(size)
    coordination.resign()
    await until(lambda: not coordination.manager.groups())

    async def load() -> None:
        coordination.coordinator.on_election(0, 1)
        await until(lambda: list(coordination.manager.groups()))

    yield load
    coordination.resign()
    await coordination.stop()


# -- transactions


async def with_transactions(count: int, **config: Any) -> Transactions:
    transactions = await Transactions.elected(**config)
    for number in range(count):
        await transactions.producer(f"t{number}")
    return transactions


@work(most=100_000)
async def transactions_are_loaded(_: Path, size: int) -> AsyncIterator[Work]:
    transactions = await with_transactions(size)
    transactions.resign()

    async def load() -> None:
        transactions.coordinator.on_election(0, 6)
        await until(lambda: transactions.coordinator.describe_transaction(f"t{size - 1}").state)

    yield load
    await transactions.coordinator.stop()


@work(most=100_000)
async def a_coordinator_of_transactions_resigns(_: Path, size: int) -> AsyncIterator[Work]:
    transactions = await with_transactions(size)

    async def resign() -> None:
        transactions.resign()
        await asyncio.sleep(0.01)

    yield resign
    await transactions.coordinator.stop()


# -- operations that wait


class Waits(DelayedOperation):
    def __init__(self) -> None:
        self.on = False

    def is_ready(self) -> bool:
        return self.on


@work(most=100_000)
async def many_wait_for_one_key(_: Path, size: int) -> AsyncIterator[Work]:
    purgatory: Purgatory[str] = Purgatory()
    operations = [Waits() for _ in range(size)]
    waiting = [asyncio.ensure_future(purgatory.wait(operation, ["k"], 600_000)) for operation in operations]
    await asyncio.sleep(0)

    async def check() -> None:
        purgatory.check("k")
        for operation in operations:
            operation.on = True
        purgatory.check("k")
        await asyncio.gather(*waiting)

    yield check


@pytest.mark.parametrize("name", list(WORK))
async def test_no_step_grows_with_the_coordinators_work(tmp_path: Path, name: str) -> None:
    with small_slices():
        found = await too_long(WORK[name], tmp_path)
    assert found is None, found


@pytest.mark.long
@pytest.mark.parametrize("name", list(WORK))
async def test_no_step_of_a_coordinator_is_too_long_with_usual_slices(tmp_path: Path, name: str) -> None:
    most = min(WORK[name].most, MOST_WITH_USUAL_SLICES)
    found = await first_too_long(WORK[name]._replace(most=most), tmp_path)
    assert found is None, found
