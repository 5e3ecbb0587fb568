"""What the test registry knows: contexts, subjects, versions, ids, levels of compatibility, modes.

What must stay true: equal schemas of a context have one id; an id and a version are never given twice, not even after
a permanent deletion.

Source: docs.confluent.io, Schema Registry API Reference.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from support.schema_registry import compatibility
from support.schema_registry.schemas import TYPES, InvalidSchema, Reference, Schema, canonical, is_built_in, parsed

_CONTEXT = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)
_MAX_DEPTH = 20


class RegistryError(Exception):
    """The answer to a request that fails: HTTP status, code of the registry, message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.status = code if code < 1000 else code // 100
        self.code = code


@dataclass
class _Version:
    number: int
    schema_id: int
    schema: Schema
    deleted: bool = False


@dataclass
class _Subject:
    versions: list[_Version] = field(default_factory=list)
    next_version: int = 1

    def living(self) -> list[_Version]:
        return [version for version in self.versions if not version.deleted]


@dataclass
class _Context:
    ids: dict[Schema, int] = field(default_factory=dict)

    def id_of(self, schema: Schema) -> int:
        return self.ids.setdefault(schema, len(self.ids) + 1)


class Store:
    """All methods raise RegistryError."""

    def __init__(self) -> None:
        self._contexts: dict[str, _Context] = {".": _Context()}
        self._subjects: dict[str, _Subject] = {}
        self._levels: dict[str, str] = {"": "BACKWARD"}
        self._modes: dict[str, str] = {"": "READWRITE"}

    # -- schemas ------------------------------------------------------------------------------------------------------

    def by_id(self, schema_id: int, subject: str = "") -> Schema:
        context = self._contexts.get(_context(subject), _Context())
        for schema, number in context.ids.items():
            if number == schema_id:
                return schema
        raise RegistryError(40403, f"Schema {schema_id} not found")

    def versions_of_id(self, schema_id: int, *, deleted: bool = False) -> list[dict[str, Any]]:
        self.by_id(schema_id)
        return [
            {"subject": name, "version": version.number}
            for name, subject in sorted(self._subjects.items())
            for version in subject.versions
            if version.schema_id == schema_id and _context(name) == "." and (deleted or not version.deleted)
        ]

    def contexts(self) -> list[str]:
        return sorted(self._contexts)

    # -- subjects -----------------------------------------------------------------------------------------------------

    def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        names = (name for name, subject in self._subjects.items() if subject.living() or (deleted and subject.versions))
        return sorted(name for name in names if name.startswith(prefix))

    def versions(self, name: str, *, deleted: bool = False) -> list[int]:
        return [version.number for version in self._found(name, deleted=deleted)]

    def version(self, name: str, which: str, *, deleted: bool = False) -> dict[str, Any]:
        found = self._version(name, which, deleted=deleted)
        return {"subject": name, "version": found.number, "id": found.schema_id, **body(found.schema)}

    def referenced_by(self, name: str, which: str) -> list[int]:
        version = self._version(name, which, deleted=True)
        return sorted({user.schema_id for user in self._users(name, version.number)})

    def register(self, name: str, schema: Schema, *, normalize: bool = False) -> int:
        self._check_subject(name)
        form = self._form(schema, normalize=normalize)
        schema = canonical(schema, normalize=normalize)
        subject = self._subjects.setdefault(name, _Subject())
        for version in subject.living():
            if version.schema == schema:
                return version.schema_id
        if self._effective(self._modes, name) == "READONLY":
            raise RegistryError(42205, f"Subject {name} is in read-only mode")
        found = self._problems(name, schema.kind, form, subject.living(), self.level(name))
        if found:
            message = f"Schema being registered is incompatible with an earlier schema for subject {name!r}: "
            raise RegistryError(40901, message + "; ".join(found))
        schema_id = self._contexts.setdefault(_context(name), _Context()).id_of(schema)
        subject.versions.append(_Version(subject.next_version, schema_id, schema))
        subject.next_version += 1
        return schema_id

    def look_up(self, name: str, schema: Schema, *, normalize: bool = False, deleted: bool = False) -> dict[str, Any]:
        versions = self._found(name, deleted=deleted)
        self._form(schema, normalize=normalize)
        schema = canonical(schema, normalize=normalize)
        for version in reversed(versions):
            if version.schema == schema:
                return {"subject": name, "version": version.number, "id": version.schema_id, **body(schema)}
        raise RegistryError(40403, "Schema not found")

    def delete_subject(self, name: str, *, permanent: bool = False) -> list[int]:
        subject = self._subjects.get(name)
        if subject is None or not subject.versions:
            raise RegistryError(40401, f"Subject '{name}' not found.")
        if permanent and subject.living():
            raise RegistryError(40405, f"Subject '{name}' was not deleted first before being permanently deleted")
        if not permanent and not subject.living():
            raise RegistryError(40404, f"Subject '{name}' was soft deleted. Set permanent=true to delete permanently")
        gone = list(subject.versions) if permanent else subject.living()
        for version in gone:
            self._check_unused(name, version)
        for version in gone:
            version.deleted = True
        if permanent:
            subject.versions.clear()
        return [version.number for version in gone]

    def delete_version(self, name: str, which: str, *, permanent: bool = False) -> int:
        version = self._version(name, which, deleted=True)
        if permanent and not version.deleted:
            raise RegistryError(40407, f"Subject '{name}' Version {which} was not deleted first")
        if not permanent and version.deleted:
            raise RegistryError(40406, f"Subject '{name}' Version {which} was soft deleted.")
        self._check_unused(name, version)
        version.deleted = True
        if permanent:
            self._subjects[name].versions.remove(version)
        return version.number

    # -- compatibility and modes --------------------------------------------------------------------------------------

    def check(self, name: str, schema: Schema, which: str | None, *, normalize: bool = False) -> list[str]:
        """Why the schema is not compatible with a version of the subject, or with those that its level names."""
        form = self._form(schema, normalize=normalize)
        level = self.level(name)
        if which is None:
            subject = self._subjects.get(name, _Subject())
            return self._problems(name, schema.kind, form, subject.living(), level)
        return self._problems(name, schema.kind, form, [self._version(name, which)], level)

    def level(self, name: str) -> str:
        return self._effective(self._levels, name)

    def own_level(self, name: str) -> str:
        if name not in self._levels:
            raise RegistryError(40408, f"Subject '{name}' does not have subject-level compatibility configured")
        return self._levels[name]

    def set_level(self, name: str, level: str) -> None:
        if level not in compatibility.LEVELS:
            raise RegistryError(
                42203, f"Invalid compatibility level. Valid values are {', '.join(compatibility.LEVELS)}"
            )
        self._levels[name] = level

    def forget_level(self, name: str) -> str:
        if not name:
            before, self._levels[""] = self._levels[""], "BACKWARD"
            return before
        self.own_level(name)
        return self._levels.pop(name)

    def mode(self, name: str, *, default_to_global: bool = False) -> str:
        if name and name not in self._modes and not default_to_global:
            raise RegistryError(40409, f"Subject '{name}' does not have subject-level mode configured")
        return self._effective(self._modes, name)

    def set_mode(self, name: str, mode: str) -> None:
        if mode not in ("READWRITE", "READONLY"):
            raise RegistryError(42204, "Invalid mode. Valid values here are READWRITE, READONLY")
        self._modes[name] = mode

    # -- inside -------------------------------------------------------------------------------------------------------

    def _effective(self, values: dict[str, str], name: str) -> str:
        return values.get(name, values[""])

    def _check_subject(self, name: str) -> None:
        if not name or any(ord(letter) < 32 for letter in name) or name in ("__GLOBAL", "__EMPTY"):
            raise RegistryError(42208, f"The specified subject '{name}' is not a valid subject.")

    def _found(self, name: str, *, deleted: bool = False) -> list[_Version]:
        subject = self._subjects.get(name, _Subject())
        versions = subject.versions if deleted else subject.living()
        if not versions:
            raise RegistryError(40401, f"Subject '{name}' not found.")
        return versions

    def _version(self, name: str, which: str, *, deleted: bool = False) -> _Version:
        if which in ("latest", "-1"):
            return self._found(name, deleted=deleted)[-1]
        if not which.isdigit() or not 1 <= int(which) < 2**31:
            raise RegistryError(42202, f"The specified version '{which}' is not a valid version id.")
        for version in self._found(name, deleted=deleted):
            if version.number == int(which):
                return version
        raise RegistryError(40402, f"Version {which} not found.")

    def _form(self, schema: Schema, *, normalize: bool) -> Any:
        """The parsed schema, with everything that it refers to."""
        if schema.kind not in TYPES:
            raise RegistryError(42201, f"Invalid schema type {schema.kind}. Valid types are {', '.join(TYPES)}")
        try:
            return parsed(schema, list(self._needed(schema, 0)))
        except InvalidSchema as error:
            raise RegistryError(42201, f"Invalid schema of type {schema.kind}: {error}") from error

    def _needed(self, schema: Schema, depth: int) -> Iterator[tuple[str, Schema]]:
        found: dict[str, Schema] = {}
        if depth > _MAX_DEPTH:
            raise RegistryError(42201, "references are nested too deeply")
        for reference in schema.references:
            if is_built_in(reference.name):
                continue
            try:
                other = self._version(reference.subject, str(reference.version), deleted=True).schema
            except RegistryError as error:
                raise RegistryError(42201, f"No schema reference found for subject {reference.subject!r}") from error
            found.update(self._needed(other, depth + 1))
            found[reference.name] = other
        yield from found.items()

    def _problems(self, name: str, kind: str, form: Any, versions: list[_Version], level: str) -> list[str]:
        if level == "NONE" or not versions:
            return []
        if any(version.schema.kind != kind for version in versions):
            return [f"the subject {name} has schemas of another type"]
        earlier = [self._form(version.schema, normalize=False) for version in versions]
        return compatibility.problems(level, kind, form, earlier)

    def _users(self, name: str, number: int) -> Iterator[_Version]:
        for subject in self._subjects.values():
            for version in subject.living():
                if any((one.subject, one.version) == (name, number) for one in version.schema.references):
                    yield version

    def _check_unused(self, name: str, version: _Version) -> None:
        if any(self._users(name, version.number)):
            raise RegistryError(42206, f"One or more references exist to the schema {name} version {version.number}.")


def _context(subject: str) -> str:
    match = _CONTEXT.fullmatch(subject)
    return "." if match is None else match[1]


def schema_of(request: Any) -> Schema:
    """The schema in a request's body. Raises RegistryError."""
    if not isinstance(request, dict) or not isinstance(request.get("schema"), str):
        raise RegistryError(42201, "Empty schema")
    references = request.get("references") or ()
    return Schema(
        request.get("schemaType") or "AVRO",
        request["schema"],
        tuple(Reference(one["name"], one["subject"], int(one["version"])) for one in references),
    )


def body(schema: Schema) -> dict[str, Any]:
    """The schema as answers have it: a registry names every type but Avro."""
    answer: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":
        answer["schemaType"] = schema.kind
    if schema.references:
        answer["references"] = [vars(reference) for reference in schema.references]
    return answer
