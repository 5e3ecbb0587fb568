"""ApiVersions (key 18), all versions: the APIs and versions that this broker serves, from the registrations.

The dispatcher answers a request of an unknown newer version in version 0. The request needs no authorization, because
it is the first request of every client. From version 3 on, the answer has this broker's supported features and the
finalized features (KIP-584), with their epoch: -1 when feature versioning is off.
"""

import re

from klamm.broker.requests.registry import Request, handler
from klamm.protocol.apis.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_EPOCH

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


@handler(ApiVersionsRequest, ends_with_client=True)
def handle(request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
    body = request.body
    if request.version >= FIRST_VERSION_WITH_SOFTWARE_NAME:
        for name in (body.client_software_name, body.client_software_version):
            if not _SOFTWARE.match(name):
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"client software name or version {name!r}")
    features = request.services.finalized_features
    current = features.current
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in request.services.apis.values()
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=versions.min_version, max_version=versions.max_version
            )
            for name, versions in features.supported.items()
        ],
        finalized_features_epoch=NO_EPOCH if current is None else current.epoch,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=levels.max_version_level, min_version_level=levels.min_version_level
            )
            for name, levels in (current.features.items() if current is not None else ())
        ],
    )
