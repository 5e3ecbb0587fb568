"""A pipeline as plain values: the content of its file, with names of variables in place of their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

KLAMM = "klamm"
AVAILABLE_NOW = "availableNow"
# The names of views.
SOURCE, RECORDS = "source", "records"


class Variable(NamedTuple):
    """A variable of the environment."""

    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """A text with variables."""

    parts: tuple[str | Variable, ...]

    @property
    def variables(self) -> list[str]:
        return [part.name for part in self.parts if isinstance(part, Variable)]

    def text(self, environment: Mapping[str, str]) -> str:
        """The text with the variables' values. Raises KeyError for a variable that is not set."""
        return "".join(environment[part.name] if isinstance(part, Variable) else part for part in self.parts)


Options = Mapping[str, Template]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the SQL uses, read as a batch."""

    name: str
    format: str
    options: Options = field(default_factory=dict)
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the rows."""

    format: str
    stream: bool
    options: Options
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Errors:
    """The topic for bad rows. `key`, `value`, `where` and `reason` are SQL expressions."""

    topic: str
    where: str
    key: str
    value: str
    reason: str
    options: Options


@dataclass(frozen=True, slots=True)
class Step:
    """A query, and the column and the delay of its watermark."""

    name: str
    sql: str
    watermark: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """The target of the rows."""

    format: str
    mode: str
    options: Options
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline as its file describes it."""

    name: str
    source: Source
    sink: Sink
    conf: Options = field(default_factory=dict)
    cluster: Options = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    decode: str | None = None
    errors: Errors | None = None
    steps: tuple[Step, ...] = ()
    checkpoint: Template | None = None
    trigger: str | None = None

    @property
    def variables(self) -> list[str]:
        """The names of the variables, sorted."""
        errors = self.errors.options if self.errors is not None else {}
        tables = [table.options for table in self.tables]
        mappings = (self.conf, self.cluster, self.source.options, self.sink.options, errors, *tables)
        texts = [text for options in mappings for text in options.values()]
        texts += [self.checkpoint] if self.checkpoint is not None else []
        return sorted({name for text in texts for name in text.variables})

    @property
    def ends(self) -> bool:
        """Whether the pipeline ends by itself."""
        return not self.source.stream or self.trigger == AVAILABLE_NOW
