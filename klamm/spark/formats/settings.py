"""How keys and values are decoded or encoded: plain values that the driver sends to its workers.

What must stay true: importing this module imports nothing heavy; the values are immutable, picklable and comparable.
"""

from dataclasses import dataclass, field
from enum import Enum

BINARY, STRING, JSON, CSV, AVRO, PROTOBUF = "binary", "string", "json", "csv", "avro", "protobuf"
FORMATS = (BINARY, STRING, JSON, CSV, AVRO, PROTOBUF)
WRITE_FORMATS = FORMATS


class MissingLibrary(RuntimeError):
    """A format needs a package that is not installed."""


class SchemaError(ValueError):
    """A schema that cannot be used; the message says why."""


class Mode(Enum):
    """How to handle a record whose key or value cannot be decoded: Spark's own modes."""

    PERMISSIVE = "PERMISSIVE"
    """The column is null. If the schema has a column for corrupt records, this column has the bytes."""
    DROPMALFORMED = "DROPMALFORMED"
    """The record is left out."""
    FAILFAST = "FAILFAST"
    """The query fails. The error names topic, partition, offset and the reason."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A Schema Registry: the properties of Confluent's client, which may be secrets."""

    properties: tuple[tuple[str, str], ...] = field(repr=False)


class SubjectNames(Enum):
    """How a subject is named: Confluent's strategies."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"


@dataclass(frozen=True, slots=True)
class RegistryUse:
    """How a column uses schemas of a registry.

    - `subject`, `schema_id`, `version`: the schema, as far as the options name it.
    - `auto_register`, `use_latest`, `normalize`: for writers, as in Confluent's serializers.
    """

    registry: Registry
    subject: str | None = None
    schema_id: int | None = None
    version: int | None = None
    names: SubjectNames = SubjectNames.TOPIC
    auto_register: bool = True
    use_latest: bool = False
    normalize: bool = False


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """The format of the column `key` or `value`.

    - `schema`: DDL text (JSON, CSV), Avro's JSON, or a FileDescriptorSet in base64 (Protobuf), if any.
    - `message`: the full name of Protobuf's message.
    - `settings`: the given options of the format, by Spark's names, sorted.
    - `registry`: set if values begin with the id of a schema, in Confluent's wire format.
    - `reader_schema`: the Avro schema to which values of `schema` are resolved, if it is another schema.
    - `prefix`: the bytes that a writer puts before each value: the id of its schema, in the wire format.
    """

    column: str
    name: str
    schema: str | None = None
    message: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    registry: RegistryUse | None = None
    reader_schema: str | None = None
    prefix: bytes = b""


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
