"""What `klamm configs alter` changes: the options become additions and deletions, and those become a plan. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from klamm.cli.configs.entities import DEFAULT, IPS, Entity
from klamm.config.definition import ConfigError
from klamm.config.quotas import CLIENT_QUOTAS, IP_QUOTAS
from klamm.net.scram import MIN_ITERATIONS
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import ScramMechanism

SCRAM: Final = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}
HIDDEN: Final = "(hidden)"

# A value that has commas stands in square brackets.
_PAIR = re.compile(r"\s*([^=,]+?)\s*=\s*(?:\[(.*?)\]|([^,]*?))\s*(?:,|$)", re.DOTALL)
_SCRAM_VALUE = re.compile(r"(?:iterations=(-?[0-9]{1,9}),)?password=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Current:
    """The current value of a key, and where it comes from.

    `is_own`: the value is set for this entity, so it can be deleted; then `inherited` applies, from `heir`.
    """

    value: str | None
    source: str = ""
    is_own: bool = True
    is_sensitive: bool = False
    inherited: str | None = None
    heir: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A key's value before and after. A `new` of None means that the key is deleted. Secrets are not shown."""

    key: str
    old: Current | None
    new: str | None
    is_secret: bool = False

    @property
    def does_nothing(self) -> bool:
        """Whether the key is already set to the value."""
        return self.old is not None and self.old.is_own and not self.is_secret and self.old.value == self.new

    def __str__(self) -> str:
        old = self.old
        before = "not set" if old is None else _text(HIDDEN if self.is_secret else old.value, old.source)
        if self.new is None:
            after = f", then {_text(old.inherited, old.heir)}" if old is not None and old.heir else ""
            return f"{self.key}: {before} -> deleted{after}"
        return f"{self.key}: {before} -> {_text(HIDDEN if self.is_secret else self.new, '')}"


def _text(value: str | None, source: str) -> str:
    shown = "null" if value is None else value or '""'
    return f"{shown} ({source})" if source else shown


def parse_additions(option: str | None, file: Mapping[str, str] | None) -> dict[str, str]:
    """The pairs of --add-config (`k1=v1,k2=[v1,v2]`) or of --add-config-file. Raises BadParameter."""
    if option is not None and file is not None:
        raise typer.BadParameter("give --add-config or --add-config-file, not both", param_hint="--add-config")
    if option is None:
        return dict(file or {})
    pairs: dict[str, str] = {}
    position = 0
    while position < len(option):
        pair = _PAIR.match(option, position)
        if pair is None:
            raise typer.BadParameter(
                f"{option[position:]!r} is not of the form key=value,key=[value,value]", param_hint="--add-config"
            )
        key, bracketed, plain = pair.groups()
        pairs[key] = (plain if bracketed is None else bracketed).strip()
        position = pair.end()
    return pairs


def parse_deletions(options: Sequence[str]) -> list[str]:
    """The keys of --delete-config, which may be repeated and hold several keys."""
    return list(dict.fromkeys(key.strip() for option in options for key in option.split(",") if key.strip()))


def require_changes(additions: Mapping[str, str], deletions: Sequence[str]) -> None:
    """Raises BadParameter when nothing is to be changed, or a key is both added and deleted."""
    if not additions and not deletions:
        raise typer.BadParameter("give --add-config, --add-config-file or --delete-config")
    if both := [key for key in deletions if key in additions]:
        raise typer.BadParameter(f"{', '.join(both)} cannot be both added and deleted", param_hint="--delete-config")


def plan(
    entity: Entity, current: Mapping[str, Current], additions: Mapping[str, str], deletions: Sequence[str]
) -> list[Change]:
    """The change of each key. Raises ToolError for keys that cannot be deleted."""
    missing = [key for key in deletions if key not in current or not current[key].is_own]
    if missing:
        raise ToolError(f"Invalid config(s): {','.join(missing)}: not set for {entity}, so there is nothing to delete")
    return [
        Change(key, current.get(key), new, is_secret=key in SCRAM or (key in current and current[key].is_sensitive))
        for key, new in [*additions.items(), *((key, None) for key in deletions)]
    ]


def plan_lines(entity: Entity, changes: Sequence[Change]) -> Iterator[str]:
    """The plan as text."""
    yield f"Changes of {entity}:"
    for change in changes:
        yield f"  {change}{' (already)' if change.does_nothing else ''}"


def plan_value(entity: Entity, changes: Sequence[Change]) -> dict[str, Any]:
    """The plan for --json."""
    return {
        "entity": {part.type: part.name or None for part in entity.parts},
        "changes": [
            {
                "key": change.key,
                "old": None if change.old is None or change.is_secret else change.old.value,
                "source": None if change.old is None else change.old.source or None,
                "new": HIDDEN if change.is_secret and change.new is not None else change.new,
                "operation": "delete" if change.new is None else "set",
            }
            for change in changes
        ],
    }


# -- quotas and credentials ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Password:
    """A password that becomes a credential with this many iterations."""

    password: str
    iterations: int


def check_quotas(entity: Entity, changes: Sequence[Change]) -> None:
    """Raises ToolError for keys and values that users, clients or IP addresses cannot have."""
    quotas = IP_QUOTAS if entity.type == IPS else CLIENT_QUOTAS
    has_credentials = entity.is_user and entity.first.name != DEFAULT
    allowed = [*quotas.keys, *(SCRAM if has_credentials else ())]
    if unknown := [change.key for change in changes if change.key not in allowed]:
        raise ToolError(f"{', '.join(unknown)}: not a config of {entity}; allowed are {', '.join(allowed)}")
    for change in changes:
        if change.new is None:
            continue
        if change.key in SCRAM:
            parse_password(change.key, change.new)
            continue
        try:
            quotas.keys[change.key].parse(change.new)
        except ConfigError as error:
            raise ToolError(str(error)) from None


def parse_password(mechanism: str, text: str) -> Password:
    """`[iterations=N,]password=P`. Raises ToolError, without the password."""
    found = _SCRAM_VALUE.fullmatch(text)
    if found is None:
        raise ToolError(f"{mechanism} needs a value of the form [iterations=8192,password=secret]")
    iterations = MIN_ITERATIONS if found[1] in (None, "-1") else int(found[1])
    if iterations < MIN_ITERATIONS:
        raise ToolError(f"Iterations {iterations} is less than the minimum {MIN_ITERATIONS} required for {mechanism}")
    if not found[2]:
        raise ToolError(f"{mechanism}: the password is empty")
    return Password(found[2], iterations)
