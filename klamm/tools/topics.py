"""`klamm topics`: kafka-topics' work over the wire protocol, for any Kafka cluster.

Each command asks the cluster, prints, and ends. Pure functions turn the answers into output. The output of `describe`
is that of Kafka's tool, character for character.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from klamm.processes.errors import ToolError
from klamm.tools.clients import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TopicName,
    client_errors,
    client_options,
    connected,
    explain_code,
)
from klamm.tools.properties import parse_pairs

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

ZERO_UUID = "00000000-0000-0000-0000-000000000000"
TOPIC_ALREADY_EXISTS = 36


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
    wanted = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "assignments": dict(enumerate(parse_assignment(replica_assignment))) if replica_assignment else {},
        "configs": parse_pairs("--config", config or []),
    }
    with connect(bootstrap_server, command_config) as admin:
        answer = admin.create_topics({topic: wanted}, raise_errors=False)["topics"][0]
    code = answer["error_code"]
    if code == TOPIC_ALREADY_EXISTS and if_not_exists:
        return
    _check(code, answer.get("error_message"))
    if as_json:
        _print_json({"topic": topic, "partitions": answer.get("num_partitions"), "created": True})
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
    with connect(bootstrap_server, command_config) as admin:
        names = [each["name"] for each in _matching(admin, topic, exclude_internal)]
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
    with connect(bootstrap_server, command_config) as admin:
        found = _matching(admin, topic, exclude_internal)
        _require_found(topic, found, if_exists)
        configs = _changed_configs(admin, [each["name"] for each in found])
    only_some = under_replicated_partitions or unavailable_partitions
    descriptions = [described(each, configs[each["name"]]) for each in found]
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
    with connect(bootstrap_server, command_config) as admin:
        found = _matching(admin, topic, False)
        _require_found(topic, found, if_exists)
        wanted = {each["name"]: _growth(each, partitions, assignment) for each in found}
        answers = admin.create_partitions(wanted, raise_errors=False).results if wanted else []
    for answer in answers:
        _check(answer.error_code, answer.error_message)


@app.command()
def delete(
    topic: TopicPattern,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    if_exists: IfExists = False,
    command_config: CommandConfig = None,
) -> None:
    """Delete topics."""
    with connect(bootstrap_server, command_config) as admin:
        names = [each["name"] for each in _matching(admin, topic, False)]
        _require_found(topic, names, if_exists)
        answers = admin.delete_topics(names, raise_errors=False)["topics"] if names else []
    for answer in answers:
        _check(answer["error_code"], answer.get("error_message"))


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


def described(topic: Mapping[str, Any], configs: Mapping[str, str]) -> dict[str, Any]:
    """A topic of a metadata response as plain values, its partitions in order."""
    identifier = topic.get("topic_id")
    partitions = sorted(topic["partitions"], key=lambda partition: int(partition["partition_index"]))
    return {
        "topic": topic["name"],
        "topic_id": None if identifier is None or str(identifier) == ZERO_UUID else base64_uuid(str(identifier)),
        "replication_factor": len(partitions[0]["replica_nodes"]) if partitions else 0,
        "partition_count": len(partitions),
        "configs": dict(configs),
        "partitions": [
            {
                "partition": partition["partition_index"],
                "leader": partition["leader_id"],
                "replicas": list(partition["replica_nodes"]),
                "isr": list(partition["isr_nodes"]),
            }
            for partition in partitions
        ],
    }


def base64_uuid(text: str) -> str:
    """A UUID as Kafka writes it: url-safe base64 without padding."""
    import base64
    import uuid

    return base64.urlsafe_b64encode(uuid.UUID(text).bytes).decode().rstrip("=")


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


def _growth(topic: Mapping[str, Any], partitions: int, assignment: list[list[int]] | None) -> Any:
    if assignment is None:
        return partitions
    # As in Kafka's tool the option names the brokers of all partitions; the request holds only the new partitions.
    return {"count": partitions, "assignments": assignment[len(topic["partitions"]) :]}


def _matching(admin: Any, pattern: str | None, exclude_internal: bool) -> list[dict[str, Any]]:
    """The cluster's topics whose whole name matches, by name."""
    found = sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    if exclude_internal:
        found = [topic for topic in found if not topic["is_internal"]]
    if pattern is None:
        return found
    try:
        # As in Kafka's tool, commas separate alternatives and quotes are ignored.
        expression = re.compile(pattern.strip("\"' ").replace(",", "|"))
    except re.error as error:
        raise typer.BadParameter(
            f"{pattern!r} is not a valid regular expression: {error}", param_hint="--topic"
        ) from None
    return [topic for topic in found if expression.fullmatch(topic["name"])]


def _require_found(pattern: str | None, found: Sequence[Any], if_exists: bool) -> None:
    if pattern is not None and not found and not if_exists:
        raise ToolError(f"Topic '{pattern}' does not exist as expected")


def _changed_configs(admin: Any, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The configs of each topic that differ from the default, in the broker's order."""
    from kafka.admin import ConfigResource, ConfigResourceType

    if not topics:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    answers = admin.describe_configs(resources, config_filter="all")
    return {
        name: {key: config["value"] for key, config in configs.items() if not _is_default(config)}
        for by_name in answers.values()
        for name, configs in by_name.items()
    }


def _is_default(config: Mapping[str, Any]) -> bool:
    return config.get("config_source") == "DEFAULT_CONFIG"


def _check(code: int, message: str | None) -> None:
    if code:
        raise ToolError(explain_code(code, message))


def _print_json(value: Any) -> None:
    print(json.dumps(value))


@contextmanager
def connect(bootstrap_server: str, command_config: Any) -> Iterator[Any]:
    """kafka-python's admin client; its errors become ToolErrors."""
    options = client_options(bootstrap_server, command_config)
    from kafka.admin import KafkaAdminClient

    with client_errors():
        admin = connected(KafkaAdminClient, options)
        try:
            yield admin
        finally:
            admin.close()
