"""Asks the APIs of the cockpit's pages without a server: of a real cluster, on the test's own loop."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.access.clients import command_options
from klamm.access.controller import read_controller, read_status
from klamm.access.zookeeper import open_znodes
from klamm.base.slices import in_slices
from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient, make_client
from klamm.cockpit.live.document import Place, Read, digested, now_document
from klamm.cockpit.live.readings import Dated
from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.pages import actions, configs, groups, lags, now, records, topics, why
from klamm.cockpit.partition_map import PartitionMap, states_of
from klamm.cockpit.reassignments import Reassignments
from klamm.diagnosis.cluster_facts import read_facts
from klamm.net.http import Request
from klamm.processes.tool_errors import ToolError
from klamm.znodes.store import KafkaZooKeeper
from support.cockpit import FixedSource

PAGES = (actions, configs, groups, lags, now, records, topics, why)


class ClusterSource(FixedSource):
    """Looks at the cluster anew for each Now document."""

    def __init__(self, client: ClusterClient, znodes: KafkaZooKeeper | None) -> None:
        super().__init__({})
        self.client = client  # type: ignore[assignment]
        self.znodes = znodes  # type: ignore[assignment]
        self.reassignments = Reassignments(client, pytest.fail)  # type: ignore[assignment,arg-type]

    async def now(self) -> Mapping[str, Any]:
        assert self.client is not None
        facts, found, place = await read_facts(self.client), await self.map(), Place(1, 0)
        digest = digested(facts, found, {}, facts.view.controller_id, place)
        known = {"partitions": Dated(found.totals, 0, None), "digest": Dated(digest, 0, None)}
        document = now_document(Read(0, live=found.live, shown=found.brokers, **known))
        document["controller"]["status"] = await self._status()
        return document

    async def map(self, *, is_known: bool = False) -> PartitionMap:
        assert self.client is not None
        assert self.reassignments is not None
        await self.client.refresh_metadata()
        metadata, moving = self.client.metadata, (await self.reassignments.read()).moving
        made = PartitionMap()
        await in_slices(made.look(await in_slices(states_of(metadata, moving)), metadata.brokers))
        return made

    async def _status(self) -> dict[str, Any] | None:
        found = None if self.znodes is None else await read_controller(self.znodes)
        if found is None or found[0].port is None:
            return None
        try:
            return read_status(found[0], 3)
        except ToolError:
            return None


class Asker:
    """Calls routes by their paths; an answer is (status, JSON)."""

    def __init__(self, cockpit: Cockpit) -> None:
        self._routes = {path: handler for page in PAGES for path, handler in page.routes(cockpit).items()}

    async def ask(self, path: str, body: Any = None, **query: object) -> tuple[int, Any]:
        parameters = {name.rstrip("_"): str(value) for name, value in query.items()}
        sent = b"" if body is None else json.dumps(body).encode()
        request = Request("GET" if body is None else "POST", path, parameters, body=sent)
        answer = await self._routes[path](request)
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body)

    async def get(self, path: str, **query: object) -> Any:
        status, value = await self.ask(path, **query)
        assert status == 200, value
        return value


@asynccontextmanager
async def asker(
    bootstrap: str, zookeeper: str | None, *, allow_changes: bool = False, logs: Path | None = None
) -> AsyncIterator[Asker]:
    """The pages of a cluster."""
    client = make_client(command_options(bootstrap, None), SystemEnvironment().random)
    reach = ("--bootstrap-server", bootstrap)
    try:
        if zookeeper is None:
            yield Asker(Cockpit(ClusterSource(client, None), allow_changes, reach, (), logs))
        else:
            async with open_znodes(zookeeper) as znodes:
                through = ("--zookeeper", zookeeper)
                yield Asker(Cockpit(ClusterSource(client, znodes), allow_changes, reach, through, logs))
    finally:
        await client.close()
