"""Schemas of a Schema Registry, through Confluent's own client: by id for workers, by subject for the driver.

What must stay true:
- If a registry does not answer or refuses, `RegistryFailure` is raised and the task fails, so that no good record is
  taken for a bad one. `UnknownSchema` is raised only if the registry answers that an id does not exist, or has another
  format. SchemaError is raised for a schema that klamm cannot use.
- A process asks for an id once, and waits only a bounded time for an answer. A schema has at most `MAX_REFERENCES`
  references, and at most `MAX_SCHEMA_CHARS` characters including the references.
- No message contains a password, a token or the user of a URL.
"""

import base64
import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from klamm.spark.formats.avro_schemas import read_schema, write_schema
from klamm.spark.formats.settings import AVRO, JSON, PROTOBUF, Registry, SchemaError

MAX_SCHEMA_CHARS = 8_000_000
MAX_REFERENCES = 1_000
# The most schemas that a process keeps, each of at most MAX_SCHEMA_CHARS.
KEPT_SCHEMAS = 1_000

KINDS = {AVRO: "AVRO", JSON: "JSON", PROTOBUF: "PROTOBUF"}
_TIMEOUT_S = "10"
_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND = 40401, 40402, 40403
_NOT_FOUND, _CONFLICT = 404, 409
BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
_SECRETS = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password", "proxy")

Answer = TypeVar("Answer")


class RegistryFailure(RuntimeError):
    """A request to the registry failed. The message names the registry and the reason."""


class UnknownSchema(LookupError):
    """The registry has no schema with an id, or the schema has another format."""


class NotRegistered(RegistryFailure):
    """The registry has no such subject, version or schema. The registry's `code` says which of them is missing."""

    code = 0


class ResolvedSchema(NamedTuple):
    """A schema that needs no other schema.

    - `text`: JSON of Avro or of a JSON Schema, or a FileDescriptorSet in base64 whose last file is the schema's.
    """

    schema_id: int
    kind: str
    text: str


@lru_cache(maxsize=KEPT_SCHEMAS)
def schema_by_id(registry: Registry, schema_id: int, kind: str) -> ResolvedSchema:
    """The schema with which a value was written. Raises UnknownSchema, SchemaError, RegistryFailure."""
    what = f"the schema with the id {schema_id}"
    try:
        found = _request(registry, what, lambda client: client.get_schema(schema_id, fmt=_format(kind)))
    except NotRegistered as error:
        if error.code == _SCHEMA_NOT_FOUND:
            raise UnknownSchema(f"the registry has no schema with the id {schema_id}") from None
        raise
    if found.schema_type != KINDS[kind]:
        raise UnknownSchema(_other_kind(what, found, kind))
    return _resolved(registry, schema_id, found, kind, what)


def schema_of_subject(registry: Registry, subject: str, version: int | None, kind: str) -> ResolvedSchema:
    """A version of a subject, the latest by default. Raises NotRegistered, SchemaError,
    RegistryFailure."""
    what = f"{'the latest version' if version is None else f'version {version}'} of the subject {subject}"
    # The client would cache the result of `get_latest_version`.
    wanted: Any = "latest" if version is None else version
    found = _request(registry, what, lambda client: client.get_version(subject, wanted, fmt=_format(kind)))
    return _resolved(registry, _id(found, what), found.schema, kind, what)


def register(registry: Registry, subject: str, schema: Schema, *, normalize: bool) -> int:
    """Adds a schema to the subject, and returns the schema's id. Raises RegistryFailure."""
    what = f"a new schema for the subject {subject}"
    return _request(registry, what, lambda client: client.register_schema(subject, schema, normalize))


def look_up(registry: Registry, subject: str, schema: Schema, *, normalize: bool) -> RegisteredSchema:
    """The id and the version of a schema that the subject has. Raises NotRegistered, RegistryFailure."""
    what = f"a schema of the subject {subject}"
    return _request(registry, what, lambda client: client.lookup_schema(subject, schema, normalize))


# -- inside -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _client(registry: Registry) -> SchemaRegistryClient:
    properties: dict[str, Any] = {"timeout": _TIMEOUT_S, **dict(registry.properties)}
    for name in ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms"):
        if name in properties:
            properties[name] = int(properties[name])
    return SchemaRegistryClient(properties)


def forget() -> None:
    """Drops the schemas and connections of this process."""
    schema_by_id.cache_clear()
    _client.cache_clear()


# A connection must not be shared by two processes.
os.register_at_fork(after_in_child=forget)


def _request(registry: Registry, what: str, ask: Callable[[SchemaRegistryClient], Answer]) -> Answer:
    try:
        return ask(_client(registry))
    except SchemaRegistryError as error:
        told = f"{_where(registry)} answered HTTP {error.http_status_code} (code {error.error_code})"
        reason = _redacted(registry, str(error.error_message))
        if error.http_status_code == _CONFLICT:
            raise RegistryFailure(f"{told} and refused {what}, as it is not compatible: {reason}") from None
        if error.http_status_code == _NOT_FOUND:
            missing = NotRegistered(f"{told} for {what}: {reason}")
            missing.code = error.error_code
            raise missing from None
        raise RegistryFailure(f"{told} for {what}: {reason}") from None
    except Exception as error:
        reason = _redacted(registry, f"{type(error).__name__}: {error}")
        raise RegistryFailure(f"{_where(registry)} gave no usable answer for {what}: {reason}") from None


