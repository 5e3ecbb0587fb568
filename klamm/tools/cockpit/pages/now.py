"""`/api/now`: what the cluster and its controller do at this moment; `/api/partitions`: the map of partitions."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.tools.cockpit.answers import Cockpit, json_response, map_response


def routes(cockpit: Cockpit) -> list[Route]:
    async def now(_request: Request) -> Response:
        return json_response(await cockpit.source.now())

    async def partitions(_request: Request) -> Response:
        return await asyncio.to_thread(map_response, (await cockpit.source.map()).snapshot())

    return [Route("/api/now", now), Route("/api/partitions", partitions)]
