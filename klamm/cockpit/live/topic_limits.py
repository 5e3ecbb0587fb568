"""The topic configs about in-sync replicas and throttles, for the page's findings.

What must stay true: a look takes about `LOOK_S`, however many topics there are: it begins where the last look ended. A
broker reads each topic's configs from ZooKeeper, which takes 0.15 ms a topic (measured).
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from klamm.diagnosis.cluster_facts import TOPICS_AT_ONCE, graver, read_topic_limits

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.diagnosis.cluster_facts import TopicLimits

LOOK_S: Final = 1.0


class TopicLimitsInTurns:
    """The newest limits of the topics. With many topics, each look reads some of them."""

    def __init__(self, client: "ClusterClient") -> None:
        self._client = client
        self._next = 0
        self._min_isr: dict[str, int] = {}
        self._throttled: dict[str, dict[str, str]] = {}

    async def read(self, topics: Sequence[str]) -> "TopicLimits":
        """The limits of `topics`, as far as they were read. Raises ClientError."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + LOOK_S
        trouble = None
        left = len(topics)
        while left > 0 and loop.time() < end_s:
            if self._next >= len(topics):
                self._next = 0
            some = topics[self._next : self._next + min(TOPICS_AT_ONCE, left)]
            min_isr, throttled, error = await read_topic_limits(self._client, some)
            trouble = graver(trouble, error)
            for name in some:
                self._min_isr.pop(name, None)
                self._throttled.pop(name, None)
            self._min_isr |= min_isr
            self._throttled |= throttled
            self._next += len(some)
            left -= len(some)
        existing = frozenset(topics)
        self._min_isr = {name: value for name, value in self._min_isr.items() if name in existing}
        self._throttled = {name: value for name, value in self._throttled.items() if name in existing}
        return dict(self._min_isr), dict(self._throttled), trouble
