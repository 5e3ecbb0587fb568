"""The keys of a pipeline's file: one table, the source of the checks and of the JSON schema for editors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class ValueForm(Enum):
    """The form of a value."""

    TEXT = "text"
    FLAG = "true or false"
    TEXTS = "a list of texts"
    OPTIONS = "a mapping of names to texts, numbers or true and false"
    SECTION = "a mapping"
    SECTIONS = "a list of mappings"


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `keys` are the keys of a section. With `has_variables`, `${NAME}` in a text is a variable."""

    kind: ValueForm
    about: str
    required: bool = False
    allowed: tuple[str, ...] = ()
    has_variables: bool = False
    keys: Mapping[str, "Key"] = field(default_factory=dict)


def _options(about: str, *, required: bool = False) -> Key:
    return Key(
        ValueForm.OPTIONS, f"{about} ${{NAME}} is the variable of the environment.", required, has_variables=True
    )


_SCHEMA = Key(ValueForm.TEXT, "The columns to read, as in spark.read.schema: 'key BINARY, value BINARY'.")
_NAME = Key(ValueForm.TEXT, "The name of the view.", required=True)

BATCH_MODES = ("append", "overwrite", "errorifexists", "ignore")
STREAM_MODES = ("append", "update", "complete")

FILE = Key(
    ValueForm.SECTION,
    "A pipeline: rows from a source through SQL to a sink.",
    keys={
        "name": Key(ValueForm.TEXT, "The name of Spark's application."),
        "conf": _options("Configuration of Spark, such as spark.sql.session.timeZone."),
        "cluster": _options(
            "Options kafka.* of the source, the sink and the errors, where these have the format klamm."
        ),
        "source": Key(
            ValueForm.SECTION,
            "What is read. Its rows are the view `source`.",
            required=True,
            keys={
                "format": Key(ValueForm.TEXT, "A format of Spark's readers; klamm by default."),
                "stream": Key(ValueForm.FLAG, "Whether the pipeline is a streaming query; false by default."),
                "schema": _SCHEMA,
                "options": _options("Options of the reader.", required=True),
            },
        ),
        "tables": Key(
            ValueForm.SECTIONS,
            "Other tables for the SQL, read as batches.",
            keys={
                "name": _NAME,
                "format": Key(ValueForm.TEXT, "A format of Spark's readers.", required=True),
                "schema": _SCHEMA,
                "options": _options("Options of the reader."),
            },
        ),
        "decode": Key(ValueForm.TEXT, "A query over the view `source`. Its rows are the view `records`."),
        "errors": Key(
            ValueForm.SECTION,
            "Rows of `decode`, or else of `source`, that go to a topic instead of the view `records`.",
            keys={
                "topic": Key(ValueForm.TEXT, "The topic for these rows.", required=True),
                "where": Key(
                    ValueForm.TEXT,
                    "The condition for a bad row; by default that it has a corrupt record, where the source has the"
                    " option value.format or key.format.",
                ),
                "value": Key(
                    ValueForm.TEXT, "An expression for the value that is written; by default the one that was read."
                ),
                "reason": Key(ValueForm.TEXT, "An expression for the reason; by default the condition."),
                "options": _options("Options of the writer."),
            },
        ),
        "steps": Key(
            ValueForm.SECTIONS,
            "Queries, one after another, over `records`, `tables` and the steps before. The last one goes to the sink.",
            keys={
                "name": _NAME,
                "sql": Key(ValueForm.TEXT, "A query.", required=True),
                "watermark": Key(
                    ValueForm.SECTION,
                    "How late rows may come: withWatermark of the query's result.",
                    keys={
                        "column": Key(ValueForm.TEXT, "The column with the time of the event.", required=True),
                        "delay": Key(ValueForm.TEXT, "An interval, such as 10 minutes.", required=True),
                    },
                ),
            },
        ),
        "sink": Key(
            ValueForm.SECTION,
            "Where the rows go.",
            required=True,
            keys={
                "format": Key(ValueForm.TEXT, "A format of Spark's writers; klamm by default."),
                "mode": Key(
                    ValueForm.TEXT,
                    "How rows are added; append by default.",
                    allowed=tuple(dict.fromkeys((*BATCH_MODES, *STREAM_MODES))),
                ),
                "partitionBy": Key(ValueForm.TEXTS, "The columns that name the directories of files."),
                "options": _options("Options of the writer."),
            },
        ),
        "checkpoint": Key(
            ValueForm.TEXT, "The directory of a stream's progress; with the same one it continues.", has_variables=True
        ),
        "trigger": Key(
            ValueForm.TEXT,
            "When a stream reads: availableNow, to end with the present records, or an interval such as 10 seconds. By"
            " default at once.",
        ),
    },
)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "klamm pipeline",
        **_schema_of(FILE),
    }


def _schema_of(key: Key) -> dict[str, Any]:
    scalar = {"type": ["string", "number", "boolean"]}
    match key.kind:
        case ValueForm.TEXT:
            form: dict[str, Any] = {"enum": list(key.allowed)} if key.allowed else {"type": "string"}
        case ValueForm.FLAG:
            form = {"type": "boolean"}
        case ValueForm.TEXTS:
            form = {"type": "array", "items": {"type": "string"}}
        case ValueForm.OPTIONS:
            form = {"type": "object", "additionalProperties": scalar}
        case ValueForm.SECTION | ValueForm.SECTIONS:
            form = {
                "type": "object",
                "additionalProperties": False,
                "properties": {name: _schema_of(each) for name, each in key.keys.items()},
                "required": [name for name, each in key.keys.items() if each.required],
            }
            if key.kind is ValueForm.SECTIONS:
                form = {"type": "array", "items": form}
    return {"description": key.about, **form}
