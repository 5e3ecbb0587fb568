"""IncrementalAlterConfigs (key 44): sets, deletes, appends to or subtracts from single configs (KIP-339).

Versions: 1 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int8, Int16, Int32, Request, Response, String, Struct


class IncrementalAlterConfigsRequest(
    Request["IncrementalAlterConfigsResponse"],
    api=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions="0-1",
    flexible="1+",
    size=LIST,
):
    class AlterConfigsResource(Struct):
        class AlterableConfig(Struct):
            name: String
            config_operation: Int8
            value: String | None

        resource_type: Int8
        resource_name: String
        configs: list[AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: Bool


class IncrementalAlterConfigsResponse(Response):
    class AlterConfigsResourceResponse(Struct):
        error_code: Int16
        error_message: String | None
        resource_type: Int8
        resource_name: String

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]
