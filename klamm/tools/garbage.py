"""The garbage collector of a server's process, tuned so that it holds the loop for milliseconds at most.

Almost everything in klamm is freed by its reference count; the collector is there for the few cycles (connections,
tasks that failed). As CPython runs it by default it walks again and again through all that lives, which in a controller
of 50,000 partitions takes a third of the time of a failover, and up to 0.2 s at once.

So what has survived two young collections is put out of the collector's sight. Cycles among that are found by a full
collection, which holds the loop as long as ever: it is done once an hour, and only if something was put away since.
"""

import asyncio
import gc
from typing import Any

# So many objects with references more than before, and the young ones are looked through: about a millisecond.
YOUNG_OBJECTS = 10_000
# So many times, and what has survived is looked through once more, and put away.
YOUNG_COLLECTIONS = 1
FULL_COLLECTION_SECONDS = 3600


class GarbageCollection:
    """See the module. From its making to `stop`; there is one collector for the whole process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thresholds_before = gc.get_threshold()
        self._has_put_away = False
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS)
        gc.callbacks.append(self._collected)
        self._timer = loop.call_later(FULL_COLLECTION_SECONDS, self._collect_all)

    def stop(self) -> None:
        self._timer.cancel()
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds_before)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] > 0:
            gc.freeze()
            self._has_put_away = True

    def _collect_all(self) -> None:
        if self._has_put_away:
            gc.unfreeze()
            gc.collect()
            self._has_put_away = False
        self._timer = self._loop.call_later(FULL_COLLECTION_SECONDS, self._collect_all)
