"""The metadata cache: snapshots never change, updates merge, deleted partitions go."""

from uuid import UUID

from klamm.broker.metadata_cache import (
    LEADER_DURING_DELETE,
    BrokerMetadata,
    Endpoint,
    MetadataCache,
    PartitionMetadata,
)

BROKERS = {1: BrokerMetadata(1, {"PLAINTEXT": Endpoint("h", 9092)})}


def leader(broker: int, epoch: int = 0) -> PartitionMetadata:
    return PartitionMetadata(broker, epoch, (broker,), (broker,))


def test_updates_merge_and_leave_old_snapshots_alone() -> None:
    cache = MetadataCache()
    assert cache.update(1, BROKERS, {"t": {1: leader(1), 0: leader(1)}}, {"t": UUID(int=5)}) == []
    first = cache.snapshot
    assert list(first.topics["t"]) == [0, 1]
    cache.update(2, BROKERS, {"t": {1: leader(1, 7)}, "u": {0: leader(1)}}, {"u": UUID(int=6)})
    assert first.topics["t"][1].leader_epoch == 0
    assert "u" not in first.topics
    assert cache.snapshot.topics["t"][1].leader_epoch == 7
    assert cache.snapshot.topics["t"][0] is first.topics["t"][0]
    assert cache.snapshot.controller_id == 2
    assert cache.snapshot.topic_ids == {"t": UUID(int=5), "u": UUID(int=6)}


def test_an_update_without_partitions_keeps_them() -> None:
    cache = MetadataCache()
    cache.update(1, BROKERS, {"t": {0: leader(1)}}, {})
    topics = cache.snapshot.topics
    cache.update(3, {}, {}, {})
    assert cache.snapshot.topics is topics
    assert cache.snapshot.brokers == {}


def test_deleted_partitions_go_and_with_the_last_one_the_topic() -> None:
    cache = MetadataCache()
    cache.update(1, BROKERS, {"t": {0: leader(1), 1: leader(1)}}, {"t": UUID(int=5)})
    gone = leader(LEADER_DURING_DELETE)
    assert cache.update(1, BROKERS, {"t": {0: gone}}, {}) == [("t", 0)]
    assert list(cache.snapshot.topics["t"]) == [1]
    assert cache.update(1, BROKERS, {"t": {1: gone}}, {}) == [("t", 1)]
    assert "t" not in cache.snapshot.topics
    assert not cache.snapshot.topic_ids


def test_a_leader_is_found_only_where_it_lives_and_listens() -> None:
    cache = MetadataCache()
    cache.update(1, BROKERS, {"t": {0: leader(1), 1: leader(2)}}, {})
    snapshot = cache.snapshot
    assert snapshot.leader_endpoint(snapshot.topics["t"][0], "PLAINTEXT") == Endpoint("h", 9092)
    assert snapshot.leader_endpoint(snapshot.topics["t"][0], "SSL") is None
    assert snapshot.leader_endpoint(snapshot.topics["t"][1], "PLAINTEXT") is None
