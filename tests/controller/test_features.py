"""Finalized features: each rule of an update, what is written, and brokers that cannot do what is finalized."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from klamm.controller.feature_updates import FeatureUpdate, check_update, failed
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes.brokers import BrokerRegistration, SupportedVersions
from klamm.znodes.cluster import FEATURE_PATH, Features, FeatureStatus, FinalizedVersions
from support.controller.scene import FakeBroker, Scene, playing

OLD, NEW = {"f": SupportedVersions(1, 3)}, {"f": SupportedVersions(2, 5)}


def broker(broker_id: int, features: Mapping[str, SupportedVersions]) -> BrokerRegistration:
    return BrokerRegistration(broker_id, (), features=features)


@pytest.mark.parametrize(
    ("update", "existing", "supported", "others", "result"),
    [
        (FeatureUpdate("f", 3, False), None, (1, 3), (1, 4), (1, 3)),
        (FeatureUpdate("f", 2, False), None, (2, 5), (1, 3), (2, 2)),
        (FeatureUpdate("f", 4, False), (2, 3), (2, 5), (2, 5), (2, 4)),
        (FeatureUpdate("f", 4, True), (2, 5), (2, 5), (2, 5), (2, 4)),
        (FeatureUpdate("f", 0, True), (2, 5), None, None, None),
        (FeatureUpdate("f", -7, True), (2, 5), (2, 5), (2, 5), None),
        (FeatureUpdate("", 3, False), None, (1, 3), (1, 3), "the name of a feature is empty"),
        (FeatureUpdate("", 0, True), None, (1, 3), (1, 3), "the name of a feature is empty"),
        (FeatureUpdate("f", 0, True), None, (1, 3), (1, 3), "not finalized and cannot be removed"),
        (FeatureUpdate("f", 0, False), (1, 3), (1, 3), (1, 3), "0 is below 1, which needs allowDowngrade"),
        (FeatureUpdate("f", 3, False), (1, 3), (1, 3), (1, 3), "maxVersionLevel is 3 already"),
        (FeatureUpdate("f", 3, True), (1, 3), (1, 3), (1, 3), "maxVersionLevel is 3 already"),
        (FeatureUpdate("f", 2, False), (1, 3), (1, 3), (1, 3), "2 is below 3, which needs allowDowngrade"),
        (FeatureUpdate("f", 3, True), (1, 2), (1, 3), (1, 3), "with allowDowngrade maxVersionLevel 3 must be below 2"),
        (FeatureUpdate("f", 2, True), (3, 4), (1, 5), (1, 5), "2 is below the finalized minimum 3"),
        (FeatureUpdate("f", 3, False), None, None, (1, 3), "feature f is not supported"),
        (FeatureUpdate("f", 1, False), None, (2, 3), (2, 3), "1 is below the supported minimum 2"),
        (FeatureUpdate("f", 4, False), None, (1, 3), (1, 5), "brokers [1] do not support f"),
        (FeatureUpdate("f", 4, False), None, (1, 5), (1, 3), "brokers [2] do not support f"),
        (FeatureUpdate("f", 4, False), None, (1, 5), None, "brokers [2] do not support f"),
    ],
)
def test_the_rules(
    update: FeatureUpdate,
    existing: tuple[int, int] | None,
    supported: tuple[int, int] | None,
    others: tuple[int, int] | None,
    result: tuple[int, int] | str | None,
) -> None:
    """`supported` is what the controller's broker 1 supports, `others` what broker 2 does; both of feature f."""
    own = {} if supported is None else {"f": SupportedVersions(*supported)}
    brokers = [broker(1, own), broker(2, {} if others is None else {"f": SupportedVersions(*others)})]
    finalized = None if existing is None else FinalizedVersions(*existing)
    if isinstance(result, str):
        with pytest.raises(KafkaError) as refused:
            check_update(update, finalized, own, brokers)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert result in refused.value.message
    else:
        expected = None if result is None else FinalizedVersions(*result)
        assert check_update(update, finalized, own, brokers) == expected


def test_what_was_allowed_has_failed() -> None:
    refused = KafkaError(ErrorCode.INVALID_REQUEST, "no")
    errors = failed({"f": None, "g": refused}, "why")
    because = errors["f"]
    assert because is not None
    assert (errors["g"], because.code, because.message) == (refused, ErrorCode.FEATURE_UPDATE_FAILED, "why")


# -- the controller ---------------------------------------------------------------------------------------------------


def support(monkeypatch: pytest.MonkeyPatch, features: Mapping[int, Mapping[str, SupportedVersions]]) -> None:
    """These brokers support these features; all others none."""
    original: Any = FakeBroker.__dict__["registration"].fget

    def registration(self: FakeBroker) -> BrokerRegistration:
        plain = original(self)
        return BrokerRegistration(
            plain.broker_id, plain.endpoints, features=features.get(self.broker_id, {}), timestamp_ms=1
        )

    monkeypatch.setattr(FakeBroker, "registration", property(registration))


