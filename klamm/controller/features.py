"""Finalized features (KIP-584): the versions of features that all brokers of the cluster use.

Each broker's registration names the versions of a feature that it supports; /feature holds the versions that are
finalized. Kafka 2.8 has the machinery but no feature, so here it matters to clusters that come from a newer version.

What must stay true:
- Every live broker supports the finalized versions. A broker that does not is left out of the cluster, because it
  would work in an older way.
- Each update of a request is judged by itself, against the versions finalized before the request. All accepted updates
  are written together.
"""

import logging
from collections.abc import Iterable

from klamm.base.slices import each
from klamm.config.versions import ApiVersion
from klamm.controller.feature_updates import FeatureResults, FeatureUpdate, check_update, failed
from klamm.controller.parts import ControllerParts
from klamm.protocol.error_codes import KafkaError
from klamm.znodes.cluster import FEATURE_PATH, FinalizedFeatures, incompatible_features
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import LiveBroker

NONE_FINALIZED = FinalizedFeatures({}, epoch=-1)

_log = logging.getLogger(__name__)


async def compatible_brokers(parts: ControllerParts) -> dict[int, LiveBroker]:
    """The live brokers by id, ascending, each watched; without brokers that lack finalized versions."""
    parts.state_writer.brokers_may_have_changed = False
    live = await parts.store.live_brokers(parts.on_brokers, parts.on_broker)
    finalized = (await _finalized_features(parts)).features
    compatible = {}
    for broker_id, broker in live.items():
        missing = incompatible_features(finalized, broker.registration.features)
        if missing:
            _log.warning("broker %d is left out: it does not support the finalized features %s", broker_id, missing)
        else:
            compatible[broker_id] = broker
    return compatible


async def _finalized_features(parts: ControllerParts) -> FinalizedFeatures:
    if parts.config.current.inter_broker_protocol_version < ApiVersion.V2_7_IV0:
        return NONE_FINALIZED
    return await parts.store.finalized_features() or NONE_FINALIZED


async def update_features(parts: ControllerParts, updates: Iterable[FeatureUpdate]) -> FeatureResults:
    """Finalizes other versions of features, or removes features, as far as the updates are allowed.

    All updates get FEATURE_UPDATE_FAILED when /feature cannot be read: a write would lose the current versions.
    """
    updates = list(updates)
    try:
        existing = await parts.store.readable_finalized_features()
    except ZnodeError as error:
        return FeatureResults(failed(dict.fromkeys(update.feature for update in updates), str(error)), None)
    if existing is None:
        why = f"{FEATURE_PATH} does not exist or is disabled; a newly elected controller creates it"
        return FeatureResults(failed(dict.fromkeys(update.feature for update in updates), why), None)
    brokers = [broker.registration for broker in parts.context.live_or_shutting_down_brokers.values()]
    own = parts.context.live_or_shutting_down_brokers.get(parts.broker_id)
    supported = {} if own is None else own.registration.features
    target = dict(existing.features)
    errors: dict[str, KafkaError | None] = {}
    async for update in each(updates):
        try:
            versions = check_update(update, existing.features.get(update.feature), supported, brokers)
        except KafkaError as error:
            errors[update.feature] = error
            continue
        errors[update.feature] = None
        if versions is None:
            target.pop(update.feature, None)
        else:
            target[update.feature] = versions
    if target == existing.features:
        return FeatureResults(errors, None)
    epoch = await parts.store.update_features(target, existing.epoch, parts.guard)
    _log.info("finalized features %s become %s: epoch %s", existing, target, epoch)
    return FeatureResults(
        errors if epoch is not None else failed(errors, f"{FEATURE_PATH} has changed meanwhile"), epoch
    )
