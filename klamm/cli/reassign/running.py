"""How the commands of `klamm reassign` run an execution in this process: its files, its output and its end."""

import json
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import typer

from klamm.base.words import counted
from klamm.cli.reassign import views
from klamm.cli.reassign.json_form import fingerprint, parse_reassignment
from klamm.cli.reassign.options import ExecuteOptions, Reached
from klamm.cli.reassign.planning.model import ClusterModel, Placement
from klamm.cli.reassign.state_file import Record, StateFile, state_path, write_rollback
from klamm.cli.reassign.steps import Limits
from klamm.cli.shared import interrupts
from klamm.cli.shared.clients import ended_by_sigterm
from klamm.cli.shared.confirm import confirm
from klamm.cli.shared.output import print_line, print_lines
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_INTERRUPTED, ToolError
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.cli.reassign.access import Access
    from klamm.cli.reassign.execution import Outcome

T = TypeVar("T")
Placements = Mapping[TopicPartition, Placement]

PROGRESS_LINES_EVERY_S: Final = 5.0
# How long a running execution may take to notice that it was cancelled.
CANCEL_WAITS_S: Final = 30.0
_FILE: Final = "--reassignment-json-file"
_BROKERS: Final = "--bootstrap-server HOST:PORT"


async def read_all(access: "Access") -> ClusterModel:
    """All partitions with the sizes and directories of their replicas, for planning."""
    from klamm.cli.reassign.operations import read_model

    return (await read_model(access, None))[1]


# -- files ------------------------------------------------------------------------------------------------------------


def read_plan(path: Path) -> Placements:
    return parse_reassignment(path.read_bytes(), str(path))


def state_of(plan: Path) -> StateFile:
    return StateFile(state_path(plan))


def executions_of(rollback: Path) -> list[StateFile]:
    """The executions in progress that this file undoes."""
    found = []
    for path in sorted(rollback.absolute().parent.glob("*.state.json")):
        # A file of another program may have such a name. Files of this program are always whole.
        with suppress(ToolError):
            if StateFile(path).load().rollback_file == rollback.name:
                found.append(StateFile(path))
    return found


# -- an execution -----------------------------------------------------------------------------------------------------


def run_plan(cluster: Reached, plan: Path, options: ExecuteOptions, *, additional: bool, resume: bool) -> None:
    """Executes a plan, or resumes its execution. Ends the command with the exit code."""
    placements = read_plan(plan)
    if cluster.zookeeper is not None and any(each.chosen_log_dirs for each in placements.values()):
        raise ToolError("bootstrap-server needs to be provided when replica reassignments are present.")
    state = state_of(plan)
    if state.exists():
        if not (resume or additional):
            raise ToolError(
                f"an execution of this plan was interrupted: {state.path} exists. Continue with --resume, or end"
                " it with klamm reassign cancel"
            )
    elif not _prepare(cluster, plan, placements, options, additional=additional):
        return
    with ExitStack() as stack:
        reporter = stack.enter_context(Reporter(as_json=cluster.as_json))
        stack.enter_context(ended_by_sigterm())
        try:
            stack.enter_context(state.claimed())
            _take_up(cluster, state, placements, options)
            outcome = cluster.with_access(lambda access: _execute(access, state, options, reporter), looks_again=True)
        except KeyboardInterrupt:
            interrupts.tell(interrupted_text(plan, state, cluster))
            raise typer.Exit(EXIT_INTERRUPTED) from None
        reporter.finish(outcome, plan)
    if not outcome.is_complete:
        raise typer.Exit(EXIT_FAILED)


async def _execute(access: "Access", state: StateFile, options: ExecuteOptions, reporter: "Reporter") -> "Outcome":
    from klamm.cli.reassign.execution import Execution, Options

    execution = Execution(access, state, Options(state.load().limits, options.timeout_ms), reporter.report)
    return await (execution.begin() if options.no_wait else execution.run())


