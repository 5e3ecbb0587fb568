"""`klamm reassign generate`: a plan for a goal. It changes nothing in the cluster.

stdout has the current and the proposed placements, as Kafka's tool prints them. stderr says what the plan does to each
broker, how much it copies, and which replicas cannot move.
"""

import json
import sys
from dataclasses import replace as copied
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.reassign.options import Reached
from klamm.cli.shared.clients import exit_incomplete
from klamm.cli.shared.files import check_result_file
from klamm.cli.shared.output import print_line, print_lines
from klamm.processes.tool_errors import EXIT_FAILED, ToolError

if TYPE_CHECKING:
    from klamm.cli.reassign.planning.goals import Goal, Racks
    from klamm.cli.reassign.planning.model import ClusterModel, Placement
    from klamm.protocol.vocabulary import TopicPartition


def generate(
    topics_to_move_json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Topics, in Kafka's JSON.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="A topic or a regular expression of several; all by default.")
    ] = None,
    broker_list: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Brokers that may have replicas; all by default.")
    ] = None,
    disable_rack_aware: Annotated[bool, typer.Option(help="Ignore the racks of brokers.")] = False,
    improve_racks: Annotated[bool, typer.Option(help="Also move replicas of a partition that share a rack.")] = False,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Add or remove replicas until there are this many.")
    ] = None,
    remove_brokers: Annotated[
        str | None, typer.Option(metavar="3,4", help="Brokers that lose all their replicas.")
    ] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD:NEW", help="The new broker gets the replicas of the old. May be repeated."),
    ] = None,
    balance: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT,...",
            help="What to spread evenly over brokers: replicas, leaders, bytes, load or none. By default the first"
            " three, and load if it is given; none when another goal is given.",
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="How far from the average a broker may stay, as a fraction.")
    ] = 0.05,
    balance_log_dirs: Annotated[
        bool, typer.Option(help="Spread replicas over the log directories of their broker.")
    ] = False,
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Load, as klamm pipeline load writes it."),
    ] = None,
    throttle: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES/S", help="Show how long the plan takes at this rate.")
    ] = None,
    kafka: Annotated[
        bool, typer.Option(help="Place the topics anew, as Kafka's tool does; nearly everything moves.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the proposed plan to this file.")
    ] = None,
    *,
    cluster: Reached,
) -> None:
    """Make a plan that moves as little as possible. Nothing is changed.

    Kafka's tool places every partition anew; this plan keeps replicas where they may stay. Through ZooKeeper the sizes
    are not known. The exit code is 1 if a replica cannot move as the goal asks.
    """
    from klamm.cli.reassign.json_form import parse_topics
    from klamm.cli.reassign.load_file import parse_load
    from klamm.cli.reassign.planning.goals import matching_topics, parse_brokers, parse_replace
    from klamm.cli.reassign.running import read_all

    check_result_file("--output", output)
    if topics_to_move_json_file is not None and topic is not None:
        raise typer.BadParameter("give only one of --topics-to-move-json-file and --topic", param_hint="--topic")
    named = None
    if topics_to_move_json_file is not None:
        named = parse_topics(topics_to_move_json_file.read_bytes(), str(topics_to_move_json_file))
    model = cluster.with_access(read_all)
    if not balance_log_dirs:
        model = model.without_log_dirs()
    goal = _goal(
        model,
        topics=matching_topics(topic, _topics_of(model)) if topic is not None else named,
        broker_list=None if broker_list is None else parse_brokers(broker_list, "--broker-list"),
        remove_brokers=() if remove_brokers is None else parse_brokers(remove_brokers, "--remove-brokers"),
        replace=parse_replace(replace or []),
        replication_factor=replication_factor,
        tolerance=tolerance,
        racks=_racks(disable_rack_aware, improve_racks),
        balance_log_dirs=balance_log_dirs,
        load={} if load is None else parse_load(load.read_bytes(), str(load)),
    )
    goal = _balancing(goal, balance)
    if kafka:
        _check_kafka(goal, balance)
    _print_plan(model, goal, named, throttle, output, kafka=kafka, as_json=cluster.as_json)
    cluster.exit_if_unread()


