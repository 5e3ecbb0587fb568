"""`klamm pipeline`: topics to files and back, the load of a cluster, and an example of a pipeline, on Spark.

Spark runs inside the command, with as many parallel tasks as the machine has cores, or where --master or --remote says.
The result goes to stdout; progress and Spark's own lines go to stderr.
"""

import json
import os
import sys
import time as clock
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.access.properties import parse_pairs
from klamm.base.progress import progress
from klamm.cli.shared.clients import AsJson, client_in_thread
from klamm.cli.shared.files import check_result_file
from klamm.cli.shared.options import DEFAULT_BOOTSTRAP, BootstrapServer, ClusterOptions, Commands
from klamm.cli.shared.output import print_line
from klamm.processes.tool_errors import EXIT_FAILED, ToolError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = Commands("Topics to files and back, the load of a cluster, and an example of a pipeline, on Spark.")

LOCAL: Final = "local[*]"
PROGRESS_INTERVAL_S: Final = 1
_TRACEBACK: Final = "Traceback (most recent call last):"

Master = Annotated[str | None, typer.Option("--master", metavar="URL", help=f"Spark's master; {LOCAL} by default.")]
Remote = Annotated[str | None, typer.Option("--remote", metavar="URL", help="A server of Spark Connect, sc://...")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="An option of the data source, such as kafka.*. May be repeated."
    ),
]


StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="An option of the object store, such as endpoint or region. May be repeated.",
    ),
]


@app.command(epilog="Example: klamm pipeline archive --directory archive --topic orders --delta")
def archive(
    directory: Annotated[
        str, typer.Option(help="The archive: a directory that all executors see, or s3://, gs://, az://.")
    ],
    topic: Annotated[list[str] | None, typer.Option(help="A topic. May be repeated.")] = None,
    pattern: Annotated[str | None, typer.Option(help="All topics that match this pattern.")] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    offsets_per_file: Annotated[int, typer.Option(min=1, help="The largest number of offsets in a file.")] = 1_000_000,
    accept_data_loss: Annotated[
        bool, typer.Option(help="Continue even if records were removed before they were archived.")
    ] = False,
    delta: Annotated[
        bool, typer.Option(help="Also keep DIRECTORY/data as a Delta table; needs the package deltalake.")
    ] = False,
    iceberg: Annotated[
        str | None,
        typer.Option(
            metavar="CATALOG.NAMESPACE.TABLE",
            help="Also keep the archive as this Iceberg table; the catalog is one of pyiceberg's configuration.",
        ),
    ] = None,
    storage_option: StorageOptions = None,
    option: Options = None,
    master: Master = None,
    remote: Remote = None,
    as_json: AsJson = False,
) -> None:
    """Add the present records of topics to an archive of Parquet files, exactly once."""
    if (topic is None) == (pattern is None):
        raise typer.BadParameter("give exactly one of --topic and --pattern", param_hint="--topic")
    options = {
        "kafka.bootstrap.servers": bootstrap_server,
        "failOnDataLoss": str(not accept_data_loss).lower(),
        **({"subscribe": ",".join(topic)} if topic else {"subscribePattern": str(pattern)}),
        **parse_pairs("--option", option or []),
    }
    storage_options = parse_storage_options(storage_option)
    with session("klamm archive", master, remote) as spark, shown("archiving", as_json) as show:
        from klamm.spark.pipelines.archive import archive as run

        done = run(
            spark,
            directory,
            options,
            offsets_per_file=offsets_per_file,
            delta=delta,
            iceberg=iceberg,
            storage_options=storage_options,
            on_progress=lambda progress: show(progress.offsets_done, progress.offsets_total),
        )
    value = {
        "records": done.records,
        "files": done.files,
        "size_bytes": done.size_bytes,
        "lost_offsets": done.lost_offsets,
    }
    loss = f"; {done.lost_offsets} offsets had been removed from the topics" if done.lost_offsets else ""
    tell(value, f"Archived {done.records} records in {done.files} files of {done.size_bytes} bytes{loss}.", as_json)


