"""The command line of `klamm topics`: parse, plan, show and ask, carry out.

A command that changes topics reads them first, shows the plan and asks. No ZooKeeper session waits for the answer. With
`--zookeeper` the work is done on the znodes.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.access.clients import error_line, succeeded
from klamm.access.properties import parse_pairs
from klamm.access.zookeeper import run_with_zookeeper
from klamm.cli.shared import interrupts
from klamm.cli.shared.clients import exit_incomplete
from klamm.cli.shared.confirm import Force, Yes, confirm
from klamm.cli.shared.options import Commands, TopicName, ZooKeeperOptions
from klamm.cli.shared.output import TABS, print_lines
from klamm.cli.topics.plans import (
    Alteration,
    Wanted,
    alteration_lines,
    alteration_value,
    alterations,
    assignment_lines,
    deletion_lines,
    parse_assignment,
    place_partitions,
    place_topic,
    question,
)
from klamm.cli.topics.selection import Selection, select
from klamm.processes.tool_errors import EXIT_INCOMPLETE, ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError

if TYPE_CHECKING:
    from klamm.cli.topics.over_brokers import Topics
    from klamm.client.cluster import ClusterClient
    from klamm.diagnosis.cluster_view import ClusterView, PartitionView
    from klamm.diagnosis.partition_health import Predicate
    from klamm.diagnosis.topic_descriptions import TopicDescription
    from klamm.znodes.store import KafkaZooKeeper

app = Commands("Create, list, describe, alter and delete topics.")

TopicPattern = Annotated[
    str,
    typer.Option(
        "--topic", help="The topic's name, or a regular expression for several. A possible name is not a pattern."
    ),
]
OptionalPattern = Annotated[
    str | None, typer.Option("--topic", help="The topic's name, or a regular expression for several.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Succeed even if the topic does not exist.")]
ExcludeInternal = Annotated[bool, typer.Option("--exclude-internal", help="Leave out the internal topics.")]
DisableRackAware = Annotated[
    bool,
    typer.Option("--disable-rack-aware", help="Place replicas without regard to racks; this command then places them."),
]

COLLISION_WARNING = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide."
    " To avoid issues it is best to use either, but not both."
)
KEY_WARNING = (
    "WARNING: If partitions are increased for a topic that has a key, the partition logic or ordering of the messages"
    " will be affected"
)

# -- create -----------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: klamm topics create --topic castle --partitions 6 --replication-factor 3")
def create(
    topic: TopicName,
    cluster: ZooKeeperOptions,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions; by default the broker's num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=32767, help="By default the broker's default.replication.factor.")
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="0:1,1:2", help="Brokers of each partition; replaces --partitions and --replication-factor."
        ),
    ] = None,
    disable_rack_aware: DisableRackAware = False,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A topic config; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option(help="Succeed even if the topic exists.")] = False,
) -> None:
    """Create a topic."""
    if replica_assignment is not None and (partitions or replication_factor):
        raise typer.BadParameter("replaces --partitions and --replication-factor", param_hint="--replica-assignment")
    given = dict(enumerate(parse_assignment(replica_assignment))) if replica_assignment else {}
    if (cluster.zookeeper is not None or disable_rack_aware) and not given and not (partitions and replication_factor):
        raise typer.BadParameter(
            "needs --partitions and --replication-factor, as this command places the replicas itself",
            param_hint="--disable-rack-aware" if cluster.zookeeper is None else "--zookeeper",
        )
    configs = parse_pairs("--config", config or [])
    if "." in topic or "_" in topic:
        _tell([COLLISION_WARNING])

    def place(view: "ClusterView") -> dict[int, list[int]]:
        """The assignment: the given one, or the one that this command makes."""
        import random

        if given or partitions is None or replication_factor is None:
            return given
        rack_aware = not disable_rack_aware
        placed = place_topic(view.brokers, partitions, replication_factor, random.SystemRandom(), rack_aware=rack_aware)
        _tell(assignment_lines(placed))
        return placed

    async def over_brokers(client: "ClusterClient") -> int | KafkaError:
        from klamm.client.admin.topics import NewTopic, create_topics
        from klamm.diagnosis.cluster_view import read_cluster
        from klamm.protocol.vocabulary import NO_NUM_PARTITIONS, NO_REPLICATION_FACTOR

        assignment = place(await read_cluster(client, [])) if disable_rack_aware else given
        wanted = NewTopic(
            topic,
            NO_NUM_PARTITIONS if assignment or partitions is None else partitions,
            NO_REPLICATION_FACTOR if assignment or replication_factor is None else replication_factor,
            assignment,
            dict(configs),
        )
        created = (await create_topics(client, [wanted]))[topic]
        return created if isinstance(created, KafkaError) else created.num_partitions

    async def over_znodes(znodes: "KafkaZooKeeper") -> int | KafkaError:
        from klamm.cli.topics import over_znodes
        from klamm.diagnosis.cluster_view import read_znodes

        if await znodes.topic_exists(topic):
            return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic}' already exists.")
        assignment = place(await read_znodes(znodes, []))
        try:
            await over_znodes.create_topic(znodes, topic, assignment, configs)
        except KafkaError as error:
            return error
        return len(assignment)

    interrupts.from_now_on(look=("topics", "describe", "--topic", topic))
    created = cluster.run(over_brokers, over_znodes)
    if if_not_exists and getattr(created, "code", None) == ErrorCode.TOPIC_ALREADY_EXISTS:
        cluster.show({"topic": topic, "created": False}, [])
        return
    cluster.show({"topic": topic, "partitions": succeeded(created), "created": True}, [f"Created topic {topic}."])


# -- list and describe ------------------------------------------------------------------------------------------------


@app.command("list", epilog="Example: klamm topics list --exclude-internal")
def list_topics(
    topic: OptionalPattern = None,
    *,
    cluster: ZooKeeperOptions,
    exclude_internal: ExcludeInternal = False,
) -> None:
    """List topics."""
    selection = select(topic, exclude_internal=exclude_internal)

    async def over_brokers(client: "ClusterClient") -> tuple[list[str], set[str]]:
        from klamm.client.admin.topics import describe_topics

        return selection.of(await describe_topics(client)), set()

    async def over_znodes(znodes: "KafkaZooKeeper") -> tuple[list[str], set[str]]:
        return selection.of(await znodes.topic_names()), set(await znodes.topic_deletions())

    names, deletions = cluster.run(over_brokers, over_znodes)
    cluster.show(names, (f"{name} - marked for deletion" if name in deletions else name for name in names))


@app.command(epilog="Example: klamm topics describe --under-replicated-partitions")
def describe(
    topic: OptionalPattern = None,
    *,
    cluster: ZooKeeperOptions,
    exclude_internal: ExcludeInternal = False,
    under_replicated_partitions: Annotated[
        bool, typer.Option(help="Only partitions with a replica out of sync.")
    ] = False,
    at_min_isr_partitions: Annotated[
        bool, typer.Option(help="Only partitions with exactly min.insync.replicas in sync.")
    ] = False,
    under_min_isr_partitions: Annotated[
        bool, typer.Option(help="Only partitions with fewer than min.insync.replicas in sync.")
    ] = False,
    unavailable_partitions: Annotated[bool, typer.Option(help="Only partitions without a live leader.")] = False,
    off_preferred_partitions: Annotated[
        bool, typer.Option(help="Only partitions led by another replica than the preferred.")
    ] = False,
    topics_with_overrides: Annotated[
        bool, typer.Option(help="Only topics whose configs differ from the default.")
    ] = False,
    if_exists: IfExists = False,
) -> None:
    """Describe topics and their partitions. With several filters, partitions that match any of them."""
    from klamm.diagnosis.partition_health import NEED_MIN_ISR, Predicate
    from klamm.diagnosis.topic_descriptions import chosen, topic_value

    asked = {
        Predicate.UNDER_REPLICATED: under_replicated_partitions,
        Predicate.AT_MIN_ISR: at_min_isr_partitions,
        Predicate.UNDER_MIN_ISR: under_min_isr_partitions,
        Predicate.UNAVAILABLE: unavailable_partitions,
        Predicate.OFF_PREFERRED: off_preferred_partitions,
    }
    filters = [each for each, is_asked in asked.items() if is_asked]
    if topics_with_overrides and filters:
        raise typer.BadParameter("shows topics, not partitions", param_hint="--topics-with-overrides")
    for each in filters:
        if cluster.zookeeper is not None and each in NEED_MIN_ISR:
            raise typer.BadParameter(
                "not with --zookeeper: only brokers know min.insync.replicas", param_hint=each.option
            )
    selection = select(topic, exclude_internal=exclude_internal)
    silent: dict[int, str] = {}

    unread: dict[str, str] = {}

    def shown(found: "Topics") -> dict[str, list[int]]:
        selection.require(found.topics, if_exists=if_exists)
        if not filters:
            return {name: list(each.partitions) for name, each in found.topics.items()}
        numbers = {name: list(chosen(each, filters, found.live)) for name, each in found.topics.items()}
        return {name: of_topic for name, of_topic in numbers.items() if of_topic}

    async def over_brokers(client: "ClusterClient") -> "tuple[Mapping[str, TopicDescription], dict[str, list[int]]]":
        from klamm.cli.topics.deletions import with_deletions
        from klamm.cli.topics.over_brokers import explain, read_topics

        found = await with_deletions(client, await read_topics(client, selection), selection)
        numbers = shown(found)
        topics, quiet = await explain(client, found, numbers, about_preferred=off_preferred_partitions)
        silent.update(quiet)
        return topics, numbers

    async def over_znodes(znodes: "KafkaZooKeeper") -> "tuple[Mapping[str, TopicDescription], dict[str, list[int]]]":
        from klamm.cli.topics.over_znodes import read_topics
        from klamm.diagnosis.reasons import explained

        found = await read_topics(znodes, selection)
        unread.update(found.view.unread)
        numbers = shown(found)
        about_preferred = off_preferred_partitions
        return {
            name: explained(found.topics[name], of_topic, found.live, {}, about_preferred=about_preferred)
            for name, of_topic in numbers.items()
        }, numbers

    topics, numbers = cluster.run(over_brokers, over_znodes)
    if topics_with_overrides:
        topics = {name: each for name, each in topics.items() if each.configs}
        numbers = {name: [] for name in topics}
    cluster.show(
        [topic_value(each, numbers[name]) for name, each in topics.items()],
        _description_lines(topics, numbers, filters),
        keep=TABS,
    )
    exit_incomplete(silent)
    if unread:
        raise typer.Exit(EXIT_INCOMPLETE)


def _description_lines(
    topics: "Mapping[str, TopicDescription]", numbers: Mapping[str, Sequence[int]], filters: "Sequence[Predicate]"
) -> Iterator[str]:
    from klamm.diagnosis.topic_descriptions import partition_lines, topic_line

    for name, each in topics.items():
        if not filters:
            yield topic_line(each)
        yield from partition_lines(each, numbers[name])


# -- alter ------------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: klamm topics alter --topic castle --partitions 12 --config retention.ms=86400000")
def alter(
    topic: TopicPattern,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="The new number of partitions; must be larger than the present one.")
    ] = None,
    *,
    cluster: ZooKeeperOptions,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="0:1,1:2", help="Brokers of each partition. Existing partitions are included, and are not moved."
        ),
    ] = None,
    disable_rack_aware: DisableRackAware = False,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A topic config to set; may be repeated.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A topic config to delete; may be repeated.")
    ] = None,
    if_exists: IfExists = False,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Add partitions to topics, and set or delete topic configs."""
    wanted = Wanted(
        partitions,
        None if replica_assignment is None else parse_assignment(replica_assignment),
        parse_pairs("--config", config or []),
        [key.strip() for key in delete_config or []],
    )
    if partitions is None and not (wanted.configs or wanted.deleted_configs):
        raise typer.BadParameter("give --partitions, --config or --delete-config", param_hint="alter")
    if partitions is None and (wanted.assignment or disable_rack_aware):
        raise typer.BadParameter(
            "needs --partitions", param_hint="--replica-assignment" if wanted.assignment else "--disable-rack-aware"
        )
    selection = select(topic, only_marked_patterns=True)
    pattern: list[str] = []

    def plan(view: "ClusterView", *, place: bool) -> list[Alteration]:
        from dataclasses import replace

        existing = _selected(view, selection, if_exists)
        pattern.extend(selection.pattern_lines(view.of_topics()))
        return [
            replace(
                each,
                assignment=place_partitions(
                    view.brokers, existing[each.topic], each.partitions, rack_aware=not disable_rack_aware
                ),
            )
            if place and each.partitions is not None and each.assignment is None
            else each
            for each in alterations(existing, wanted)
        ]

    def ask(changes: Sequence[Alteration], configs: Mapping[str, Mapping[str, str | None]]) -> None:
        lines = [line for each in changes for line in alteration_lines(each, configs.get(each.topic, {}))]
        warning = [KEY_WARNING] if any(each.partitions is not None for each in changes) else []
        topics = question("Alter", [each.topic for each in changes])
        confirm([*pattern, *lines, *warning], topics, yes=yes or force, keep=TABS)

    if cluster.zookeeper is None:
        errors = _alter_over_brokers(partial(plan, place=disable_rack_aware), ask, wanted, cluster)
    else:
        errors = _alter_over_znodes(partial(plan, place=True), ask, wanted, cluster.zookeeper)
    cluster.show([alteration_value(each, error) for each, error in errors], _altered_lines(errors))
    _raise_errors({each.topic: error for each, error in errors})


