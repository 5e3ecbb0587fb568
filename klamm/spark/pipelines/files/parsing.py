"""Reads the file of a pipeline, which is YAML. Checks every key and value, and reports problems with line and column.

What must stay true:
- Reading executes nothing from the file: YAML's tags for objects are refused. The file's size, its depth and the number
  of values after expanding its aliases are bounded.
- All problems of a file are reported at once, each once, with its place. A problem that only follows from another
  problem is not reported. No key is ignored, and no value is guessed: an option has the text that is in the file.
- The value of a variable (`${NAME}`) is not part of a `Pipeline`: programs and messages have the variable's name. A
  variable stands for a value or a part of a value, and never for a key.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from klamm.base.patterns import Pattern
from klamm.spark.formats.settings import BINARY, STRING, Mode
from klamm.spark.options import OptionError, Topics, read_options, write_options
from klamm.spark.pipelines.files.keys import BATCH_MODES, FILE, STREAM_MODES, Key, ValueForm
from klamm.spark.pipelines.files.pipeline import (
    AVAILABLE_NOW,
    KLAMM,
    RECORDS,
    SOURCE,
    Errors,
    Options,
    Pipeline,
    Sink,
    Source,
    Step,
    Table,
    Template,
    Variable,
)

MAX_FILE_BYTES = 1_000_000
# Aliases count with all values that they stand for.
MAX_NODES = 20_000
MAX_DEPTH = 20
# The most problems that are reported for the options of one reader or writer.
MAX_OPTION_PROBLEMS = 100

TRANSACTIONAL_ID = "kafka.transactional.id"
PERMISSIVE = Mode.PERMISSIVE.value

_VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The name of an option in a message about it.
_OPTION = re.compile(r"options? ([^\s;:,]+)")
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")
_SCALARS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "timestamp"))
# The options of the source that define the form of a bad row.
_TYPED = frozenset(("key.format", "value.format", "mode", "columnnameofcorruptrecord"))
_NULL = "tag:yaml.org,2002:null"


class Problem(NamedTuple):
    """A problem at a place of the file. Lines and columns begin at 1."""

    line: int
    column: int
    text: str


class PipelineFileError(ValueError):
    """The file is not a pipeline. `problems` has at least one problem, and `lines` describes each with its place."""

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems))
        self.lines = [f"{path}:{line}:{column}: {text}" for line, column, text in self.problems]
        super().__init__("\n".join(self.lines))


def parse(content: bytes, path: str, environment: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file. `path` is for messages. Raises PipelineFileError.

    With `environment`, also checks that variables are set, and the options of klamm's readers and writers.
    """
    reader = _Reader()
    found = reader.read(content)
    if found is not None:
        reader.check(found)
        if environment is not None:
            reader.check_options(found, environment)
    if reader.problems or found is None:
        raise PipelineFileError(path, reader.problems)
    return _pipeline(found)


def hide_variables(text: str, names: Sequence[str], environment: Mapping[str, str]) -> str:
    """The text, with each value of these variables replaced by the variable's name."""
    values = {form: name for name in names for form in _forms(environment.get(name, ""))}
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = text.replace(value, f"${{{values[value]}}}")
    return text


def _forms(value: str) -> Iterator[str]:
    """The forms of a value in messages: as it is, and quoted."""
    yield value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]


def _template(text: str) -> Template:
    """The text with its variables. Raises ValueError for a name that no variable can have."""
    parts: list[str | Variable] = []
    position = 0
    for match in _VARIABLE.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        if match[1]:
            parts.append(match[0][1:])
        elif _VARIABLE_NAME.fullmatch(match[2]):
            parts.append(Variable(match[2]))
        else:
            raise ValueError(f"{match[0]} names no variable; allowed: ${{NAME}}, and $${{ for the text ${{")
    return Template(tuple(part for part in (*parts, text[position:]) if part))


# -- the tree of the file ---------------------------------------------------------------------------------------------

Path = tuple[str | int, ...]


