"""Writes the PySpark program of a pipeline. `klamm pipeline run` runs this program.

The program only needs PySpark, and klamm for topics. With errors, a stream is two queries over the same source, each
with its own checkpoint: one writes the bad rows, the other the good rows. So a restart of either query loses no row,
and each row is written at least once.

What must stay true: the texts of the file appear in the program only as literals. The program does not contain the
values of variables.
"""

import ast
from collections.abc import Iterator, Mapping

from klamm.spark.pipelines.files.parsing import is_klamm
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
    Table,
    Template,
    Variable,
)

ERROR_HEADERS: Mapping[str, str] = {
    "__klamm.errors.topic": "topic",
    "__klamm.errors.partition": "partition",
    "__klamm.errors.offset": "offset",
}
"""The headers of a bad row, and their expressions. One more header has the reason."""
REASON_HEADER = "__klamm.errors.reason"


def program(pipeline: Pipeline) -> str:
    """The text of the program."""
    return "\n".join([*_head(pipeline), "", "", *_start(pipeline), "", "", *_main(pipeline), ""])


def _head(pipeline: Pipeline) -> Iterator[str]:
    yield '"""Rows from a source through SQL to a sink. Made by klamm pipeline run --print."""'
    yield ""
    if pipeline.variables:
        yield "import os"
        yield ""
    yield "from pyspark.sql import SparkSession"
    if pipeline.errors is not None:
        yield "from pyspark.sql import functions as f"
    if pipeline.cluster:
        yield ""
        yield f"cluster = {_options(pipeline.cluster, '')}"


_HEADER = """\
def header(name, expression):
    return f.struct(f.lit(name).alias("key"), f.expr(expression).cast("string").cast("binary").alias("value"))


"""


def _start(pipeline: Pipeline) -> Iterator[str]:
    source = pipeline.source
    if pipeline.errors is not None:
        yield from _HEADER.splitlines()
    yield "def start(spark):"
    yield '    """Starts the streaming queries and returns them by name. A batch has ended when this returns."""'
    for table in pipeline.tables:
        yield f"    table = spark.read.format({_text(table.format)})"
        yield from _reading(pipeline, "table", table, table.name)
    yield f"    rows = spark.{'readStream' if source.stream else 'read'}.format({_text(source.format)})"
    yield from _reading(pipeline, "rows", source, SOURCE)
    if pipeline.decode is not None:
        yield f"    rows = spark.sql({_text(pipeline.decode)})"
    yield "    queries = {}"
    if pipeline.errors is not None:
        yield from _errors(pipeline, pipeline.errors)
    yield f'    rows.createOrReplaceTempView("{RECORDS}")'
    for step in pipeline.steps:
        yield f"    rows = spark.sql({_text(step.sql)})"
        if step.watermark is not None:
            yield f"    rows = rows.withWatermark({', '.join(map(_text, step.watermark))})"
        yield f"    rows.createOrReplaceTempView({_text(step.name)})"
    yield from _writing(pipeline, "sink", "rows", pipeline.sink)
    yield "    return queries"


def _reading(pipeline: Pipeline, name: str, read: Source | Table, view: str) -> Iterator[str]:
    """The statements that make rows and a view from the reader in the variable `name`."""
    if read.schema is not None:
        yield f"    {name} = {name}.schema({_text(read.schema)})"
    yield f"    {name} = {name}{_with_options(pipeline, read.format, read.options)}.load()"
    yield f"    {name}.createOrReplaceTempView({_text(view)})"