Altered = list[tuple[Alteration, str | None]]
Ask = Callable[[Sequence[Alteration], Mapping[str, Mapping[str, str | None]]], None]


def _altered_lines(errors: Altered) -> Iterator[str]:
    for each, error in errors:
        if error is None and each.configs:
            yield f"Updated config for topic {each.topic}."
        if error is None and each.partitions is not None:
            yield "Adding partitions succeeded!"


def _alter_over_brokers(
    plan: "Callable[[ClusterView], list[Alteration]]", ask: Ask, wanted: Wanted, cluster: ZooKeeperOptions
) -> Altered:
    from klamm.cli.topics.over_brokers import add_partitions, change_configs, own_configs
    from klamm.diagnosis.cluster_view import read_cluster

    with cluster.client() as client:
        changes = plan(client.call(read_cluster, needs_reassignments=False))
        if not changes:
            return []
        names = [each.topic for each in changes if each.configs]
        own = client.call(own_configs, names, wanted.deleted_configs)
        # The brokers check all changes before the question, so that the answer yes does not lead to half of them.
        for check in (change_configs, add_partitions):
            for error in client.call(check, changes, validate_only=True).values():
                succeeded(error)
        ask(changes, own)
        errors: dict[str, str] = {}
        for change in (change_configs, add_partitions):
            for name, error in client.call(change, changes).items():
                if error is not None:
                    errors.setdefault(name, error_line(error))
    return [(each, errors.get(each.topic)) for each in changes]


