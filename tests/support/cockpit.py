"""A source of the cockpit's pages that is neither a cluster nor a recording, and a server that shows it to browsers."""

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Self

import orjson
import uvicorn

from klamm.tools.cockpit.answers import Cockpit
from klamm.tools.cockpit.partitions import PartitionMap
from klamm.tools.cockpit.server import listen, make_app
from klamm.tools.cockpit.source import Subscription


class FixedSource:
    """Shows `document` as Now. `publish` sends an event to all subscribers."""

    client = None
    znodes = None
    reassignments = None

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.partitions = PartitionMap()
        self.subscriptions: dict[Subscription, None] = {}

    async def now(self) -> Mapping[str, Any]:
        return self.document

    async def map(self) -> PartitionMap:
        return self.partitions

    def followed(self) -> None:
        return None

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self.subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription, None)

    def publish(self, event: str, data: bytes) -> None:
        for subscription in self.subscriptions:
            subscription.put(event, data)

    async def close(self) -> None:
        for subscription in self.subscriptions:
            subscription.close()


class PageServer:
    """The cockpit's page in a thread of this process. `map_bytes` is what /api/partitions answers."""

    def __init__(self, source: FixedSource, map_bytes: bytes | None = None, reach: tuple[str, ...] = ()) -> None:
        self.source = source
        self.map_bytes = map_bytes
        self._guard = make_app(Cockpit(source, brokers_options=reach), "127.0.0.1")
        config = uvicorn.Config(
            self._answer, interface="asgi3", proxy_headers=False, lifespan="off", log_config=None, ws="none", http="h11"
        )
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._socket = listen("127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"{self.origin}/?token={self._guard.token}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._server.serve([self._socket]))
        self._loop.close()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if self.map_bytes is None or scope.get("path") != "/api/partitions":
            await self._guard(scope, receive, send)
            return
        headers = [(b"content-type", b"application/octet-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.map_bytes})

    def publish(self, event: str, value: Any) -> None:
        """Sends an event to all open pages."""
        self._loop.call_soon_threadsafe(self.source.publish, event, orjson.dumps(value))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.source.close()))
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


# -- an imagined cluster ------------------------------------------------------------------------------------------

IN_SYNC, LEADER, OUT_OF_SYNC, OFFLINE, ADDING, REMOVING = range(1, 7)


def partition_map(
    brokers: int, topics: Iterable[tuple[str, int]], replication_factor: int = 3
) -> tuple[dict[str, Any], bytearray]:
    """The head and the cells of a map: replicas go round the brokers, and the first of each leads."""
    named, rows = [], 0
    for name, partitions in topics:
        named.append([name, rows, partitions])
        rows += partitions
    cells = bytearray(brokers * rows)
    for partition in range(rows):
        for replica in range(replication_factor):
            cells[partition * brokers + (partition + replica) % brokers] = IN_SYNC if replica else LEADER
    ids = list(range(1, brokers + 1))
    return {"version": 1, "sequence": 0, "brokers": ids, "live": ids, "rows": rows, "topics": named}, cells


def encoded_map(head: Mapping[str, Any], cells: bytes | bytearray) -> bytes:
    """As /api/partitions answers."""
    return orjson.dumps(head) + b"\n" + cells


def now_document(brokers: int = 3, **changes: Any) -> dict[str, Any]:
    """A Now document of a klamm cluster in which something is going on."""
    time_ms = 1_700_000_100_000
    document: dict[str, Any] = {
        "cluster": {"id": "castle", "kind": "klamm", "version": None},
        "time_ms": time_ms,
        "controller": {"id": 1, "epoch": 7, "since_ms": time_ms - 192_000, "host": "127.0.0.1", "why_not": None},
        "events": {
            "event": "BrokerChange",
            "event_for_ms": 240,
            "queue_size": 3,
            "waits_ms": 180,
            "waiting": [{"event": "IsrChangeNotification", "state": "IsrChange", "waits_ms": 180}],
        },
        "states": {"now": "BrokerChange", "over_time": [], "why_not": None},
        "totals": {"topics": 4, "partitions": 120, "offline": 2, "under_replicated": 11},
        "machines": {
            "partitions": {"OnlinePartition": 118, "OfflinePartition": 2},
            "replicas": {"OnlineReplica": 349, "OfflineReplica": 11},
        },
        "brokers": [
            {
                "id": broker_id,
                "host": "127.0.0.1",
                "port": 9091 + broker_id,
                "rack": f"r{broker_id % 2}",
                "alive": broker_id != 2,
                "is_controller": broker_id == 1,
                "trouble": None if broker_id != 2 else "it is not registered",
                "why_not": None,
                "epoch": 20 + broker_id,
                "queue_size": 2 if broker_id == 3 else 0,
                "sending": "LeaderAndIsr" if broker_id == 3 else None,
                "sending_for_ms": 31 if broker_id == 3 else 0,
                "loop_lag_ms": 0.4 * broker_id,
                "memory_bytes": 41_000_000 + broker_id * 500_000,
                "bytes_in_per_s": 1_250_000 * broker_id,
                "bytes_out_per_s": 2_500_000,
            }
            for broker_id in range(1, brokers + 1)
        ],
        "work": {
            "reassignments_count": 1,
            "deletions_count": 1,
            "reassignments": [
                {
                    "topic": "orders",
                    "partition": 3,
                    "replicas": [1, 2, 3],
                    "adding_replicas": [3],
                    "removing_replicas": [2],
                    "isr": [1],
                    "waits_for": "not caught up: broker 3",
                }
            ],
            "deletions": [
                {"topic": "old", "started": True, "replicas": 6, "deleted": 2, "waits_for": "the answers of broker 2"}
            ],
            "elections": [],
        },
        "groups": [
            {"group": "billing", "state": "Stable", "members": 3, "lag": 1204},
            {"group": "audit", "state": "Empty", "members": 0, "lag": None},
        ],
        "findings": [
            {
                "kind": "offline",
                "text": "2 partitions have no leader: orders-1, orders-4",
                "why": ["orders-1: not alive: broker 2"],
                "advice": "Start broker 2.",
                "command": "klamm partitions --offline",
                "is_problem": True,
            }
        ],
    }
    return document | changes
