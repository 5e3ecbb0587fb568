"""The record of an execution, in a file beside the plan, so that another process can finish the work of a killed one.

For `plan.json` there are `plan.rollback.json`, Kafka's format, which undoes the plan, and `plan.state.json`, which has
the moves, what they replace, the throttle and the limits, and the former value of every config that the execution sets.
Other commands write to it too: they record another throttle, or that the execution shall end.

What must stay true:
- Only the process that executes the plan, or that holds its lock, sets configs. Other commands record their wishes.
- Both files are on disk before anything changes in the cluster, and the first record has all that a resumed execution
  needs, because a killed process may write no second one. The state file is replaced as a whole, so that a reader finds
  the old or the new content.
- The state file exists until every throttle has its former value again. A rollback plan is never overwritten.
- One process at a time executes a plan: it holds a lock on the rollback plan, which its death releases.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TextIO

from klamm.cli.reassign.json_form import format_reassignment, parse_object
from klamm.cli.reassign.planning.model import Move, Placement
from klamm.cli.reassign.steps import Limits
from klamm.cli.reassign.throttles import ConfigKey, Setting, handed_over, listed_replicas
from klamm.processes.tool_errors import ToolError

VERSION: Final = 1
LOCK_TRIED_EVERY_S: Final = 0.1


@dataclass(frozen=True)
class Record:
    """An execution's moves, and the configs that it has set. `topic_ids` are the ids at the beginning of the execution.

    `rollback_file` is the name of a file beside the record, and `plan` the fingerprint of the whole plan.
    """

    rollback_file: str
    cluster_id: str | None
    moves: tuple[Move, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    throttle: int | None = None
    log_dir_throttle: int | None = None
    settings: Mapping[ConfigKey, Setting] = field(default_factory=dict)
    is_cancelled: bool = False
    plan: str = ""
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def own_replicas(self) -> dict[ConfigKey, frozenset[str]]:
        """The replicas that the execution may add to lists of throttled replicas."""
        return listed_replicas(self.moves)

    def with_settings(self, settings: Mapping[ConfigKey, Setting]) -> "Record":
        return replace(self, settings={**self.settings, **settings})

    def with_former(self, ended: "Record") -> "Record":
        """The record after another execution has ended: a value that the other one had set is not a former value."""
        settings = {
            key: handed_over(key, setting, ended.settings[key], ended.own_replicas.get(key, frozenset()))
            for key, setting in self.settings.items()
            if key in ended.settings
        }
        return self.with_settings(settings)

    def without(self, restored: Mapping[ConfigKey, object]) -> "Record":
        return replace(self, settings={key: each for key, each in self.settings.items() if key not in restored})


def state_path(plan: Path) -> Path:
    return plan.with_name(f"{plan.stem}.state.json")


def write_rollback(plan: Path, moves: tuple[Move, ...]) -> Path:
    """Saves the plan that undoes the moves, under a new file name."""
    number = 1
    while True:
        path = plan.with_name(f"{plan.stem}.rollback{'' if number == 1 else f'-{number}'}.json")
        text = format_reassignment({move.topic_partition: move.before for move in moves})
        try:
            file = path.open("x", encoding="utf-8")
        except FileExistsError:
            number += 1
            continue
        try:
            _write(file, text + "\n")
        except OSError:
            # A full disk must not leave half a plan.
            path.unlink()
            raise
        _sync_directory(path)
        return path


class StateFile:
    """The record on disk. Raises ToolError for a file that is not a record."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def load(self) -> Record:
        return parse_record(self.path.read_bytes(), str(self.path))

    def create(self, record: Record) -> None:
        """Saves the first record. Raises ToolError if another process has done so before."""
        with _locked_directory(self.path):
            if self.exists():
                raise ToolError(f"another process has begun to execute this plan: {self.path} exists now")
            self.save(record)

    def save(self, record: Record) -> None:
        """Replaces the file as a whole, and returns when it is on disk."""
        beside = self.path.with_name(f"{self.path.name}.tmp")
        _write(beside.open("w", encoding="utf-8"), format_record(record))
        beside.replace(self.path)
        _sync_directory(self.path)

    def change(self, change: Callable[[Record], Record]) -> Record:
        """Replaces the record by the result of `change`; no other process changes the file meanwhile."""
        with _locked_directory(self.path):
            before = self.load()
            record = change(before)
            if record != before:
                self.save(record)
        return record

    def hand_over(self) -> None:
        """Updates the records of other executions in this directory, so that they do not restore the throttle of this
        one, which ends."""
        ended = self.load()
        for path in sorted(self.path.parent.glob("*.state.json")):
            # The file may belong to another program, or may have been removed.
            with suppress(ToolError, FileNotFoundError):
                other = StateFile(path)
                if path != self.path and (before := other.load()).with_former(ended) != before:
                    other.change(lambda record: record.with_former(ended))

    def stamp(self) -> tuple[int, int]:
        """A value that changes with each save."""
        status = self.path.stat()
        return status.st_ino, status.st_mtime_ns

    def remove(self) -> None:
        with _locked_directory(self.path):
            self.path.unlink(missing_ok=True)
            _sync_directory(self.path)

    @contextmanager
    def claimed(self, wait_s: float = 0) -> Iterator[None]:
        """Holds the lock of the execution. Raises ToolError if another process holds it for longer than `wait_s`."""
        with self._rollback() as descriptor:
            deadline_s = time.monotonic() + wait_s
            while not _is_locked(descriptor):
                if time.monotonic() >= deadline_s:
                    raise ToolError(f"another process executes this plan now: it has locked {self._rollback_path()}")
                time.sleep(LOCK_TRIED_EVERY_S)
            yield

    def is_claimed(self) -> bool:
        """Whether a process executes the plan now."""
        with self._rollback() as descriptor:
            return not _is_locked(descriptor)

    @contextmanager
    def _rollback(self) -> Iterator[int]:
        path = self._rollback_path()
        if not path.exists():
            raise ToolError(f"{path}, which undoes the plan of {self.path}, is missing")
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _rollback_path(self) -> Path:
        return self.path.parent / self.load().rollback_file