@app.command(epilog="Example: klamm pipeline replay --directory archive --output offsets --topic orders=orders2")
def replay(
    directory: Annotated[str, typer.Option(help="The archive: a directory, or s3://, gs://, az://.")],
    output: Annotated[Path, typer.Option(help="Directory for the new offsets.")],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC[=NEW]", help="A topic, and its new name. May be repeated.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    max_records_per_second: Annotated[
        int | None, typer.Option(min=1, help="Limit for all partitions together.")
    ] = None,
    commit_groups: Annotated[
        bool, typer.Option(help="Translate the groups' committed offsets, and commit them.")
    ] = False,
    storage_option: StorageOptions = None,
    option: Options = None,
    master: Master = None,
    remote: Remote = None,
    as_json: AsJson = False,
) -> None:
    """Write the records of an archive to topics, with their partitions and timestamps."""
    pairs = (each.partition("=") for each in topic or ())
    topics = {name: new or name for name, _, new in pairs} or None
    options = {"kafka.bootstrap.servers": bootstrap_server, **parse_pairs("--option", option or [])}
    storage_options = parse_storage_options(storage_option)
    with session("klamm replay", master, remote) as spark, shown("replaying", as_json) as show:
        from klamm.spark.pipelines.replay import replay as run

        done = run(
            spark,
            directory,
            str(output),
            options,
            topics=topics,
            max_records_per_second=max_records_per_second,
            commit_groups=commit_groups,
            storage_options=storage_options,
            on_progress=lambda progress: show(progress.records_done, progress.records_total),
            on_warning=lambda text: print_line(f"klamm: warning: {text}", file=sys.stderr),
        )
    for group, reason in done.refused.items():
        print_line(f"klamm: the offsets of group {group} are not committed: {reason}", file=sys.stderr)
    committed = f", and the offsets of {len(done.groups)} groups" if commit_groups else ""
    value = {"records": done.records, "groups": done.groups, "refused": done.refused}
    tell(value, f"{done.records} records are in the topics{committed}.", as_json)
    if done.refused:
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog="Example: klamm pipeline transform --source sales --target totals --checkpoint progress")
def transform(
    source: Annotated[str, typer.Option(help="The topic of the sales.")],
    target: Annotated[str, typer.Option(help="The topic of the totals.")],
    checkpoint: Annotated[Path, typer.Option(help="Directory in which Spark keeps its progress.")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    window: Annotated[str, typer.Option(help="The period of each total.")] = "1 minute",
    late: Annotated[str, typer.Option(help="How late a sale may arrive.")] = "10 minutes",
    option: Options = None,
    master: Master = None,
    remote: Remote = None,
    as_json: AsJson = False,
) -> None:
    """An example: sum up sales (JSON records) by product and minute."""
    options = {"kafka.bootstrap.servers": bootstrap_server, **parse_pairs("--option", option or [])}
    with session("klamm transform", master, remote) as spark, progress("summing up", None, visible=not as_json) as add:
        import klamm.spark
        from klamm.spark.pipelines.transform import transform as run

        klamm.spark.register(spark)
        # By default Spark keeps the progress of the last hundred micro-batches only.
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1_000_000)
        query = run(spark, options, source, target, str(checkpoint), window=window, late=late)
        rows, has_ended = 0, False
        while not has_ended:
            has_ended = bool(query.awaitTermination(PROGRESS_INTERVAL_S))
            counted = sum(each.numInputRows for each in query.recentProgress)
            add(counted - rows)
            rows = counted
    tell({"records": rows}, f"Summed up {rows} records.", as_json)


@app.command(epilog="Example: klamm pipeline load --topic 'orders.*' --output load.json --report load.html")
def load(
    topic: Annotated[str, typer.Option(help="A regular expression for whole names of topics; all by default.")] = ".*",
    start_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The earliest batches that count: 2021-02-03T04:05:06 in UTC, or earliest. By default an hour before"
            " the end.",
        ),
    ] = None,
    end_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Count only batches before this time; by default now.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="30s|5m|1h|1d", help="The width of the windows of time; by default one that fits."),
    ] = None,
    hot_keys: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N", help="Also decode a sample, and show this many frequent keys.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the load that klamm reassign generate --load reads.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page of HTML with plots.")] = None,
    *,
    cluster: ClusterOptions,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Count bytes and records of each partition and broker over time, from the headers of their batches.

    The exit code is 1 when a partition could not be read.
    """
    from klamm.cli.pipeline.load.choice import choose

    check_result_file("--output", output)
    check_result_file("--report", report)
    now_ms = clock.time_ns() // 1_000_000
    choice = choose(topic, start_time, end_time, window, hot_keys, now_ms=now_ms)
    client = cluster.client_options()
    with client_in_thread(client):
        pass  # Spark takes seconds to start, so a cluster that does not answer is reported before.
    with session("klamm load", master, remote) as spark, shown("counting", cluster.as_json) as show:
        from klamm.spark.pipelines.load import count_load

        count = count_load(spark, client, choice.matches, choice.options, on_progress=show)
    if not count.partitions and not count.skipped:
        raise ToolError(f"--topic: no topic matches {topic!r}")
    from klamm.cli.pipeline.load.figures import figures, figures_value
    from klamm.cli.pipeline.load.html import page
    from klamm.cli.pipeline.load.text import report_lines
    from klamm.cli.reassign.load_file import format_load

    found = figures(count, choice.options, choice.now_ms)
    if output is not None:
        output.write_text(format_load(found.load()) + "\n", encoding="utf-8")
    if report is not None:
        report.write_text(page(found, cluster.bootstrap_server), encoding="utf-8")
    cluster.show(figures_value(found), report_lines(found))
    if found.failures:
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog="Example: klamm pipeline prewarm --directory kernels")
def prewarm(
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep the machine code: what executors get as NUMBA_CACHE_DIR. By default beside klamm,"
            " or in the user's cache directory."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile the code of readers and writers, so that no worker has to: for images, archives and read-only disks."""
    if directory is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(directory)
    try:
        from klamm.base import compiling
        from klamm.spark.prewarm import prewarm as run
    except ImportError as error:
        raise ToolError(f"Spark's workers need numba and pyarrow ({error}); pip install 'klamm[spark]'") from None
    found = compiling.directory()
    if directory is not None and found != directory.resolve() / "klamm":
        reason = compiling.why_unsafe(directory.resolve() / "klamm")
        raise ToolError(
            f"--directory: {directory} cannot be written to"
            if reason is None
            else f"--directory: code in {directory} is not used, because {reason}"
        )
    if found is None:
        raise ToolError("no directory can be written to and is safe from other users; give one with --directory")
    loaded, compiled = run()
    compiling.copy_code(found)
    value = {"directory": str(found), "compiled": compiled, "loaded": loaded}
    tell(value, f"Compiled {compiled} functions and found {loaded} in {found}.", as_json)


