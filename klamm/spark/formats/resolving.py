"""Finds the schemas of typed columns on the driver before a task begins: given, derived, or from a registry.

What must stay true:
- The registry gets a schema once for each query, from the driver, and before the first record is sent.
- If the options do not name a subject, it has the name that Confluent's serializers would use.

Source: io.confluent.kafka.serializers.subject.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType

from klamm.spark.formats.deriving import avro_schema, json_schema
from klamm.spark.formats.settings import (
    AVRO,
    JSON,
    PROTOBUF,
    ColumnFormat,
    MissingLibrary,
    RegistryUse,
    SchemaError,
    SubjectNames,
    TypedRows,
)
from klamm.spark.formats.wire import message_name, message_path, write_message_path

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

    from klamm.spark.formats.registry import ResolvedSchema


class RegistryError(ValueError):
    """A request to a registry failed, or the registry lacks a schema or subject. The message says which."""


# -- reading ----------------------------------------------------------------------------------------------------------


def reader_formats(typed: TypedRows, topics: Sequence[str], *, needed: bool) -> TypedRows:
    """The formats with the schemas that their subjects have now.

    `topics` are the topics that the options name; empty for a pattern. With `needed` the registry's schema defines the
    rows. Otherwise the user's schema defines them: JSON then needs no other schema, and if there is no single subject,
    values are read by their writers' schemas only. Raises ValueError.
    """

    def resolved(column: ColumnFormat | None) -> ColumnFormat | None:
        if column is None or column.registry is None:
            return column
        if not needed and (column.name == JSON or not _names_a_schema(column.registry, topics)):
            return column
        return _reader_column(column, topics)

    return replace(typed, key=resolved(typed.key), value=resolved(typed.value))


def _reader_column(column: ColumnFormat, topics: Sequence[str]) -> ColumnFormat:
    """The column with the schema that its subject has now. A schema that the options give stays."""
    use = column.registry
    if use is None or column.schema is not None:
        return column
    found = _chosen(use, column, topics[0] if len(set(topics)) == 1 else None)
    if column.name == JSON:
        from klamm.spark.formats.json_schema import ddl

        return replace(column, schema=ddl(found.text))
    message = column.message
    if column.name == PROTOBUF and message is None:
        message = message_name(found.text, (0,))
    return replace(column, schema=found.text, message=message)


def _names_a_schema(use: RegistryUse, topics: Sequence[str]) -> bool:
    return use.subject is not None or use.schema_id is not None or len(set(topics)) == 1


def _chosen(use: RegistryUse, column: ColumnFormat, topic: str | None) -> "ResolvedSchema":
    """The schema that the options name, or the latest one of the subject."""
    registry = _registry_module()
    try:
        if use.schema_id is not None:
            found: ResolvedSchema = registry.schema_by_id(use.registry, use.schema_id, column.name)
            return found
        subject = _subject(use, column, topic, None)
        found = registry.schema_of_subject(use.registry, subject, use.version, column.name)
        return found
    except (registry.RegistryFailure, registry.UnknownSchema, SchemaError) as error:
        raise RegistryError(str(error)) from None


# -- writing ----------------------------------------------------------------------------------------------------------


def with_schema(column: ColumnFormat, data_type: DataType, topic: str | None) -> ColumnFormat:
    """The column with the schema for writing its values. Raises ValueError."""
    use = column.registry
    if use is not None and (use.schema_id is not None or use.version is not None or use.use_latest):
        found = _chosen(use, column, topic)
        message = column.message
        if column.name == PROTOBUF and message is None:
            message = message_name(found.text, (0,))
        return replace(
            column,
            schema=found.text,
            message=message,
            registry=replace(use, schema_id=found.schema_id),
        )
    if column.name == AVRO and column.schema is None:
        return replace(column, schema=avro_schema(data_type))
    if column.name == JSON:
        return replace(column, schema=None if use is None else json_schema(data_type))
    if column.name == PROTOBUF and (column.schema is None or column.message is None):
        raise ValueError(
            f"the format protobuf needs {column.column}.schema, a FileDescriptorSet in base64, and"
            f" {column.column}.message"
        )
    if column.name == PROTOBUF:
        _check_file_set(column)
    return column


def with_prefix(column: ColumnFormat, topic: str | None) -> ColumnFormat:
    """The column with the prefix of its values. Registers a new schema. Raises ValueError."""
    use = column.registry
    if use is None:
        return column
    registry = _registry_module()
    try:
        schema_id = use.schema_id or _registered(use, column, topic)
    except registry.RegistryFailure as error:
        raise RegistryError(str(error)) from None
    prefix = b"\x00" + schema_id.to_bytes(4, "big")
    if column.name == PROTOBUF:
        prefix += write_message_path(message_path(column.schema or "", column.message or ""))
    return replace(column, prefix=prefix)


def _registered(use: RegistryUse, column: ColumnFormat, topic: str | None) -> int:
    from confluent_kafka.schema_registry import Schema

    registry = _registry_module()
    kind = registry.KINDS[column.name]
    schema = _file_schema(use, column.schema or "") if column.name == PROTOBUF else Schema(column.schema, kind)
    subject = _subject(use, column, topic, _record_name(column))
    if use.auto_register:
        schema_id: int = registry.register(use.registry, subject, schema, normalize=use.normalize)
        return schema_id
    found: int = registry.look_up(use.registry, subject, schema, normalize=use.normalize).schema_id
    return found


def _file_schema(use: RegistryUse, file_set: str) -> "Schema":
    """The schema of the last file of a set. Each imported file becomes a schema of the subject with the file's name."""
    from confluent_kafka.schema_registry import Schema, SchemaReference
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    registry = _registry_module()
    files = {file.name: file for file in FileDescriptorSet.FromString(base64.b64decode(file_set)).file}
    made: dict[str, Schema] = {}

    def schema_of(file: FileDescriptorProto) -> Schema:
        references = []
        for name in file.dependency:
            if name.startswith(registry.BUILT_IN):
                continue
            if name not in made:
                made[name] = schema_of(files[name])
                if use.auto_register:
                    registry.register(use.registry, name, made[name], normalize=use.normalize)
            version = registry.look_up(use.registry, name, made[name], normalize=use.normalize).version
            references.append(SchemaReference(name, name, version))
        text = base64.b64encode(file.SerializeToString()).decode()
        return Schema(text, registry.KINDS[PROTOBUF], references)

    return schema_of(list(files.values())[-1])