def _where(registry: Registry) -> str:
    urls = dict(registry.properties)["url"]
    return f"the schema registry {re.sub(r'//[^/]*@', '//', urls)}"


def _redacted(registry: Registry, text: str) -> str:
    """The beginning of a text, on one line and without secrets."""
    properties = dict(registry.properties)
    secrets = [properties[name] for name in _SECRETS if properties.get(name)]
    secrets += [part for secret in secrets for part in secret.split(":") if len(part) > 3]
    secrets += re.findall(r"//([^/]*)@", properties["url"])
    # A server may quote the Authorization header of a request.
    secrets += [base64.b64encode(unquote(secret).encode()).decode() for secret in secrets]
    for secret in secrets:
        text = text.replace(secret, "...")
    return " ".join(text.split())[:400]


def _format(kind: str) -> str | None:
    """The form of the registry's answer: Protobuf as a descriptor, so that no text has to be parsed here."""
    return "serialized" if kind == PROTOBUF else None


def _id(found: RegisteredSchema, what: str) -> int:
    if not isinstance(found.schema_id, int):
        raise RegistryFailure(f"the schema registry answered without an id for {what}")
    return found.schema_id


def _resolved(registry: Registry, schema_id: int, schema: Schema, kind: str, what: str) -> ResolvedSchema:
    if schema.schema_type != KINDS[kind]:
        raise RegistryFailure(_other_kind(what, schema, kind))
    referenced: dict[str, str] = {}
    _gather(registry, schema, kind, referenced, {"chars": 0}, ())
    text = _text(schema)
    try:
        if kind == PROTOBUF:
            text = _file_set(text, referenced)
        elif kind == AVRO and referenced:
            text = write_schema(read_schema(text, referenced.values()))
    except SchemaError as error:
        raise SchemaError(f"{what} cannot be used: {error}") from None
    except Exception as error:
        raise SchemaError(f"{what} cannot be used: {type(error).__name__}: {str(error)[:200]}") from None
    return ResolvedSchema(schema_id, kind, text)


def _other_kind(what: str, schema: Schema, kind: str) -> str:
    return f"{what} is of the type {schema.schema_type}, but the format is {kind}"


def _gather(
    registry: Registry,
    schema: Schema,
    kind: str,
    referenced: dict[str, str],
    size: dict[str, int],
    above: tuple[str, ...],
) -> None:
    """Sets `referenced` to the texts of all schemas that this one needs. A schema comes after the schemas that it
    needs."""
    size["chars"] += len(_text(schema))
    if size["chars"] > MAX_SCHEMA_CHARS:
        raise SchemaError(f"a schema has more than {MAX_SCHEMA_CHARS} characters with its references")
    for reference in schema.references or ():
        name = _name(reference)
        if name in referenced or (kind == PROTOBUF and name.startswith(BUILT_IN)):
            continue
        if name in above or len(referenced) + len(above) >= MAX_REFERENCES:
            raise SchemaError(f"a schema has a reference to itself, or more than {MAX_REFERENCES}: {name}")
        try:
            other = _request(
                registry,
                f"the reference {name}",
                lambda client, one=reference: client.get_version(one.subject, one.version, True, _format(kind)),  # type: ignore[misc]
            )
        except NotRegistered as error:
            if error.code in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND):
                raise SchemaError(f"a schema has a reference that the registry does not have: {name}") from None
            raise
        _gather(registry, other.schema, kind, referenced, size, (*above, name))
        referenced[name] = _text(other.schema)


def _text(schema: Schema) -> str:
    text: Any = schema.schema_str
    if not isinstance(text, str):
        raise RegistryFailure("the schema registry answered with a schema that is no text")
    return text


def _name(reference: SchemaReference) -> str:
    return reference.name or ""


def _file_set(text: str, referenced: dict[str, str]) -> str:
    """A FileDescriptorSet of the given file descriptors, and of Protobuf's own files that they import."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    files: dict[str, FileDescriptorProto] = {}

    def add(name: str, file: FileDescriptorProto) -> None:
        file.name = name
        for needed in file.dependency:
            if needed in files:
                continue
            if needed in referenced:
                add(needed, FileDescriptorProto.FromString(base64.b64decode(referenced[needed])))
            else:
                add(needed, _built_in(needed))
        files[name] = file

    add("default", FileDescriptorProto.FromString(base64.b64decode(text)))
    return base64.b64encode(FileDescriptorSet(file=list(files.values())).SerializeToString()).decode()


def _built_in(name: str) -> Any:
    from importlib import import_module

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    match = re.fullmatch(r"google/(protobuf|type)/(\w+)\.proto", name)
    try:
        module = import_module(f"google.{match[1]}.{match[2]}_pb2") if match else None
    except ModuleNotFoundError:
        module = None
    if module is None:
        raise SchemaError(f"a schema imports {name}, for which it has no reference")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
