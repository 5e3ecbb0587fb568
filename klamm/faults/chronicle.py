"""Keeps the history of a cluster complete: what ZooKeeper holds, and what the servers have reported.

The history itself is the control's (`Control.history`); the control adds the faults and what servers report. Changes of
the servers' processes are added by their owner, with `process_entry`.
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

# For so long `catch_up` waits for servers that do not answer.
CATCH_UP_TIMEOUT_S = 2.0


class Chronicle:
    """All methods belong to the loop of `control`."""

    def __init__(
        self,
        control: Control,
        environment: Environment,
        zookeeper: str,
        session_timeout_ms: int,
        seen: Callable[[Znode], None] = lambda znode: None,
    ) -> None:
        """`seen` is called for each version of a znode of the cluster's state, too."""
        self._control = control
        changes = MetadataChanges(control.history.add)

        def noted(znode: Znode) -> None:
            seen(znode)
            changes.seen(znode)

        self._watch = ZnodeWatch(environment, zookeeper, session_timeout_ms, noted)

    async def start(self) -> None:
        """From now on the history has what ZooKeeper holds, and each change of that. Raises ZooKeeperError."""
        await self._watch.start()

    async def catch_up(self) -> History:
        """The history, with everything that any client could see before this call.

        What a server does not report because it is paused, or ZooKeeper because it is stopped, is missing.
        """
        with contextlib.suppress(TimeoutError, FaultError):
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                await self._control.count()
                await self._watch.catch_up()
        return self._control.history.after()

    async def close(self) -> None:
        """Ends the session. Idempotent."""
        await self._watch.close()
