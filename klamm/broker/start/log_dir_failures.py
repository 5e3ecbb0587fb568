"""Tells the controller that a log directory of this broker has failed, so that it asks which partitions are usable.

What must stay true: between `start` and `stop` a report is retried until it is written, if necessary in the next
session. Before `start` no report is needed: the controller asks this broker after its registration.
"""

import asyncio
import logging
from collections.abc import Callable

from klamm.base.tasks import OnFailure, start_task
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

REPORT_BACK_OFF_MS = 1_000

_log = logging.getLogger(__name__)


class LogDirFailures:
    """The reports of one broker. `zookeeper()` is the store of the current session."""

    def __init__(self, broker_id: int, zookeeper: Callable[[], KafkaZooKeeper], on_failure: OnFailure) -> None:
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._on_failure = on_failure
        self._is_running = False

    def start(self) -> None:
        self._is_running = True

    def stop(self) -> None:
        self._is_running = False

    def report(self) -> None:
        """Makes the controller ask which partitions are usable on this broker."""
        start_task(self._report(), self._on_failure)

    async def _report(self) -> None:
        while self._is_running:
            try:
                return await self._zookeeper().report_log_dir_failure(self._broker_id)
            except ZooKeeperError as error:
                _log.warning("the controller does not know of the failed log directory yet: %s", error)
                await asyncio.sleep(REPORT_BACK_OFF_MS / 1000)