def _subject(use: RegistryUse, column: ColumnFormat, topic: str | None, record: str | None) -> str:
    if use.subject is not None:
        return use.subject
    if use.names is SubjectNames.TOPIC and topic is not None:
        return f"{topic}-{column.column}"
    if use.names is SubjectNames.RECORD and record is not None:
        return record
    if use.names is SubjectNames.TOPIC_RECORD and topic is not None and record is not None:
        return f"{topic}-{record}"
    raise ValueError(
        f"{use.names.value} does not name one subject here; give {column.column}.subject or {column.column}.schema.id"
    )


def _record_name(column: ColumnFormat) -> str | None:
    """The name of the written type, for strategies that name subjects by it."""
    if column.name == PROTOBUF:
        return column.message
    schema = json.loads(column.schema or "null")
    if column.name != AVRO or not isinstance(schema, dict) or "name" not in schema:
        return None
    name, namespace = schema["name"], schema.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _check_file_set(column: ColumnFormat) -> None:
    """Raises ValueError if the schema is not a FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        if FileDescriptorSet.FromString(base64.b64decode(column.schema or "", validate=True)).file:
            return
    except (binascii.Error, DecodeError):
        pass
    raise ValueError(f"{column.column}.schema is no FileDescriptorSet in base64")


def _registry_module() -> Any:
    """The module of the registry's client. Only queries with a registry load it."""
    try:
        from klamm.spark.formats import registry
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"schema.registry.url needs the package {error.name}: pip install 'klamm[formats]', also on the workers"
        ) from None
    return registry
