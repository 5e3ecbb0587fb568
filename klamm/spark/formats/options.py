"""The options of typed rows: `value.format`, `key.format`, and the options of Spark's own JSON and CSV readers.

What must stay true: an option that a format does not have is refused, never ignored; importing this module imports
nothing heavy.

Source: org.apache.spark.sql.catalyst.json.JSONOptions, org.apache.spark.sql.catalyst.csv.CSVOptions.
"""

from collections.abc import Callable, Mapping, Sequence

from klamm.spark.formats import patterns
from klamm.spark.formats.settings import (
    AVRO,
    BINARY,
    CSV,
    FORMATS,
    JSON,
    PROTOBUF,
    ColumnFormat,
    Mode,
    Registry,
    RegistryUse,
    SubjectNames,
    TypedRows,
)

GetText = Callable[[str], str | None]
"""Returns the text of an option as given, spaces included; None if it is not given."""


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
        "ignoreNullFields",
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

WRITE_SETTINGS: Mapping[str, tuple[str, ...]] = {
    JSON: ("timeZone", "ignoreNullFields"),
    CSV: ("timeZone", "sep", "delimiter", "quote", "escape", "nullValue", "emptyValue"),
}
"""The options of a format for writers. The other options in `SETTINGS` are for readers."""

_NAMES_OF_SETTINGS = tuple(sorted({name for names in SETTINGS.values() for name in names}))

REGISTRY_PREFIX = "schema.registry."
_CLIENT_NAMES = (
    "url",
    "basic.auth.user.info",
    "bearer.auth.credentials.source",
    "bearer.auth.token",
    "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "proxy",
    "timeout",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
)
_OF_A_SCHEMA = ("subject", "schema.id", "schema.version", "subject.name.strategy")
_OF_WRITERS = ("auto.register.schemas", "use.latest.version", "normalize.schemas")
_WITH_REGISTRY = (AVRO, PROTOBUF, JSON)

READ_NAMES: tuple[str, ...] = (
    *(f"{column}.{what}" for column in ("value", "key") for what in ("format", "schema", "message", *_OF_A_SCHEMA)),
    *(REGISTRY_PREFIX + name for name in _CLIENT_NAMES),
    *_OF_WRITERS,
    "mode",
    "columnNameOfCorruptRecord",
    *_NAMES_OF_SETTINGS,
)
"""All options of typed rows."""


def typed_rows(get: GetText, allowed: Sequence[str] = FORMATS) -> TypedRows | None:
    """The formats of keys and values; None if both are binary. Raises FormatOptionError."""
    formats = {column: column_format(column, get, allowed) for column in ("key", "value")}
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


def column_format(column: str, get: GetText, allowed: Sequence[str] = FORMATS) -> ColumnFormat | None:
    """The format of the column key or value, None for binary. Raises FormatOptionError."""
    name = (get(f"{column}.format") or BINARY).strip().lower()
    if name not in allowed:
        raise FormatOptionError(f"option {column}.format is {name!r}; allowed: {', '.join(allowed)}")
    schema, message = get(f"{column}.schema"), get(f"{column}.message")
    if schema is not None and name not in (JSON, CSV, AVRO, PROTOBUF):
        raise FormatOptionError(f"option {column}.schema is for {column}.format json, csv, avro or protobuf")
    if message is not None and name != PROTOBUF:
        raise FormatOptionError(f"option {column}.message is for {column}.format protobuf")
    if name == BINARY:
        registry_use(column, name, get)
        return None
    settings = tuple((setting, text) for setting in SETTINGS.get(name, ()) if (text := get(setting)) is not None)
    for setting, text in settings:
        if setting.startswith(("allow", "ignore")) and text.strip().lower() not in _BOOLEANS:
            raise FormatOptionError(f"option {setting} is {text!r}; allowed: {', '.join(_BOOLEANS)}")
        if setting.endswith("Format"):
            try:
                patterns.pattern(text)
            except patterns.PatternError as error:
                raise FormatOptionError(f"option {setting} is {text!r}, which {error}") from None
        if setting == "timeZone" and patterns.zone(text) is None:
            raise FormatOptionError(f"option timeZone is {text!r}; allowed: a zone such as UTC, +01:00, Europe/Berlin")
        if setting in ("quote", "escape") and len(text) > 1:
            raise FormatOptionError(f"option {setting} is {text!r}; allowed: one character, or none")
        if setting in ("sep", "delimiter") and not text:
            raise FormatOptionError(f"option {setting} is empty; allowed: characters")
        if setting == "locale" and text not in ("en-US", "en_US"):
            raise FormatOptionError(f"option locale is {text!r}; allowed: en-US")
    return ColumnFormat(column, name, schema, message, settings, registry_use(column, name, get))


