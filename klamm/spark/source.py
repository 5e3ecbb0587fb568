"""The data source `klamm` for PySpark: `format("klamm")` of `spark.read`, `readStream`, `df.write` and `writeStream`.

PySpark makes a `KlammDataSource` in several processes of the driver, one after another: to find the data sources, to
ask for the schema, and to plan. The reader (`batch.py`, `stream.py`) or the writer (`sink.py`) carries the plan to
Python workers.

What must stay true:
- Importing this module imports no more of klamm than the options and the columns, and neither pyarrow nor numba: the
  user waits for each of these processes.
- A schema that was given to the reader defines the rows. A schema with fewer columns makes a query read less.
"""

from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from klamm.spark.formats.settings import TypedRows
from klamm.spark.options import (
    OptionError,
    ReadOptions,
    Topics,
    chosen_topics,
    includes_headers,
    named_topics,
    read_options,
    table_metadata,
    typed_rows,
    write_options,
)
from klamm.spark.pyspark_versions import stream_reader, stream_writer
from klamm.spark.readable_errors import RefusedStreamReader, sentences_first
from klamm.spark.schema import columns
from klamm.spark.sql_types import TYPES, typed_schema


@sentences_first
class KlammDataSource(DataSource):
    """Topics of a Kafka or klamm cluster. `options.py` has the options, `schema.py` the columns."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType | str:
        names = columns(include_headers=includes_headers(self.options))
        metadata = table_metadata(self.options)
        typed = typed_rows(self.options)
        if typed is not None:
            if metadata:
                raise OptionError("a table of typed rows keeps no options; use CREATE TEMPORARY VIEW")
            if any(one.registry is not None for one in typed.formats):
                typed = _with_schemas(typed, chosen_topics(self.options), needed=True)
            return typed_schema(names, typed)
        fields = [StructField(name, TYPES[name]) for name in names]
        fields[-1].metadata = metadata
        return StructType(fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        from klamm.spark.read.batch import KlammReader

        return KlammReader(self._read_options(schema, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from klamm.spark.read.stream import KlammStreamReader

            options = self._read_options(schema, streaming=True)
            return stream_reader(KlammStreamReader(options, schema), options)
        except Exception as error:
            return RefusedStreamReader(error)

    def _read_options(self, schema: StructType, *, streaming: bool) -> ReadOptions:
        metadata = {field.name: field.metadata for field in schema.fields}
        options = read_options(self.options, streaming=streaming, columns=metadata)
        if options.typed is None or all(one.registry is None for one in options.typed.formats):
            return options
        return replace(options, typed=_with_schemas(options.typed, options.topics, needed=False))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from klamm.spark.write.sink import KlammWriter

        if overwrite:
            raise OptionError("a topic cannot be overwritten; allowed: mode('append'), INSERT INTO")
        return KlammWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from klamm.spark.write.sink import KlammStreamWriter

        # `overwrite` means the output mode complete. As with Spark's own connector, each trigger appends the whole
        # result.
        return stream_writer(KlammStreamWriter(write_options(self.options), schema), schema)


def _with_schemas(typed: TypedRows, topics: Topics, *, needed: bool) -> TypedRows:
    """The formats with their schemas from a registry. `needed` is set if the user gives no schema."""
    # This import loads the registry's client.
    from klamm.spark.formats.resolving import reader_formats

    return reader_formats(typed, named_topics(topics), needed=needed)
