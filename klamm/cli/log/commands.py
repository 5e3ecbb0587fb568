"""`klamm log`: reads what brokers have written to their disks, without a broker.

This module holds the options. The work is imported when a command runs.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.cli.pipeline.pipeline import Master, Remote, session
from klamm.cli.shared.clients import AsJson
from klamm.cli.shared.options import Commands

app = Commands("Merge state-change logs, print the files of logs, and verify data directories.")

TIME_FORM: Final = "yyyy-MM-dd HH:mm:ss,SSS"


class Order(StrEnum):
    """The order of entries."""

    TIME = "time"
    CAUSAL = "causal"


@app.command(
    epilog="Example: klamm log merge --logs-regex 'logs/state-change.log.*' --topic orders --partitions 0 --story"
)
def merge(
    logs: Annotated[
        str | None, typer.Option(metavar="FILE,...", help="The state-change logs, with commas between them.")
    ] = None,
    logs_regex: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY/REGEX",
            help="All files of the directory whose names match, such as 'logs/state-change.log.*'.",
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only entries that name this topic's partitions.")] = None,
    partitions: Annotated[str | None, typer.Option(metavar="0,1,...", help="Only these partitions of --topic.")] = None,
    start_time: Annotated[str | None, typer.Option(metavar=TIME_FORM, help="The earliest time of an entry.")] = None,
    end_time: Annotated[str | None, typer.Option(metavar=TIME_FORM, help="The latest time of an entry.")] = None,
    order: Annotated[
        Order,
        typer.Option(
            help="causal: no entry before its cause, by controller and leader epoch, whatever the clocks say."
        ),
    ] = Order.TIME,
    story: Annotated[
        bool, typer.Option(help="A table of one partition; needs --topic and one of --partitions.")
    ] = False,
    spark: Annotated[
        bool, typer.Option(help="Merge with Spark into Parquet files in --output; needs klamm[spark].")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="The directory of --spark. It must not exist.")] = None,
    master: Master = None,
    remote: Remote = None,
    as_json: AsJson = False,
) -> None:
    """Merge the state-change logs of several brokers into one history."""
    from klamm.cli.log import merging

    choice = merging.choose(topic, partitions, start_time, end_time)
    if story and len(choice.partitions) != 1:
        raise typer.BadParameter("needs --topic and exactly one of --partitions", param_hint="--story")
    if spark != (output is not None):
        raise typer.BadParameter("--spark and --output belong together", param_hint="--output")
    if spark and (story or order is Order.CAUSAL):
        raise typer.BadParameter("has no --story and no --order causal: query the Parquet files", param_hint="--spark")
    paths = merging.find_files(logs, logs_regex)
    if output is not None:
        if output.exists():
            raise typer.BadParameter(f"{output} exists already", param_hint="--output")
        with session("klamm log merge", master, remote) as spark_session:
            code = merging.write_with_spark(spark_session, paths, choice, str(output), as_json)
    else:
        code = merging.print_history(paths, choice, causal=order is Order.CAUSAL, story=story, as_json=as_json)
    raise typer.Exit(code)


class DecoderClass(StrEnum):
    """Kafka's decoders of keys and values."""

    STRING = "kafka.serializer.StringDecoder"
    INTEGER = "kafka.serializer.IntegerDecoder"
    LONG = "kafka.serializer.LongDecoder"
    DEFAULT = "kafka.serializer.DefaultDecoder"


@app.command(epilog="Example: klamm log dump --files data/orders-0/00000000000000000000.log --print-data-log")
def dump(
    files: Annotated[
        str,
        typer.Option(
            metavar="FILE,...",
            help="Segments (.log), indexes (.index, .timeindex, .txnindex), snapshots, checkpoints, partition.metadata"
            " and meta.properties.",
        ),
    ],
    print_data_log: Annotated[
        bool, typer.Option(help="Print keys and values. Every option for a decoder implies this.")
    ] = False,
    deep_iteration: Annotated[bool, typer.Option(help="Print every record, not only every batch.")] = False,
    verify_index_only: Annotated[bool, typer.Option(help="Compare indexes with their log and print no entry.")] = False,
    index_sanity_check: Annotated[
        bool, typer.Option(help="Check only that indexes do not contradict themselves.")
    ] = False,
    skip_record_metadata: Annotated[bool, typer.Option(help="Print only the keys and values of records.")] = False,
    key_decoder_class: Annotated[
        DecoderClass | None, typer.Option(help="How keys are printed; text by default.")
    ] = None,
    value_decoder_class: Annotated[
        DecoderClass | None, typer.Option(help="How values are printed; text by default.")
    ] = None,
    offsets_decoder: Annotated[bool, typer.Option(help="The segments are of __consumer_offsets.")] = False,
    transaction_log_decoder: Annotated[bool, typer.Option(help="The segments are of __transaction_state.")] = False,
    max_message_size: Annotated[
        int | None, typer.Option(help="Accepted for kafka-dump-log's sake; batches of any size are read.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the files of a log, with the options and in the words of kafka-dump-log."""
    from klamm.cli.log import dumping
    from klamm.coordinator import record_texts as decoders

    if offsets_decoder and transaction_log_decoder:
        raise typer.BadParameter("give only one of --offsets-decoder and --transaction-log-decoder")
    decode: decoders.Decode | None = None
    if offsets_decoder:
        decode = decoders.offsets
    elif transaction_log_decoder:
        decode = decoders.transactions
    elif print_data_log or key_decoder_class or value_decoder_class:
        decode = decoders.of_classes(
            (key_decoder_class or DecoderClass.STRING).value, (value_decoder_class or DecoderClass.STRING).value
        )
    wanted = dumping.Wanted(
        is_deep=deep_iteration or decode is not None,
        decode=decode,
        has_record_metadata=not skip_record_metadata,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        as_json=as_json,
    )
    raise typer.Exit(dumping.dump([path for path in files.split(",") if path], wanted))


@app.command(epilog="Example: klamm log verify /var/lib/kafka-1 /var/lib/kafka-2")
def verify(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIRECTORY...", help="The broker's log directories, all of log.dirs.")
    ],
    topic: Annotated[str | None, typer.Option(metavar="REGEX", help="Only partitions of topics that match.")] = None,
    compacted: Annotated[
        list[str] | None,
        typer.Option(
            "--compacted-topic", metavar="TOPIC", help="A topic with cleanup.policy=compact. May be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a stopped broker's log directories, and say what its next start would do. Nothing is changed.

    The exit code is 0 when there is no damage, 1 when there is, and 3 when something could not be verified.
    """
    from klamm.cli.log import verifying

    raise typer.Exit(verifying.verify([str(each) for each in directories], topic, compacted or [], as_json=as_json))