def registry_use(column: str, name: str, get: GetText) -> RegistryUse | None:
    """How a column of this format uses schemas of a registry. Raises FormatOptionError."""
    given = {what: get(f"{column}.{what}") for what in _OF_A_SCHEMA}
    properties = {key: text for key in _CLIENT_NAMES if (text := get(REGISTRY_PREFIX + key)) is not None}
    if "url" not in properties or name not in _WITH_REGISTRY:
        for what, text in given.items():
            if text is not None:
                raise FormatOptionError(
                    f"option {column}.{what} needs schema.registry.url, and {column}.format avro, protobuf or json"
                )
        if properties and "url" not in properties:
            raise FormatOptionError(f"option {REGISTRY_PREFIX}{next(iter(properties))} needs schema.registry.url")
        return None
    _check_registry(properties)
    if given["schema.id"] is not None and given["schema.version"] is not None:
        raise FormatOptionError(f"options {column}.schema.id and {column}.schema.version exclude each other")
    use_latest = _boolean("use.latest.version", get, False)
    auto_register = _boolean("auto.register.schemas", get, not use_latest)
    if use_latest and auto_register:
        raise FormatOptionError("options use.latest.version and auto.register.schemas cannot both be true")
    return RegistryUse(
        Registry(tuple(properties.items())),
        given["subject"],
        _positive(f"{column}.schema.id", given["schema.id"]),
        _positive(f"{column}.schema.version", given["schema.version"]),
        _names(f"{column}.subject.name.strategy", given["subject.name.strategy"]),
        auto_register,
        use_latest,
        _boolean("normalize.schemas", get, False),
    )


def _check_registry(properties: Mapping[str, str]) -> None:
    for url in properties["url"].split(","):
        if not url.strip().startswith(("http://", "https://")):
            # The text may have a password.
            raise FormatOptionError("option schema.registry.url is no URL; allowed: http://HOST:PORT or https://...")
    for name in ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms"):
        text = properties.get(name, "1").strip()
        if not text.isdecimal() or len(text) > 9:
            raise FormatOptionError(f"option {REGISTRY_PREFIX}{name} is {text!r}; allowed: whole numbers from 0")


def _positive(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or not 1 <= int(text) < 2**31:
        raise FormatOptionError(f"option {name} is {text!r}; allowed: whole numbers from 1")
    return int(text)


def _names(name: str, text: str | None) -> SubjectNames:
    wanted = SubjectNames.TOPIC.value if text is None else text.strip().rpartition(".")[2]
    try:
        return SubjectNames(wanted)
    except ValueError:
        allowed = ", ".join(one.value for one in SubjectNames)
        raise FormatOptionError(f"option {name} is {text!r}; allowed: {allowed}") from None


def _boolean(name: str, get: GetText, default: bool) -> bool:
    text = get(name)
    if text is not None and text.strip().lower() not in _BOOLEANS:
        raise FormatOptionError(f"option {name} is {text!r}; allowed: {', '.join(_BOOLEANS)}")
    return default if text is None else text.strip().lower() == "true"


def _mode(get: GetText) -> Mode:
    text = get("mode")
    if text is None:
        return Mode.PERMISSIVE
    try:
        return Mode(text.strip().upper())
    except ValueError:
        raise FormatOptionError(f"option mode is {text!r}; allowed: {', '.join(one.value for one in Mode)}") from None
