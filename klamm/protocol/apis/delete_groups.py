"""DeleteGroups (key 42): deletes empty groups and their offsets (KIP-229).

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Request, Response, String, Struct


class DeleteGroupsRequest(
    Request["DeleteGroupsResponse"], api=ApiKey.DELETE_GROUPS, versions="0-2", flexible="2+", size=LIST
):
    groups_names: list[String]


class DeleteGroupsResponse(Response):
    class DeletableGroupResult(Struct):
        group_id: String
        error_code: Int16

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult]