def _check_kafka(goal: "Goal", balance: str | None) -> None:
    """Raises typer.BadParameter for options that Kafka's algorithm lacks: it takes topics, brokers and racks."""
    from klamm.cli.reassign.planning.goals import Racks

    given = {
        "--replication-factor": goal.replication_factor is not None,
        "--replace": bool(goal.replace),
        "--balance": balance is not None,
        "--improve-racks": goal.racks is Racks.IMPROVE,
        "--balance-log-dirs": goal.balance_log_dirs,
        "--load": bool(goal.load),
    }
    for option, is_given in given.items():
        if is_given:
            raise typer.BadParameter(f"cannot be given with {option}", param_hint="--kafka")


def _goal(cluster: "ClusterModel", **values: Any) -> "Goal":
    from klamm.cli.reassign.planning.goals import Goal

    goal = Goal(**values)
    if unknown := sorted(set(goal.topics or ()) - set(_topics_of(cluster))):
        raise ToolError(f"these topics do not exist: {', '.join(unknown)}")
    return goal


def _balancing(goal: "Goal", balance: str | None) -> "Goal":
    from klamm.cli.reassign.planning.goals import Balance, default_balance, parse_balance

    chosen = default_balance(goal) if balance is None else parse_balance(balance)
    if Balance.LOAD in chosen and not goal.load:
        raise typer.BadParameter("load is not known; give --load with a file", param_hint="--balance")
    return copied(goal, balance=chosen)


def _print_plan(
    cluster: "ClusterModel",
    goal: "Goal",
    named: list[str] | None,
    throttle: int | None,
    output: Path | None,
    *,
    kafka: bool,
    as_json: bool,
) -> None:
    from klamm.cli.reassign import views
    from klamm.cli.reassign.json_form import format_reassignment
    from klamm.cli.reassign.planning.kafka_placement import kafka_plan
    from klamm.cli.reassign.planning.model import anywhere
    from klamm.cli.reassign.planning.planner import plan
    from klamm.cli.reassign.report import report, report_lines, report_value

    found = kafka_plan(cluster, goal) if kafka else plan(cluster, goal)
    current, proposed = found.before, found.after
    if named is not None:
        # Kafka's tool prints all partitions of the topics that it is given.
        current = {
            key: anywhere(each.replicas) for key, each in cluster.partitions.items() if key.topic in named
        } | current
        proposed = current | proposed
    made = report(cluster, goal, found, throttle)
    if output is not None and proposed:
        output.write_text(format_reassignment(proposed) + "\n", encoding="utf-8")
    if as_json:
        placements = {"current": _value(current), "proposed": _value(proposed)}
        print_line(json.dumps({**report_value(made), **placements}))
    else:
        print_lines(report_lines(made), file=sys.stderr)
        if proposed:
            print_lines(views.generated_lines(current, proposed))
    if found.unmovable:
        raise typer.Exit(EXIT_FAILED)
    if any(broker.log_dirs for broker in cluster.brokers.values()):
        why = "the sizes of replicas that only it has are not known"
        exit_incomplete({broker_id: why for broker_id, broker in cluster.brokers.items() if not broker.log_dirs})


def _value(placements: "dict[TopicPartition, Placement]") -> Any:
    from klamm.cli.reassign.json_form import format_reassignment

    return json.loads(format_reassignment(placements))


def _racks(disable_rack_aware: bool, improve_racks: bool) -> "Racks":
    from klamm.cli.reassign.planning.goals import Racks

    if disable_rack_aware and improve_racks:
        raise typer.BadParameter("cannot be given with --disable-rack-aware", param_hint="--improve-racks")
    if disable_rack_aware:
        return Racks.IGNORE
    return Racks.IMPROVE if improve_racks else Racks.KEEP


def _topics_of(cluster: "ClusterModel") -> list[str]:
    return sorted({key.topic for key in cluster.partitions})
