"""ApiVersions (key 18): which APIs and versions a broker serves.

Versions: 1 throttle time; 3 flexible, name and version of the client (KIP-511), features (KIP-584).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bool, Int16, Int32, Int64, Request, Response, String, Struct, field


class ApiVersionsRequest(
    Request["ApiVersionsResponse"], api=ApiKey.API_VERSIONS, versions="0-3", known="0-4", flexible="3+", size=SMALL
):
    client_software_name: String = field("3+", default="")
    client_software_version: String = field("3+", default="")


class ApiVersionsResponse(Response):
    class ApiVersion(Struct):
        api_key: Int16
        min_version: Int16
        max_version: Int16

    class SupportedFeatureKey(Struct):
        name: String
        min_version: Int16
        max_version: Int16

    class FinalizedFeatureKey(Struct):
        name: String
        max_version_level: Int16
        min_version_level: Int16

    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_time_ms: Int32 = field("1+", default=0)
    supported_features: list[SupportedFeatureKey] = field("3+", default=[], tag=0)
    finalized_features_epoch: Int64 = field("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field("3+", default=[], tag=2)
    zk_migration_ready: Bool = field("3+", default=False, tag=3)
