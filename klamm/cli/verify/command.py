"""`klamm verify replicas`: does the work of kafka-replica-verification, for any Kafka cluster and for data directories.

By default it verifies the existing records and ends; `--continuous` also follows new records, as Kafka's tool does.
Each of its three ways compares with `klamm.client.verification`: through the brokers, in `--log-dirs`, and with
`--spark`.
"""

import json
import sys
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.base.progress import progress
from klamm.cli.pipeline.pipeline import Master, Remote
from klamm.cli.shared import interrupts
from klamm.cli.shared.clients import ClientInThread, client_in_thread
from klamm.cli.shared.memory import keep_freed_memory
from klamm.cli.shared.options import DEFAULT_BOOTSTRAP, ClusterOptions, Commands, check_bootstrap_server
from klamm.cli.shared.output import print_line
from klamm.cli.shared.patterns import topic_expression
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_INCOMPLETE, EXIT_OK, ToolError, unverified_after_errors

if TYPE_CHECKING:
    from klamm.cli.verify.report import Report
    from klamm.client.options import ClientOptions
    from klamm.client.verification.partition import PartitionCheck
    from klamm.client.verification.verifier import Events, Planned, VerifyOptions

app = Commands("Check that replicas are equal.")

EARLIEST, LATEST = -2, -1
LARGEST_FETCH_BYTES = 64 * 1024 * 1024


@app.callback()
def _group() -> None:
    """Check that replicas are equal."""


@dataclass(frozen=True)
class VerifyClusterOptions(ClusterOptions):
    """The cluster to verify. As in Kafka's tool, --bootstrap-server may also be written --broker-list."""

    bootstrap_server: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            "--broker-list",
            metavar="HOST:PORT,...",
            callback=check_bootstrap_server,
            help="Brokers to connect to first.",
        ),
    ] = DEFAULT_BOOTSTRAP