def _prepare(
    cluster: Reached, plan: Path, placements: Placements, options: ExecuteOptions, *, additional: bool
) -> bool:
    """Shows the changes, asks, and saves the rollback plan. Returns False if nothing changes."""
    from klamm.cli.reassign import operations

    survey = cluster.with_access(lambda access: operations.survey(access, placements))
    if survey.look.targets and not additional:
        raise ToolError(views.EXISTING)
    if not survey.look.accepts_more:
        raise ToolError(views.EXISTING)
    if others := operations.foreign_moves(survey.moves, survey.look):
        moving = ", ".join(f"{key} to {','.join(map(str, target))}" for key, target in sorted(others.items()))
        raise ToolError(f"these partitions are moved to other replicas already: {moving}. Cancel that first")
    if not survey.moves:
        say([views.finished_json(is_complete=True)] if cluster.as_json else views.complete_lines(placements))
        return False
    live = survey.look.view.brokers
    question = f"Move {counted(len(survey.moves), 'partition')}?"
    confirm(views.plan_lines(survey.moves, live, options.throttle), question, yes=options.yes)
    rollback = write_rollback(plan, survey.moves).absolute()
    ids = operations.topic_ids(survey.moves, survey.look.view)
    record = Record(rollback.name, survey.cluster_id, survey.moves, ids, plan=fingerprint(placements))
    state_of(plan).create(_with_options(record, options))
    if cluster.as_json:
        print_line(json.dumps({"event": "planned", "rollback_file": str(rollback), "partitions": len(survey.moves)}))
    else:
        print_lines(views.rollback_lines({move.topic_partition: move.before for move in survey.moves}))
        print_line(f"It is saved in {rollback}.", file=sys.stderr)
        if options.no_wait and (options.throttle or options.log_dir_throttle):
            print_line(views.VERIFY_WARNING)
    sys.stdout.flush()
    return True


def _take_up(cluster: Reached, state: StateFile, placements: Placements, options: ExecuteOptions) -> None:
    """Checks that the record belongs to this plan and this cluster, and sets the options' throttle and limits in it."""
    if load_of_cluster(cluster, state).plan != fingerprint(placements):
        raise ToolError(f"the plan was changed since its execution began: it differs from {state.path}")
    state.change(lambda stored: replace(_with_options(stored, options), is_cancelled=False))


def _with_options(record: Record, options: ExecuteOptions) -> Record:
    """The record with the throttle and the limits that the options give; other values stay."""

    def given(option: int | None, stored: int | None) -> int | None:
        return stored if option is None else option

    return replace(
        record,
        throttle=given(options.throttle, record.throttle),
        log_dir_throttle=given(options.log_dir_throttle, record.log_dir_throttle),
        limits=Limits(
            given(options.batch_size, record.limits.partitions), given(options.batch_bytes, record.limits.size_bytes)
        ),
    )


def load_of_cluster(cluster: Reached, state: StateFile) -> Record:
    """The record of an execution. Raises ToolError if the execution is on another cluster."""
    record = state.load()
    cluster_id = cluster.with_access(lambda access: access.cluster_id())
    if None not in (cluster_id, record.cluster_id) and cluster_id != record.cluster_id:
        raise ToolError(f"{state.path} is of cluster {record.cluster_id}, and this is cluster {cluster_id}")
    return record


def interrupted_text(plan: Path, state: StateFile, cluster: Reached) -> str:
    if not state.exists():
        return "Interrupted; the reassignment is complete."
    throttle = " The throttle stays until then." if state.load().settings else ""
    stop = ("reassign", "cancel", _FILE, str(plan))
    # A reassignment can only be cancelled through the brokers.
    stopping = interrupts.beside(*stop) if cluster.zookeeper is None else f"klamm {shlex.join(stop)} {_BROKERS}"
    return (
        "Interrupted. What has begun continues in the cluster; nothing more begins. To continue:"
        f" {_resuming(plan)}; to stop: {stopping}.{throttle}"
    )


def _resuming(plan: Path) -> str:
    return interrupts.beside("reassign", "execute", "--resume", _FILE, str(plan))


