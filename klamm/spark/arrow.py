"""Topics as Arrow record batches for pandas, Polars, DuckDB and other users of Arrow: no Spark, no JVM.

With pandas:

    from klamm.spark import arrow

    orders = arrow.read("127.0.0.1:9092", subscribe="orders").read_pandas()
    print(orders.groupby("partition").size())

With Polars, and only two columns:

    import polars
    from klamm.spark import arrow

    records = arrow.read("127.0.0.1:9092", subscribe="orders", columns=["key", "timestamp"])
    print(polars.DataFrame(records).group_by("key").len().sort("key"))

With DuckDB, which takes one record batch after another, so that a topic may be larger than the memory:

    import duckdb
    from klamm.spark import arrow

    records = arrow.read("127.0.0.1:9092", subscribe="orders", starting_offsets={"orders": {"0": 1, "1": -2}})
    print(duckdb.sql("select partition, count(*) from records group by partition order by partition").fetchall())

The Spark data source uses the same reader, so options and columns mean the same in both.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from klamm.client.threads import call
from klamm.spark import schema as record_schema
from klamm.spark.formats.settings import TypedRows
from klamm.spark.options import ReadOptions, read_options
from klamm.spark.read.partition_reader import check_topics, read_range
from klamm.spark.read.planning import plan_batch
from klamm.spark.settings import FetchOptions, PartitionRange

PartitionOffsets = Mapping[str, Mapping[str | int, int]]


def read(
    bootstrap_servers: str,
    *,
    subscribe: str | Sequence[str] | None = None,
    subscribe_pattern: str | None = None,
    assign: Mapping[str, Sequence[int]] | None = None,
    starting_offsets: str | PartitionOffsets | None = None,
    ending_offsets: str | PartitionOffsets | None = None,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    include_headers: bool = False,
    options: Mapping[str, object] | None = None,
) -> pa.RecordBatchReader:
    """The records of topics, partition after partition, from the starting to the ending offsets.

    - `subscribe` (topics), `subscribe_pattern` or `assign` (`{"orders": [0, 1]}`): give exactly one of them.
    - `starting_offsets` (default "earliest"), `ending_offsets` (default "latest"): or `{"orders": {"0": 23}}` with an
      offset for each partition; -2 is the earliest, -1 the latest.
    - `columns`: columns of `klamm.spark.schema`, in any order; by default the columns of Spark's connector, with
      `headers` only if `include_headers` is set.
    - `schema`: the columns with their types, instead of `columns`. With an option such as `value.format` the column is
      a struct of the fields to decode, and `_corrupt_record` (binary) may be a column.
    - `options`: the other options of the data source, by their names there.

    This call resolves the offsets. Records are fetched while the reader is read. Raises ValueError for wrong arguments
    (naming what is allowed), KafkaError and ClientError when the cluster does not answer. The reader raises the errors
    of `read_range`.
    """
    given: dict[str, object | None] = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": subscribe if subscribe is None or isinstance(subscribe, str) else ",".join(subscribe),
        "subscribePattern": subscribe_pattern,
        "assign": None if assign is None else json.dumps({topic: list(numbers) for topic, numbers in assign.items()}),
        "startingOffsets": _offsets(starting_offsets),
        "endingOffsets": _offsets(ending_offsets),
    }
    chosen = {**(options or {}), **{name: value for name, value in given.items() if value is not None}}
    parsed = read_options({name: str(value) for name, value in chosen.items()}, streaming=False)
    with_headers = include_headers or parsed.include_headers
    if schema is not None:
        if columns is not None:
            raise ValueError("schema and columns exclude each other")
        return _with_schema(parsed, schema)
    names = record_schema.columns(include_headers=with_headers) if columns is None else tuple(columns)
    for one in parsed.typed.formats if parsed.typed is not None else ():
        if one.column in names:
            raise ValueError(
                f"{one.column}.format={one.name} needs schema, a pyarrow.Schema with the type of the column"
            )
    made = record_schema.schema(names)
    return pa.RecordBatchReader.from_batches(made, _read(parsed.fetch, plan_batch(parsed), names))


def _with_schema(options: ReadOptions, schema: pa.Schema) -> pa.RecordBatchReader:
    from klamm.spark.read.typed import RowDecoder

    decoder = RowDecoder(options.typed or TypedRows(), schema)

    def rows() -> Iterator[pa.RecordBatch]:
        for records in plan:
            batches = read_range(options.fetch, records, decoder.columns)
            yield from decoder.rows(batches, f"{records.topic}-{records.partition}")

    plan = plan_batch(options)
    return pa.RecordBatchReader.from_batches(schema, rows())


def _read(fetch: FetchOptions, ranges: Sequence[PartitionRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for records in ranges:
        yield from read_range(fetch, records, columns, checks_end=not fetch.fail_on_data_loss)
    if fetch.fail_on_data_loss and ranges:
        call(fetch.client, lambda client: check_topics(client, fetch, ranges))


def _offsets(limit: str | PartitionOffsets | None) -> str | None:
    return limit if limit is None or isinstance(limit, str) else json.dumps(limit)
