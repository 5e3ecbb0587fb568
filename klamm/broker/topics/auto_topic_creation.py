"""Creates missing topics that clients name: auto-created topics, and `__consumer_offsets`.

What must stay true:
- A request waits for ZooKeeper at most `ANSWER_WITHIN_MS`; a failed creation never affects the request's other topics.
- A creation that has begun runs to its end, even if its client disconnects.
- A topic has one pending creation at a time, and there are at most `MAX_UNDER_WAY` of them. Clients retry.

Source: kafka.server.AutoTopicCreationManager.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from klamm.base.tasks import OnFailure, start_task
from klamm.broker.quotas.mutation_quota import UNBOUNDED_MUTATIONS, Mutations
from klamm.broker.topics.topic_admin import NewTopic, TopicAdmin
from klamm.protocol.error_codes import ErrorCode, KafkaError

# How long a client waits for the ZooKeeper writes of its creations. A reachable ZooKeeper takes milliseconds.
ANSWER_WITHIN_MS = 500
MAX_UNDER_WAY = 1000

# The session ended before the creation was certain, or another client has created the topic.
_TO_BE_ASKED_FOR_AGAIN = (ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_ALREADY_EXISTS)


class AutoTopicCreation:
    """The topic creations of one broker that no CreateTopics request asks for."""

    def __init__(self, topic_admin: TopicAdmin, on_failure: OnFailure) -> None:
        self._topic_admin = topic_admin
        self._on_failure = on_failure
        self._under_way: dict[str, None] = {}

    async def create(
        self, topics: Sequence[NewTopic], changes: Mutations = UNBOUNDED_MUTATIONS
    ) -> dict[str, KafkaError]:
        """Starts to create the topics. Returns the reason for each topic that cannot be created."""
        room = MAX_UNDER_WAY - len(self._under_way)
        new = [topic for topic in topics if topic.name not in self._under_way][:room]
        if not new:
            return {}
        self._under_way.update(dict.fromkeys(topic.name for topic in new))
        refused: dict[str, KafkaError] = {}
        creation = start_task(self._create(new, changes, refused), self._on_failure)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN_MS / 1000):
                await asyncio.shield(creation)
        return dict(refused)

    async def _create(self, topics: Sequence[NewTopic], changes: Mutations, refused: dict[str, KafkaError]) -> None:
        """Creates the topics without waiting for leaders."""
        try:
            for created in await self._topic_admin.create_topics(topics, changes):
                if created.error is not None and created.error.code not in _TO_BE_ASKED_FOR_AGAIN:
                    refused[created.name] = created.error
        finally:
            for topic in topics:
                del self._under_way[topic.name]
