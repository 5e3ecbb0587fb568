"""Adds ZooKeeper's changes to the history of a cluster, and completes the history before it is read.

The control has the history (`Control.history`), and adds the faults and the servers' reports. The owner of the servers'
processes adds their changes with `process_entry`.
"""

import asyncio
import contextlib
from collections.abc import Callable

from klamm.base.environment import Environment
from klamm.faults.control import Control
from klamm.faults.history import History
from klamm.faults.metadata_changes import MetadataChanges
from klamm.faults.wire import FaultError
from klamm.znodes.watch import Znode, ZnodeWatch

# How long `catch_up` waits for servers that do not answer.
CATCH_UP_TIMEOUT_S = 2.0


class Chronicle:
    """Call all methods on the loop of `control`."""

    def __init__(
        self,
        control: Control,
        environment: Environment,
        zookeeper: str,
        session_timeout_ms: int,
        seen: Callable[[Znode], None] = lambda znode: None,
    ) -> None:
        """`seen` is also called for each version of a znode of the cluster's state."""
        self._control = control
        changes = MetadataChanges(control.history.add)

        def noted(znode: Znode) -> None:
            seen(znode)
            changes.seen(znode)

        self._watch = ZnodeWatch(environment, zookeeper, session_timeout_ms, noted)

    async def start(self) -> None:
        """Adds ZooKeeper's current state to the history, and from now on each change. Raises ZooKeeperError."""
        await self._watch.start()

    async def catch_up(self) -> History:
        """The history, with everything that any client could see before this call.

        Reports of paused servers are missing, and so are ZooKeeper's changes while it is stopped.
        """
        with contextlib.suppress(TimeoutError, FaultError):
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                await self._control.count()
                await self._watch.catch_up()
        return self._control.history.after()

    async def close(self) -> None:
        """Ends the session. Idempotent."""
        await self._watch.close()
