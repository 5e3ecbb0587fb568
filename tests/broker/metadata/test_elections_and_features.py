"""ElectLeaders and UpdateFeatures as clients see them, and the features that ApiVersions tells."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from klamm.broker.metadata.leader_elections import LeaderElections
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.registration.finalized_features import FinalizedFeatureCache
from klamm.broker.registration.registration import BrokerStartError
from klamm.broker.start import broker as composition
from klamm.controller.controller import KafkaController
from klamm.controller.leader_election import ElectionResults
from klamm.protocol import messages
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_LEADER, ElectionType, PartitionKey
from klamm.znodes.brokers import SupportedVersions
from klamm.znodes.cluster import FEATURE_PATH, Features, FeatureStatus, FinalizedVersions
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr
from support.authorizing import Allows, nothing
from support.one_broker import Client, running, until

NONE = ErrorCode.NONE

# -- elections


async def elect(
    client: Client, partitions: Iterable[PartitionKey] | None, *, kind: int = 0, version: int = 2
) -> tuple[int, dict[PartitionKey, int]]:
    """The top-level error code, and each partition's."""
    request = messages.request_class(ApiKey.ELECT_LEADERS)
    named = None
    if partitions is not None:
        named = [request.TopicPartitions(topic=topic, partitions=[number]) for topic, number in partitions]
    fields = {"election_type": kind} if version else {}
    answer = await client.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=named, timeout_ms=60_000, **fields)
    results = {
        (topic.topic, result.partition_id): result.error_code
        for topic in answer.replica_election_results
        for result in topic.partition_result
    }
    return answer.error_code if version else 0, results


