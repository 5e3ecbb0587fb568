"""DescribeAcls (key 29): the ACLs that match a filter.

Versions: 1 pattern type (KIP-290); 2 flexible; 3 user resources (KIP-373).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int8, Int16, Int32, Request, Response, String, Struct


class DescribeAclsRequest(
    Request["DescribeAclsResponse"], api=ApiKey.DESCRIBE_ACLS, versions="1-2", known="1-3", flexible="2+", size=SMALL
):
    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class DescribeAclsResponse(Response):
    class DescribeAclsResource(Struct):
        class AclDescription(Struct):
            principal: String
            host: String
            operation: Int8
            permission_type: Int8

        resource_type: Int8
        resource_name: String
        pattern_type: Int8 = 3
        acls: list[AclDescription]

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None
    resources: list[DescribeAclsResource]
