"""`klamm reassign`: kafka-reassign-partitions' work, over the wire for any Kafka cluster or through ZooKeeper's znodes.

`execute` follows the moves to their end and removes its throttle. After Ctrl-C or kill -9 the moves still run in the
cluster, and `execute --resume` continues. Option names and lines are those of Kafka's tool where it has them. Progress,
and lines about obstacles, go to stderr.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.reassign.generating import generate
from klamm.cli.reassign.options import (
    ExecuteOptions,
    LogDirThrottle,
    PreserveThrottles,
    Reached,
    ReachedByBrokers,
    ReassignmentFile,
)
from klamm.cli.shared import interrupts
from klamm.cli.shared.confirm import Yes
from klamm.cli.shared.options import Commands
from klamm.cli.shared.output import print_line, print_lines
from klamm.processes.tool_errors import EXIT_FAILED, ToolError

if TYPE_CHECKING:
    from klamm.cli.reassign.access import Access
    from klamm.protocol.vocabulary import TopicPartition

app = Commands("Move partitions between brokers and log directories: plan, execute, follow, undo.")

app.command(epilog="Example: klamm reassign generate --topic 'orders.*' --broker-list 1,2,3 --output plan.json")(
    generate
)

# -- the commands -----------------------------------------------------------------------------------------------------


@app.command(epilog="Example: klamm reassign execute --reassignment-json-file plan.json --throttle 50000000")
def execute(
    reassignment_json_file: ReassignmentFile,
    cluster: Reached,
    options: ExecuteOptions,
    *,
    additional: Annotated[
        bool, typer.Option(help="Begin although other reassignments are in progress; also to change the throttle.")
    ] = False,
    resume: Annotated[bool, typer.Option(help="Continue an interrupted execution of this plan.")] = False,
) -> None:
    """Move partitions as a plan says, follow them to the end, and remove the throttle.

    Before anything changes, the rollback plan and the former throttles are saved beside the plan.
    """
    from klamm.cli.reassign.running import run_plan

    run_plan(cluster, reassignment_json_file, options, additional=additional, resume=resume)


@app.command(epilog="Example: klamm reassign rollback plan.rollback.json --throttle 50000000")
def rollback(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The rollback plan of an execution.")
    ],
    cluster: ReachedByBrokers,
    options: ExecuteOptions,
) -> None:
    """Undo an execution: cancel what is still moving, and move the rest back."""
    from klamm.cli.reassign import views
    from klamm.cli.reassign.running import (
        begun_by,
        cancel_plan,
        confirm_cancellation,
        executions_of,
        read_plan,
        run_plan,
        state_of,
    )

    placements = read_plan(file)
    # An interrupted rollback is continued: its reassignments are not cancelled.
    problems: dict[str, str] = {}
    if not state_of(file).exists():
        states = executions_of(file)
        begun = begun_by(cluster, placements, states)
        confirm_cancellation(cluster, begun, yes=options.yes)
        problems = cancel_plan(cluster, begun, states).problems
    lines = list(views.problem_lines("The end of the execution left these:", problems))
    print_lines(lines, file=sys.stderr)
    run_plan(cluster, file, options, additional=True, resume=False)
    if lines:
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog="Example: klamm reassign throttle --rate 100000000 --reassignment-json-file plan.json")
def throttle(
    reassignment_json_file: ReassignmentFile,
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES/S", help="The new limit for copies between brokers.")
    ] = None,
    log_dir_rate: LogDirThrottle = None,
    *,
    cluster: Reached,
) -> None:
    """Change the throttle of an execution that is running or was interrupted."""
    from klamm.cli.reassign import views
    from klamm.cli.reassign.running import change_throttle, fail_with, state_of

    if rate is None and log_dir_rate is None:
        raise typer.BadParameter("give --rate, --replica-alter-log-dirs-throttle or both", param_hint="--rate")
    state = state_of(reassignment_json_file)
    if not state.exists():
        raise ToolError(f"no execution of {reassignment_json_file} is in progress: {state.path} does not exist")

    interrupts.from_now_on()
    problems = change_throttle(cluster, state, rate, log_dir_rate)
    event = {"event": "throttle_set", "throttle": rate, "log_dir_throttle": log_dir_rate}
    cluster.show(event, views.event_lines(event))
    fail_with(views.problem_lines("The throttle could not be set for:", problems))


@app.command(epilog="Example: klamm reassign verify --reassignment-json-file plan.json")
def verify(
    reassignment_json_file: ReassignmentFile,
    cluster: Reached,
    preserve_throttles: PreserveThrottles = False,
) -> None:
    """Say whether each partition of a plan has reached its target.

    When no partition of the cluster is moving, the throttles are removed. The exit code is 1 while something is in
    progress or differs.
    """
    from klamm.cli.reassign import operations, views
    from klamm.cli.reassign.running import clear, end_finished, fail_with, read_plan, say, state_of

    placements = read_plan(reassignment_json_file)
    found = cluster.with_access(lambda access: operations.verify(access, placements))
    if cluster.as_json:
        partitions = [
            {
                "topic": key.topic,
                "partition": key.partition,
                "replicas": list(state.current),
                "target": list(state.target),
                "in_progress": state.is_moving,
                "complete": state.is_complete,
            }
            for key, state in sorted(found.partitions.items())
        ]
        print_line(json.dumps({"complete": found.is_complete, "partitions": partitions}))
    else:
        say(views.verify_lines(found.partitions))
        print_lines(list(views.log_dir_lines(found.log_dirs)) or [""])
    problems: dict[str, str] = {}
    if not found.is_any_moving and not preserve_throttles:
        interrupts.from_now_on()
        state = state_of(reassignment_json_file)
        if not state.exists():
            brokers = {*found.brokers, *(broker for each in placements.values() for broker in each.replicas)}
            problems = clear(cluster, brokers, {key.topic for key in placements})
        elif not state.is_claimed():
            problems = end_finished(cluster, state, is_complete=found.is_complete)
    fail_with(views.problem_lines("The throttle could not be removed from:", problems))
    if not found.is_complete:
        raise typer.Exit(EXIT_FAILED)
    cluster.exit_if_unread()


@app.command("list", epilog="Example: klamm reassign list --bootstrap-server broker1:9092")
def list_reassignments(
    cluster: Reached,
) -> None:
    """List the reassignments in progress."""
    from klamm.cli.reassign import views
    from klamm.cli.reassign.running import say

    async def work(access: "Access") -> "dict[TopicPartition, Any]":
        view = (await access.look(None)).view
        return {key: each for key, each in view.partitions.items() if each.is_reassigning}

    found = cluster.with_access(work)
    if cluster.as_json:
        lists = ("replicas", "adding", "removing")
        value = [
            {"topic": key.topic, "partition": key.partition, **{name: list(getattr(each, name)) for name in lists}}
            for key, each in sorted(found.items())
        ]
        print_line(json.dumps(value))
    else:
        say(views.list_lines(found))
    cluster.exit_if_unread()


@app.command(epilog="Example: klamm reassign cancel --reassignment-json-file plan.json")
def cancel(
    reassignment_json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="The plan to cancel.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Cancel every reassignment of the cluster.")] = False,
    *,
    cluster: ReachedByBrokers,
    preserve_throttles: PreserveThrottles = False,
    yes: Yes = False,
) -> None:
    """Cancel reassignments: partitions keep the replicas from before. An execution of the plan ends."""
    from klamm.cli.reassign import views
    from klamm.cli.reassign.running import (
        begun_by,
        cancel_plan,
        clear,
        confirm_cancellation,
        fail_with,
        read_plan,
        state_of,
    )

    if all_ == (reassignment_json_file is not None):
        raise typer.BadParameter("give exactly one of --reassignment-json-file and --all", param_hint="--all")
    placements = None if reassignment_json_file is None else read_plan(reassignment_json_file)
    state = None if reassignment_json_file is None else state_of(reassignment_json_file)
    states = [state] if state is not None and state.exists() else []
    if placements is not None:
        placements = begun_by(cluster, placements, states)
    confirm_cancellation(cluster, placements, yes=yes)
    done = cancel_plan(cluster, placements, states, keeps_throttles=preserve_throttles)
    log_dirs_line = views.log_dirs_started_line(done.replicas) if done.replicas else views.NO_LOG_DIR_MOVES
    cluster.show(
        {"cancelled": [str(key) for key in sorted(done.cancelled)], "log_dirs": done.replicas},
        [views.cancelled_line(done.cancelled), log_dirs_line],
    )
    problems = done.problems
    topics = {key.topic for key in (done.cancelled if placements is None else placements)}
    if topics and not states and not preserve_throttles:
        chosen = placements or {}
        brokers = {*done.brokers, *(broker for each in chosen.values() for broker in each.replicas)}
        problems = clear(cluster, brokers, topics)
    fail_with(views.problem_lines("The throttle could not be removed from:", problems))
