"""Answers about very many partitions: many clients that ask at once, as after a restart, are answered in turn."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.broker.handlers import metadata
from klamm.protocol import messages
from klamm.protocol.messages import ApiKey
from support.one_broker import running, until

PARTITIONS = 2_000
CLIENTS = 5


async def test_clients_that_ask_for_very_much_are_answered_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side all would be answered last, and the broker would hold what all the answers are made of."""
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        cache = cluster.broker.parts.metadata_cache
        await until(lambda: "t" in cache.snapshot.topics)
        partition = cache.snapshot.topics["t"][0]
        cache.snapshot = replace(cache.snapshot, topics={"t": dict.fromkeys(range(PARTITIONS), partition)})
        clients = [await cluster.connect() for _ in range(CLIENTS)]
        described: list[str] = []
        describe = metadata._partition

        def noted(request, *details):
            described.append(request.client_id)
            return describe(request, *details)

        monkeypatch.setattr(metadata, "_partition", noted)
        body = messages.request_class(ApiKey.METADATA)(topics=None)
        answers = await asyncio.gather(
            *(one.request(ApiKey.METADATA, 9, body, client_id=str(number)) for number, one in enumerate(clients))
        )
        assert [len(answer.topics[0].partitions) for answer in answers] == [PARTITIONS] * CLIENTS
        # Only the first step of an answer, which tells that it is long, comes before its turn.
        changes = sum(one != next_one for one, next_one in itertools.pairwise(described))
        assert len(described) == PARTITIONS * CLIENTS
        assert changes <= 2 * CLIENTS
