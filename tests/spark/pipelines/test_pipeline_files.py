"""Files of pipelines: what is refused, with its place, and the programs that they stand for."""

import ast
import os
import re
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock, patch

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from klamm.spark.pipelines.files.keys import json_schema
from klamm.spark.pipelines.files.parsing import PipelineFileError, hide_variables, parse
from klamm.spark.pipelines.files.pipeline import Pipeline, Template, Variable
from klamm.spark.pipelines.files.program import program
from support.paths import ROOT

WHOLE = """\
name: totals
conf:
  spark.sql.session.timeZone: UTC
cluster:
  kafka.bootstrap.servers: ${BROKERS}
source:
  stream: true
  schema: key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT
  options:
    subscribe: sales
    startingOffsets: earliest
    maxOffsetsPerTrigger: 1000
tables:
  - name: products
    format: csv
    schema: product STRING, price DOUBLE
    options: {path: /products.csv, header: true}
decode: |
  SELECT *, from_json(string(value), 'product STRING, time TIMESTAMP') AS sale
  FROM source
errors:
  topic: bad-sales
  where: sale.product IS NULL
  reason: "'no product'"
steps:
  - name: sales
    sql: SELECT sale.* FROM records
    watermark: {column: time, delay: 10 minutes}
  - name: priced
    sql: SELECT to_json(struct(*)) AS value FROM sales JOIN products USING (product)
sink:
  mode: append
  options:
    topic: priced
    kafka.compression.type: zstd
checkpoint: ${HOME}/checkpoints/totals
trigger: availableNow
"""

PROGRAM = '''\
"""Rows from a source through SQL to a sink. Made by klamm pipeline run --print."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

cluster = {
    "kafka.bootstrap.servers": os.environ["BROKERS"],
}


def header(name, expression):
    return f.struct(f.lit(name).alias("key"), f.expr(expression).cast("string").cast("binary").alias("value"))


def start(spark):
    """Starts the streaming queries and returns them by name. A batch has ended when this returns."""
    table = spark.read.format("csv")
    table = table.schema("product STRING, price DOUBLE")
    table = table.options(**{
        "path": "/products.csv",
        "header": "true",
    }).load()
    table.createOrReplaceTempView("products")
    rows = spark.readStream.format("klamm")
    rows = rows.schema("key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT")
    rows = rows.options(**{**cluster, **{
        "subscribe": "sales",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
    }}).load()
    rows.createOrReplaceTempView("source")
    rows = spark.sql("""SELECT *, from_json(string(value), 'product STRING, time TIMESTAMP') AS sale
FROM source
""")
    queries = {}
    # A condition that is null is not true.
    is_bad = f.coalesce(f.expr("sale.product IS NULL"), f.lit(False))
    headers = f.array(
        header("__klamm.errors.reason", "'no product'"),
        header("__klamm.errors.topic", "topic"),
        header("__klamm.errors.partition", "partition"),
        header("__klamm.errors.offset", "offset"),
    )
    if "headers" in rows.columns:
        headers = f.when(f.col("headers").isNull(), headers).otherwise(f.concat("headers", headers))
    bad = rows.where(is_bad).select(
        f.expr("key").alias("key"),
        f.expr("value").alias("value"),
        headers.alias("headers"),
    )
    writer = bad.writeStream.format("klamm").outputMode("append")
    writer = writer.options(**{**cluster, **{
        "topic": "bad-sales",
    }})
    writer = writer.option("checkpointLocation", os.environ["HOME"] + "/checkpoints/totals" + "/errors")
    writer = writer.trigger(availableNow=True)
    queries["errors"] = writer.start()
    rows = rows.where(~is_bad)
    rows.createOrReplaceTempView("records")
    rows = spark.sql("SELECT sale.* FROM records")
    rows = rows.withWatermark("time", "10 minutes")
    rows.createOrReplaceTempView("sales")
    rows = spark.sql("SELECT to_json(struct(*)) AS value FROM sales JOIN products USING (product)")
    rows.createOrReplaceTempView("priced")
    writer = rows.writeStream.format("klamm").outputMode("append")
    writer = writer.options(**{**cluster, **{
        "topic": "priced",
        "kafka.compression.type": "zstd",
    }})
    writer = writer.option("checkpointLocation", os.environ["HOME"] + "/checkpoints/totals" + "/sink")
    writer = writer.trigger(availableNow=True)
    queries["sink"] = writer.start()
    return queries


if __name__ == "__main__":
    builder = SparkSession.builder.appName("totals")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.getOrCreate()
    started = start(spark)
    # The first query that fails ends the program.
    while spark.streams.active:
        spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()
    for query in started.values():
        query.awaitTermination()
    spark.stop()
'''

