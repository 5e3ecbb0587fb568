"""A coordinator that dies while offsets are committed, in a cluster that answers as the test says."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.offset_commit import OffsetCommitResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark import offset_commits
from support.scripted_cluster import ScriptedCluster

OPTIONS = ClientOptions((("nowhere", 1),))


def answer(code: ErrorCode = ErrorCode.NONE) -> tuple[ApiKey, OffsetCommitResponse]:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    result = topic.OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return ApiKey.OFFSET_COMMIT, OffsetCommitResponse(topics=[topic(name="t", partitions=[result])])


def commit(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedCluster) -> int:
    """Commits, and returns how often a broker was asked to."""
    monkeypatch.setattr(offset_commits, "TIMEOUT_MS", 5_000)
    monkeypatch.setattr(offset_commits, "RETRY_MS", 100)

    async def run(work: Callable[[ClusterClient], Awaitable[None]]) -> None:
        async with scripted:
            await work(scripted.client())

    monkeypatch.setattr(offset_commits, "call", lambda _, work: asyncio.run(run(work)))
    offset_commits.commit_offsets(OPTIONS, "group", {TopicPartition("t", 0): 5})
    return len(scripted.asked)


def test_a_coordinator_that_died_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit(monkeypatch, ScriptedCluster(answer(), coordinators=[7, 7, 1])) == 1


def test_a_coordinator_that_stays_away_does_not_stop_the_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert commit(monkeypatch, ScriptedCluster(coordinators=[7])) == 0
    assert "the offsets of the query were not committed to group group: COORDINATOR_NOT_AVAILABLE" in caplog.text


def test_a_coordinator_that_refuses_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
        commit(monkeypatch, ScriptedCluster(answer(ErrorCode.GROUP_AUTHORIZATION_FAILED)))
