"""`klamm topics`: kafka-topics' work over the wire protocol, for any Kafka cluster.

Each command asks the cluster, prints, and ends. Pure functions turn the answers into output. The output of `describe`
is that of Kafka's tool, character for character.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.processes.errors import ToolError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.vocabulary import INTERNAL_TOPICS, ConfigResourceType
from klamm.tools.clients import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TopicName,
    run_with_client,
    succeeded,
)
from klamm.tools.properties import parse_pairs

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.client.cluster import ClusterClient, TopicMetadata
    from klamm.client.topics import CreatedTopic
    from klamm.protocol.errors import KafkaError

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True, rich_markup_mode=None)

TopicPattern = Annotated[str, typer.Option("--topic", help="The topic's name, or a regular expression for several.")]
OptionalPattern = Annotated[
    str | None, typer.Option("--topic", help="The topic's name, or a regular expression for several.")
]
ReplicaAssignment = Annotated[
    str | None,
    typer.Option(
        "--replica-assignment",
        metavar="0:1,1:2",
        help="Brokers of each partition; replaces --partitions and --replication-factor.",
    ),
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Succeed even if the topic does not exist.")]
ExcludeInternal = Annotated[bool, typer.Option("--exclude-internal", help="Leave out the internal topics.")]

# -- the commands -------------------------------------------------------------------------------------------------


@app.command()
def create(
    topic: TopicName,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions; by default the broker's num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=32767, help="By default the broker's default.replication.factor.")
    ] = None,
    replica_assignment: ReplicaAssignment = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A topic config; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed even if the topic exists.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    if replica_assignment is not None and (partitions or replication_factor):
        raise typer.BadParameter("replaces --partitions and --replication-factor", param_hint="--replica-assignment")
    assignment = dict(enumerate(parse_assignment(replica_assignment))) if replica_assignment else {}
    configs = parse_pairs("--config", config or [])

    async def work(client: "ClusterClient") -> "CreatedTopic | KafkaError":
        from klamm.client.topics import NewTopic, create_topics
        from klamm.protocol.vocabulary import NO_NUM_PARTITIONS, NO_REPLICATION_FACTOR

        wanted = NewTopic(
            topic,
            partitions or NO_NUM_PARTITIONS,
            replication_factor or NO_REPLICATION_FACTOR,
            assignment,
            dict(configs),
        )
        return (await create_topics(client, [wanted]))[topic]

    created = run_with_client(bootstrap_server, command_config, work)
    if if_not_exists and getattr(created, "code", None) == ErrorCode.TOPIC_ALREADY_EXISTS:
        return
    created = succeeded(created)
    if as_json:
        _print_json({"topic": topic, "partitions": created.num_partitions, "created": True})
    else:
        print(f"Created topic {topic}.")


@app.command("list")
def list_topics(
    topic: OptionalPattern = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    exclude_internal: ExcludeInternal = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List topics."""
    names = list(run_with_client(bootstrap_server, command_config, partial(_matching, topic, exclude_internal)))
    if as_json:
        _print_json(names)
    else:
        for name in names:
            print(name)


@app.command()
def describe(
    topic: OptionalPattern = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    exclude_internal: ExcludeInternal = False,
    under_replicated_partitions: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with a replica out of sync.")
    ] = False,
    unavailable_partitions: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    if_exists: IfExists = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Describe topics and their partitions."""

    async def work(client: "ClusterClient") -> list[dict[str, Any]]:
        found = await _matching(topic, exclude_internal, client)
        _require_found(topic, found, if_exists)
        configs = await _changed_configs(client, found)
        return [described(name, succeeded(found[name]), configs[name]) for name in found]

    descriptions = run_with_client(bootstrap_server, command_config, work)
    only_some = under_replicated_partitions or unavailable_partitions
    for each in descriptions:
        each["partitions"] = [
            partition
            for partition in each["partitions"]
            if not only_some
            or (under_replicated_partitions and len(partition["isr"]) < len(partition["replicas"]))
            or (unavailable_partitions and partition["leader"] < 0)
        ]
    if as_json:
        _print_json([each for each in descriptions if each["partitions"] or not only_some])
    else:
        for line in description_lines(descriptions, with_topics=not only_some):
            print(line)


@app.command()
def alter(
    topic: TopicPattern,
    partitions: Annotated[
        int, typer.Option(min=1, help="The new number of partitions; must be larger than the present one.")
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    replica_assignment: ReplicaAssignment = None,
    if_exists: IfExists = False,
    command_config: CommandConfig = None,
) -> None:
    """Add partitions to topics."""
    assignment = parse_assignment(replica_assignment) if replica_assignment is not None else None

    async def work(client: "ClusterClient") -> "dict[str, KafkaError | None]":
        from klamm.client.topics import NewPartitions, create_partitions

        found = await _matching(topic, False, client)
        _require_found(topic, found, if_exists)
        # As in Kafka's tool the option names the brokers of all partitions; the request holds only the new partitions.
        wanted = {
            name: NewPartitions(partitions, assignment and assignment[len(succeeded(each).partitions) :])
            for name, each in found.items()
        }
        return await create_partitions(client, wanted)

    for result in run_with_client(bootstrap_server, command_config, work).values():
        succeeded(result)


@app.command()
def delete(
    topic: TopicPattern,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    if_exists: IfExists = False,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics."""

    async def work(client: "ClusterClient") -> "dict[str, KafkaError | None]":
        from klamm.client.topics import delete_topics

        found = await _matching(topic, False, client)
        _require_found(topic, found, if_exists)
        return await delete_topics(client, found)

    for result in run_with_client(bootstrap_server, command_config, work).values():
        succeeded(result)


