"""Of many topics each look reads some, and all have their turn."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from klamm.cockpit.live import topic_limits
from klamm.cockpit.live.topic_limits import LOOK_S, TopicLimitsInTurns


class Configs:
    """What `read_topic_limits` answers, after `took_s` for each piece."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float) -> None:
        self.asked: list[Sequence[str]] = []
        self.throttled = {"b"}
        self.took_s = took_s
        monkeypatch.setattr(topic_limits, "TOPICS_AT_ONCE", 2)
        monkeypatch.setattr(topic_limits, "read_topic_limits", self.read)

    async def read(self, _client: object, topics: Sequence[str]) -> Any:
        self.asked.append(list(topics))
        await asyncio.sleep(self.took_s)
        limits = {name: {"leader.replication.throttled.replicas": "*"} for name in topics if name in self.throttled}
        return dict.fromkeys(topics, 2), limits, None


@pytest.mark.loop("virtual")
async def test_few_topics_are_read_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    configs, limits = Configs(monkeypatch, LOOK_S / 100), TopicLimitsInTurns(cast(Any, None))
    for _ in range(2):
        min_isr, throttled, trouble = await limits.read("abc")
        assert (min_isr, list(throttled), trouble) == ({"a": 2, "b": 2, "c": 2}, ["b"], None)
    configs.throttled.clear()
    assert await limits.read("ad") == ({"a": 2, "d": 2}, {}, None)
    assert await limits.read([]) == ({}, {}, None)


@pytest.mark.loop("virtual")
async def test_a_look_at_many_topics_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    configs, limits = Configs(monkeypatch, LOOK_S), TopicLimitsInTurns(cast(Any, None))
    for _ in range(4):
        found = await limits.read("abcde")
    assert [*map("".join, configs.asked)] == ["ab", "cd", "e", "ab"]
    assert sorted(found[0]) == [*"abcde"]
    # Topics that were deleted meanwhile.
    await limits.read("a")
    assert [*map("".join, configs.asked)][4:] == ["a"]