async def finalized(scene: Scene) -> tuple[Mapping[str, FinalizedVersions], int] | None:
    return await scene.store.finalized_features()


async def update(scene: Scene, *updates: FeatureUpdate) -> tuple[dict[str, ErrorCode | None], int | None]:
    errors, epoch = await scene.controller.update_features(updates)
    return {feature: error.code if error else None for feature, error in errors.items()}, epoch


async def test_features_are_finalized_raised_lowered_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support(monkeypatch, {key: {"f": SupportedVersions(1, 5), "g": SupportedVersions(1, 1)} for key in (1, 2)})
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        assert await finalized(scene) == ({}, 0)
        both = FeatureUpdate("f", 4, False), FeatureUpdate("h", 1, False), FeatureUpdate("g", 1, False)
        assert await update(scene, *both) == ({"f": None, "h": ErrorCode.INVALID_REQUEST, "g": None}, 1)
        levels = {"f": FinalizedVersions(1, 4), "g": FinalizedVersions(1, 1)}
        assert await finalized(scene) == (levels, 1)
        assert await update(scene, FeatureUpdate("f", 4, False)) == ({"f": ErrorCode.INVALID_REQUEST}, None)
        assert await update(scene, FeatureUpdate("f", 2, True)) == ({"f": None}, 2)
        assert await update(scene, FeatureUpdate("f", 5, False)) == ({"f": None}, 3)
        assert await update(scene, FeatureUpdate("f", 0, True), FeatureUpdate("g", 0, True)) == (
            {"f": None, "g": None},
            4,
        )
        assert await update(scene) == ({}, None)
        assert await finalized(scene) == ({}, 4)


async def test_who_may_not_update(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        with pytest.raises(KafkaError) as refused:
            await scene.brokers[2].controller.update_features([FeatureUpdate("f", 1, False)])
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert await update(scene, FeatureUpdate("f", 1, False)) == ({"f": ErrorCode.INVALID_REQUEST}, None)


async def test_a_feature_znode_that_is_gone_fails_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support(monkeypatch, {1: OLD})
    async with playing(tmp_path) as scene:
        await scene.start(1)
        await scene.store.client.delete(FEATURE_PATH)
        assert await update(scene, FeatureUpdate("f", 1, False)) == ({"f": ErrorCode.FEATURE_UPDATE_FAILED}, None)


@pytest.mark.parametrize("content", [b"{", Features(FeatureStatus.DISABLED).encode()])
async def test_a_feature_znode_that_says_nothing_is_not_written_over(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support(monkeypatch, {1: OLD})
    async with playing(tmp_path) as scene:
        await scene.start(1)
        await scene.store.client.set(FEATURE_PATH, content)
        errors, epoch = await scene.controller.update_features([FeatureUpdate("f", 1, False)])
        assert (await scene.store.client.get(FEATURE_PATH))[0] == content
        assert epoch is None
        assert errors["f"] is not None and errors["f"].code is ErrorCode.FEATURE_UPDATE_FAILED
        assert FEATURE_PATH in errors["f"].message


async def test_brokers_that_cannot_do_what_is_finalized_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one, one that comes back without the feature, and both again under the next controller."""
    supported = {1: OLD, 2: OLD, 3: NEW, 4: OLD}
    support(monkeypatch, supported)
    async with playing(tmp_path) as scene:
        await scene.start(1, 2)
        assert await update(scene, FeatureUpdate("f", 3, False)) == ({"f": None}, 1)
        new = scene.brokers[3] = FakeBroker(scene, 3, {}, scene.address)
        await new.start()
        await scene.settled()
        assert list(scene.controller.context.live_broker_ids) == [1, 2]
        assert 3 not in scene.channels[1].brokers
        await scene.start(4)
        await scene.create("t", [2, 1])
        await scene.kill(2)
        supported[2] = {}
        back = scene.brokers[2] = FakeBroker(scene, 2, {}, scene.address)
        await back.start()
        await scene.settled()
        assert list(scene.controller.context.live_broker_ids) == [1, 4]
        assert await scene.state("t") == (1, 1, (1,))
        await scene.store.client.delete("/controller")
        await scene.until(
            lambda: any(
                each.controller.context.epoch == 2 and scene.is_idle(each.controller) for each in scene.brokers.values()
            )
        )
        assert list(scene.controller.context.live_broker_ids) == [1, 4]


async def test_before_2_7_no_broker_is_left_out(tmp_path: Path) -> None:
    async with playing(tmp_path) as scene:
        features = Features(FeatureStatus.ENABLED, {"f": FinalizedVersions(1, 1)})
        await scene.store.client.create(FEATURE_PATH, features.encode())
        await scene.start(1, 2, inter_broker_protocol_version="2.6")
        assert list(scene.controller.context.live_broker_ids) == [1, 2]
        data, _ = await scene.store.client.get(FEATURE_PATH)
        assert Features.decode(data) == Features(FeatureStatus.DISABLED)
