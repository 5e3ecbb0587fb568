"""`klamm log merge`: the state-change.log files of many brokers as one history, by time or by cause.

The options are those of Kafka's StateChangeLogMerger; files of any version, rotated or gzipped, may be mixed. Without
--topic all entries are printed, also those that name no partition.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from klamm.environment import SystemFileSystem
from klamm.processes.errors import EXIT_FAILED, ToolError
from klamm.state_changes import story as stories
from klamm.state_changes.causal import Fact, causal_order
from klamm.state_changes.entries import EARLIEST, END_OF_TIME, Said, first_partition, names, parse
from klamm.state_changes.merging import Run, Wanted
from klamm.state_changes.merging import merge as merge_files
from klamm.tools.clients import AsJson
from klamm.tools.pipeline import Master, Remote

EXAMPLE: Final = "Example: klamm log merge --logs-regex 'logs/state-change.log.*' --topic orders --partitions 0 --story"
# What a causal order and a story hold in memory.
MAX_ENTRIES: Final = 2_000_000
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3}")
_TIME_FORM: Final = "yyyy-MM-dd HH:mm:ss,SSS"


class Order(StrEnum):
    """The order of entries."""

    TIME = "time"
    CAUSAL = "causal"


def merge(
    logs: Annotated[
        str | None, typer.Option("--logs", metavar="FILE,...", help="The state-change logs, with commas between them.")
    ] = None,
    logs_regex: Annotated[
        str | None,
        typer.Option(
            "--logs-regex",
            metavar="DIRECTORY/REGEX",
            help="All files of the directory whose names match, such as 'logs/state-change.log.*'.",
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only entries that name this topic's partitions.")
    ] = None,
    partitions: Annotated[
        str | None, typer.Option("--partitions", metavar="0,1,...", help="Of --topic, only these partitions.")
    ] = None,
    start_time: Annotated[
        str | None, typer.Option("--start-time", metavar=_TIME_FORM, help="The earliest time of an entry.")
    ] = None,
    end_time: Annotated[
        str | None, typer.Option("--end-time", metavar=_TIME_FORM, help="The latest time of an entry.")
    ] = None,
    order: Annotated[
        Order,
        typer.Option(
            "--order",
            help="causal: no entry before its cause, by controller and leader epoch, whatever the clocks say.",
        ),
    ] = Order.TIME,
    story: Annotated[
        bool, typer.Option("--story", help="A table of one partition; needs --topic and one of --partitions.")
    ] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Merge with Spark into Parquet files in --output; needs klamm[spark].")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="The directory of --spark. It must not exist.")
    ] = None,
    master: Master = None,
    remote: Remote = None,
    as_json: AsJson = False,
) -> None:
    """Merge the state-change logs of several brokers into one history."""
    chosen = _partitions(topic, partitions)
    if story and (topic is None or len(chosen) != 1):
        raise typer.BadParameter("needs --topic and exactly one of --partitions", param_hint="--story")
    if spark != (output is not None):
        raise typer.BadParameter("--spark and --output belong together", param_hint="--output")
    if spark and (story or order is Order.CAUSAL):
        raise typer.BadParameter("has no --story and no --order causal: query the Parquet files", param_hint="--spark")
    start, end = _time("--start-time", start_time, EARLIEST), _time("--end-time", end_time, END_OF_TIME)
    paths = _files(logs, logs_regex)
    if spark:
        _merge_with_spark(paths, topic, chosen, (start, end), str(output), master, remote, as_json)
        return
    selects = None if topic is None else names(topic, chosen)
    wanted = Wanted(selects, (topic or "").encode(), start, end)
    warnings = _Warnings()
    runs = merge_files(SystemFileSystem(), paths, wanted, warnings.lost, warnings.note)
    if order is Order.CAUSAL:
        runs = iter([_in_causal_order(runs, topic, chosen)])
    if story:
        _print_story(runs, as_json)
    elif as_json:
        _print_json(runs, paths, topic, chosen)
    else:
        _print_lines(runs)
    if warnings.is_any_lost:
        raise typer.Exit(EXIT_FAILED)


class _Warnings:
    """Lines on stderr about files that could not be read as a whole."""

    def __init__(self) -> None:
        self.is_any_lost = False

    def lost(self, text: str) -> None:
        self.is_any_lost = True
        self.note(text)

    def note(self, text: str) -> None:
        print(f"klamm: {text}", file=sys.stderr)


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
        raise typer.BadParameter(f"{text!r} is not of the form {_TIME_FORM}", param_hint=option)
    return text.encode()


def _files(logs: str | None, logs_regex: str | None) -> list[str]:
    """The paths of the files, sorted by name where a pattern finds them."""
    if (logs is None) == (logs_regex is None):
        raise typer.BadParameter("give exactly one of --logs and --logs-regex", param_hint="--logs")
    if logs is not None:
        return [str(Path(name)) for name in logs.split(",") if name]
    directory, _, pattern = str(logs_regex).rpartition("/")
    place = Path(directory or ("/" if str(logs_regex).startswith("/") else "."))
    try:
        found = [path for path in sorted(place.iterdir()) if re.search(pattern, path.name) and path.is_file()]
    except re.error as error:
        raise typer.BadParameter(
            f"{pattern!r} is not a regular expression: {error}", param_hint="--logs-regex"
        ) from None
    if not found:
        raise ToolError(f"no file in {place} has a name that matches {pattern!r}")
    return [str(path) for path in found]


# -- results ----------------------------------------------------------------------------------------------------------


def _in_causal_order(runs: Iterator[Run], topic: str | None, partitions: list[int]) -> Run:
    entries, files = _all(runs)
    partition_of = _partition_of(topic, partitions)
    facts = []
    for entry, file in zip(entries, files, strict=True):
        said = parse(entry)
        writer: object = f"file {file}" if said.broker is None else said.broker
        facts.append(Fact(writer, said.is_controller, said.controller_epoch, partition_of(entry), said.leader_epoch))
    found = causal_order(facts)
    return Run([entries[index] for index in found], [files[index] for index in found])


def _all(runs: Iterator[Run]) -> Run:
    """Everything in memory, within a limit."""
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


def _partition_of(topic: str | None, partitions: list[int]) -> Callable[[bytes], tuple[str, int] | None]:
    """Which partition an entry is about: the one that was asked for, or else the first that it names."""
    if topic is not None and len(partitions) == 1:
        asked = topic, partitions[0]
        return lambda entry: asked
    return first_partition


def _print_lines(runs: Iterator[Run]) -> None:
    out = sys.stdout.buffer
    for run in runs:
        out.write(b"\n".join(run.entries))
        out.write(b"\n")


def _print_json(runs: Iterator[Run], paths: list[str], topic: str | None, partitions: list[int]) -> None:
    partition_of = _partition_of(topic, partitions)
    for run in runs:
        lines = []
        for entry, file in zip(run.entries, run.files, strict=True):
            named = partition_of(entry)
            where: dict[str, Any] = {"topic": named[0], "partition": named[1]} if named else {}
            lines.append(json.dumps({**described(parse(entry)), **where, "file": paths[file]}))
        print("\n".join(lines))


def _print_story(runs: Iterator[Run], as_json: bool) -> None:
    said = [parse(entry) for entry in _all(runs).entries]
    if as_json:
        for each in said:
            print(json.dumps(described(each)))
        return
    if not said:
        raise ToolError("no entry names this partition in this time")
    print("\n".join(stories.table(stories.rows(said))))


def described(said: Said) -> dict[str, Any]:
    """The values of an entry, without those that it does not say."""
    values = {name: value for name, value in said._asdict().items() if value is not None and name != "is_controller"}
    return {**values, "written_by": "controller" if said.is_controller else "broker"}


def _merge_with_spark(
    paths: list[str],
    topic: str | None,
    partitions: list[int],
    times: tuple[bytes, bytes],
    output: str,
    master: str | None,
    remote: str | None,
    as_json: bool,
) -> None:
    from klamm.tools.pipeline import session, tell

    with session("klamm log merge", master, remote) as spark:
        from klamm.spark.pipelines.state_changes import write_history

        done = write_history(spark, paths, output, topic=topic, partitions=partitions, start=times[0], end=times[1])
    for text in done.lost:
        print(f"klamm: {text}", file=sys.stderr)
    tell({"entries": done.entries, "output": output}, f"{done.entries} entries are in {output}.", as_json)
    if done.lost:
        raise typer.Exit(EXIT_FAILED)