SMALL = "source: {options: {subscribe: a}}\nsink: {options: {topic: b}}\n"
TYPED = """\
errors: {topic: e}
source:
  schema: key BINARY, value STRUCT<id INT>, _corrupt_record BINARY, topic STRING, partition INT, offset BIGINT
  options: {subscribe: 'a,b', value.format: json}
sink: {options: {topic: c}}
"""


def problems(text: str | bytes) -> list[str]:
    """What is wrong, each as line:column: text."""
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(PipelineFileError) as raised:
        parse(content, "f")
    return [line.removeprefix("f:") for line in str(raised.value).splitlines()]


def option_problems(text: str, environment: Mapping[str, str]) -> list[str]:
    with pytest.raises(PipelineFileError) as raised:
        parse(text.encode(), "f", environment)
    return [line.removeprefix("f:") for line in str(raised.value).splitlines()]


def test_the_program_of_a_pipeline() -> None:
    assert program(parse(WHOLE.encode(), "f")) == PROGRAM


def test_the_example_of_the_documents() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    parse(example.encode(), "f", {"BROKERS": "127.0.0.1:1"})
    compile(program(parse(example.encode(), "f")), "f", "exec")


def test_the_smallest_pipeline() -> None:
    pipeline = parse(SMALL.encode(), "f")
    assert (pipeline.source.format, pipeline.source.stream, pipeline.sink.mode) == ("klamm", False, "append")
    assert "import os" not in program(pipeline)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["1:1: the file is empty"]),
        ("- a\n", ["1:1: the file is not a mapping"]),
        ("source: {", ["1:10: this is not YAML: expected the node content, but found '<stream end>'"]),
        (
            SMALL + "sinks: {}\n",
            [
                "3:1: unknown key sinks; did you mean sink? allowed: name, conf, cluster, source, tables, decode,"
                " errors, steps, sink, checkpoint, trigger"
            ],
        ),
        (
            "source:\n  option: {a: b}\nsink: {}\n",
            [
                "1:1: source.options is missing: Options of the reader. ${NAME} is the variable of the environment.",
                "2:3: unknown key source.option; did you mean options? allowed: format, stream, schema, options",
            ],
        ),
        (SMALL + "name: a\nname: b\n", ["4:1: name is there twice"]),
        (SMALL + "cluster:\n  kafka.a: 1\n  kafka.a: 2\n", ["5:3: kafka.a is there twice"]),
        (SMALL + "name:\n", ["3:6: there is no value"]),
        (SMALL + "name: [a]\n", ["3:7: name is not text"]),
        (SMALL + "? [a]\n: b\n", ["3:3: a key is not a text"]),
        (SMALL + "steps: [{name: a}]\n", ["3:9: steps.0.sql is missing: A query."]),
        (
            SMALL + "name: !!python/object/apply:os.system [ls]\n",
            ["3:7: name is not text"],
        ),
        (
            SMALL + "name: !!python/name:os.system x\n",
            [
                "3:7: the tag tag:yaml.org,2002:python/name:os.system is not allowed; allowed: texts, numbers, true,"
                " false"
            ],
        ),
        (SMALL + 'name: "a\\0b"\n', ["3:7: a text has the character 0"]),
        (SMALL.replace("subscribe: a", "subscribe: '${a b}'"), [
            "1:31: ${a b} names no variable; allowed: ${NAME}, and $${ for the text ${"
        ]),
        (SMALL.replace("{options: {sub", "{stream: yes, options: {sub"), [
            "1:18: 'yes' is not allowed; allowed: true, false"
        ]),
        (
            SMALL.replace("{options: {sub", "{stream: true, options: {sub"),
            ["1:10: a stream needs the key checkpoint, the directory of its progress"],
        ),
        (SMALL.replace("{options: {topic", "{mode: replace, options: {topic"), [
            "2:14: 'replace' is not allowed; allowed: append, overwrite, errorifexists, ignore, update, complete"
        ]),
        (SMALL.replace("{options: {topic", "{mode: update, options: {topic"), [
            "2:8: a batch cannot have mode update; allowed: append, overwrite, errorifexists, ignore"
        ]),
        (SMALL + "trigger: often\ncheckpoint: d\n", [
            "3:1: 'often' is not allowed; allowed: availableNow, or as in 10 seconds",
            "3:1: trigger is for streams; allowed: with source.stream true",
            "4:1: checkpoint is for streams; allowed: with source.stream true",
        ]),
        (SMALL + "cluster: {topic: a}\n", ["3:11: topic is not of the cluster; allowed: kafka.*"]),
        (SMALL + "errors: {topic: a}\n", ["3:1: errors.where is missing: the condition for a bad row"]),
        (
            "source: {format: csv, options: {path: a}}\nsink: {}\nerrors: {topic: a, where: b}\n",
            ["3:1: errors are for a source of the format klamm"],
        ),
        (
            "source: {options: {subscribe: a, Subscribe: b}}\nsink: {partitionBy: [topic]}\n",
            [
                "1:34: Subscribe is there twice",
                "2:8: partitionBy is for files; a topic's column partition says where rows go",
            ],
        ),
        (
            "source: {format: Klamm, options: {subscribe: a}}\nsink: {format: KLAMM, partitionBy: [topic]}\n",
            ["2:23: partitionBy is for files; a topic's column partition says where rows go"],
        ),
        (TYPED.replace("json", "binary"), ["1:1: errors.where is missing: the condition for a bad row"]),
        (TYPED.replace("json", "string"), ["1:1: errors.where is missing: the condition for a bad row"]),
        (
            TYPED.replace("json", "json, mode: dropMalformed"),
            ["1:1: no bad row is read with mode DROPMALFORMED; allowed: PERMISSIVE"],
        ),
        (
            TYPED.replace("json", "json, columnNameOfCorruptRecord: bad"),
            ["2:1: errors need source.schema with the column bad BINARY"],
        ),
        (
            TYPED.replace("json", "json, key.format: csv"),
            [
                "1:1: errors are for records of which key or value is decoded: a corrupt record has the bytes of one"
                " only"
            ],
        ),
        (TYPED.replace("json", "json, mode: '${MODE}'"), ["4:51: with errors, mode has no variable"]),
        (
            SMALL + "steps:\n" + "".join(f"- {{name: {name}, sql: a}}\n" for name in ("records", "a b", "c", "C")),
            [
                "4:4: there is a view records before",
                "5:4: 'a b' is not a name; allowed: letters, digits and _",
                "7:4: there is a view C before",
            ],
        ),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, told: list[str]) -> None:
    assert problems(text) == told


