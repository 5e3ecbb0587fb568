"""`/api/now`: what the cluster and its controller are doing at this moment."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.tools.cockpit.answers import Cockpit, json_response


def routes(cockpit: Cockpit) -> list[Route]:
    async def now(_request: Request) -> Response:
        return json_response(await cockpit.source.now())

    return [Route("/api/now", now)]
