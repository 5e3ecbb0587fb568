"""`klamm topics --zookeeper`: reads and changes topics on the znodes of a cluster, as Kafka's AdminZkClient does.

The controller sees the change of the znodes and does the rest; these functions do not wait for it. They check what a
broker would check before it writes.
"""

from collections.abc import Mapping, Sequence

from klamm.base.system_environment import SystemEnvironment
from klamm.cli.topics.over_brokers import Topics
from klamm.cli.topics.plans import Alteration
from klamm.cli.topics.selection import Selection
from klamm.config.topic import TOPIC_CONFIG_DEF, override_problems
from klamm.diagnosis.cluster_view import ClusterView, read_znodes
from klamm.diagnosis.partition_health import MIN_ISR, UNCLEAN
from klamm.diagnosis.topic_descriptions import TopicDescription
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import INTERNAL_TOPICS
from klamm.znodes.configs import topic_entity
from klamm.znodes.store import KafkaZooKeeper


async def read_topics(znodes: KafkaZooKeeper, selection: Selection) -> Topics:
    """The selected topics, with the configs that are set on them."""
    await znodes.sync()
    view = await read_znodes(znodes, selection.of(await znodes.topic_names()))
    of_topics = view.of_topics()
    configs = await znodes.configs.of_topics(list(of_topics))
    deletions = set(await znodes.topic_deletions())
    topics = {}
    for name, partitions in of_topics.items():
        own = configs[name]
        if isinstance(own, Exception):
            raise own
        unclean = own.get(UNCLEAN)
        topics[name] = TopicDescription(
            name,
            view.topic_ids.get(name),
            partitions,
            own,
            int(own[MIN_ISR]) if own.get(MIN_ISR, "").isdecimal() else None,
            None if unclean is None else unclean == "true",
            name in deletions,
        )
    return Topics(view, topics)


def check_configs(configs: Mapping[str, str], deleted: Sequence[str] = ()) -> None:
    """Raises ToolError for a key that is not a topic config, and for an invalid value."""
    unknown = [key for key in (*configs, *deleted) if key not in TOPIC_CONFIG_DEF.keys]
    problems = [f"{key} is not a topic config" for key in unknown] or override_problems(configs)
    if problems:
        raise ToolError("; ".join(problems))


async def create_topic(
    znodes: KafkaZooKeeper, topic: str, assignment: Mapping[int, Sequence[int]], configs: Mapping[str, str]
) -> None:
    """Creates the configuration and the topic, with an id. Raises KafkaError and ToolError."""
    check_configs(configs)
    collision = topic.replace(".", "_")
    others = await znodes.topic_names() if "_" in collision else []
    colliding = [other for other in others if other != topic and other.replace(".", "_") == collision]
    if colliding:
        raise ToolError(f"Topic '{topic}' collides with existing topics: {', '.join(colliding)}")
    environment = SystemEnvironment(blocking_workers=1)
    try:
        topic_id = environment.random_uuid()
    finally:
        environment.close()
    await znodes.create_topic(topic, {number: list(ids) for number, ids in assignment.items()}, topic_id, configs)


def check_assignments(changes: Sequence[Alteration], view: ClusterView) -> None:
    """Checks the new partitions as Kafka's AdminZkClient does. Raises ToolError."""
    existing = view.of_topics()
    for change in changes:
        if change.assignment is None:
            continue
        if change.topic in INTERNAL_TOPICS:
            raise ToolError(f"The number of partitions for the internal topic {change.topic} cannot be changed.")
        factor = len(existing[change.topic][0].origin)
        for number, replicas in change.assignment.items():
            if missing := [each for each in replicas if each not in view.brokers]:
                raise ToolError(f"brokers {missing} of partition {number} are not live")
            if len(replicas) != factor:
                raise ToolError(
                    "Inconsistent replication factor between partitions:"
                    f" partition 0 has {factor}, partition {number} would have {len(replicas)}"
                )


async def add_partitions(znodes: KafkaZooKeeper, change: Alteration) -> None:
    """Raises KafkaError."""
    if change.assignment is not None:
        await znodes.add_partitions(change.topic, change.assignment)


async def change_configs(znodes: KafkaZooKeeper, change: Alteration) -> None:
    """Sets and deletes single configs; the others stay. Raises KafkaError."""
    if not change.configs:
        return

    def changed(stored: dict[str, str]) -> dict[str, str]:
        kept = {key: value for key, value in stored.items() if key not in change.configs}
        return {**kept, **{key: value for key, value in change.configs.items() if value is not None}}

    await znodes.configs.update(topic_entity(change.topic), changed)


async def delete_topics(znodes: KafkaZooKeeper, names: Sequence[str]) -> dict[str, bool | KafkaError]:
    """Marks each topic for deletion: True if this call marked it. Raises ToolError for an internal topic."""
    if internal := [each for each in names if each in INTERNAL_TOPICS]:
        raise ToolError(f"Topic {internal[0]} is a kafka internal topic and is not allowed to be marked for deletion.")
    marked = await znodes.topic_deletions()
    results: dict[str, bool | KafkaError] = {}
    for name in names:
        try:
            if name not in marked:
                await znodes.mark_topic_for_deletion(name)
            results[name] = name not in marked
        except KafkaError as error:
            results[name] = error
    return results


def marked_lines(topic: str, is_new: bool) -> list[str]:
    """The lines of Kafka's tool about a topic that is marked for deletion now, or was marked already."""
    if not is_new:
        return [f"Topic {topic} is already marked for deletion."]
    return [
        f"Topic {topic} is marked for deletion.",
        "Note: This will have no impact if delete.topic.enable is not set to true.",
    ]