def test_hostile_files() -> None:
    """The work is bounded, whatever aliases stand for."""
    widths = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    assert problems(f"a0: &a0 [x]\n{widths}\n")[0].startswith("1:1: sink is missing")
    options = "{" + ", ".join(f"k{n}: v" for n in range(900)) + "}"
    many = "\n".join(f"- {{name: n{n}, format: f, options: *o}}" for n in range(900))
    (told,) = problems(f"conf: &o {options}\ntables:\n{many}\n{SMALL}")
    assert told.endswith(": the file stands for more than 20000 values")
    assert problems("[" * 100_000) == ["1:21: values are more than 20 levels deep"]
    assert problems(b" " * 1_000_001) == ["1:1: the file has 1000001 bytes; allowed: 1000000"]
    assert problems(b"\xff\xfe\x00") != []
    assert problems(b"a: \x07") != []
    assert problems("a: &a [*a]\nsource: &s {options: *s}\nsink: *s") != []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_pipeline_or_refused(content: bytes) -> None:
    with pytest.raises(PipelineFileError):
        parse(content, "f")


@given(st.data())
def test_a_mutated_file_is_a_pipeline_or_refused(data: Any) -> None:
    content = bytearray(WHOLE.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        compile(program(parse(bytes(content), "f")), "f", "exec")
    except PipelineFileError as error:
        assert error.problems


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30) | st.sampled_from(
    ['"""', "'''", '\\"""', 'a\n"""b', "a\n'", 'a\n"', "${", "\\", 'x")\nimport os\nos.abort()  # ', "\n\\", "\r\n"]
)