@app.command(epilog="Example: klamm verify replicas --bootstrap-server localhost:9092 --topic-white-list 'orders.*'")
def replicas(
    cluster: VerifyClusterOptions,
    topic_white_list: Annotated[
        str, typer.Option("--topic-white-list", "--topic", help="A regular expression for the names of topics.")
    ] = ".*",
    log_dirs: Annotated[
        str | None,
        typer.Option(
            metavar="DIR,...", help="Compare these data directories of several brokers, instead of asking brokers."
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once/--continuous",
            help="Verify up to the current high watermarks and end; or follow new records, without an end.",
        ),
    ] = True,
    time: Annotated[
        int | None,
        typer.Option(
            min=EARLIEST,
            help="Where to begin: -2 earliest, -1 latest, or milliseconds since 1970. By default -2; with --continuous"
            " -1.",
        ),
    ] = None,
    fetch_size: Annotated[
        int, typer.Option(min=1024, max=LARGEST_FETCH_BYTES, metavar="BYTES", help="Bytes of a partition in a fetch.")
    ] = 512 * 1024,
    max_wait_ms: Annotated[
        int, typer.Option(min=1, help="With --continuous: the wait before new records are looked for, in ms.")
    ] = 1000,
    report_interval_ms: Annotated[
        int, typer.Option(min=1, help="How often to print the greatest lag, in ms.")
    ] = 30_000,
    patience_ms: Annotated[
        int, typer.Option(min=0, help="How long to wait for a replica that does not answer, or lags, in ms.")
    ] = 10_000,
    spark: Annotated[
        bool, typer.Option(help="Verify on Spark's executors, for clusters larger than one machine.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Compare the batches of all replicas below the high watermark, by offset, leader epoch and checksum.

    The exit code is 0 when all replicas are equal, 1 when some differ, and 3 when something could not be verified.
    """
    matches = topic_filter(topic_white_list)
    keep_freed_memory()
    is_on_spark = spark or master is not None or remote is not None
    if log_dirs is not None and (time not in (None, EARLIEST) or not once):
        raise typer.BadParameter("goes with --once and --time -2 only", param_hint="--log-dirs")
    if is_on_spark and not once:
        raise typer.BadParameter("goes with --once only", param_hint="--spark")
    with unverified_after_errors():
        if log_dirs is not None:
            report = _offline(log_dirs.split(","), matches, fetch_size, cluster.as_json)
        else:
            from klamm.client.verification.verifier import VerifyOptions

            begin = time if time is not None else EARLIEST if once else LATEST
            now_ms = int(1000 * clock.time())
            options = VerifyOptions(fetch_size, begin, not once, max_wait_ms, patience_ms / 1000, now_ms)
            client_options = cluster.client_options()
            if is_on_spark:
                report = _on_spark(client_options, matches, options, master, remote, cluster.as_json)
            else:
                with client_in_thread(client_options) as client:
                    report = _online(client, matches, options, report_interval_ms, cluster.as_json)
    _finish(report, cluster)


def topic_filter(pattern: str) -> Callable[[str], bool]:
    """Kafka's IncludeList: a regular expression for whole names, in which commas separate alternatives."""
    names = topic_expression(pattern.replace(" ", ""), "--topic-white-list")
    return names.fullmatch


def _finish(report: "Report", cluster: ClusterOptions) -> None:
    from klamm.cli.verify.report import Outcome, report_json, summary_lines

    cluster.show(report_json(report), summary_lines(report))
    codes = {Outcome.EQUAL: EXIT_OK, Outcome.DIFFERENT: EXIT_FAILED, Outcome.UNVERIFIED: EXIT_INCOMPLETE}
    raise typer.Exit(codes[report.outcome])


# -- through the brokers ----------------------------------------------------------------------------------------------


def _online(
    client: ClientInThread,
    matches: Callable[[str], bool],
    options: "VerifyOptions",
    report_interval_ms: int,
    as_json: bool,
) -> "Report":
    from klamm.cli.verify.report import Report
    from klamm.client.verification.verifier import count_offsets, partitions_to_verify, verify_replicas

    planned = client.call(partitions_to_verify, matches)
    _require_topics(planned)
    is_bar_visible = not as_json and not options.follows and sys.stderr.isatty()
    total = client.call(count_offsets, planned.partitions, options.time) if is_bar_visible else None
    stdout = sys.stdout
    checks: list[PartitionCheck] = []
    with progress("verifying", total, visible=is_bar_visible) as advance:
        # On a terminal, lines go through the progress bar, which prints them above itself.
        def write(line: str) -> None:
            print_line(line, file=None if stdout.isatty() else stdout, flush=True)

        printer = _Printer(write, as_json, options.follows)
        printer.say("verification process is started.", {"event": "started", "partitions": len(planned.partitions)})
        if not options.follows:
            interrupts.from_now_on("not all replicas were compared")
        try:
            client.call(
                verify_replicas, planned.partitions, options, _shown(printer, report_interval_ms, advance, checks)
            )
        except KeyboardInterrupt:
            # Ctrl-C is the usual end of --continuous. The differences that were found decide the exit code.
            if Report(checks).different:
                raise typer.Exit(EXIT_FAILED) from None
            raise
    return Report(checks, planned.skipped, _notes(planned))


def _notes(planned: "Planned") -> list[str]:
    unknown = planned.unknown_policies
    return [f"The cleanup.policy of {name} is not known; it counts as not compacted." for name in unknown]


def _require_topics(planned: "Planned") -> None:
    if not planned.partitions and not planned.skipped:
        raise ToolError("No topics found. --topic-white-list is either filtering out all topics or there is no topic.")


class _Printer:
    """Prints lines with the time, as Kafka's tool does. With JSON, only `is_live` prints while the command runs."""

    def __init__(self, write: Callable[[str], object], as_json: bool, is_live: bool) -> None:
        self._write = write
        self._as_json = as_json
        self._is_live = is_live

    def say(self, text: str, value: "Mapping[str, Any]") -> None:
        """Prints the text, or the value."""
        if self._as_json:
            if self._is_live:
                self._write(json.dumps(value))
            return
        now_s = clock.time()
        seconds = clock.strftime("%Y-%m-%d %H:%M:%S", clock.localtime(now_s))
        self._write(f"{seconds},{int(now_s * 1000) % 1000:03}: {text}")


def _shown(
    printer: _Printer, report_interval_ms: int, advance: Callable[[int], object], checks: "list[PartitionCheck]"
) -> "Events":
    """Prints events, and collects the checks that have begun in `checks`."""
    from klamm.cli.verify import report
    from klamm.client.verification import verifier

    class Shown(verifier.Events):
        def __init__(self) -> None:
            self._reported_s = clock.monotonic()
            self._reported: set[tuple[int, str]] = set()

        def began(self, check: Any) -> None:
            checks.append(check)

        def differs(self, check: Any, difference: Any) -> None:
            value = report.event_json("difference", check, report.difference_json(difference))
            printer.say(report.difference_line(check, difference), value)

        def set_aside(self, check: Any, replica: int) -> None:
            aside = check.set_aside[replica]
            # When a broker is away, the reason is the same for all of its replicas. The summary names the others.
            if not check.follows and (replica, aside.reason) in self._reported:
                return
            self._reported.add((replica, aside.reason))
            value = report.event_json("not-verified", check, report.set_aside_json(check, replica))
            printer.say(report.set_aside_line(check, replica), value)

        def back(self, check: Any, replica: int, was: Any) -> None:
            value = report.event_json("verified-again", check, {"replica": replica, "missed_from_offset": was.offset})
            printer.say(report.back_line(check, replica, was), value)

        def advanced(self, check: Any, offsets: int) -> None:
            advance(offsets)
            now_s = clock.monotonic()
            if now_s - self._reported_s >= report_interval_ms / 1000:
                self._reported_s = now_s
                printer.say(report.lag_line(checks), {"event": "report", **report.lag_json(checks)})

    return Shown()


# -- on Spark ---------------------------------------------------------------------------------------------------------


def _on_spark(
    client_options: "ClientOptions",
    matches: Callable[[str], bool],
    options: "VerifyOptions",
    master: str | None,
    remote: str | None,
    as_json: bool,
) -> "Report":
    from klamm.cli.pipeline.pipeline import session, shown
    from klamm.cli.verify.report import Report, difference_line
    from klamm.client.verification.verifier import partitions_to_verify

    with client_in_thread(client_options) as client:
        planned = client.call(partitions_to_verify, matches)
    _require_topics(planned)
    with session("klamm verify replicas", master, remote) as spark, shown("verifying", as_json) as show:
        from klamm.spark.pipelines.replicas import verify

        checks = verify(spark, client_options, planned.partitions, options, on_progress=show)
    if not as_json:
        for check in checks:
            for difference in check.differences.found:
                print_line(difference_line(check, difference))
    return Report(checks, planned.skipped, _notes(planned))


# -- in data directories ----------------------------------------------------------------------------------------------


def _offline(directories: Sequence[str], matches: Callable[[str], bool], fetch_size: int, as_json: bool) -> "Report":
    from klamm.cli.verify.offline import open_directories, verify_partition
    from klamm.cli.verify.report import Report, difference_line

    found = open_directories([Path(each) for each in directories], matches)
    checks = []
    total = sum(each.size_bytes for each in found)
    with progress("verifying", total, visible=not as_json) as advance:
        for each in found:
            checks.append(verify_partition(each, fetch_size, advance))
    if not as_json:
        for check in checks:
            for difference in check.differences.found:
                print_line(difference_line(check, difference))
    return Report(checks)
