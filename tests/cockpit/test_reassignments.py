"""The reassignments in progress are read once for all pages of a cockpit."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from klamm.client.admin.reassignments import PartitionReassignment
from klamm.cockpit import reassignments
from klamm.cockpit.reassignments import Listed, Reassignments
from klamm.net.client import ClientError
from klamm.processes.helper import Helper
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing import Cluster
from support.cockpit_pages import asker

MOVING = {TopicPartition("t", 0): PartitionReassignment((1, 2), (2,), (1,))}


class Controller:
    """Counts the questions. `answer` is what it lists, an error that is raised, or None for no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        self.asked = 0
        self.answer = answer
        monkeypatch.setattr(reassignments, "list_reassignments", self._list)

    async def _list(self, _client: object) -> Any:
        self.asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def made(**options: Any) -> Reassignments:
    return Reassignments(None, pytest.fail, **options)  # type: ignore[arg-type]


async def test_many_readers_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, (MOVING, None))
    shared = made()
    found = await asyncio.gather(*(shared.read() for _ in range(20)))
    assert found == [Listed(MOVING)] * 20
    await shared.read()
    assert controller.asked == 1
    shared.forget()
    await shared.read()
    assert controller.asked == 2
    monkeypatch.setattr(reassignments, "EVERY_S", 0)
    shared.forget()
    await shared.read()
    await shared.read()
    assert controller.asked == 4


async def test_a_controller_that_has_none_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, (MOVING, None))
    has_none = True
    shared = made(has_none=lambda: has_none)
    assert await shared.read() == Listed({})
    assert controller.asked == 0
    has_none = False
    assert await shared.read() == Listed(MOVING)


async def test_what_was_listed_last_stays_while_the_controller_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, (MOVING, None))
    shared = made()
    await shared.read()
    for failure in (ClientError("gone"), KafkaError(ErrorCode.NOT_CONTROLLER), None):
        controller.answer = ({}, failure) if isinstance(failure, KafkaError) else failure
        shared.forget()
        found = await shared.read(patience_s=0.01)
        assert found.moving == MOVING
        # Without an answer the reason is the one before.
        assert found.error is not None
    assert controller.asked == 4
    shared.close()


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=2, helper=klamm_helper) as running:
        running.create_topic("t", partitions=2, replication_factor=2)
        yield running


async def test_all_pages_share_one_question(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from klamm.client.admin import reassignments as requests

    asked = []
    listing = requests.list_partition_reassignments

    async def counted(client: Any, *given: Any, **options: Any) -> Any:
        asked.append(client)
        return await listing(client, *given, **options)

    monkeypatch.setattr(requests, "list_partition_reassignments", counted)
    async with asker(cluster.bootstrap, None) as pages:
        # Why asks for the Now document, for which this source reads all facts anew.
        await pages.get("/api/why", topic="t", partition=0)
        before = len(asked)
        looks = [pages.get("/api/topics") for _ in range(5)]
        looks += [pages.get("/api/topics", topic="t") for _ in range(5)]
        await asyncio.gather(*looks)
        assert len(asked) == before <= 2
