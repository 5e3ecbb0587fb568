"""AlterClientQuotas (key 49): sets and removes quotas (KIP-546).

Versions: 1 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bool, Float64, Int16, Int32, Request, Response, String, Struct


class AlterClientQuotasRequest(
    Request["AlterClientQuotasResponse"], api=ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1", flexible="1+", size=SMALL
):
    class EntryData(Struct):
        class EntityData(Struct):
            entity_type: String
            entity_name: String | None

        class OpData(Struct):
            key: String
            value: Float64
            remove: Bool

        entity: list[EntityData]
        ops: list[OpData]

    entries: list[EntryData]
    validate_only: Bool


class AlterClientQuotasResponse(Response):
    class EntryData(Struct):
        class EntityData(Struct):
            entity_type: String
            entity_name: String | None

        error_code: Int16
        error_message: String | None
        entity: list[EntityData]

    throttle_time_ms: Int32 = 0
    entries: list[EntryData]
