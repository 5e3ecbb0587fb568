"""The commands `klamm elect preferred` and `klamm elect unclean`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.access.zookeeper import run_with_zookeeper
from klamm.base.words import counted
from klamm.cli.shared.confirm import Yes, confirm
from klamm.cli.shared.options import ClusterOptions, Commands, ZooKeeperOptions
from klamm.cli.shared.output import print_line
from klamm.diagnosis.election_plans import DEFAULT_MAX_LAG
from klamm.processes.tool_errors import EXIT_INCOMPLETE, ToolError
from klamm.protocol.vocabulary import ElectionType, TopicPartition

if TYPE_CHECKING:
    from klamm.cli.elect.batches import Event, Pace
    from klamm.client.cluster import ClusterClient
    from klamm.diagnosis.cluster_view import ClusterView
    from klamm.diagnosis.election_plans import Scope
    from klamm.znodes.store import KafkaZooKeeper

app = Commands("Elect the leaders of partitions.")

DEFAULT_BATCH_SIZE: Final = 100
DEFAULT_TIMEOUT_MS: Final = 60_000

BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="How many partitions are elected at a time.")]
Timeout = Annotated[
    int, typer.Option("--timeout", min=1, metavar="MS", help="How long a batch may take until its ISRs have settled.")
]
AdminConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config", "--admin.config", metavar="FILE", help="Client properties, as Kafka's tools take them."
    ),
]


@dataclass(frozen=True)
class ScopeOptions:
    """The partitions that elect a leader."""

    all_topic_partitions: Annotated[bool, typer.Option(help="All partitions of the cluster.")] = False
    topic: Annotated[str | None, typer.Option(help="The topic; all its partitions, or those of --partition.")] = None
    partition: Annotated[list[int] | None, typer.Option(min=0, help="A partition of --topic. May be repeated.")] = None
    path_to_json_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='The partitions, as {"partitions": [{"topic": "t", "partition": 0}]}.'),
    ] = None

    def scope(self) -> "Scope":
        """Raises typer.BadParameter, ToolError and OSError."""
        from klamm.diagnosis.election_plans import Scope, parse_partitions

        topic, numbers, file = self.topic, self.partition, self.path_to_json_file
        if self.all_topic_partitions + (topic is not None) + (file is not None) != 1:
            raise typer.BadParameter(
                "One and only one of the following options is required:"
                " --topic, --all-topic-partitions, --path-to-json-file",
                param_hint="partitions",
            )
        if numbers and topic is None:
            raise typer.BadParameter("is only allowed if --topic is used", param_hint="--partition")
        if file is not None:
            return Scope(partitions=parse_partitions(file.read_bytes()))
        if numbers and topic is not None:
            return Scope(partitions=[TopicPartition(topic, number) for number in sorted(set(numbers))])
        return Scope(topic)


@dataclass(frozen=True)
class PreferredOptions(ZooKeeperOptions):
    """The cluster of `preferred`. As in Kafka's tool, --command-config may also be written --admin.config."""

    command_config: AdminConfig = None


@dataclass(frozen=True)
class UncleanOptions(ClusterOptions):
    """The cluster of `unclean`."""

    command_config: AdminConfig = None


@app.command(epilog="Example: klamm elect preferred --all-topic-partitions --batch-size 50")
def preferred(
    named: ScopeOptions,
    cluster: PreferredOptions,
    batch_size: BatchSize = DEFAULT_BATCH_SIZE,
    max_lag: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="RECORDS",
            help=f"How far behind its leader a replica may be to be elected.  [default: {DEFAULT_MAX_LAG}]",
        ),
    ] = None,
    timeout: Timeout = DEFAULT_TIMEOUT_MS,
    yes: Yes = False,
) -> None:
    """Give partitions back to their preferred leaders, batch by batch. Only replicas in the ISR are elected."""
    from klamm.cli.elect.batches import Pace, elect_preferred
    from klamm.diagnosis.election_plans import preferred_lines, preferred_plan

    scope = named.scope()
    if cluster.zookeeper is not None and max_lag is not None:
        raise typer.BadParameter("not with --zookeeper: only brokers know the lag", param_hint="--max-lag")
    pace = Pace(batch_size, timeout, DEFAULT_MAX_LAG if max_lag is None else max_lag)
    report = Reporter(ElectionType.PREFERRED, cluster.as_json)

    def ask(view: "ClusterView") -> list[TopicPartition]:
        """Shows the plan and asks. Returns the partitions to elect, after the answer yes."""
        report.unread = view.unread
        plan = preferred_plan(view, scope.of(view))
        report.beforehand(plan.not_needed if not scope.is_open else [], plan.refused)
        if plan.due:
            question = f"Elect the preferred leaders of {counted(len(plan.due), 'partition')}?"
            confirm(preferred_lines(view, plan.due, pace.batch_size), question, yes=yes)
        return plan.due

    if cluster.zookeeper is None:
        with cluster.client() as client:
            from klamm.cli.elect.over_brokers import BrokerElections
            from klamm.diagnosis.cluster_view import read_cluster

            due = ask(client.call(read_cluster, scope.topics, needs_reassignments=False))

            async def over_brokers(client: "ClusterClient") -> int:
                return await elect_preferred(BrokerElections(client, ElectionType.PREFERRED), due, pace, report)

            failed = client.call(over_brokers) if due else 0
    else:
        failed = _elect_over_znodes(cluster.zookeeper, scope, ask, pace, report)
    report.end(failed)


