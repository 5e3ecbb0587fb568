"""AlterConfigs (key 33): replaces all configs of topics and brokers.

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int8, Int16, Int32, Request, Response, String, Struct


class AlterConfigsRequest(
    Request["AlterConfigsResponse"], api=ApiKey.ALTER_CONFIGS, versions="0-2", flexible="2+", size=LIST
):
    class AlterConfigsResource(Struct):
        class AlterableConfig(Struct):
            name: String
            value: String | None

        resource_type: Int8
        resource_name: String
        configs: list[AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: Bool


class AlterConfigsResponse(Response):
    class AlterConfigsResourceResponse(Struct):
        error_code: Int16
        error_message: String | None
        resource_type: Int8
        resource_name: String

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]
