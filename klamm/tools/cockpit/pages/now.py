"""`/api/now`: what the cluster and its controller are doing at this moment; `/api/partitions`: the map of partitions.

The map is one line of JSON (`PartitionMap.head`) and then a byte for each partition and broker, row by row.
"""

import asyncio
import gzip

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.tools.cockpit.answers import Cockpit, json_response
from klamm.tools.cockpit.partitions import PartitionMap


def routes(cockpit: Cockpit) -> list[Route]:
    async def now(_request: Request) -> Response:
        return json_response(await cockpit.source.now())

    async def partitions(_request: Request) -> Response:
        # Compressing a megabyte would hold the loop for some thirty milliseconds.
        body = await asyncio.to_thread(gzip.compress, map_bytes(await cockpit.source.map()), 1)
        return Response(body, media_type="application/octet-stream", headers={"content-encoding": "gzip"})

    return [Route("/api/now", now), Route("/api/partitions", partitions)]


def map_bytes(found: PartitionMap) -> bytes:
    return orjson.dumps(found.head()) + b"\n" + bytes(found.cells)