# -- requests and output ------------------------------------------------------------------------------------------


def parse_assignment(text: str) -> list[list[int]]:
    """The brokers of each partition from "0:1,1:2". Raises typer.BadParameter."""
    try:
        assignment = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form broker:broker,broker:broker", param_hint="--replica-assignment"
        ) from None
    for number, brokers in enumerate(assignment):
        if len(set(brokers)) < len(brokers):
            raise typer.BadParameter(f"partition {number} has a broker twice", param_hint="--replica-assignment")
        if len(brokers) != len(assignment[0]):
            raise typer.BadParameter(
                "every partition must have the same number of brokers", param_hint="--replica-assignment"
            )
    return assignment


def described(name: str, topic: "TopicMetadata", configs: Mapping[str, str | None]) -> dict[str, Any]:
    """A topic as plain values, its partitions in order."""
    partitions = sorted(topic.partitions.items())
    return {
        "topic": name,
        "topic_id": None if topic.topic_id is None else base64_uuid(topic.topic_id),
        "replication_factor": len(partitions[0][1].replicas) if partitions else 0,
        "partition_count": len(partitions),
        "configs": dict(configs),
        "partitions": [
            {"partition": number, "leader": each.leader, "replicas": list(each.replicas), "isr": list(each.isr)}
            for number, each in partitions
        ],
    }


def base64_uuid(identifier: "UUID") -> str:
    """A UUID as Kafka writes it: url-safe base64 without padding."""
    import base64

    return base64.urlsafe_b64encode(identifier.bytes).decode().rstrip("=")


def description_lines(descriptions: Iterable[Mapping[str, Any]], *, with_topics: bool = True) -> Iterator[str]:
    """The lines that kafka-topics --describe prints."""
    for topic in descriptions:
        if with_topics:
            identifier = f"TopicId: {topic['topic_id']}\t" if topic["topic_id"] else ""
            configs = ",".join(f"{key}={value}" for key, value in topic["configs"].items())
            yield (
                f"Topic: {topic['topic']}\t{identifier}PartitionCount: {topic['partition_count']}"
                f"\tReplicationFactor: {topic['replication_factor']}\tConfigs: {configs}"
            )
        for partition in topic["partitions"]:
            leader = "none" if partition["leader"] < 0 else partition["leader"]
            yield (
                f"\tTopic: {topic['topic']}\tPartition: {partition['partition']}\tLeader: {leader}"
                f"\tReplicas: {_joined(partition['replicas'])}\tIsr: {_joined(partition['isr'])}"
            )


def _joined(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


async def _matching(
    pattern: str | None, exclude_internal: bool, client: "ClusterClient"
) -> "dict[str, TopicMetadata | KafkaError]":
    """The cluster's topics whose whole name matches, by name."""
    from klamm.client.topics import describe_topics

    try:
        # As in Kafka's tool, commas separate alternatives and quotes are ignored.
        expression = None if pattern is None else re.compile(pattern.strip("\"' ").replace(",", "|"))
    except re.error as error:
        raise typer.BadParameter(
            f"{pattern!r} is not a valid regular expression: {error}", param_hint="--topic"
        ) from None
    return {
        name: topic
        for name, topic in sorted((await describe_topics(client)).items())
        if not (exclude_internal and name in INTERNAL_TOPICS) and (expression is None or expression.fullmatch(name))
    }


def _require_found(pattern: str | None, found: Collection[str], if_exists: bool) -> None:
    if pattern is not None and not found and not if_exists:
        raise ToolError(f"Topic '{pattern}' does not exist as expected")


async def _changed_configs(client: "ClusterClient", topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """The configs of each topic that differ from the default, in the broker's order."""
    from klamm.client.configs import ConfigResource, describe_configs
    from klamm.config.definition import ConfigSource

    answers = await describe_configs(client, [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics])
    return {
        resource.name: {
            entry.name: entry.value
            for entry in succeeded(entries).values()
            if entry.source is not ConfigSource.DEFAULT_CONFIG
        }
        for resource, entries in answers.items()
    }


def _print_json(value: Any) -> None:
    print(json.dumps(value))
