"""`/api/now`: what the cluster and its controller do at this moment; `/api/partitions`: the map of partitions;
`/api/problems`: the partitions with problems, in groups;
`/api/controller/records?before=&limit=`: the controllers' records that brokers still have: the newest records, or those
before the record that `before` names by epoch, controller and sequence, such as 7.1.20."""

import asyncio
import re
from itertools import islice
from typing import Final

from klamm.cockpit.controller_records import number as number_of
from klamm.cockpit.page_api import (
    BadRequest,
    Cockpit,
    json_response,
    map_response,
    number,
    problems_response,
    with_errors,
)
from klamm.net.http import Answer, Handler, Request

MOST_RECORDS: Final = 1_000
_KEY: Final = re.compile(r"[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{1,18}")


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    async def now(_request: Request) -> Answer:
        return json_response(await cockpit.source.now())

    async def partitions(_request: Request) -> Answer:
        return await asyncio.to_thread(map_response, (await cockpit.source.map()).snapshot())

    async def problems(_request: Request) -> Answer:
        return await asyncio.to_thread(problems_response, (await cockpit.source.map()).snapshot())

    async def records(request: Request) -> Answer:
        limit = number(request, "limit", MOST_RECORDS, least=1, most=MOST_RECORDS)
        before = _before(request)
        found = await cockpit.records.read(cockpit.source.znodes, cockpit.source.followed())
        older = [each for each in found if before is None or number_of(each) < before]
        first = max(0, len(older) - limit)
        return json_response({"records": list(islice(older, first, None)), "earlier": first})

    return {
        "/api/now": now,
        "/api/partitions": partitions,
        "/api/problems": problems,
        "/api/controller/records": with_errors(records),
    }


def _before(request: Request) -> tuple[int, ...] | None:
    given = request.parameters.get("before")
    if given is None:
        return None
    if not _KEY.fullmatch(given):
        raise BadRequest(f"before={given[:50]!r} is not EPOCH.CONTROLLER.SEQUENCE, such as 7.1.20.")
    return tuple(map(int, given.split(".")))