# -- shared by the commands -------------------------------------------------------------------------------------------


@contextmanager
def session(
    name: str, master: str | None, remote: str | None, conf: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A Spark session with this configuration; its errors become ToolErrors."""
    if master is not None and remote is not None:
        raise typer.BadParameter("give only one of --master and --remote", param_hint="--remote")
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ToolError(f"pipelines need PySpark ({error}); install it with pip install 'klamm[spark]'") from None
    from klamm.net.client import ClientError
    from klamm.protocol.error_codes import KafkaError
    from klamm.spark.pipelines.replay import ReplayError
    from klamm.spark.settings import DataLoss

    # Pipelines hand no pandas data to users, so PySpark's warning about pandas' version does not concern them.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    try:
        if remote is not None:
            builder = SparkSession.builder.remote(remote).appName(name)
            for key, value in (conf or {}).items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
        else:
            builder = SparkSession.builder.master(master or LOCAL).appName(name)
            if (master or LOCAL).startswith("local"):
                # Spark's default for its workers is the python3 on the PATH.
                os.environ.setdefault("PYSPARK_PYTHON", worker_python())
                # Spark's default is for clusters: 200 tasks for each micro-batch with an aggregate.
                builder = builder.config("spark.sql.shuffle.partitions", os.cpu_count() or 1)
            for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress", "spark.speculation"):
                builder = builder.config(key, "false")
            for key, value in (conf or {}).items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
    except PySparkException as error:
        raise ToolError(reason(str(error))) from error
    except (Py4JError, ConnectionError) as error:
        # A failed connection to a broker is a ClientError, so these errors come from the connection to the JVM.
        raise ToolError(f"Spark's JVM no longer answers: {error}") from error
    except (ValueError, DataLoss, ReplayError, KafkaError, ClientError) as error:
        raise ToolError(str(error)) from error


def parse_storage_options(pairs: list[str] | None) -> dict[str, str]:
    """Like `parse_pairs`. Errors do not show the refused text, because it may be a secret."""
    names = [pair.partition("=")[:2] for pair in pairs or ()]
    if not all(name.strip() and equals for name, equals in names):
        raise typer.BadParameter("one of them is not of the form NAME=VALUE", param_hint="--storage-option")
    return parse_pairs("--storage-option", pairs or ())


def worker_python() -> str:
    """The path of bin/klamm-python, with which PySpark starts faster, or of this Python if that file does not exist."""
    sooner = Path(sys.executable).with_name("klamm-python")
    return str(sooner) if sooner.exists() else sys.executable


def reason(text: str) -> str:
    """The line of a Spark error that states the cause: the end of a worker's last traceback, or the first line."""
    lines = [line for line in text.splitlines() if line.strip()]
    tracebacks = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if not tracebacks:
        return lines[0] if lines else "Spark failed"
    return next((line for line in lines[tracebacks[-1] + 1 :] if not line[0].isspace()), lines[0])


@contextmanager
def shown(what: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; yields a function that takes the amount done and the total."""
    with ExitStack() as stack:
        advance: Callable[[int], object] | None = None
        before = 0

        def show(done: int, total: int) -> None:
            nonlocal advance, before
            if advance is None:
                advance = stack.enter_context(progress(what, total, visible=not as_json))
            advance(done - before)
            before = done

        yield show


def tell(value: Mapping[str, Any], text: str, as_json: bool) -> None:
    print_line(json.dumps(value) if as_json else text)