class Reporter:
    """Prints the events of an execution: lines, or JSON, one event a line. Progress goes to stderr, on a terminal as a
    bar."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._bar: Any = None
        self._task: Any = None
        self._shown_s, self._shown = time.monotonic(), ""

    def __enter__(self) -> Self:
        if not self._as_json and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(bar_width=16), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, event: dict[str, Any]) -> None:
        if self._as_json:
            print_line(json.dumps(event), flush=True)
        elif event["event"] == "progress":
            self._progress(event)
        else:
            print_lines(views.event_lines(event), flush=True)
            self.note(views.note_lines(event))

    def note(self, lines: Iterable[str]) -> None:
        print_lines(lines, file=sys.stderr, flush=True)

    def _progress(self, event: dict[str, Any]) -> None:
        text = views.progress_text(event)
        if self._bar is not None:
            total = event["total_bytes"] or None
            self._bar.update(self._task, description=text, total=total, completed=event["moved_bytes"])
        elif text != self._shown and time.monotonic() - self._shown_s >= PROGRESS_LINES_EVERY_S:
            self._shown_s, self._shown = time.monotonic(), text
            self.note([text])

    def finish(self, outcome: "Outcome", plan: Path) -> None:
        from klamm.cli.reassign.setting_throttles import NOT_ALIVE

        if self._as_json:
            problems = {name: dict(getattr(outcome, name)) for name in ("unfinished", "failed", "throttles_left")}
            print_line(views.finished_json(is_complete=outcome.is_complete, **problems))
            return
        self.note(views.problem_lines("These have not moved:", outcome.unfinished))
        self.note(views.problem_lines("These were left alone:", outcome.failed))
        self.note(views.problem_lines("The throttle stays on:", outcome.throttles_left))
        if NOT_ALIVE in outcome.throttles_left.values():
            self.note([views.dead_broker_line(plan)])
        if outcome.unfinished or outcome.throttles_left:
            self.note([f"To continue: {_resuming(plan)}"])


# -- the end of an execution ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cancelled:
    """The partitions, and the replicas between log directories, whose moves were cancelled. `brokers` are alive."""

    cancelled: list[TopicPartition]
    replicas: list[str]
    problems: dict[str, str]
    brokers: tuple[int, ...]


def begun_by(cluster: Reached, placements: Placements, states: Collection[StateFile]) -> Placements:
    """The placements to cancel for a plan: its partitions, and those that its executions move, because the plan file
    may have changed since. Raises ToolError for an execution on another cluster."""
    records = [load_of_cluster(cluster, state) for state in states]
    return {**placements, **{move.topic_partition: move.after for record in records for move in record.moves}}


def confirm_cancellation(cluster: Reached, placements: Placements | None, *, yes: bool) -> None:
    """Shows the reassignments that would be cancelled, of these partitions or of all. Asks if there are any."""

    async def work(access: "Access") -> dict[TopicPartition, Any]:
        view = (await access.look(None)).view
        chosen = view.partitions if placements is None else placements
        return {key: each for key, each in view.partitions.items() if each.is_reassigning and key in chosen}

    active = cluster.with_access(work)
    if active:
        confirm(views.list_lines(active), f"Cancel {counted(len(active), 'reassignment')}?", yes=yes)
    else:
        # The throttles that an execution has left are still removed.
        interrupts.from_now_on()


def cancel_plan(
    cluster: Reached,
    placements: Placements | None,
    states: Collection[StateFile],
    *,
    keeps_throttles: bool = False,
) -> Cancelled:
    """Cancels the reassignments of these partitions, or all. Executions in `states` end, also those of other processes,
    and their throttles are restored."""
    from klamm.cli.reassign import operations

    async def work(access: "Access") -> Cancelled:
        look = await access.look(None)
        active = [key for key in sorted(look.targets) if placements is None or key in placements]
        await operations.cancel(access, active)
        replicas = await operations.cancel_log_dirs(access, placements or {})
        problems: dict[str, str] = {}
        for state in states:
            problems |= await operations.restore_order(access, state.load())
            if not keeps_throttles:
                problems |= await operations.end_execution(access, state, lambda event: None)
        return Cancelled(active, replicas, problems, tuple(look.view.brokers))

    with ExitStack() as stack:
        for state in states:
            state.change(lambda record: replace(record, is_cancelled=True))
            stack.enter_context(state.claimed(CANCEL_WAITS_S))
        return cluster.with_access(work)


def change_throttle(cluster: Reached, state: StateFile, rate: int | None, log_dir_rate: int | None) -> dict[str, str]:
    """Gives an execution another throttle. A process that executes the plan sets the throttle at its next look; if no
    process does, it is set here. Returns the problems by entity."""
    from klamm.cli.reassign import operations

    load_of_cluster(cluster, state)
    state.change(
        lambda stored: replace(
            stored,
            throttle=stored.throttle if rate is None else rate,
            log_dir_throttle=stored.log_dir_throttle if log_dir_rate is None else log_dir_rate,
        )
    )
    if state.is_claimed():
        return {}
    with state.claimed():
        return cluster.with_access(lambda access: operations.change_throttle(access, state))


def end_finished(cluster: Reached, state: StateFile, *, is_complete: bool) -> dict[str, str]:
    """Removes the throttle of an execution that no process follows. The record stays unless the plan `is_complete`, so
    that the execution can be resumed."""
    from klamm.cli.reassign.setting_throttles import restore_throttles

    report = (lambda event: None) if cluster.as_json else Reporter(as_json=False).report
    load_of_cluster(cluster, state)
    with state.claimed():
        problems = cluster.with_access(lambda access: restore_throttles(access, state, report))
        if is_complete and not problems:
            state.remove()
    return problems


def clear(cluster: Reached, brokers: Collection[int], topics: Collection[str]) -> dict[str, str]:
    """Deletes all throttles of these brokers and topics, as Kafka's tool does."""
    from klamm.cli.reassign.operations import clear_throttles

    if not cluster.as_json:
        say(views.clearing_lines(brokers, topics))
    return cluster.with_access(lambda access: clear_throttles(access, brokers, topics))


def say(lines: Iterable[str]) -> None:
    print_lines(lines)


def fail_with(lines: Iterable[str]) -> None:
    """Prints problems to stderr and ends the command with exit code 1, if there are any."""
    problems = list(lines)
    print_lines(problems, file=sys.stderr)
    if problems:
        raise typer.Exit(EXIT_FAILED)
