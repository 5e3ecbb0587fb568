"""A coordinator that dies while offsets are committed, in a cluster that is made up here."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.client.cluster import ClusterMetadata
from klamm.client.options import ClientOptions
from klamm.protocol.apis.offset_commit import OffsetCommitResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark import offset_commits

OPTIONS = ClientOptions((("nowhere", 1),))


class FakeCluster:
    """`coordinators` of a group, in turn; broker 1 is the only one that lives, and may refuse with a `code`."""

    def __init__(self, coordinators: list[int], code: ErrorCode = ErrorCode.NONE) -> None:
        self.metadata = ClusterMetadata(brokers={1: ("nowhere", 1)})
        self.coordinators, self.code = coordinators, code
        self.committed: list[Any] = []

    async def send_to_any(self, api_key: ApiKey, build: Any) -> Any:
        node = self.coordinators.pop(0) if len(self.coordinators) > 1 else self.coordinators[0]
        return SimpleNamespace(error_code=0, node_id=node)

    async def refresh_metadata(self, topics: list[str]) -> ClusterMetadata:
        return self.metadata

    async def connection_to(self, broker: int) -> "FakeCluster":
        if broker not in self.metadata.brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not in the cluster")
        return self

    async def send(self, api_key: ApiKey, build: Any) -> Any:
        self.committed.append(build(0).topics)
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        result = topic.OffsetCommitResponsePartition(partition_index=0, error_code=self.code)
        return OffsetCommitResponse(topics=[topic(name="t", partitions=[result])])


@pytest.fixture
def commit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(offset_commits, "TIMEOUT_MS", 300)
    monkeypatch.setattr(offset_commits, "BACKOFF_MS", 1)

    def commit(cluster: FakeCluster) -> list[Any]:
        monkeypatch.setattr(offset_commits, "call", lambda _, work: asyncio.run(work(cluster)))
        offset_commits.commit_offsets(OPTIONS, "group", {TopicPartition("t", 0): 5})
        return cluster.committed

    return commit


def test_a_coordinator_that_died_is_asked_for_again(commit: Any) -> None:
    assert len(commit(FakeCluster([7, 7, 1]))) == 1


def test_a_coordinator_that_stays_away_does_not_stop_the_query(commit: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert commit(FakeCluster([7])) == []
    assert "group group is not told how far the query has come: COORDINATOR_NOT_AVAILABLE" in caplog.text


def test_a_coordinator_that_refuses_does(commit: Any) -> None:
    with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
        commit(FakeCluster([1], ErrorCode.GROUP_AUTHORIZATION_FAILED))
