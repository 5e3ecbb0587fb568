"""The collector's pauses: what lives long is out of its sight, until the hourly look at everything."""

import asyncio
import gc
import weakref
from collections.abc import Callable

from klamm.processes import garbage
from klamm.processes.garbage import GarbageCollection


class Node:
    """One that refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


async def watched(test: Callable[[GarbageCollection], None]) -> None:
    async def run() -> None:
        collection = GarbageCollection(asyncio.get_running_loop())
        try:
            test(collection)
        finally:
            collection.stop()

    await run()


async def test_what_has_survived_is_put_away_and_young_garbage_is_freed() -> None:
    def test(_collection: GarbageCollection) -> None:
        before = gc.get_freeze_count()
        dead = weakref.ref(Node())
        assert dead() is not None
        kept = [[] for _ in range(4 * garbage.YOUNG_OBJECTS)]
        assert dead() is None
        assert gc.get_freeze_count() - before > len(kept) / 2

    await watched(test)


async def test_garbage_that_was_put_away_alive_is_found_by_the_full_collection() -> None:
    def test(collection: GarbageCollection) -> None:
        node = Node()
        kept = [[] for _ in range(4 * garbage.YOUNG_OBJECTS)]
        dead = weakref.ref(node)
        del node
        gc.collect()
        assert dead() is not None
        collection._collect_all()
        assert dead() is None
        assert kept

    await watched(test)


async def test_the_process_gets_its_collector_back() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    await watched(lambda _: None)
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0