@pytest.mark.parametrize("version", range(3))
async def test_every_version_of_elect_leaders(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", 2)
        named = [("t", 1), ("t", 7), ("u", 0), ("t", 1)]
        assert await elect(client, named, version=version) == (
            NONE,
            {
                ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
                ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
        )
        assert await elect(client, [], version=version) == (NONE, {})
        # All of them: those that need none are not told.
        assert await elect(client, None, version=version) == (NONE, {})
        if version:
            assert await elect(client, named[:1], kind=2, version=version) == (
                ErrorCode.INVALID_REQUEST,
                {("t", 1): ErrorCode.INVALID_REQUEST},
            )


async def test_an_unclean_election_is_answered_when_the_leader_is_known(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        controller, cache = cluster.broker.parts.controller, cluster.broker.parts.metadata_cache
        store = cluster.broker.zookeeper.store
        assert controller is not None
        await store.create_topic("v", {0: [7, 0]}, cluster.environment.random_uuid(), {})
        await until(lambda: cache.snapshot.partition("v", 0) is not None)
        # As if broker 7, which is dead, had led and been the last in the ISR.
        await store.client.set("/brokers/topics/v/partitions/0/state", LeaderAndIsr(7, 1, (7,), 1).encode())
        await store.client.delete("/controller")  # Everything is read anew.
        await until(lambda: controller.is_active and controller.context.epoch == 2)
        await until(lambda: leader_of(cache, "v") == NO_LEADER)
        assert await elect(client, None) == (NONE, {("v", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE})
        assert await elect(client, None, kind=1) == (NONE, {("v", 0): NONE})
        assert leader_of(cache, "v") == 0
        assert await elect(client, [("v", 0)], kind=1) == (NONE, {("v", 0): ErrorCode.ELECTION_NOT_NEEDED})


def leader_of(cache: MetadataCache, topic: str) -> int:
    state = cache.snapshot.partition(topic, 0)
    return NO_LEADER if state is None else state.leader


async def test_what_is_denied_elects_nothing(tmp_path: Path) -> None:
    authorizer = Allows()
    async with running(tmp_path, authorizer=authorizer) as (_, client):
        authorizer.rule = nothing
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await elect(client, [("t", 0)]) == (code, {("t", 0): code})
        assert await elect(client, [("t", 0)], version=0) == (NONE, {("t", 0): code})
        assert await elect(client, None) == (code, {})


class FakeController(KafkaController):
    """Has elected broker 1 for these partitions, and refuses the others."""

    def __init__(self, *elected: PartitionKey) -> None:
        self.elected = elected
        self._is_active = True

    async def elect_leaders(self, partitions: Sequence[PartitionKey], election_type: ElectionType) -> ElectionResults:
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another one is")
        refused = KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
        return {partition: 1 if partition in self.elected else refused for partition in partitions}


def know(cache: MetadataCache, topic: str, leader: int) -> None:
    state = UpdateMetadataPartitionState(0, 1, leader, 1, (leader,), 0, (1, 2), ())
    cache.update(
        UpdateMetadataRequest(
            controller_id=1, controller_epoch=1, topic_states=[UpdateMetadataTopicState(topic, None, [state])]
        )
    )


async def test_the_answer_waits_for_the_metadata_or_for_the_time() -> None:

    def codes(results: dict[PartitionKey, KafkaError | None]) -> list[ErrorCode]:
        return [NONE if error is None else error.code for error in results.values()]

    cache, controller = MetadataCache(), FakeController(("t", 0), ("u", 0))
    elections = LeaderElections(controller, cache)
    partitions = [("t", 0), ("u", 0), ("v", 0)]

    async def elect(timeout_ms: float) -> dict[PartitionKey, KafkaError | None]:
        elected = await elections.elect(partitions, ElectionType.PREFERRED)
        return await elections.wait_until_known(elected, timeout_ms)

    for topic in ("t", "u"):
        know(cache, topic, 2)
    asking = asyncio.ensure_future(elect(60_000))
    for topic in ("u", "t"):
        await asyncio.sleep(0)
        assert not asking.done()
        know(cache, topic, 1)
        elections.metadata_changed(topic)
    assert codes(await asking) == [NONE, NONE, ErrorCode.ELECTION_NOT_NEEDED]
    know(cache, "u", 2)
    for timeout_ms in (1, 0, -5):
        results = await elect(timeout_ms)
        assert codes(results) == [NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.ELECTION_NOT_NEEDED]
    assert len(elections.purgatory) == 0
    controller._is_active = False
    results = await elect(60_000)
    assert codes(results) == [ErrorCode.NOT_CONTROLLER] * 3


# -- features


async def told(client: Client) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]], int]:
    """Of ApiVersions: what the broker supports, what is finalized, and its epoch."""
    answer = await client.ask(ApiKey.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    assert answer.error_code == NONE
    return (
        {one.name: (one.min_version, one.max_version) for one in answer.supported_features or ()},
        {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features or ()},
        answer.finalized_features_epoch,
    )


async def update(client: Client, *updates: tuple[str, int, bool]) -> tuple[int, dict[str, int]]:
    request = messages.request_class(ApiKey.UPDATE_FEATURES)
    answer = await client.ask(
        ApiKey.UPDATE_FEATURES,
        timeout_ms=10_000,
        feature_updates=[
            request.FeatureUpdateKey(feature=feature, max_version_level=level, allow_downgrade=downgrade)
            for feature, level, downgrade in updates
        ],
    )
    return answer.error_code, {result.feature: result.error_code for result in answer.results}


async def test_features_that_no_broker_has(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        assert await told(client) == ({}, {}, 0)
        assert await update(client, ("f", 1, False)) == (NONE, {"f": ErrorCode.INVALID_REQUEST})
        assert await update(client) == (NONE, {})


async def test_what_is_finalized_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "SUPPORTED_FEATURES", {"f": SupportedVersions(1, 5)})
    async with running(tmp_path) as (cluster, client):
        for epoch, level in enumerate((3, 5), 1):
            assert await update(client, ("f", level, False), ("", 1, False)) == (
                NONE,
                {"f": NONE, "": ErrorCode.INVALID_REQUEST},
            )
            assert await told(client) == ({"f": (1, 5)}, {"f": (1, level)}, epoch)
        assert await update(client, ("f", 0, True)) == (NONE, {"f": NONE})
        assert await told(client) == ({"f": (1, 5)}, {}, 3)
        for gone in (b"?", Features(FeatureStatus.DISABLED).encode(), None):
            store = cluster.broker.zookeeper.store
            await (store.client.delete(FEATURE_PATH) if gone is None else store.client.set(FEATURE_PATH, gone))
            await until(lambda: cluster.broker.parts.services.finalized_features.current is None)
            assert await told(client) == ({"f": (1, 5)}, {}, -1)
        assert await update(client, ("f", 1, False)) == (NONE, {"f": ErrorCode.FEATURE_UPDATE_FAILED})


async def test_an_update_that_the_broker_does_not_hear_of_in_time_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "SUPPORTED_FEATURES", {"f": SupportedVersions(1, 5)})
    monkeypatch.setattr(FinalizedFeatureCache, "_changed", lambda _self: None)
    async with running(tmp_path) as (_, client):
        request = messages.request_class(ApiKey.UPDATE_FEATURES)
        key = request.FeatureUpdateKey(feature="f", max_version_level=1, allow_downgrade=False)
        answer = await client.ask(ApiKey.UPDATE_FEATURES, timeout_ms=20, feature_updates=[key])
        assert [result.error_code for result in answer.results] == [ErrorCode.FEATURE_UPDATE_FAILED]


async def test_before_2_7_there_are_no_features(tmp_path: Path) -> None:
    async with running(tmp_path, inter_broker_protocol_version="2.6") as (_, client):
        assert await told(client) == ({}, {}, -1)
        assert await update(client, ("f", 1, False)) == (ErrorCode.INVALID_REQUEST, {})


async def test_a_broker_that_cannot_do_what_is_finalized_does_not_serve(tmp_path: Path) -> None:
    async with running(tmp_path, may_fail=True) as (cluster, _):
        store: KafkaZooKeeper = cluster.broker.zookeeper.store
        features = Features(FeatureStatus.ENABLED, {"f": FinalizedVersions(1, 2)})
        await store.client.set(FEATURE_PATH, features.encode())
        async with asyncio.timeout(120):
            reason = await cluster.broker.failure
        assert isinstance(reason, BrokerStartError) and "'f'" in str(reason)
        await cluster.broker.stop()
        with pytest.raises(BrokerStartError, match="'f'"):
            await cluster.start_broker()
