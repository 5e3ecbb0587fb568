"""A source of the cockpit's pages that is neither a cluster nor a recording, and a server that shows it to browsers."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.page_json import encoded_json
from klamm.cockpit.partition_map import PartitionMap, States
from klamm.cockpit.server import MAX_BODY_BYTES, MAX_HEAD_BYTES, WebServer, routes_of
from klamm.cockpit.source import Source, Subscription
from klamm.net.http import Answer, BadRequest, Refused, Request, RequestReader


class FixedSource(Source):
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

    async def map(self, *, is_known: bool = False) -> PartitionMap:
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


S = TypeVar("S", bound=Source)


class PageServer(Generic[S]):
    """The cockpit's page in a thread of this process. `map_bytes` is what /api/partitions answers."""

    def __init__(self, source: S, map_bytes: bytes | None = None, reach: tuple[str, ...] = ()) -> None:
        self.source = source
        self.map_bytes = map_bytes
        self.faults: list[BaseException] = []
        self.beats = True
        self._cockpit = Cockpit(source, brokers_options=reach)
        self.server = WebServer("127.0.0.1", 0, self.faults.append)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._is_open = threading.Event()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self.server.open()
        await self.server.show(self._cockpit)
        shown = self.server._routes["/api/partitions"]

        async def partitions(request: Request) -> Answer:
            return await shown(request) if self.map_bytes is None else Answer(200, self.map_bytes)

        self.server._routes = {**self.server._routes, "/api/partitions": partitions}
        self._is_open.set()
        beating = asyncio.create_task(self._beat())
        await self._stopping.wait()
        beating.cancel()
        await self.server.end(self.source.close)

    async def _beat(self) -> None:
        """A page takes a stream for dead that brings no document for some seconds."""
        while isinstance(self.source, FixedSource):
            await asyncio.sleep(1)
            if self.beats:
                self.source.publish("now", encoded_json(self.source.document))

    @property
    def url(self) -> str:
        return self.server.urls[0]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def publish(self, event: str, value: Any) -> None:
        """Sends an event to all open pages. A document stays the newest one."""
        assert isinstance(self.source, FixedSource)
        if event == "now":
            self.source.document = value
        self._loop.call_soon_threadsafe(self.source.publish, event, encoded_json(value))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_open.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(120)
        assert self.faults == []


@dataclass(frozen=True)
class Answered:
    """An answer as a browser has it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(gzip.decompress(self.body) if "Content-Encoding" in self.headers else self.body)


class Browser:
    """Asks the server of a cockpit without a socket; it follows redirections and keeps cookies."""

    def __init__(self, cockpit: Cockpit, *, token: str | None = None, host: str = "127.0.0.1") -> None:
        self.server = WebServer(host, 8080, _raise, token=token)
        self.server._routes = routes_of(cockpit)
        self.cookies: dict[str, str] = {}

    def opened(self) -> Self:
        """With the page open."""
        assert self.get(f"/?token={self.server.guard.token}").status == 200
        return self

    def get(self, target: str, headers: Mapping[str, str] | None = None, *, follow: bool = True) -> Answered:
        answered = self.request("GET", target, headers)
        if follow and answered.status == 303:
            return self.get(answered.headers["Location"], headers)
        return answered

    def request(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answered:
        given = {"host": "127.0.0.1:8080", "cookie": "; ".join(f"{name}={each}" for name, each in self.cookies.items())}
        given |= {} if headers is None else headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        head = f"{method} {target} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode()
        answered = asyncio.run(self._answer(head + body))
        name, _, value = answered.headers.get("Set-Cookie", "").partition(";")[0].partition("=")
        self.cookies |= {name: value} if name else {}
        return answered

    async def _answer(self, sent: bytes) -> Answered:
        def came(head: Request) -> None:
            self.server.check_host(head)
            self.server.admit(head)

        try:
            request = RequestReader(MAX_BODY_BYTES, came, max_head_bytes=MAX_HEAD_BYTES).feed(sent)
            assert request is not None
            answer = await self.server.answer(request)
        except Refused as refused:
            answer = refused.answer
        except BadRequest as error:
            answer = self.server.refused(error.status, str(error))
        assert isinstance(answer.body, bytes)
        return Answered(answer.status, {"Content-Type": answer.content_type, **answer.headers}, answer.body)


def _raise(error: BaseException) -> None:
    raise error


# -- an imagined cluster ------------------------------------------------------------------------------------------

IN_SYNC, LEADER, OUT_OF_SYNC, OFFLINE, ADDING, REMOVING, UNUSED = range(1, 8)


def map_of(states: States, live: Iterable[int]) -> PartitionMap:
    """As a look at a cluster makes it."""
    made = PartitionMap()
    for _ in made.look(states, live):
        pass
    return made


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
    return encoded_json(head) + b"\n" + cells


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
