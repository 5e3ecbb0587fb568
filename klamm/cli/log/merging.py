"""`klamm log merge`: the state-change.log files of many brokers as one history, by time or by cause.

The options are those of Kafka's StateChangeLogMerger; files of any version, rotated or gzipped, may be mixed. Without
--topic all entries are printed, also those that name no partition.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from klamm.base.system_environment import SystemFileSystem
from klamm.cli.shared.output import data_output, print_line, print_lines, stream_line
from klamm.cli.shared.patterns import expression
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_OK, ToolError
from klamm.state_changes import story as stories
from klamm.state_changes.causal import Fact, causal_order
from klamm.state_changes.entries import EARLIEST, END_OF_TIME, FORM, Said, first_partition, names, parse
from klamm.state_changes.merging import Run, Wanted, merge

# A causal order and a story hold at most this many entries in memory.
MAX_ENTRIES: Final = 2_000_000
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3}")


@dataclass(frozen=True, slots=True)
class Choice:
    """The requested entries: those about `partitions` of `topic`, about all its partitions, or without `topic` all."""

    topic: str | None
    partitions: Sequence[int]
    start: bytes
    end: bytes


def choose(topic: str | None, partitions: str | None, start_time: str | None, end_time: str | None) -> Choice:
    """The choice that the options make. Raises typer.BadParameter."""
    if topic == "":
        raise typer.BadParameter("is empty", param_hint="--topic")
    start, end = _time("--start-time", start_time, EARLIEST), _time("--end-time", end_time, END_OF_TIME)
    return Choice(topic, _partitions(topic, partitions), start, end)


def print_history(paths: Sequence[str], choice: Choice, *, causal: bool, story: bool, as_json: bool) -> int:
    """Prints the merged entries. Returns the exit code."""
    selects = None if choice.topic is None else names(choice.topic, choice.partitions)
    wanted = Wanted(selects, (choice.topic or "").encode(), choice.start, choice.end)
    warnings = _Warnings()
    runs = merge(SystemFileSystem(), paths, wanted, warnings.lost, warnings.note)
    if causal:
        runs = iter([_in_causal_order(runs, choice)])
    if story:
        _print_story(runs, as_json)
    elif as_json:
        _print_json(runs, paths, choice)
    else:
        _print_lines(runs)
    return EXIT_FAILED if warnings.is_any_lost else EXIT_OK


def write_with_spark(spark: "SparkSession", paths: Sequence[str], choice: Choice, output: str, as_json: bool) -> int:
    """Writes the entries to Parquet files. Returns the exit code."""
    from klamm.spark.pipelines.state_changes import write_history

    done = write_history(
        spark,
        paths,
        output,
        topic=choice.topic,
        partitions=choice.partitions,
        start=choice.start,
        end=choice.end,
    )
    for text in done.lost:
        print_line(f"klamm: {text}", file=sys.stderr)
    print_line(
        json.dumps({"entries": done.entries, "output": output})
        if as_json
        else f"{done.entries} entries are in {output}."
    )
    return EXIT_FAILED if done.lost else EXIT_OK


class _Warnings:
    """Prints lines on stderr about files that could only be read in part."""

    def __init__(self) -> None:
        self.is_any_lost = False

    def lost(self, text: str) -> None:
        self.is_any_lost = True
        self.note(text)

    def note(self, text: str) -> None:
        print_line(f"klamm: {text}", file=sys.stderr)


# -- the call ---------------------------------------------------------------------------------------------------------


def _partitions(topic: str | None, text: str | None) -> list[int]:
    """Raises typer.BadParameter."""
    if text is None:
        return []
    if topic is None:
        raise typer.BadParameter("needs --topic", param_hint="--partitions")
    numbers = text.split(",")
    for number in numbers:
        if not number.strip().isdecimal():
            raise typer.BadParameter(f"{number!r} is not a partition, such as 0", param_hint="--partitions")
    chosen = [int(number) for number in numbers]
    if len(set(chosen)) != len(chosen):
        raise typer.BadParameter(f"{text} names a partition twice", param_hint="--partitions")
    return chosen


def _time(option: str, text: str | None, default: bytes) -> bytes:
    if text is None:
        return default
    text = text.replace('"', " ").strip()
    if not _TIME.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not of the form {FORM}", param_hint=option)
    try:
        datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        if text.encode() != EARLIEST:
            raise typer.BadParameter(f"{text!r} is not a time of any calendar", param_hint=option) from None
    return text.encode()


def find_files(logs: str | None, logs_regex: str | None) -> list[str]:
    """The paths of the files, sorted by name where a pattern finds them."""
    if (logs is None) == (logs_regex is None):
        raise typer.BadParameter("give exactly one of --logs and --logs-regex", param_hint="--logs")
    if logs is not None:
        paths = [str(Path(name)) for name in logs.split(",") if name]
        if not paths:
            raise typer.BadParameter("names no file", param_hint="--logs")
        return paths
    directory, _, pattern = str(logs_regex).rpartition("/")
    place = Path(directory or ("/" if str(logs_regex).startswith("/") else "."))
    wanted = expression(pattern, "--logs-regex")
    found = [path for path in sorted(place.iterdir()) if wanted.search(path.name) and path.is_file()]
    if not found:
        raise ToolError(f"no file in {place} has a name that matches {pattern!r}")
    return [str(path) for path in found]


# -- results ----------------------------------------------------------------------------------------------------------


def _in_causal_order(runs: Iterator[Run], choice: Choice) -> Run:
    entries, files = _all(runs)
    partition_of = _partition_of(choice)
    facts = []
    for entry, file in zip(entries, files, strict=True):
        said = parse(entry)
        writer: object = f"file {file}" if said.broker is None else said.broker
        facts.append(Fact(writer, said.is_controller, said.controller_epoch, partition_of(entry), said.leader_epoch))
    found = causal_order(facts)
    return Run([entries[index] for index in found], [files[index] for index in found])


def _all(runs: Iterator[Run]) -> Run:
    """All entries, in memory. Raises ToolError if there are more than MAX_ENTRIES."""
    entries: list[bytes] = []
    files: list[int] = []
    for run in runs:
        entries += run.entries
        files += run.files
        if len(entries) > MAX_ENTRIES:
            raise ToolError(
                f"there are more than {MAX_ENTRIES} entries; choose fewer with --topic, --partitions, --start-time and"
                " --end-time"
            )
    return Run(entries, files)


def _partition_of(choice: Choice) -> Callable[[bytes], tuple[str, int] | None]:
    """Which partition an entry is about: the one that was asked for, or else the first that it names."""
    if choice.topic is not None and len(choice.partitions) == 1:
        asked = choice.topic, choice.partitions[0]
        return lambda entry: asked
    return first_partition


def _print_lines(runs: Iterator[Run]) -> None:
    out = data_output()
    for run in runs:
        out.writelines([b"\n".join(run.entries), b"\n"])


def _print_json(runs: Iterator[Run], paths: Sequence[str], choice: Choice) -> None:
    partition_of = _partition_of(choice)
    for run in runs:
        for entry, file in zip(run.entries, run.files, strict=True):
            named = partition_of(entry)
            where: dict[str, Any] = {"topic": named[0], "partition": named[1]} if named else {}
            stream_line(json.dumps({**described(parse(entry)), **where, "file": paths[file]}), flush=False)


def _print_story(runs: Iterator[Run], as_json: bool) -> None:
    said = [parse(entry) for entry in _all(runs).entries]
    if as_json:
        for each in said:
            print_line(json.dumps(described(each)))
        return
    if not said:
        raise ToolError("no entry names this partition in this time")
    print_lines(stories.table(stories.rows(said)))


def described(said: Said) -> dict[str, Any]:
    """The values of an entry, without those that are missing."""
    values = {name: value for name, value in said._asdict().items() if value is not None and name != "is_controller"}
    return {**values, "written_by": "controller" if said.is_controller else "broker"}
