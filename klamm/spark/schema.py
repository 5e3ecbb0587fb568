"""The columns of a record: those of Spark's own Kafka connector, with the same names, types and order, and one more.

`key` and `value` are null if the record's are null. `timestamp` is UTC. `timestampType` is 0 if the timestamp is when
the record was made (CreateTime), and 1 if it is when a broker appended the record (LogAppendTime). `headers` is null
for a record without headers, and exists only on request. `leaderEpoch` is the epoch of the leader that appended the
record, -1 if the batch has none (KIP-320). Spark's connector does not have this column, so it exists only if a query
names it.

Source: org.apache.spark.sql.kafka010.KafkaRecordToRowConverter.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = "headers"
LEADER_EPOCH = "leaderEpoch"

COLUMNS: tuple[str, ...] = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a read that does not choose its columns."""

ALL_COLUMNS: tuple[str, ...] = (*COLUMNS, HEADERS, LEADER_EPOCH)


def columns(*, include_headers: bool) -> tuple[str, ...]:
    """The columns of Spark's connector, in order."""
    return (*COLUMNS, HEADERS) if include_headers else COLUMNS


def schema(names: Sequence[str]) -> "pa.Schema":
    """The Arrow schema of these columns, in their order.

    Raises ValueError for a name that is not a column, and for a column named twice.
    """
    return _schema(tuple(names))


@cache
def _schema(names: tuple[str, ...]) -> "pa.Schema":
    # Imported here, because a caller that only needs the names must not wait for pyarrow.
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        LEADER_EPOCH: pa.int32(),
    }
    for index, name in enumerate(names):
        if name not in types:
            raise ValueError(f"there is no column {name!r}; allowed: {', '.join(ALL_COLUMNS)}")
        if name in names[:index]:
            raise ValueError(f"column {name!r} is asked for twice")
    return pa.schema([pa.field(name, types[name]) for name in names])
