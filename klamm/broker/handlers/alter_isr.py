"""AlterIsr (key 56), version 0: a leader asks the controller to write changed in-sync replica sets (KIP-497).

Served by the active controller, which checks each change against the leadership that it knows and that ZooKeeper holds.
"""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.alter_isr import AlterIsrRequest, AlterIsrResponse
from klamm.protocol.vocabulary import ResourceType


@handler(AlterIsrRequest, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
async def handle(request: Request[AlterIsrRequest]) -> AlterIsrResponse:
    request.require_cluster()
    return await request.services.controller.alter_isr(request.body)