class _Reader:
    """Reads a tree by the table of keys, and remembers the place of every key."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.places: dict[Path, tuple[int, int]] = {(): (1, 1)}
        self._nodes = 0

    def read(self, content: bytes) -> dict[str, Any] | None:
        """The values of the valid keys; None, with a problem, for a file without keys."""
        node = self._compose(content)
        found = self._value(node, FILE, ()) if node is not None else None
        return found if isinstance(found, dict) and self._nodes <= MAX_NODES else None

    def tell(self, path: Path, text: str) -> None:
        while path not in self.places:
            path = path[:-1]
        line, column = self.places[path]
        self.problems.append(Problem(line, column, text))

    def _is_wrong(self, found: Mapping[str, Any], *path: str) -> bool:
        """Whether the file has the key, but with an unusable value. Then checks that depend on the key are skipped."""
        within: Any = found
        for name in path:
            within = within.get(name) if isinstance(within, dict) else None
        return within is None and path in self.places

    def _compose(self, content: bytes) -> yaml.Node | None:
        if len(content) > MAX_FILE_BYTES:
            self.tell((), f"the file has {len(content)} bytes; allowed: {MAX_FILE_BYTES}")
            return None
        try:
            depth = 0
            for event in yaml.parse(content, yaml.SafeLoader):
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > MAX_DEPTH:
                    self._tell_mark(event.start_mark, f"values are more than {MAX_DEPTH} levels deep")
                    return None
            node = yaml.compose(content, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            self._tell_mark(error.problem_mark or error.context_mark, f"this is not YAML: {error.problem}")
            return None
        except (yaml.YAMLError, UnicodeError, ValueError) as error:
            self.tell((), f"this is not YAML: {str(error).splitlines()[0]}")
            return None
        if node is None:
            self.tell((), "the file is empty")
        return node

    def _tell_mark(self, mark: Any, text: str) -> None:
        line, column = (0, 0) if mark is None else (mark.line, mark.column)
        self.problems.append(Problem(line + 1, column + 1, text))

    def _value(self, node: yaml.Node, key: Key, path: Path) -> Any:
        """The value of a key; None with a problem."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            # Reported once. The rest of the tree is not read.
            if self._nodes == MAX_NODES + 1:
                self._tell_mark(node.start_mark, f"the file stands for more than {MAX_NODES} values")
            return None
        match key.kind:
            case ValueForm.SECTION | ValueForm.OPTIONS if isinstance(node, yaml.MappingNode):
                return self._mapping(node, key, path)
            case ValueForm.SECTIONS if isinstance(node, yaml.SequenceNode):
                section = Key(ValueForm.SECTION, key.about, keys=key.keys)
                return [self._value(each, section, self._at(each, (*path, n))) for n, each in enumerate(node.value)]
            case ValueForm.TEXTS if isinstance(node, yaml.SequenceNode):
                text = Key(ValueForm.TEXT, key.about)
                return [self._value(each, text, self._at(each, (*path, n))) for n, each in enumerate(node.value)]
            case ValueForm.TEXT | ValueForm.FLAG if isinstance(node, yaml.ScalarNode):
                return self._scalar(node, key)
        self._tell_mark(node.start_mark, f"{_named(path)} is not {key.kind.value}")
        return None

    def _at(self, node: yaml.Node, path: Path) -> Path:
        self.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        return path

    def _mapping(self, node: yaml.MappingNode, key: Key, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        names: set[str] = set()
        option = Key(ValueForm.TEXT, key.about, has_variables=key.has_variables)
        for name_node, value_node in node.value:
            name = name_node.value
            if not isinstance(name_node, yaml.ScalarNode) or not isinstance(name, str):
                self._tell_mark(name_node.start_mark, "a key is not a text")
                continue
            # Spark's options are case-insensitive.
            same = name.lower() if key.kind is ValueForm.OPTIONS else name
            if same in names:
                self._tell_mark(name_node.start_mark, f"{name} is there twice")
                continue
            names.add(same)
            known = option if key.kind is ValueForm.OPTIONS else key.keys.get(name)
            if known is None:
                self._tell_mark(name_node.start_mark, _unknown(name, key.keys, path))
                continue
            value = self._value(value_node, known, self._at(name_node, (*path, name)))
            if value is not None:
                found[name] = value
        for name, each in key.keys.items():
            if each.required and name not in names:
                self.tell(path, f"{_named((*path, name))} is missing: {each.about}")
        return found

    def _scalar(self, node: yaml.ScalarNode, key: Key) -> Any:
        text: str = node.value
        if node.tag == _NULL:
            self._tell_mark(node.start_mark, "there is no value")
        elif node.tag not in _SCALARS:
            self._tell_mark(node.start_mark, f"the tag {node.tag} is not allowed; allowed: texts, numbers, true, false")
        elif key.kind is ValueForm.FLAG:
            if text in ("true", "false"):
                return text == "true"
            self._tell_mark(node.start_mark, f"{text!r} is not allowed; allowed: true, false")
        elif key.allowed and text not in key.allowed:
            self._tell_mark(node.start_mark, f"{text!r} is not allowed; allowed: {', '.join(key.allowed)}")
        elif "\0" in text:
            self._tell_mark(node.start_mark, "a text has the character 0")
        elif key.has_variables:
            try:
                return _template(text)
            except ValueError as error:
                self._tell_mark(node.start_mark, str(error))
        else:
            return text
        return None

    # -- what keys have to do with each other ---------------------------------------------------------------------

    def check(self, found: Mapping[str, Any]) -> None:
        source, sink = found.get("source", {}), found.get("sink", {})
        if not self._is_wrong(found, "source") and not self._is_wrong(found, "source", "stream"):
            self._check_kind(found, sink, is_stream=source.get("stream", False))
        trigger = found.get("trigger", AVAILABLE_NOW)
        if trigger != AVAILABLE_NOW and not _INTERVAL.fullmatch(trigger):
            self.tell(("trigger",), f"{trigger!r} is not allowed; allowed: {AVAILABLE_NOW}, or as in 10 seconds")
        for name in found.get("cluster", {}):
            if not name.lower().startswith("kafka."):
                self.tell(("cluster", name), f"{name} is not of the cluster; allowed: kafka.*")
        self._check_views(found)
        if "partitionBy" in sink and is_klamm(sink.get("format", KLAMM)):
            self.tell(
                ("sink", "partitionBy"), "partitionBy is for files; a topic's column partition says where rows go"
            )
        if "errors" in found and "options" in source:
            self._check_errors(found["errors"], source)

    def _check_kind(self, found: Mapping[str, Any], sink: Mapping[str, Any], *, is_stream: bool) -> None:
        modes = STREAM_MODES if is_stream else BATCH_MODES
        mode = sink.get("mode", "append")
        if mode not in modes:
            kind = "stream" if is_stream else "batch"
            self.tell(("sink", "mode"), f"a {kind} cannot have mode {mode}; allowed: {', '.join(modes)}")
        if is_stream and ("checkpoint",) not in self.places:
            self.tell(("source", "stream"), "a stream needs the key checkpoint, the directory of its progress")
        for name in () if is_stream else ("checkpoint", "trigger"):
            if name in found:
                self.tell((name,), f"{name} is for streams; allowed: with source.stream true")

    def _check_views(self, found: Mapping[str, Any]) -> None:
        names = [SOURCE, RECORDS]
        for section in ("tables", "steps"):
            for number, each in enumerate(found.get(section, ())):
                name = (each or {}).get("name")
                if name is None:
                    continue
                place = (section, number, "name")
                if not _VIEW.fullmatch(name):
                    self.tell(place, f"{name!r} is not a name; allowed: letters, digits and _")
                if name.lower() in names:
                    self.tell(place, f"there is a view {name} before")
                names.append(name.lower())

    def _check_errors(self, errors: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        if not is_klamm(source.get("format", KLAMM)):
            self.tell(("errors",), f"errors are for a source of the format {KLAMM}")
            return
        for name, text in source["options"].items():
            if name.lower() in _TYPED and text.variables:
                self.tell(("source", "options", name), f"with errors, {name} has no variable")
                return
        typed = _Typed.of(source["options"])
        if len(typed.decoded) > 1:
            self.tell(
                ("errors",),
                "errors are for records of which key or value is decoded: a corrupt record has the bytes of one only",
            )
        if typed.decoded and typed.corrupt_column.lower() not in source.get("schema", "").lower():
            self.tell(("source",), f"errors need source.schema with the column {typed.corrupt_column} BINARY")
        if ("errors", "where") in self.places:
            return
        if not typed.decoded:
            self.tell(("errors",), "errors.where is missing: the condition for a bad row")
        elif typed.mode != PERMISSIVE:
            self.tell(("errors",), f"no bad row is read with mode {typed.mode}; allowed: {PERMISSIVE}")

    # -- options ------------------------------------------------------------------------------------------------------

    def check_options(self, found: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Checks the options of klamm's readers and writers, as far as variables are set."""
        source, sink, errors = (found.get(name, {}) for name in ("source", "sink", "errors"))
        self._check_variables(found, environment)
        check = _OptionsOf(self, found.get("cluster", {}), environment)
        # The program gives the writers of a stream this option.
        checkpoint = {"checkpointLocation": found["checkpoint"]} if "checkpoint" in found else {}
        topic = errors.get("topic")

        def reads(given: Mapping[str, str]) -> None:
            topics = read_options(given, streaming=source.get("stream", False)).topics
            if topic is not None and _is_read(topic, topics):
                self.tell(("errors", "topic"), f"{topic} is a topic of the source: bad rows would come back")

        if self._is_klamms("source", found) and not self._is_wrong(found, "source", "stream"):
            check(("source", "options"), source.get("options", {}), reads)
        for number, table in enumerate(found.get("tables", ())):
            if table is not None and is_klamm(table.get("format", "")):
                check(
                    ("tables", number, "options"),
                    table.get("options", {}),
                    lambda given: read_options(given, streaming=False),
                )
        transactional_ids: list[str | None] = []

        def writes(given: Mapping[str, str]) -> None:
            transactional_ids.append(write_options(given).producer.transactional_id)

        def writes_errors(given: Mapping[str, str]) -> None:
            own = write_options({**given, "topic": topic or "errors"}).producer.transactional_id
            if own is not None and own in transactional_ids:
                raise OptionError(f"option {TRANSACTIONAL_ID} is that of the sink; two writers need two")

        if self._is_klamms("sink", found):
            check(("sink", "options"), {**checkpoint, **sink.get("options", {})}, writes)
        if "errors" in found:
            check(("errors", "options"), {**checkpoint, **errors.get("options", {})}, writes_errors)

    def _is_klamms(self, section: str, found: Mapping[str, Any]) -> bool:
        return (
            section in found
            and not self._is_wrong(found, section, "format")
            and not self._is_wrong(found, section, "options")
            and is_klamm(found[section].get("format", KLAMM))
        )

    def _check_variables(self, found: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Reports each variable that is not set, at its first place."""
        places: dict[str, Path] = {}
        for path, text in _templates(found, ()):
            for name in text.variables:
                if name not in environment and (name not in places or self.places[path] < self.places[places[name]]):
                    places[name] = path
        for name, path in places.items():
            self.tell(path, f"the variable {name} is not set in the environment")


def _templates(found: Any, path: Path) -> Iterator[tuple[Path, Template]]:
    if isinstance(found, Template):
        yield path, found
    elif isinstance(found, dict | list):
        for name, each in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _templates(each, (*path, name))


class _OptionsOf:
    """Reports every problem of the options of a reader or a writer. klamm's own check only raises the first.

    So an option with a problem is left out, and the others are checked again. Problems that only follow from an omitted
    option, or from a variable that is not set, are not reported.
    """

    def __init__(self, reader: _Reader, cluster: Options, environment: Mapping[str, str]) -> None:
        self._reader, self._cluster, self._environment = reader, cluster, environment
        # Problems that belong to no option of the file, and are the same for all of its readers and writers.
        self._reported: set[str] = set()

    def __call__(self, path: Path, own: Options, check: Callable[[Mapping[str, str]], object]) -> None:
        options = {**self._cluster, **own}
        given = {
            name: text.text(self._environment)
            for name, text in options.items()
            if all(variable in self._environment for variable in text.variables)
        }
        left_out = {name.lower() for name in options.keys() - given.keys()}
        for _ in range(MAX_OPTION_PROBLEMS):
            try:
                check({**given, **_in_place_of(left_out)})
                return
            except OptionError as error:
                message = str(error)
            names = [name.lower() for name in _OPTION.findall(message)]
            follows = not left_out.isdisjoint(re.findall(r"[\w.]+", message.partition("; allowed: ")[0].lower()))
            wrong = next((each for each in given if each.lower() in names), None)
            if wrong is not None:
                place = path if (*path, wrong) in self._reader.places else ("cluster",)
                if not follows:
                    self._reader.tell((*place, wrong), self._hidden(message, options))
                left_out.add(wrong.lower())
                del given[wrong]
            elif follows or not names:
                return
            else:
                if message not in self._reported:
                    self._reported.add(message)
                    self._reader.tell(path, message)
                left_out.update(names)

    def _hidden(self, message: str, options: Options) -> str:
        """The message with variables in place of their values. Names of options, and the allowed values, stay."""
        names = {name: f"${{{name}}}" for text in options.values() for name in text.variables}
        values = {self._environment[name]: told for name, told in names.items() if name in self._environment}
        for text in options.values():
            if text.variables and all(name in self._environment for name in text.variables):
                parts = (names[part.name] if isinstance(part, Variable) else part for part in text.parts)
                values[text.text(self._environment)] = "".join(parts)
        forms = {form: told for value, told in values.items() for form in _forms(value) if form}
        if not forms:
            return message
        hidden = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        pattern = rf"(options? [^\s;:,]+|allowed: .*)|(?<!\w)(?:{hidden})(?!\w)"
        return re.sub(pattern, lambda match: match[1] or forms[match[0]], message, flags=re.DOTALL)


def _in_place_of(left_out: set[str]) -> dict[str, str]:
    """Substitutes for required options that were left out."""
    needed = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "topic", "checkpointlocation": "/"}
    found = {name: text for name, text in needed.items() if name in left_out}
    return found | ({"subscribe": "topic"} if left_out & {"subscribe", "subscribepattern", "assign"} else {})


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "the file"


def _unknown(name: str, keys: Mapping[str, Key], path: Path) -> str:
    close = difflib.get_close_matches(name, keys, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown key {_named((*path, name))}; {hint}allowed: {', '.join(keys)}"


# -- from the tree to the pipeline ------------------------------------------------------------------------------------


def is_klamm(form: str) -> bool:
    """Whether this is klamm's format. The names of formats are case-insensitive in Spark."""
    return form.lower() == KLAMM


def _is_read(topic: str, topics: Topics) -> bool:
    if topics.subscribe_pattern is not None:
        return Pattern(topics.subscribe_pattern).fullmatch(topic)
    return topic in topics.subscribe or topic in {partition.topic for partition in topics.assign}


class _Typed(NamedTuple):
    """Which columns of the source are texts or otherwise decoded, and how corrupt records are handled."""

    texts: frozenset[str]
    decoded: frozenset[str]
    mode: str
    corrupt_column: str

    @classmethod
    def of(cls, options: Options) -> "_Typed":
        given = {name.lower(): text.text({}) for name, text in options.items() if name.lower() in _TYPED}
        formats = {column: given.get(f"{column}.format", BINARY).strip().lower() for column in ("key", "value")}
        return cls(
            frozenset(column for column, form in formats.items() if form == STRING),
            frozenset(column for column, form in formats.items() if form not in (BINARY, STRING)),
            given.get("mode", PERMISSIVE).strip().upper(),
            given.get("columnnameofcorruptrecord", "_corrupt_record"),
        )

    def read(self, column: str) -> str:
        """An expression for the bytes of a key or value; for a corrupt record, the bytes that were read."""
        if column in self.texts:
            return f"CAST({column} AS BINARY)"
        if column in self.decoded:
            return f"coalesce({self.corrupt}, CAST(to_json({column}) AS BINARY))"
        return column

    @property
    def corrupt(self) -> str:
        return "`" + self.corrupt_column.replace("`", "``") + "`"


def _pipeline(found: Mapping[str, Any]) -> Pipeline:
    source, sink = found["source"], found["sink"]
    options = source["options"]
    return Pipeline(
        name=found.get("name", "klamm pipeline"),
        source=Source(source.get("format", KLAMM), source.get("stream", False), options, source.get("schema")),
        sink=Sink(
            sink.get("format", KLAMM),
            sink.get("mode", "append"),
            sink.get("options", {}),
            tuple(sink.get("partitionBy", ())),
        ),
        conf=found.get("conf", {}),
        cluster=found.get("cluster", {}),
        tables=tuple(
            Table(each["name"], each["format"], each.get("options", {}), each.get("schema"))
            for each in found.get("tables", ())
        ),
        decode=found.get("decode"),
        errors=_errors(found["errors"], options) if "errors" in found else None,
        steps=tuple(
            Step(each["name"], each["sql"], _watermark(each.get("watermark"))) for each in found.get("steps", ())
        ),
        checkpoint=found.get("checkpoint"),
        trigger=found.get("trigger"),
    )


def _watermark(given: Mapping[str, str] | None) -> tuple[str, str] | None:
    return None if given is None else (given["column"], given["delay"])


def _errors(given: Mapping[str, Any], source: Options) -> Errors:
    typed = _Typed.of(source)
    where = given.get("where", f"{typed.corrupt} IS NOT NULL")
    return Errors(
        topic=given["topic"],
        where=where,
        key=typed.read("key"),
        value=given.get("value", typed.read("value")),
        reason=given.get("reason", "'" + where.replace("\\", "\\\\").replace("'", "\\'") + "'"),
        options=given.get("options", {}),
    )
