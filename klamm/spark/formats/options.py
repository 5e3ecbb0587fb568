"""The options of typed rows: `value.format`, `key.format`, and the options of Spark's own JSON and CSV readers.

What must stay true: an option that a format does not have is refused, never ignored; importing this module imports
nothing heavy.

Source: org.apache.spark.sql.catalyst.json.JSONOptions, org.apache.spark.sql.catalyst.csv.CSVOptions.
"""

from collections.abc import Callable, Mapping

from klamm.spark.formats import patterns
from klamm.spark.formats.settings import AVRO, BINARY, CSV, FORMATS, JSON, PROTOBUF, ColumnFormat, Mode, TypedRows

GetText = Callable[[str], str | None]
"""The text of an option as it was given, spaces included; None where it is not given."""


class FormatOptionError(ValueError):
    """A wrong option of a format; the message names the option and the allowed values."""


_BOOLEANS = ("true", "false")
_TIMES = ("dateFormat", "timestampFormat", "timestampNTZFormat", "timeZone", "locale")

SETTINGS: Mapping[str, tuple[str, ...]] = {
    JSON: (
        *_TIMES,
        "allowComments",
        "allowUnquotedFieldNames",
        "allowSingleQuotes",
        "allowNumericLeadingZeros",
        "allowNonNumericNumbers",
        "allowBackslashEscapingAnyCharacter",
        "allowUnquotedControlChars",
    ),
    CSV: (
        *_TIMES,
        "sep",
        "delimiter",
        "quote",
        "escape",
        "nullValue",
        "emptyValue",
        "nanValue",
        "positiveInf",
        "negativeInf",
        "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace",
    ),
}
"""Which of Spark's options a format has."""

REFUSED: Mapping[str, str] = {
    "header": "a record has no line of column names",
    "inferSchema": "give the schema, in .schema() or value.schema",
    "samplingRatio": "give the schema, in .schema() or value.schema",
    "primitivesAsString": "give the schema, in .schema() or value.schema",
    "prefersDecimal": "give the schema, in .schema() or value.schema",
    "multiLine": "a record is one document, whatever lines it has",
    "lineSep": "a record is one document, whatever lines it has",
    "encoding": "records are UTF-8",
    "charset": "records are UTF-8",
    "enforceSchema": "a record has no line of column names",
    "enableDateTimeParsingFallback": "patterns are kept to",
    "comment": "a record is one row",
    "maxColumns": "a row has as many columns as it has",
    "maxCharsPerColumn": "a column has as many characters as it has",
    "unescapedQuoteHandling": "only STOP_AT_DELIMITER, Spark's default",
    "charToEscapeQuoteEscaping": "only the default",
    "dropFieldIfAllNull": "give the schema, in .schema() or value.schema",
    "singleVariantColumn": "there is no type variant here",
}
"""Options of Spark's own readers that have no meaning for a record, and what holds instead."""

_NAMES_OF_SETTINGS = tuple(sorted({name for names in SETTINGS.values() for name in names}))

READ_NAMES: tuple[str, ...] = (
    *(f"{column}.{what}" for column in ("value", "key") for what in ("format", "schema", "message")),
    "mode",
    "columnNameOfCorruptRecord",
    *_NAMES_OF_SETTINGS,
)
"""All options of typed rows."""


def typed_rows(get: GetText) -> TypedRows | None:
    """The formats of keys and values, None where both are binary. Raises FormatOptionError."""
    formats = {column: column_format(column, get) for column in ("key", "value")}
    names = {one.name for one in formats.values() if one is not None}
    for name in _NAMES_OF_SETTINGS:
        owners = [format_ for format_, settings in SETTINGS.items() if name in settings]
        if get(name) is not None and not names & set(owners):
            raise FormatOptionError(f"option {name} is for value.format or key.format {' or '.join(owners)}")
    if not names:
        for name in ("mode", "columnNameOfCorruptRecord"):
            if get(name) is not None:
                raise FormatOptionError(f"option {name} needs value.format or key.format")
        return None
    corrupt = get("columnNameOfCorruptRecord")
    if corrupt == "":
        raise FormatOptionError("option columnNameOfCorruptRecord is empty; allowed: the name of a column")
    return TypedRows(formats["key"], formats["value"], _mode(get), corrupt or "_corrupt_record")


def column_format(column: str, get: GetText) -> ColumnFormat | None:
    """The format of the column key or value, None for binary. Raises FormatOptionError."""
    name = (get(f"{column}.format") or BINARY).strip().lower()
    if name not in FORMATS:
        raise FormatOptionError(f"option {column}.format is {name!r}; allowed: {', '.join(FORMATS)}")
    schema, message = get(f"{column}.schema"), get(f"{column}.message")
    if schema is not None and name not in (JSON, CSV, AVRO, PROTOBUF):
        raise FormatOptionError(f"option {column}.schema is for {column}.format json, csv, avro or protobuf")
    if message is not None and name != PROTOBUF:
        raise FormatOptionError(f"option {column}.message is for {column}.format protobuf")
    if name == BINARY:
        return None
    settings = tuple((setting, text) for setting in SETTINGS.get(name, ()) if (text := get(setting)) is not None)
    for setting, text in settings:
        if setting.startswith("allow") and text.strip().lower() not in _BOOLEANS:
            raise FormatOptionError(f"option {setting} is {text!r}; allowed: {', '.join(_BOOLEANS)}")
        if setting.endswith("Format"):
            try:
                patterns.pattern(text)
            except patterns.PatternError as error:
                raise FormatOptionError(f"option {setting} is {text!r}, which {error}") from None
        if setting == "timeZone" and patterns.zone(text) is None:
            raise FormatOptionError(f"option timeZone is {text!r}; allowed: a zone such as UTC, +01:00, Europe/Berlin")
        if setting == "locale" and text not in ("en-US", "en_US"):
            raise FormatOptionError(f"option locale is {text!r}; allowed: en-US")
    return ColumnFormat(column, name, schema, message, settings)


def _mode(get: GetText) -> Mode:
    text = get("mode")
    if text is None:
        return Mode.PERMISSIVE
    try:
        return Mode(text.strip().upper())
    except ValueError:
        raise FormatOptionError(f"option mode is {text!r}; allowed: {', '.join(one.value for one in Mode)}") from None
