"""`klamm brokers decommission`: a plan that empties brokers, and its execution.

The plan moves only replicas of these brokers. Replicas that cannot move are named with the reason; the others move. The
plan is kept in a file, beside which the execution keeps its record, so that the same command continues after an
interrupt. A topic that is created meanwhile may get replicas on the brokers, so the replicas are counted at the end.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.base.words import counted
from klamm.cli.reassign.options import DecommissionOptions, Reached
from klamm.cli.reassign.running import read_all, run_plan, state_of
from klamm.cli.shared.files import check_result_file
from klamm.cli.shared.output import print_line, print_lines
from klamm.processes.tool_errors import EXIT_FAILED

if TYPE_CHECKING:
    from klamm.cli.reassign.planning.goals import Goal
    from klamm.cli.reassign.planning.model import ClusterModel


def decommission(
    broker: Annotated[list[int], typer.Option(metavar="ID", min=0, help="The broker to empty; may be repeated.")],
    plan_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Where the plan is kept; default: decommission-ID.json."),
    ] = None,
    *,
    cluster: Reached,
    options: DecommissionOptions,
    disable_rack_aware: Annotated[bool, typer.Option(help="Ignore the racks of brokers.")] = False,
) -> None:
    """Move all replicas away from brokers, so that they can be shut down for good.

    Run it again to continue after an interrupt. The exit code is 1 if a broker still has replicas in the end. Through
    ZooKeeper the sizes are not known.
    """
    from klamm.cli.reassign.planning.goals import Goal, Racks

    brokers = tuple(dict.fromkeys(broker))
    path = plan_file or Path(f"decommission-{'-'.join(map(str, brokers))}.json")
    check_result_file("--plan-file", path)
    if state_of(path).exists():
        run_plan(cluster, path, options, additional=True, resume=True)
    model = cluster.with_access(read_all)
    absent = [each for each in brokers if each not in model.known_brokers]
    goal = Goal(
        remove_brokers=tuple(each for each in brokers if each not in absent),
        racks=Racks.IGNORE if disable_rack_aware else Racks.KEEP,
    )
    if goal.remove_brokers and _save_plan(model, goal, path, options.throttle, as_json=cluster.as_json):
        run_plan(cluster, path, options, additional=True, resume=False)
    left = replicas_left(cluster.with_access(read_all), brokers)
    lines = (left_line(each, count, is_known=each not in absent) for each, count in left.items())
    cluster.show({"event": "decommissioned", "replicas_left": left}, lines)
    if any(left.values()):
        raise typer.Exit(EXIT_FAILED)


def _save_plan(cluster: "ClusterModel", goal: "Goal", path: Path, throttle: int | None, *, as_json: bool) -> bool:
    """Shows the moves and the replicas that cannot move, and writes the plan if there is something to move."""
    from klamm.cli.reassign.json_form import format_reassignment
    from klamm.cli.reassign.planning.planner import plan
    from klamm.cli.reassign.report import report, report_lines, report_value

    cluster = cluster.without_log_dirs()
    found = plan(cluster, goal)
    made = report(cluster, goal, found, throttle)
    if as_json:
        print_line(json.dumps({"event": "plan", **report_value(made)}))
    else:
        print_lines(report_lines(made), file=sys.stderr)
    if found.moves:
        path.write_text(format_reassignment(found.after) + "\n", encoding="utf-8")
    return bool(found.moves)


def replicas_left(cluster: "ClusterModel", brokers: tuple[int, ...]) -> dict[int, int]:
    """How many replicas each of these brokers has."""
    return {
        broker: sum(broker in partition.replicas for partition in cluster.partitions.values()) for broker in brokers
    }


def left_line(broker: int, replicas: int, *, is_known: bool = True) -> str:
    if replicas:
        return f"Broker {broker} still has {counted(replicas, 'replica')}."
    if not is_known:
        return f"Broker {broker} is not in the cluster, and no assignment names it: it has no replicas."
    return f"Broker {broker} has no replicas and can be shut down."
