"""Whether an update of a finalized feature (KIP-584) is allowed. Pure.

Source: KafkaController.validateFeatureUpdate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes.brokers import BrokerRegistration, SupportedVersions
from klamm.znodes.cluster import FinalizedVersions, incompatible_features


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """One feature of an UpdateFeatures request. `max_version_level` below 1 with `allow_downgrade` removes the
    feature."""

    feature: str
    max_version_level: int
    allow_downgrade: bool

    @property
    def is_delete_request(self) -> bool:
        return self.max_version_level < 1 and self.allow_downgrade


class FeatureResults(NamedTuple):
    """The result of each feature's update, and the new epoch of /feature: None if nothing was written."""

    errors: Mapping[str, KafkaError | None]
    epoch: int | None


def failed(errors: Mapping[str, KafkaError | None], why: str) -> dict[str, KafkaError | None]:
    """The results if the allowed updates could not be written: FEATURE_UPDATE_FAILED."""
    failure = KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, why)
    return {feature: error or failure for feature, error in errors.items()}


def check_update(
    update: FeatureUpdate,
    existing: FinalizedVersions | None,
    supported: Mapping[str, SupportedVersions],
    brokers: Iterable[BrokerRegistration],
) -> FinalizedVersions | None:
    """The versions to finalize, None to remove the feature. Raises KafkaError INVALID_REQUEST.

    `supported` has the versions that the controller's own broker supports.
    """
    level = update.max_version_level
    if not update.feature:
        raise _refused("the name of a feature is empty")
    if update.is_delete_request:
        if existing is None:
            raise _refused(f"feature {update.feature} is not finalized and cannot be removed")
        return None
    if level < 1:
        raise _refused(f"maxVersionLevel {level} is below 1, which needs allowDowngrade")
    if existing is not None:
        if level == existing.max_version_level:
            raise _refused(f"maxVersionLevel is {level} already")
        if level < existing.max_version_level and not update.allow_downgrade:
            raise _refused(f"maxVersionLevel {level} is below {existing.max_version_level}, which needs allowDowngrade")
        if level > existing.max_version_level and update.allow_downgrade:
            raise _refused(f"with allowDowngrade maxVersionLevel {level} must be below {existing.max_version_level}")
        if level < existing.min_version_level:
            raise _refused(f"maxVersionLevel {level} is below the finalized minimum {existing.min_version_level}")
    versions = supported.get(update.feature)
    if versions is None:
        raise _refused(f"feature {update.feature} is not supported")
    if level < versions.min_version:
        raise _refused(f"maxVersionLevel {level} is below the supported minimum {versions.min_version}")
    finalized = FinalizedVersions(versions.min_version, level)
    unable = [
        broker.broker_id for broker in brokers if incompatible_features({update.feature: finalized}, broker.features)
    ]
    if unable:
        raise _refused(f"brokers {unable} do not support {update.feature} in versions {finalized}")
    return finalized


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)
