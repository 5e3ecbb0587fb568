"""`/api/now`: what the cluster and its controller do at this moment; `/api/partitions`: the map of partitions."""

import asyncio

from klamm.net.http import Answer, Handler, Request
from klamm.tools.cockpit.answers import Cockpit, json_response, map_response


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    async def now(_request: Request) -> Answer:
        return json_response(await cockpit.source.now())

    async def partitions(_request: Request) -> Answer:
        return await asyncio.to_thread(map_response, (await cockpit.source.map()).snapshot())

    return {"/api/now": now, "/api/partitions": partitions}
