"""DescribeConfigs (key 32): the configs of topics and brokers.

Versions: 1 synonyms and sources (KIP-226); 3 types and documentation (KIP-569); 4 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int8, Int16, Int32, Request, Response, String, Struct, field


class DescribeConfigsRequest(
    Request["DescribeConfigsResponse"], api=ApiKey.DESCRIBE_CONFIGS, versions="1-4", flexible="4+", size=LIST
):
    class DescribeConfigsResource(Struct):
        resource_type: Int8
        resource_name: String
        configuration_keys: list[String] | None

    resources: list[DescribeConfigsResource]
    include_synonyms: Bool = False
    include_documentation: Bool = field("3+", default=False)


class DescribeConfigsResponse(Response):
    class DescribeConfigsResult(Struct):
        class DescribeConfigsResourceResult(Struct):
            class DescribeConfigsSynonym(Struct):
                name: String
                value: String | None
                source: Int8

            name: String
            value: String | None
            read_only: Bool
            config_source: Int8 = -1
            is_sensitive: Bool
            synonyms: list[DescribeConfigsSynonym] = field(default=[])
            config_type: Int8 = field("3+", default=0)
            documentation: String | None = field("3+", default="")

        error_code: Int16
        error_message: String | None
        resource_type: Int8
        resource_name: String
        configs: list[DescribeConfigsResourceResult]

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult]
