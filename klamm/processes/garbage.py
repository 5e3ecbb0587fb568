"""The garbage collector of a server's process, tuned so that it holds the loop for milliseconds at most.

Reference counts free almost everything in klamm; the collector is needed only for a few cycles (connections, failed
tasks). With CPython's defaults it walks through all live objects again and again. In a controller of 50,000 partitions
that takes a third of the time of a failover, and holds the loop for up to 0.2 s.

So objects that have survived two young collections are frozen: the collector no longer looks at them. Cycles among the
frozen objects need a full collection, which does hold the loop for long: it runs once an hour, and only if objects were
frozen since the last one.
"""

import asyncio
import gc
from typing import Any

# The young generation is collected after this many new container objects, which takes about a millisecond.
YOUNG_OBJECTS = 10_000
# After this many young collections the survivors are collected once more, and then frozen.
YOUNG_COLLECTIONS = 1
FULL_COLLECTION_SECONDS = 3600


class GarbageCollection:
    """Applies the module's tuning from construction to `stop`. A process has one collector, so one instance."""

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
