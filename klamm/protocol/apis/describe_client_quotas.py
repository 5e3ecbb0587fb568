"""DescribeClientQuotas (key 48): the quotas that match a filter (KIP-546).

Versions: 1 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bool, Float64, Int8, Int16, Int32, Request, Response, String, Struct


class DescribeClientQuotasRequest(
    Request["DescribeClientQuotasResponse"],
    api=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions="0-1",
    flexible="1+",
    size=SMALL,
):
    class ComponentData(Struct):
        entity_type: String
        match_type: Int8
        match: String | None

    components: list[ComponentData]
    strict: Bool


class DescribeClientQuotasResponse(Response):
    class EntryData(Struct):
        class EntityData(Struct):
            entity_type: String
            entity_name: String | None

        class ValueData(Struct):
            key: String
            value: Float64

        entity: list[EntityData]
        values: list[ValueData]

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None
    entries: list[EntryData] | None
