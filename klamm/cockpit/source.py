"""The source of a page's data: a live cluster or a recording.

Pages see only `Source`. They subscribe, and get each change as an event for the browser.

What must stay true: a slow subscriber misses events, and is told so. It never delays the source, and its queue is
bounded.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.base import json_bytes

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.cockpit.partition_map import PartitionMap
    from klamm.cockpit.reassignments import Reassignments
    from klamm.znodes.store import KafkaZooKeeper

NOW: Final = "now"
"""The newest Now document. It replaces a waiting one."""
PARTITIONS: Final = "partitions"
"""Changed cells of the map of partitions (`Changes.value`). A page with another version, or without the changes before
these, loads the whole map. An event without rows only tells the version and sequence that a page should have."""
RECORD: Final = "record"
"""{"records": [...], "left_out": n}: new controller records, as /controller/events has them. After a burst only the
newest are sent."""
MISSED: Final = "missed"
"""The page has missed events: it loads the map of partitions again."""
ENDED: Final = "ended"
"""No more events will come."""

# The bound of one page's queue. A page takes its whole queue at once, so the queue grows only while the network stalls.
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024

Event = tuple[str, bytes]
"""The name of an event, and its data as JSON."""


class Subscription:
    """The events for one page."""

    def __init__(self) -> None:
        self._now: bytes | None = None
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._missed = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, event: str, data: bytes) -> None:
        if event == NOW:
            self._now = data
        elif self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
            self._missed += 1
        else:
            self._waiting.append((event, data))
            self._waiting_bytes += len(data)
        self._changed.set()

    def close(self) -> None:
        """Ends the subscription. Waiting events can still be read."""
        self._is_closed = True
        self._changed.set()

    async def read(self) -> list[Event]:
        """Waits for events and returns all of them; an empty list after the end."""
        while not (self._waiting or self._missed or self._is_closed or self._now is not None):
            self._changed.clear()
            await self._changed.wait()
        events = list(self._waiting)
        if self._missed:
            events.append((MISSED, json_bytes.encode({"events": self._missed})))
        if self._now is not None:
            events.append((NOW, self._now))
        self._waiting.clear()
        self._waiting_bytes = self._missed = 0
        self._now = None
        return events


class Source(Protocol):
    """A cluster, live or recorded."""

    @property
    def client(self) -> "ClusterClient | None":
        """Reaches the live cluster; None for a recording."""

    @property
    def znodes(self) -> "KafkaZooKeeper | None":
        """The cluster's znodes; None for a recording, and for a cluster whose ZooKeeper cannot be reached."""

    @property
    def reassignments(self) -> "Reassignments | None":
        """The reassignments in progress of the live cluster; None for a recording."""

    async def now(self) -> Mapping[str, Any]:
        """The newest Now document, at most about a second old. Raises ToolError for a damaged recording."""

    async def map(self, *, is_known: bool = False) -> "PartitionMap":
        """The newest map of partitions. Raises ToolError for a damaged recording, and before a live cluster's
        partitions were first read; with `is_known` also while the map is outdated."""

    def followed(self) -> Sequence[Mapping[str, Any]] | None:
        """The newest controller records that came while a page was open. None while no page is open or no record has
        come, and for a recording."""

    def subscribe(self) -> Subscription:
        """A live cluster is read while it has subscriptions."""

    def unsubscribe(self, subscription: Subscription) -> None:
        """Idempotent."""

    async def close(self) -> None:
        """Ends all subscriptions. Idempotent."""
