"""How keys and values are decoded or encoded: plain values that the driver sends to its workers.

What must stay true: importing this module imports nothing heavy; the values are immutable, picklable and comparable.
"""

from dataclasses import dataclass
from enum import Enum

BINARY, STRING, JSON, CSV, AVRO, PROTOBUF = "binary", "string", "json", "csv", "avro", "protobuf"
FORMATS = (BINARY, STRING, JSON, AVRO, PROTOBUF)


class MissingLibrary(RuntimeError):
    """A format needs a package that is not installed."""


class Mode(Enum):
    """What becomes of a record whose key or value cannot be decoded: Spark's own modes."""

    PERMISSIVE = "PERMISSIVE"
    """The column is null, and a column for corrupt records, if the schema has it, has the bytes."""
    DROPMALFORMED = "DROPMALFORMED"
    """The record is left out."""
    FAILFAST = "FAILFAST"
    """The query fails. The error names topic, partition, offset and the reason."""


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How the column `key` or `value` is coded.

    - `schema`: DDL text (JSON, CSV), Avro's JSON, or a FileDescriptorSet in base64 (Protobuf), if any.
    - `message`: the full name of Protobuf's message.
    - `settings`: the format's own options that were given, by Spark's names, in the order of their names.
    - `reader_schema`: Avro's schema to which values of `schema` are resolved, where that is another one.
    """

    column: str
    name: str
    schema: str | None = None
    message: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    reader_schema: str | None = None


@dataclass(frozen=True, slots=True)
class TypedRows:
    """The formats of both columns; None stands for binary."""

    key: ColumnFormat | None = None
    value: ColumnFormat | None = None
    mode: Mode = Mode.PERMISSIVE
    corrupt_column: str = "_corrupt_record"

    @property
    def formats(self) -> tuple[ColumnFormat, ...]:
        return tuple(one for one in (self.value, self.key) if one is not None)