def _elect_over_znodes(connect: str, scope: "Scope", ask: Any, pace: "Pace", report: "Reporter") -> int:
    from klamm.cli.elect.batches import elect_preferred
    from klamm.cli.elect.over_znodes import ZnodeElections
    from klamm.diagnosis.cluster_view import read_znodes

    async def read(znodes: "KafkaZooKeeper") -> "ClusterView":
        await znodes.sync()
        return await read_znodes(znodes, scope.topics)

    due = ask(run_with_zookeeper(connect, read))

    async def elect(znodes: "KafkaZooKeeper") -> int:
        return await elect_preferred(ZnodeElections(znodes, pace.timeout_ms, report.tell), due, pace, report)

    return run_with_zookeeper(connect, elect) if due else 0


@app.command(epilog="Example: klamm elect unclean --topic orders --partition 3")
def unclean(
    named: ScopeOptions,
    cluster: UncleanOptions,
    batch_size: BatchSize = DEFAULT_BATCH_SIZE,
    timeout: Timeout = DEFAULT_TIMEOUT_MS,
    yes: Yes = False,
) -> None:
    """Elect leaders outside the ISR for partitions without a leader. Records that only the ISR has are lost.

    The plan says for each partition how many records are known to be lost.
    """
    from klamm.cli.elect.batches import Pace, elect_unclean
    from klamm.cli.elect.over_brokers import BrokerElections
    from klamm.diagnosis.election_plans import Scope, grown_losses, loss_value, unclean_lines
    from klamm.diagnosis.log_ends import read_unclean_plan

    scope = named.scope()
    pace = Pace(batch_size, timeout)
    report = Reporter(ElectionType.UNCLEAN, cluster.as_json)
    with cluster.client() as client:
        _, plan = client.call(read_unclean_plan, scope)
        report.beforehand(plan.not_needed if not scope.is_open else [], plan.refused)
        due = list(plan.due)
        if due:
            if cluster.as_json:
                losses = [loss_value(*each) for each in plan.due.items()]
                report.print_json({"event": "plan", "partitions": losses, "may_lose_more": plan.may_lose_more})
            question = f"Elect leaders of {counted(len(due), 'partition')} that may lack records?"
            confirm(unclean_lines(plan), question, yes=yes)
            # While the user decided, brokers may have gone or come back.
            _, now = client.call(read_unclean_plan, Scope(partitions=due))
            grown = grown_losses(plan, now)
            report.beforehand(now.not_needed, now.refused | grown)
            due = [each for each in now.due if each not in grown]

        async def over_brokers(client: "ClusterClient") -> int:
            return await elect_unclean(BrokerElections(client, ElectionType.UNCLEAN), due, pace, report)

        failed = client.call(over_brokers) if due else 0
    report.end(failed)


class Reporter:
    """Prints the results of partitions: Kafka's lines, or with `as_json` a line of JSON for each event."""

    def __init__(self, election_type: ElectionType, as_json: bool) -> None:
        self._type = election_type.name
        self._as_json = as_json
        self._failed = 0
        # The topics and brokers that could not be read, and why.
        self.unread: Mapping[str, str] = {}

    def __call__(self, event: "Event") -> None:
        if self._as_json:
            self.print_json(event.value())
            return
        from klamm.diagnosis.election_plans import named

        names = named(event.partitions)
        match event.name:
            case "elected":
                self.tell(f"Successfully completed leader election ({self._type}) for partitions {names}")
            case "not_needed":
                self.tell(f"Valid replica already elected for partitions {names}")
            case _:
                self.tell(f"Error completing leader election ({self._type}) for partition: {names}: {event.reason}")

    def beforehand(self, not_needed: Sequence[TopicPartition], refused: dict[TopicPartition, str]) -> None:
        """Reports partitions that need no election, and partitions that cannot have one."""
        from klamm.cli.elect.batches import Event

        if not_needed:
            self(Event("not_needed", not_needed))
        for partition, reason in refused.items():
            self(Event("failed", [partition], reason))
        self._failed += len(refused)

    def end(self, failed: int) -> None:
        """Raises ToolError if a partition has failed. Ends the command if some were left out."""
        if failed := failed + self._failed:
            raise ToolError(f"{failed} replica(s) could not be elected")
        if self.unread:
            raise typer.Exit(EXIT_INCOMPLETE)

    def tell(self, line: str) -> None:
        """Prints a line of Kafka's tool, unless the output is JSON."""
        if not self._as_json:
            print_line(line, flush=True)

    def print_json(self, value: Any) -> None:
        print_line(json.dumps(value), flush=True)