def _errors(pipeline: Pipeline, errors: Errors) -> Iterator[str]:
    headers = {REASON_HEADER: errors.reason, **ERROR_HEADERS}
    yield "    # A condition that is null is not true."
    yield f"    is_bad = f.coalesce(f.expr({_text(errors.where)}), f.lit(False))"
    yield "    headers = f.array("
    for name, expression in headers.items():
        yield f"        header({_text(name)}, {_text(expression)}),"
    yield "    )"
    yield '    if "headers" in rows.columns:'
    yield '        headers = f.when(f.col("headers").isNull(), headers).otherwise(f.concat("headers", headers))'
    yield "    bad = rows.where(is_bad).select("
    yield f'        f.expr({_text(errors.key)}).alias("key"),'
    yield f'        f.expr({_text(errors.value)}).alias("value"),'
    yield '        headers.alias("headers"),'
    yield "    )"
    topic = {"topic": Template((errors.topic,))}
    yield from _writing(pipeline, "errors", "bad", Sink(KLAMM, "append", {**errors.options, **topic}))
    yield "    rows = rows.where(~is_bad)"


def _writing(pipeline: Pipeline, name: str, rows: str, sink: Sink) -> Iterator[str]:
    options = _with_options(pipeline, sink.format, sink.options)
    partitions = f".partitionBy({', '.join(map(_text, sink.partition_by))})" if sink.partition_by else ""
    if not pipeline.source.stream:
        yield f"    {rows}.write.format({_text(sink.format)}).mode({_text(sink.mode)}){partitions}{options}.save()"
        return
    yield f"    writer = {rows}.writeStream.format({_text(sink.format)}).outputMode({_text(sink.mode)})"
    yield f"    writer = writer{partitions}{options}"
    if pipeline.checkpoint is not None:
        directory = Template((*pipeline.checkpoint.parts, f"/{name}"))
        yield f'    writer = writer.option("checkpointLocation", {_template(directory)})'
    if pipeline.trigger == AVAILABLE_NOW:
        yield "    writer = writer.trigger(availableNow=True)"
    elif pipeline.trigger is not None:
        yield f"    writer = writer.trigger(processingTime={_text(pipeline.trigger)})"
    yield f'    queries["{name}"] = writer.start()'


def _main(pipeline: Pipeline) -> Iterator[str]:
    yield 'if __name__ == "__main__":'
    yield f"    builder = SparkSession.builder.appName({_text(pipeline.name)})"
    for name, text in pipeline.conf.items():
        yield f"    builder = builder.config({_text(name)}, {_template(text)})"
    yield "    spark = builder.getOrCreate()"
    yield "    started = start(spark)"
    if pipeline.source.stream:
        yield "    # The first query that fails ends the program."
        yield "    while spark.streams.active:"
        yield "        spark.streams.awaitAnyTermination()"
        yield "        spark.streams.resetTerminated()"
        yield "    for query in started.values():"
        yield "        query.awaitTermination()"
    yield "    spark.stop()"


# -- literals ---------------------------------------------------------------------------------------------------------


def _with_options(pipeline: Pipeline, form: str, options: Options) -> str:
    """The call that gives a reader or a writer its options."""
    common = "**cluster, " if is_klamm(form) and pipeline.cluster else ""
    if not options:
        return f".options({common.removesuffix(', ')})" if common else ""
    if not common:
        return f".options(**{_options(options, '    ')})"
    return f".options(**{{{common}**{_options(options, '    ')}}})"


def _options(options: Options, indent: str) -> str:
    if not options:
        return "{}"
    lines = [f"{indent}    {_text(name)}: {_template(text)},\n" for name, text in options.items()]
    return f"{{\n{''.join(lines)}{indent}}}"


def _template(template: Template) -> str:
    """An expression for a text with variables."""
    parts = [
        f"os.environ[{_text(part.name)}]" if isinstance(part, Variable) else _text(part) for part in template.parts
    ]
    return " + ".join(parts) or '""'


def _text(text: str) -> str:
    """A literal, on several lines if that is readable."""
    if "\n" in text and "\\" not in text:
        literal = f'"""{text}"""'
        try:
            if ast.literal_eval(literal) == text:
                return literal
        except (SyntaxError, ValueError):
            pass
    return _double_quoted(text)


def _double_quoted(text: str) -> str:
    """A literal in double quotes, as Python formatters write it, if it needs no escape."""
    literal = repr(text)
    return f'"{text}"' if literal == f"'{text}'" and '"' not in text else literal
