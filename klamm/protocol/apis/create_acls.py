"""CreateAcls (key 30): new ACLs.

Versions: 1 pattern type (KIP-290); 2 flexible; 3 user resources (KIP-373).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int8, Int16, Int32, Request, Response, String, Struct


class CreateAclsRequest(
    Request["CreateAclsResponse"], api=ApiKey.CREATE_ACLS, versions="1-2", known="1-3", flexible="2+", size=SMALL
):
    class AclCreation(Struct):
        resource_type: Int8
        resource_name: String
        resource_pattern_type: Int8 = 3
        principal: String
        host: String
        operation: Int8
        permission_type: Int8

    creations: list[AclCreation]


class CreateAclsResponse(Response):
    class AclCreationResult(Struct):
        error_code: Int16
        error_message: String | None

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult]
