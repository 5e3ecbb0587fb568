"""UpdateFeatures (key 57), version 0: finalizes features of the cluster, or removes them (KIP-584).

Only the controller's broker serves it. The answer waits until the broker's own ApiVersions has the new features. Kafka
2.8 has no features, so every update is refused while `SUPPORTED_FEATURES` is empty.
"""

from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.config.versions import ApiVersion
from klamm.controller.feature_updates import FeatureUpdate, failed
from klamm.protocol.apis.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType


@handler(UpdateFeaturesRequest, Operation.ALTER, ResourceType.CLUSTER)
async def handle(request: Request[UpdateFeaturesRequest]) -> UpdateFeaturesResponse:
    request.require_cluster()
    services, body = request.services, request.body
    services.require_controller()
    if services.config.current.inter_broker_protocol_version < ApiVersion.V2_7_IV0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "with an inter.broker.protocol.version before 2.7 nothing is finalized"
        )
    updates = [
        FeatureUpdate(update.feature, update.max_version_level, update.allow_downgrade)
        for update in body.feature_updates
    ]
    errors, epoch = await services.controller.update_features(updates)
    if epoch is not None and not await services.finalized_features.wait_until_epoch(epoch, body.timeout_ms):
        errors = failed(errors, f"written, but not known to this broker within {body.timeout_ms} ms")
    return UpdateFeaturesResponse(
        **outcome(),
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=feature,
                **outcome(error),
            )
            for feature, error in errors.items()
        ],
    )
