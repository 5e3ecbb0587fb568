"""Finds topics that wait for their deletion. Brokers do not mark them, or no longer know them; only the znodes do.

What must stay true: a description over the wire does not need ZooKeeper. It asks only about topics that may wait for
their deletion, and works without an answer.
"""

import asyncio
from dataclasses import replace

from klamm.access.controller import zookeeper_of_brokers
from klamm.access.zookeeper import open_znodes
from klamm.cli.topics import over_znodes
from klamm.cli.topics.over_brokers import Topics
from klamm.cli.topics.selection import Selection
from klamm.client.cluster import ClusterClient
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError

ZOOKEEPER_TIMEOUT_S = 3.0


async def with_deletions(client: ClusterClient, found: Topics, selection: Selection) -> Topics:
    """The topics, with the selected topics that are marked for deletion if the brokers' ZooKeeper answers.

    Asks ZooKeeper if a topic is being reassigned, as a deletion waits for that, or if brokers know no selected topic.
    """
    are_moving = any(each.is_reassigning for topic in found.topics.values() for each in topic.partitions.values())
    if not are_moving and (found.topics or selection.text is None):
        return found
    try:
        async with asyncio.timeout(ZOOKEEPER_TIMEOUT_S), open_znodes(await zookeeper_of_brokers(client)) as znodes:
            stored = (await over_znodes.read_topics(znodes, selection)).topics
    except (TimeoutError, ToolError, KafkaError):
        return found
    marked = {name: found.topics.get(name, topic) for name, topic in stored.items() if topic.marked_for_deletion}
    deleted = {name: replace(topic, marked_for_deletion=True) for name, topic in marked.items()}
    return replace(found, topics=dict(sorted({**found.topics, **deleted}.items())))