def format_record(record: Record) -> str:
    value = {
        "version": VERSION,
        "rollback_file": record.rollback_file,
        "plan": record.plan,
        "cluster_id": record.cluster_id,
        "throttle": record.throttle,
        "log_dir_throttle": record.log_dir_throttle,
        "batch_size": record.limits.partitions,
        "batch_bytes": record.limits.size_bytes,
        "is_cancelled": record.is_cancelled,
        "topic_ids": dict(record.topic_ids),
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "before": _placement_value(move.before),
                "after": _placement_value(move.after),
                "size_bytes": move.size_bytes,
            }
            for move in record.moves
        ],
        "settings": [
            {"entity": key.entity, "name": key.name, "former": setting.former, "values": list(setting.values)}
            for key, setting in record.settings.items()
        ],
    }
    return json.dumps(value, indent=1) + "\n"


def parse_record(text: str | bytes, source: str) -> Record:
    value = parse_object(text, source)
    if value.get("version") != VERSION:
        raise ToolError(f"{source}: not the state of an execution in version {VERSION}")
    try:
        return Record(
            value["rollback_file"],
            value["cluster_id"],
            tuple(_move(each) for each in value["moves"]),
            value["topic_ids"],
            value["throttle"],
            value["log_dir_throttle"],
            {
                ConfigKey(each["entity"], each["name"]): Setting(each["former"], tuple(each["values"]))
                for each in value["settings"]
            },
            value["is_cancelled"],
            value["plan"],
            # Earlier releases wrote no limits.
            Limits(value.get("batch_size"), value.get("batch_bytes")),
        )
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ToolError(f"{source}: not the state of an execution: {error!r}") from None


def _placement_value(placement: Placement) -> dict[str, Any]:
    return {"replicas": list(placement.replicas), "log_dirs": list(placement.log_dirs)}


def _placement(value: Mapping[str, Any]) -> Placement:
    return Placement(tuple(value["replicas"]), tuple(value["log_dirs"]))


def _move(value: Mapping[str, Any]) -> Move:
    before, after = _placement(value["before"]), _placement(value["after"])
    return Move(value["topic"], value["partition"], before, after, value["size_bytes"])


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked_directory(path: Path) -> Iterator[None]:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(file: TextIO, text: str) -> None:
    """Writes the whole file, closes it, and returns when it is on disk. Raises OSError that names the file."""
    try:
        with file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = file.name
        raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