def _alter_over_znodes(
    plan: "Callable[[ClusterView], list[Alteration]]", ask: Ask, wanted: Wanted, connect: str
) -> Altered:
    from klamm.cli.topics import over_znodes
    from klamm.diagnosis.cluster_view import read_znodes

    over_znodes.check_configs(wanted.configs, wanted.deleted_configs)

    async def read(znodes: "KafkaZooKeeper") -> "tuple[ClusterView, dict[str, Any]]":
        await znodes.sync()
        return await read_znodes(znodes), dict(await znodes.configs.of_topics(await znodes.topic_names()))

    view, configs = run_with_zookeeper(connect, read)
    changes = plan(view)
    if not changes:
        return []
    over_znodes.check_assignments(changes, view)
    ask(changes, {name: own for name, own in configs.items() if isinstance(own, Mapping)})

    async def write(znodes: "KafkaZooKeeper") -> Altered:
        done: Altered = []
        for each in changes:
            try:
                await over_znodes.change_configs(znodes, each)
                await over_znodes.add_partitions(znodes, each)
                done.append((each, None))
            except KafkaError as error:
                done.append((each, error_line(error)))
        return done

    return run_with_zookeeper(connect, write)


# -- delete -----------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: klamm topics delete --topic 'castle-.*' --yes")
def delete(
    topic: TopicPattern,
    cluster: ZooKeeperOptions,
    if_exists: IfExists = False,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Delete topics with all their records."""
    selection = select(topic, only_marked_patterns=True)
    marked: dict[str, list[str]] = {}
    errors: dict[str, str | None] = {}

    def ask(view: "ClusterView") -> list[str]:
        found = _selected(view, selection, if_exists)
        if found:
            lines = [*selection.pattern_lines(view.of_topics()), *deletion_lines(found)]
            confirm(lines, question("Delete", list(found)), yes=yes or force, keep=TABS)
        return list(found)

    if cluster.zookeeper is None:
        from klamm.client.admin.topics import delete_topics
        from klamm.diagnosis.cluster_view import read_cluster

        with cluster.client() as client:
            if names := ask(client.call(read_cluster, needs_reassignments=False)):
                for name, error in client.call(delete_topics, names).items():
                    errors[name] = None if error is None else error_line(error)
    else:
        from klamm.cli.topics import over_znodes
        from klamm.diagnosis.cluster_view import read_znodes

        names = ask(run_with_zookeeper(cluster.zookeeper, read_znodes))
        for name, outcome in run_with_zookeeper(
            cluster.zookeeper, partial(over_znodes.delete_topics, names=names)
        ).items():
            errors[name] = error_line(outcome) if isinstance(outcome, KafkaError) else None
            marked[name] = [] if isinstance(outcome, KafkaError) else over_znodes.marked_lines(name, outcome)
    cluster.show(
        [{"topic": name, "error": error} for name, error in errors.items()],
        (line for of_topic in marked.values() for line in of_topic),
    )
    _raise_errors(errors)


# -- shared by the commands -------------------------------------------------------------------------------------------


def _selected(view: "ClusterView", selection: Selection, if_exists: bool) -> "dict[str, dict[int, PartitionView]]":
    of_topics = view.of_topics()
    selection.require(of_topics, if_exists=if_exists)
    return {name: of_topics[name] for name in selection.of(of_topics)}


def _raise_errors(errors: Mapping[str, str | None]) -> None:
    """Raises ToolError if there is an error. The message names the topics if there are several."""
    failed = {name: error for name, error in errors.items() if error is not None}
    if failed and len(errors) == 1:
        raise ToolError(next(iter(failed.values())))
    if failed:
        raise ToolError("; ".join(f"topic {name}: {error}" for name, error in failed.items()))


def _tell(lines: Iterable[str]) -> None:
    print_lines(lines, keep=TABS, file=sys.stderr)
