"""UpdateFeatures (key 57): the finalized version levels of features (KIP-584).

Versions: 0 flexible; 1 upgrade type, validation only (KIP-778); 2 one result for all (KIP-1022).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bool, Int8, Int16, Int32, Request, Response, String, Struct, field


class UpdateFeaturesRequest(
    Request["UpdateFeaturesResponse"], api=ApiKey.UPDATE_FEATURES, versions="0", known="0-2", flexible="0+", size=SMALL
):
    class FeatureUpdateKey(Struct):
        feature: String
        max_version_level: Int16
        allow_downgrade: Bool = field("0", default=False)
        upgrade_type: Int8 = field("1+", default=1)

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: Bool = field("1+", default=False)


class UpdateFeaturesResponse(Response):
    class UpdatableFeatureResult(Struct):
        feature: String
        error_code: Int16
        error_message: String | None

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None
    results: list[UpdatableFeatureResult] = field("0-1", default=[])
