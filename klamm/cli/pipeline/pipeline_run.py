"""`klamm pipeline run`: a pipeline from a file. It runs the program that `--print` prints.

A stop (SIGTERM, Ctrl-C) ends the streaming queries: the micro-batch in progress is abandoned, and the same command
repeats it, so nothing is lost. Messages never contain the value of a variable.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.pipeline.pipeline import Master, Remote, session, tell
from klamm.cli.shared.output import print_line, print_lines
from klamm.processes.tool_errors import EXIT_INTERRUPTED, ToolError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from klamm.spark.pipelines.files.pipeline import Pipeline

_POLL_S = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, in YAML. docs/spark.md has its keys.")],
    check: Annotated[bool, typer.Option(help="Only check the file, without Spark. SQL is not checked.")] = False,
    print_program: Annotated[
        bool, typer.Option("--print", help="Only print the PySpark program that the file stands for.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each micro-batch.")] = False,
) -> None:
    """Run a pipeline that a file describes: source, SQL, sink.

    The exit code is 1 when the file is wrong or the pipeline fails, and 130 when it is stopped before its end.
    """
    try:
        from klamm.spark.pipelines.files.parsing import PipelineFileError, hide_variables, parse
        from klamm.spark.pipelines.files.program import program
    except ImportError as error:
        raise ToolError(f"pipelines need PySpark ({error}); install it with pip install 'klamm[spark]'") from None
    try:
        pipeline = parse(_content(file), str(file), None if print_program else os.environ)
    except PipelineFileError as error:
        first, *others = error.lines
        raise ToolError(first, details=others) from None
    if print_program:
        print_lines(program(pipeline).rstrip("\n").split("\n"))
        return
    if check:
        print_line(f"{file} is a pipeline.")
        return
    try:
        conf = {name: text.text(os.environ) for name, text in pipeline.conf.items()}
        with stoppable() as stop, session(pipeline.name, master, remote, conf) as spark:
            if remote is None:
                # A failure is reported at the end. Spark's own log lines could contain the values of variables.
                spark.sparkContext.setLogLevel("OFF")
            _run(spark, pipeline, program(pipeline), stop, as_json)
    except ToolError as error:
        raise ToolError(hide_variables(str(error), pipeline.variables, os.environ)) from None


def schema() -> None:
    """Print the JSON schema of a pipeline's file, for editors."""
    from klamm.spark.pipelines.files.keys import json_schema

    print_lines(json.dumps(json_schema(), indent=2).splitlines())


def _content(file: Path) -> bytes:
    from klamm.spark.pipelines.files.parsing import MAX_FILE_BYTES

    with file.open("rb") as opened:
        return opened.read(MAX_FILE_BYTES + 1)


@dataclass(slots=True)
class Stop:
    """Whether a signal has asked for a stop. While queries run, the first one only sets `asked`; later ones
    interrupt."""

    asked: threading.Event = field(default_factory=threading.Event)
    interrupts: bool = True

    def __call__(self, *_: object) -> None:
        interrupts = self.interrupts or self.asked.is_set()
        self.asked.set()
        if interrupts:
            raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Within this context, SIGTERM and Ctrl-C both call the `Stop`."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(spark: "SparkSession", pipeline: "Pipeline", text: str, stop: Stop, as_json: bool) -> None:
    import klamm.spark

    klamm.spark.register(spark)
    # Spark's session has replaced the handler of Ctrl-C.
    for number in _SIGNALS:
        signal.signal(number, stop)
    names: dict[str, Any] = {"__name__": "klamm_pipeline"}
    exec(compile(text, "pipeline.py", "exec"), names)
    queries: dict[str, StreamingQuery] = names["start"](spark)
    if not pipeline.source.stream:
        tell({"ended": True}, "The pipeline has ended.", as_json)
        return
    stop.interrupts = False
    with _lines(as_json) as show:
        rows = _watch(queries, stop, show)
    if stop.asked.is_set() and pipeline.ends:
        raise typer.Exit(EXIT_INTERRUPTED)
    how = "was stopped" if stop.asked.is_set() else "has ended"
    tell({"ended": True, "records": rows}, f"The pipeline {how}; records: {rows['sink']}.", as_json)


def _watch(
    queries: Mapping[str, "StreamingQuery"], stop: Stop, show: Callable[[Mapping[str, Any]], object]
) -> dict[str, int]:
    """Waits until all queries have ended or a stop was asked for. Returns each one's number of records. Raises its
    error."""
    rows, last = dict.fromkeys(queries, 0), dict.fromkeys(queries, -1)
    try:
        is_active = True
        while is_active and not stop.asked.wait(_POLL_S):
            is_active = any(query.isActive for query in queries.values())
            for name, query in queries.items():
                for each in query.recentProgress:
                    # A query that waits reports the number of the next micro-batch.
                    if each.batchId > last[name] and "addBatch" in each.durationMs:
                        last[name] = each.batchId
                        rows[name] += each.numInputRows
                        show(_line(name, each))
                error = query.exception()
                if error is not None:
                    raise error
        return rows
    finally:
        for query in queries.values():
            query.stop()


def _line(name: str, progress: Any) -> dict[str, Any]:
    """A micro-batch, and how many offsets the query was behind the ends of the topics when it was planned."""
    from klamm.spark.read.planning import Position, count_offsets

    line = {
        "query": name,
        "batch": progress.batchId,
        "records": progress.numInputRows,
        "duration_ms": progress.batchDuration,
    }
    source = progress.sources[0]
    try:
        end, latest = (Position.from_json(json.loads(each)) for each in (source.endOffset, source.latestOffset))
    except (TypeError, ValueError, KeyError, AttributeError):
        return line  # The source is not a topic.
    return {**line, "behind": count_offsets(end, latest)}


@contextmanager
def _lines(as_json: bool) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Yields a function that shows a micro-batch: as JSON, or in a terminal line that is overwritten."""
    with ExitStack() as stack:
        if as_json:
            yield lambda line: print_line(json.dumps(line), flush=True)
        elif sys.stderr.isatty():
            from rich.console import Console

            status = stack.enter_context(Console(stderr=True).status("starting"))
            yield lambda line: status.update(
                f"{line['query']}: batch {line['batch']}, {line['records']} records in {line['duration_ms']} ms,"
                f" {line.get('behind', 0)} behind"
            )
        else:
            yield lambda line: None