@given(st.lists(texts, min_size=8, max_size=8))
def test_texts_are_literals_of_the_program(given_texts: list[str]) -> None:
    """Whatever they are: the program gives Spark these texts and does nothing else."""
    form, option, value, sql, name, column, mode, conf = given_texts
    pipeline = Pipeline(
        name=name,
        source=parse(SMALL.encode(), "f").source,
        sink=parse(SMALL.encode(), "f").sink,
        conf={conf: Template((value, Variable("PASSWORD")))},
        decode=sql,
    )
    source = type(pipeline.source)(form, False, {option: Template((value,))}, column)
    sink = type(pipeline.sink)(form, mode, {option: Template((value,))}, (column,))
    text = program(
        Pipeline(**{**{n: getattr(pipeline, n) for n in Pipeline.__slots__}, "source": source, "sink": sink})
    )
    names: dict[str, Any] = {"__name__": "x"}
    exec(compile(text, "f", "exec"), names)
    spark = MagicMock()
    names["start"](spark)
    spark.read.format.assert_called_once_with(form)
    spark.read.format().schema.assert_called_once_with(column)
    spark.read.format().schema().options.assert_called_once_with(**{option: value})
    spark.sql.assert_called_once_with(sql)
    writer = spark.sql().write.format
    writer.assert_called_once_with(form)
    writer().mode.assert_called_once_with(mode)
    writer().mode().partitionBy.assert_called_once_with(column)
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imports) == 2


def test_the_value_of_a_variable_is_in_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "secret")
    assert "secret" not in program(parse(WHOLE.encode(), "f"))
    assert "secret" not in repr(parse(WHOLE.encode(), "f"))
    for quoted in ("a'b\\c", repr("a'b\\c"), '"a\'b\\\\c"'):
        assert "b" not in hide_variables(quoted, ["P"], {"P": "a'b\\c"})
    assert hide_variables("a secret, no secrets", ["BROKERS", "NONE"], os.environ) == "a ${BROKERS}, no ${BROKERS}s"


def test_a_dollar_sign() -> None:
    pipeline = parse(SMALL.replace("subscribe: a", "subscribePattern: 'a$|$${b}|${C}$'").encode(), "f")
    assert pipeline.source.options["subscribePattern"] == Template(("a$|", "${b}", "|", Variable("C"), "$"))


@pytest.mark.parametrize(
    ("text", "environment", "told"),
    [
        (WHOLE, {}, ["5:3: the variable BROKERS is not set in the environment",
                     "36:1: the variable HOME is not set in the environment"]),
        (SMALL, {}, ["1:10: option kafka.bootstrap.servers is missing; allowed: host:port,host:port,..."]),
    ],
)  # fmt: skip
def test_options_that_are_not_allowed(text: str, environment: dict[str, str], told: list[str]) -> None:
    assert option_problems(text, environment) == told


WRONG = """\
# ${COMMENT} is not a variable.
cluster:
  kafka.bootstrap.servers: ${BROKERS}
  kafka.client.dns.lookup: x
  kafka.request.timeout.ms: soon
source:
  stream: true
  options:
    subscribe: a
    maxOffsetsPerTrigger: ${MANY}
    minPartitions: ${FEW}
    failOnDataLoss: perhaps
    ${KEY}: 1
sink:
  mode: replace
  options: {topic: '', kafka.compression.type: rar}
errors: {topic: a, where: 'true', options: {kafka.acks: few}}
steps: [{name: a b, sql: x}]
trigger: often
"""


def test_all_problems_are_told_at_once_and_each_of_them_once() -> None:
    """`kafka.request.timeout.ms` is one of the source, the sink and the errors."""
    told = option_problems(WRONG, {"BROKERS": "b:1", "FEW": "1,1"})
    assert [one.partition("; allowed")[0].partition("; did")[0] for one in told] == [
        "5:3: option kafka.request.timeout.ms is 'soon'",
        "7:3: a stream needs the key checkpoint, the directory of its progress",
        "10:5: the variable MANY is not set in the environment",
        "11:5: option minPartitions is '${FEW}'",
        "12:5: option failOnDataLoss is 'perhaps'",
        "13:5: unknown option ${key}",
        "15:9: 'replace' is not allowed",
        "16:13: option topic is empty; leave it out to take the topic from the column topic",
        "16:24: option kafka.compression.type is 'rar'",
        "17:10: a is a topic of the source: bad rows would come back",
        "17:45: option kafka.acks is 'few'",
        "18:10: 'a b' is not a name",
        "19:1: 'often' is not allowed",
    ]


