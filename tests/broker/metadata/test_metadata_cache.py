"""The metadata cache: snapshots never change, updates merge, deleted partitions go."""

from collections.abc import Mapping
from uuid import UUID

from klamm.broker.metadata.metadata_cache import Endpoint, MetadataCache
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

BROKER = UpdateMetadataBroker(id=1, endpoints=[UpdateMetadataEndpoint(9092, "h", "PLAINTEXT", 0)])


def request(
    controller_id: int,
    leaders: Mapping[str, Mapping[int, tuple[int, int]]],
    topic_ids: Mapping[str, UUID] | None = None,
    brokers: list[UpdateMetadataBroker] | None = None,
) -> UpdateMetadataRequest:
    """`leaders`: topic -> partition -> (leader, leader epoch)."""
    topics = [
        UpdateMetadataTopicState(
            topic,
            (topic_ids or {}).get(topic),
            [
                UpdateMetadataPartitionState(number, 1, leader, epoch, (leader,), 0, (leader,))
                for number, (leader, epoch) in partitions.items()
            ],
        )
        for topic, partitions in leaders.items()
    ]
    return UpdateMetadataRequest(
        controller_id=controller_id,
        controller_epoch=1,
        broker_epoch=-1,
        topic_states=topics,
        live_brokers=[BROKER] if brokers is None else brokers,
    )


def test_updates_merge_and_leave_old_snapshots_alone() -> None:
    cache = MetadataCache()
    assert not cache.is_filled.is_set()
    assert cache.update(request(1, {"t": {1: (1, 0), 0: (1, 0)}}, {"t": UUID(int=5)})) == []
    assert cache.is_filled.is_set()
    first = cache.snapshot
    assert list(first.topics["t"]) == [0, 1]
    cache.update(request(2, {"t": {1: (1, 7)}, "u": {0: (1, 0)}}, {"u": UUID(int=6)}))
    assert first.topics["t"][1].leader_epoch == 0
    assert "u" not in first.topics
    assert cache.snapshot.topics["t"][1].leader_epoch == 7
    assert cache.snapshot.topics["t"][0] is first.topics["t"][0]
    assert cache.snapshot.controller_id == 2
    assert cache.snapshot.topic_ids == {"t": UUID(int=5), "u": UUID(int=6)}


def test_an_update_without_partitions_keeps_them() -> None:
    cache = MetadataCache()
    cache.update(request(1, {"t": {0: (1, 0)}}))
    topics = cache.snapshot.topics
    cache.update(request(3, {}, brokers=[]))
    assert cache.snapshot.topics is topics
    assert cache.snapshot.brokers == {}


def test_deleted_partitions_go_and_with_the_last_one_the_topic() -> None:
    cache = MetadataCache()
    cache.update(request(1, {"t": {0: (1, 0), 1: (1, 0)}}, {"t": UUID(int=5)}))
    assert cache.update(request(1, {"t": {0: (LEADER_DURING_DELETE, 0)}})) == [("t", 0)]
    assert list(cache.snapshot.topics["t"]) == [1]
    assert cache.update(request(1, {"t": {1: (LEADER_DURING_DELETE, 0)}})) == [("t", 1)]
    assert "t" not in cache.snapshot.topics
    assert not cache.snapshot.topic_ids


def test_deleted_partitions_that_were_not_known_are_named_too() -> None:
    cache = MetadataCache()
    doomed = {"t": {0: (LEADER_DURING_DELETE, 0), 7: (LEADER_DURING_DELETE, 0)}}
    assert cache.update(request(1, doomed)) == [("t", 0), ("t", 7)]
    assert cache.update(request(1, doomed)) == [("t", 0), ("t", 7)]
    assert cache.snapshot.topics == {}


def test_nothing_stays_of_a_topic_that_was_created_anew() -> None:
    cache = MetadataCache()
    cache.update(request(1, {"t": {0: (1, 4), 1: (1, 4)}}))
    # A topic that gets an id is the same topic.
    assert cache.update(request(1, {"t": {0: (1, 4)}}, {"t": UUID(int=5)})) == []
    assert cache.update(request(1, {"t": {0: (1, 5)}})) == []
    assert cache.update(request(1, {"t": {0: (2, 0)}}, {"t": UUID(int=6)})) == [("t", 0), ("t", 1)]
    assert {number: state.leader for number, state in cache.snapshot.topics["t"].items()} == {0: 2}
    assert cache.snapshot.topic_ids == {"t": UUID(int=6)}


def test_forgotten_partitions_are_gone_and_the_others_stay() -> None:
    cache = MetadataCache()
    cache.update(request(1, {"t": {0: (1, 0), 1: (1, 0)}, "u": {0: (1, 0)}}, {"t": UUID(int=5), "u": UUID(int=6)}))
    before = cache.snapshot
    cache.forget([("t", 1), ("u", 0), ("u", 1), ("v", 0)])
    assert {topic: list(numbers) for topic, numbers in cache.snapshot.topics.items()} == {"t": [0]}
    assert cache.snapshot.topic_ids == {"t": UUID(int=5)}
    assert (cache.snapshot.controller_id, cache.snapshot.brokers) == (1, before.brokers)
    assert list(before.topics) == ["t", "u"]


def test_brokers_are_found_only_where_they_live_and_listen() -> None:
    cache = MetadataCache()
    unknown_protocol = UpdateMetadataEndpoint(9, "h", "FUTURE", 9)
    cache.update(
        request(
            1,
            {},
            brokers=[
                UpdateMetadataBroker(id=5, endpoints=[unknown_protocol]),
                UpdateMetadataBroker(id=1, endpoints=BROKER.endpoints),
            ],
        )
    )
    snapshot = cache.snapshot
    assert list(snapshot.brokers) == [1, 5]
    assert snapshot.endpoint(1, "PLAINTEXT") == Endpoint("h", 9092)
    assert snapshot.endpoint(1, "SSL") is None
    assert snapshot.endpoint(2, "PLAINTEXT") is None
    assert snapshot.endpoint(5, "FUTURE") is None


def test_a_listener_without_a_name_is_called_like_its_protocol() -> None:
    """As in the first versions of UpdateMetadata."""
    cache = MetadataCache()
    named = [UpdateMetadataEndpoint(9093, "h", "", 1), UpdateMetadataEndpoint(9094, "h", "", 3)]
    brokers = [
        UpdateMetadataBroker(id=1, v0_host="h", v0_port=9092),
        UpdateMetadataBroker(id=2, endpoints=named),
    ]
    cache.update(request(1, {}, brokers=brokers))
    found = {
        id: {name: one.port for name, one in each.endpoints.items()} for id, each in cache.snapshot.brokers.items()
    }
    assert found == {1: {"PLAINTEXT": 9092}, 2: {"SSL": 9093, "SASL_SSL": 9094}}
    assert cache.snapshot.brokers[2].endpoints["SASL_SSL"].security_protocol == "SASL_SSL"
