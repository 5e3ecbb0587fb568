"""A live cluster as the source of pages: one background reader that keeps the newest Now document.

What must stay true:
- A broker gets at most one look a second, however many pages are open, and none while no page is open.
- What cannot be read is null in the document, with the reason in its `why_not`. A broker that does not answer delays
  the others by no more than its time-out.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import orjson

from klamm.processes.errors import ToolError
from klamm.tools.cluster_facts import KLAMM, ClusterFacts, read_facts
from klamm.tools.cockpit.source import NOW, Subscription
from klamm.tools.health import diagnose

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.znodes.store import KafkaZooKeeper

LOOK_EVERY_S: Final = 1.0


class LiveCluster:
    """Reads the cluster of a client. `zookeeper` is its connect string; None asks a broker for it."""

    def __init__(self, client: "ClusterClient", zookeeper: str | None = None) -> None:
        self._client = client
        self._zookeeper = zookeeper
        self._znodes: KafkaZooKeeper | None = None
        self._subscriptions: dict[Subscription, None] = {}
        self._reader: asyncio.Task[None] | None = None
        self._now: Mapping[str, Any] | None = None
        self._looked_at_s = 0.0
        self._turn = asyncio.Lock()
        self._opened = AsyncExitStack()

    @property
    def client(self) -> "ClusterClient":
        return self._client

    @property
    def znodes(self) -> "KafkaZooKeeper | None":
        return self._znodes

    async def now(self) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._now is None or loop.time() - self._looked_at_s >= LOOK_EVERY_S:
                try:
                    self._now = await self._look()
                except ToolError as error:
                    if self._now is None:
                        raise
                    self._now = {**self._now, "trouble": str(error)}
                self._looked_at_s = loop.time()
            return self._now

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self._subscriptions[subscription] = None
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        if not self._subscriptions and self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def close(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.close()
            self.unsubscribe(subscription)
        await self._opened.aclose()
        await self._client.close()

    # -- reading ------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            self._publish(NOW, orjson.dumps(await self.now()))
            await asyncio.sleep(LOOK_EVERY_S)

    def _publish(self, event: str, data: bytes) -> None:
        for subscription in self._subscriptions:
            subscription.put(event, data)

    async def _look(self) -> Mapping[str, Any]:
        from klamm.tools.clients import cluster_errors

        with cluster_errors():
            return now_document(await read_facts(self._client))


def now_document(facts: ClusterFacts) -> dict[str, Any]:
    """The Now document of a look at the cluster. Pure."""
    import time

    software = {broker.software for broker in facts.brokers.values()}
    kind = "klamm" if KLAMM in software else "kafka-zookeeper"
    if any(broker.is_kraft for broker in facts.brokers.values()):
        kind = "kafka-kraft"
    return {
        "cluster": {"id": facts.cluster_id, "kind": kind, "version": None},
        "time_ms": time.time_ns() // 1_000_000,
        "controller": {
            "id": facts.controller_id,
            "epoch": None,
            "host": None,
            "status": None,
            "why_not": "not read yet",
        },
        "events": None,
        "states": None,
        "machines": None,
        "brokers": [
            {
                "id": broker.broker_id,
                "host": broker.address[0],
                "port": broker.address[1],
                "rack": broker.rack,
                "alive": broker.error is None,
                "why_not": broker.error,
            }
            for broker in facts.brokers.values()
        ]
        + [{"id": broker_id, "alive": False, "why_not": "it is not registered"} for broker_id in facts.missing],
        "work": {"reassignments": [], "deletions": [], "elections": []},
        "groups": [],
        "findings": [finding.value() | {"is_problem": finding.is_problem} for finding in diagnose(facts)],
    }


async def open_cluster(client: "ClusterClient", zookeeper: str | None) -> LiveCluster:
    """Raises ToolError when no broker answers."""
    cluster = LiveCluster(client, zookeeper)
    try:
        await cluster.now()
    except ToolError:
        await cluster.close()
        raise
    return cluster
