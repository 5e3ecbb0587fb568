"""ControlledShutdown (key 7): a broker asks the controller to move leadership away before it stops.

Versions: 0 has a header without client id; 2 broker epoch (KIP-380); 3 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int16, Int32, Int64, Request, Response, String, Struct, field


class ControlledShutdownRequest(
    Request["ControlledShutdownResponse"], api=ApiKey.CONTROLLED_SHUTDOWN, versions="0-3", flexible="3+", size=SMALL
):
    broker_id: Int32
    broker_epoch: Int64 = field("2+", default=-1)


class ControlledShutdownResponse(Response):
    class RemainingPartition(Struct):
        topic_name: String
        partition_index: Int32

    error_code: Int16
    remaining_partitions: list[RemainingPartition]