@pytest.mark.parametrize(
    ("value", "template", "told"),
    [
        ("1", "${P}x", "1:66: option minPartitions is '${P}x'; allowed: a number from 1 to 2147483647"),
        ("option", "${P}", "1:66: option minPartitions is '${P}'; allowed: a number from 1 to 2147483647"),
        ("minPartitions", "${P}", "1:66: option minPartitions is '${P}'; allowed: a number from 1 to 2147483647"),
        ("a'b", "${P}", '1:66: option minPartitions is "${P}"; allowed: a number from 1 to 2147483647'),
        ("number", "x", "1:66: option minPartitions is 'x'; allowed: a number from 1 to 2147483647"),
    ],
)
def test_a_variable_stands_only_in_the_place_of_its_value(value: str, template: str, told: str) -> None:
    text = SMALL.replace("subscribe: a", f"kafka.bootstrap.servers: 'b:1', subscribe: a, minPartitions: '{template}'")
    text = text.replace("topic: b", "topic: '${P}', kafka.bootstrap.servers: 'b:1'")
    assert option_problems(text, {"P": value}) == [told]


CLUSTER = "cluster: {kafka.bootstrap.servers: 'b:1'}\n"
ONCE = "cluster: {kafka.bootstrap.servers: 'b:1', kafka.transactional.id: x}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            CLUSTER + SMALL + "tables: [{name: t, format: klamm, options: {subscribe: a, startingOffsets: latest}}]\n",
            ["4:59: option startingOffsets: a batch query cannot begin at latest"],
        ),
        (
            CLUSTER + TYPED.replace("topic: e", "topic: b"),
            ["2:10: b is a topic of the source: bad rows would come back"],
        ),
        (
            CLUSTER + TYPED.replace("subscribe: 'a,b'", "subscribePattern: .*"),
            ["2:10: e is a topic of the source: bad rows would come back"],
        ),
        (
            "checkpoint: /c\n" + ONCE + TYPED.replace("  options", "  stream: true\n  options"),
            ["2:43: option kafka.transactional.id is that of the sink; two writers need two"],
        ),
        (
            ONCE + SMALL,
            [
                "1:43: option kafka.transactional.id needs the option checkpointLocation, where the writer keeps the"
                " transactions that it commits; Spark does not tell it the one of"
                " spark.sql.streaming.checkpointLocation"
            ],
        ),
    ],
)
def test_options_of_tables_and_errors(text: str, told: list[str]) -> None:
    assert option_problems(text, {}) == told


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ("value.format: json", "key", "coalesce(`_corrupt_record`, CAST(to_json(value) AS BINARY))"),
        ("Key.Format: csv", "coalesce(`_corrupt_record`, CAST(to_json(key) AS BINARY))", "value"),
        (
            "value.format: JSON, key.format: string, columnNameOfCorruptRecord: a`b",
            "CAST(key AS BINARY)",
            "coalesce(`a``b`, CAST(to_json(value) AS BINARY))",
        ),
        ("value.format: string", "key", "CAST(value AS BINARY)"),
        ("value.format: binary", "key", "value"),
    ],
)
def test_what_a_bad_row_keeps_of_a_record_that_is_decoded(options: str, key: str, value: str) -> None:
    text = TYPED.replace("value.format: json", options).replace("topic: e", "topic: e, where: 'true'")
    text = text.replace("_corrupt_record", "a`b") if "a`b" in options else text
    errors = parse(text.encode(), "f").errors
    assert errors is not None
    assert (errors.key, errors.value) == (key, value)


@pytest.mark.parametrize("name", ["class", "spark", "f", "cluster", "header", "rows", "queries", "os"])
def test_a_table_may_have_any_name(name: str) -> None:
    names: dict[str, Any] = {"__name__": "x"}
    table = f"tables: [{{name: {name}, format: csv, options: {{path: p}}}}]\n"
    exec(compile(program(parse((CLUSTER + TYPED + table).encode(), "f")), "f", "exec"), names)
    spark = MagicMock()
    with patch.dict(names, f=MagicMock()):
        names["start"](spark)
    spark.read.format().options().load().createOrReplaceTempView.assert_any_call(name)


def test_the_place_of_a_wrong_option() -> None:
    environment = {"BROKERS": "127.0.0.1:1", "HOME": "/home"}
    (found,) = option_problems(WHOLE.replace("maxOffsetsPerTrigger: 1000", "maxOffsetsPerTrigger: many"), environment)
    assert found == "12:5: option maxOffsetsPerTrigger is 'many'; allowed: a number from 1 to 9223372036854775807"
    parse(WHOLE.encode(), "f", environment)


def test_the_schema_for_editors() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for text in (WHOLE, SMALL):
        assert not list(validator.iter_errors(yaml.safe_load(text)))
    assert list(validator.iter_errors(yaml.safe_load(SMALL + "sinks: {}")))
    assert list(validator.iter_errors({"sink": {}}))
