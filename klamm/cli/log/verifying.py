"""`klamm log verify`: a stopped broker's log directories, batch by batch, and what the next start would do with them.

What must stay true: nothing on the disk is changed. Every file is read through an `OverlayFileSystem`, which has no way
to write; only the directory's lock is taken, so that no broker starts meanwhile.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import typer

from klamm.base.environment import FileSystem
from klamm.base.progress import progress
from klamm.base.system_environment import SystemEnvironment
from klamm.base.words import counted
from klamm.cli.shared.output import print_line
from klamm.cli.shared.patterns import expression
from klamm.config.properties import PropertiesError, parse_properties
from klamm.processes.tool_errors import (
    EXIT_FAILED,
    EXIT_INCOMPLETE,
    EXIT_OK,
    ToolError,
    describe_os_error,
    unverified_after_errors,
)
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import load_log
from klamm.storage.segments.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    parse_offset_checkpoint,
)
from klamm.storage.segments.log_directory import (
    CLEAN_SHUTDOWN_FILE,
    DELETE_SUFFIX,
    LOCK_FILE,
    META_PROPERTIES_FILE,
    STRAY_SUFFIX,
    parse_directory_name,
)
from klamm.storage.segments.segment import LOG_SUFFIX
from klamm.storage.verification.log_verification import Finding, Prediction, VerifiedLog, predict, verify_log
from klamm.storage.verification.overlay import OverlayFileSystem

COMPACTED: Final = (*INTERNAL_TOPICS, "__share_group_state")  # the last one is of Kafka 4
CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)


@dataclass(slots=True)
class Directory:
    """A log directory: the content of its own files, and the partitions that it holds. `problems` are reasons for exit
    code 1, `notes` are not. `lacking` are partitions that have committed records according to a checkpoint, and that
    are not in this directory."""

    path: str
    is_clean: bool
    # The properties of meta.properties, of klamm, Kafka with ZooKeeper (version 0) or KRaft (version 1).
    meta: Mapping[str, str] | None = None
    partitions: dict[PartitionKey, str] = field(default_factory=dict)
    futures: dict[PartitionKey, str] = field(default_factory=dict)
    checkpoints: dict[str, Mapping[PartitionKey, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lacking: list[PartitionKey] = field(default_factory=list)


def verify(paths: Sequence[str], topic: str | None, compacted: Sequence[str], *, as_json: bool) -> int:
    """Prints what was found. Returns the exit code. Raises ToolError."""
    if len(set(map(os.path.realpath, paths))) < len(paths):
        raise typer.BadParameter("names a directory twice", param_hint="DIRECTORY...")
    environment = SystemEnvironment(blocking_workers=1)
    disk = OverlayFileSystem(environment.file_system)
    wanted = _topic_pattern(topic)
    config, compacted_config = LogConfig(), LogConfig(cleanup_policy=("compact",))
    is_damaged, unverified = False, 0
    with ExitStack() as stack:
        stack.enter_context(unverified_after_errors())
        stack.enter_context(_quiet_loader())
        for path in paths:
            stack.callback(_lock(environment.file_system, path))
        directories = [look_at(disk, path) for path in map(os.path.abspath, paths)]
        find_conflicts(directories)
        chosen = [
            (directory, key, path)
            for directory in directories
            for logs in (directory.partitions, directory.futures)
            for key, path in sorted(logs.items())
            if wanted(key[0])
        ]
        size = sum(_size(disk, path) for _, _, path in chosen)
        advance = stack.enter_context(progress("verifying", size, visible=not as_json))
        for directory in directories:
            is_damaged |= _tell_directory(directory, as_json)
            unverified += _tell_lacking(directory, directories, wanted, as_json)
        totals, recovered_logs, recovered_bytes = VerifiedLog(), 0, 0
        for directory, key, path in chosen:
            is_compacted = key[0] in COMPACTED or key[0] in compacted
            try:
                first_dirty_offset = directory.checkpoints[CLEANER_OFFSET_CHECKPOINT].get(key, 0)
                compacted_to = math.inf if is_compacted else first_dirty_offset
                log = verify_log(disk, path, compacted_to=compacted_to, on_read=advance)
                _check_committed(log, directory.checkpoints[HIGH_WATERMARK_CHECKPOINT].get(key, 0))
                load = partial(
                    load_log,
                    directory=path,
                    config=compacted_config if is_compacted else config,
                    log_start_offset=directory.checkpoints[LOG_START_OFFSET_CHECKPOINT].get(key, 0),
                    recovery_point=directory.checkpoints[RECOVERY_POINT_CHECKPOINT].get(key, 0),
                    first_dirty_offset=first_dirty_offset,
                    high_watermark=directory.checkpoints[HIGH_WATERMARK_CHECKPOINT].get(key),
                    is_clean=directory.is_clean,
                    now_ms=environment.now_ms(),
                )
                prediction = predict(disk, path, load)
            except OSError as error:
                unverified += 1
                _tell_unreadable(path, describe_os_error(error), as_json)
                continue
            is_damaged |= _tell_log(path, key, log, prediction, as_json)
            _add(totals, log)
            recovered_logs += prediction.recovers_from is not None
            recovered_bytes += prediction.recovered_bytes
    outcome, code = _outcome(is_damaged, is_open=bool(unverified) or not chosen)
    if as_json:
        print_line(json.dumps({"outcome": outcome, "partitions": len(chosen), "not_verified": unverified}))
    else:
        if recovered_logs:
            print_line(f"a start recovers {recovered_logs} partitions, and reads {recovered_bytes} bytes for it")
        print_line(
            f"{len(chosen)} partitions, {totals.segments} segments, {totals.batches} batches, {totals.records} records,"
            f" {totals.size_bytes} bytes: {_verdict(is_damaged, unverified, len(chosen))}"
        )
    return code


def _outcome(is_damaged: bool, *, is_open: bool) -> tuple[str, int]:
    """The outcome and the exit code. Damage takes precedence over what could not be verified."""
    if is_damaged:
        return "damaged", EXIT_FAILED
    return ("unverified", EXIT_INCOMPLETE) if is_open else ("sound", EXIT_OK)


def _verdict(is_damaged: bool, unverified: int, chosen: int) -> str:
    if not chosen and not unverified:
        return "NOTHING TO VERIFY"
    texts = ["DAMAGED"] if is_damaged else []
    texts += [f"{counted(unverified, 'partition')} NOT VERIFIED"] if unverified else []
    return ", ".join(texts) or "no damage"


def _check_committed(log: VerifiedLog, high_watermark: int) -> None:
    if log.log_end_offset < high_watermark:
        what = f"records are committed up to offset {high_watermark}, but the log ends at {log.log_end_offset}"
        log.add(Finding(HIGH_WATERMARK_CHECKPOINT, None, high_watermark, what))


@contextmanager
def _quiet_loader() -> Iterator[None]:
    """Silences the loader: it would log changes that are not made here."""
    logger = logging.getLogger("klamm.storage")
    before, logger.propagate = logger.propagate, False
    handler = logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


# -- directories ------------------------------------------------------------------------------------------------------


def look_at(disk: FileSystem, path: str) -> Directory:
    """Reads a log directory's own files. Raises OSError."""
    names = disk.list_directory(path)
    directory = Directory(path, CLEAN_SHUTDOWN_FILE in names)
    if META_PROPERTIES_FILE in names:
        try:
            directory.meta = parse_properties(disk.read_file(f"{path}/{META_PROPERTIES_FILE}"))
            if not all(_owner_of(directory.meta)):
                directory.problems.append(f"{META_PROPERTIES_FILE} names no broker or no cluster: a start is refused")
        except PropertiesError as error:
            directory.problems.append(f"{META_PROPERTIES_FILE}: {error}")
    for name in CHECKPOINTS:
        directory.checkpoints[name] = {}
        if name in names:
            try:
                directory.checkpoints[name] = parse_offset_checkpoint(disk.read_file(f"{path}/{name}"), name)
            except KafkaError as error:
                directory.problems.append(f"{error.message}; a start ignores the file")
    for name in names:
        if disk.is_directory(f"{path}/{name}"):
            _classify(directory, name)
    for name, offsets in directory.checkpoints.items():
        held = directory.partitions.keys() | directory.futures.keys()
        gone = [f"{key[0]}-{key[1]}" for key in offsets if key not in held]
        if name == HIGH_WATERMARK_CHECKPOINT:
            directory.lacking += [key for key in offsets if key not in held and offsets[key] > 0]
        if gone:
            directory.notes.append(
                f"{name} names {', '.join(gone[:5])}, which {'is' if len(gone) == 1 else 'are'} not here"
            )
    return directory


def _classify(directory: Directory, name: str) -> None:
    parsed = parse_directory_name(name)
    if parsed is None:
        directory.notes.append(f"{name} is no partition's directory: a start ignores it")
    elif parsed[2] == DELETE_SUFFIX:
        directory.notes.append(f"{name} was being deleted: a start removes it")
    elif parsed[2] == STRAY_SUFFIX:
        directory.notes.append(f"{name} was set aside by a start: a start ignores it, and it may be removed")
    elif parsed[2]:
        directory.futures[parsed[:2]] = f"{directory.path}/{name}"
        directory.notes.append(f"{name} is to replace a partition's log: a start continues the move")
    else:
        directory.partitions[parsed[:2]] = f"{directory.path}/{name}"


def find_conflicts(directories: Sequence[Directory]) -> None:
    """Adds problems that only several directories together show: different owners, partitions in two places."""
    first = next((each for each in directories if each.meta is not None), None)
    places: dict[PartitionKey, Directory] = {}
    for directory in directories:
        if (
            first is not None
            and first.meta is not None
            and directory.meta is not None
            and (_owner_of(directory.meta) != _owner_of(first.meta))
        ):
            directory.problems.append(
                f"belongs to {_owner(directory)}, {first.path} to {_owner(first)}: a start with both is refused"
            )
        for key in directory.partitions:
            if key in places:
                directory.problems.append(
                    f"{key[0]}-{key[1]} is in {places[key].path} too: a start with both is refused,"
                    " unless topic ids or leader epochs show which log is newer"
                )
            places.setdefault(key, directory)


def _owner(directory: Directory) -> str:
    if directory.meta is None:
        return "no broker"
    broker_id, cluster_id = _owner_of(directory.meta)
    return f"broker {broker_id} of cluster {cluster_id}"


def _owner_of(meta: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(broker id, cluster id); KRaft calls the broker a node."""
    return meta.get("broker.id") or meta.get("node.id"), meta.get("cluster.id")


def _lock(disk: FileSystem, path: str) -> Callable[[], object]:
    """Takes the directory's lock, if there is one; returns its release. Raises ToolError when a broker has it."""
    name = os.path.join(path, LOCK_FILE)
    if not os.path.isdir(path):
        raise ToolError(f"{path} is not a directory")
    if not os.path.exists(name) or not os.access(name, os.W_OK):
        return lambda: None
    try:
        return disk.lock(name).close
    except BlockingIOError:
        raise ToolError(f"{path} is in use by a broker; stop the broker, or verify a copy") from None


# -- results ----------------------------------------------------------------------------------------------------------


def _tell_directory(directory: Directory, as_json: bool) -> bool:
    """Whether something is wrong."""
    if as_json:
        values: dict[str, Any] = {
            "directory": directory.path,
            "broker_id": _owner_of(directory.meta or {})[0],
            "cluster_id": _owner_of(directory.meta or {})[1],
            "is_clean": directory.is_clean,
            "partitions": len(directory.partitions),
            "problems": directory.problems,
            "notes": directory.notes,
        }
        print_line(json.dumps(values))
    else:
        how = "was shut down cleanly" if directory.is_clean else "was not shut down cleanly: logs will be recovered"
        print_line(f"{directory.path}: {_owner(directory)}, {len(directory.partitions)} partitions; {how}")
        for text in directory.problems:
            print_line(f"  PROBLEM: {text}")
        for text in directory.notes:
            print_line(f"  {text}")
    return bool(directory.problems)


def _tell_log(path: str, key: PartitionKey, log: VerifiedLog, prediction: Prediction, as_json: bool) -> bool:
    """Whether something is wrong."""
    is_damaged = bool(log.findings) or prediction.refusal is not None or prediction.lost_bytes > 0
    if as_json:
        found = asdict(log)
        found["findings"] = [each._asdict() for each in log.findings]
        start = asdict(prediction)
        start["cuts"] = [each._asdict() for each in prediction.cuts]
        values = {"directory": path, "topic": key[0], "partition": key[1], **found, "start": start}
        print_line(json.dumps(values))
    elif is_damaged:
        print_line(f"{os.path.basename(path)}: DAMAGED")
        for finding in log.findings:
            at = "" if finding.position is None else f", position {finding.position}"
            offset = "" if finding.offset is None else f", offset {finding.offset}"
            print_line(f"  {finding.file}{at}{offset}: {finding.what}")
        if log.more_findings:
            print_line(f"  and {log.more_findings} more, most of them batches behind these")
        for text in described(prediction):
            print_line(f"  a start {text}")
        if not prediction.lost_bytes and any(finding.file.endswith(LOG_SUFFIX) for finding in log.findings):
            print_line("  a start trusts what is below the recovery point: reads of the damaged part will fail")
    return is_damaged


def _tell_lacking(
    directory: Directory, directories: Sequence[Directory], wanted: Callable[[str], bool], as_json: bool
) -> int:
    """Prints, and counts, the partitions with committed records that no directory has: lost, or deleted since."""
    held = {key for each in directories for key in (*each.partitions, *each.futures)}
    lacking = [key for key in directory.lacking if key not in held and wanted(key[0])]
    for topic, partition in lacking:
        path = f"{directory.path}/{topic}-{partition}"
        _tell_unreadable(path, f"{HIGH_WATERMARK_CHECKPOINT} names it, and its directory is missing", as_json)
    return len(lacking)


def _tell_unreadable(path: str, reason: str, as_json: bool) -> None:
    name = os.path.basename(path)
    print_line(json.dumps({"directory": path, "error": reason}) if as_json else f"{name}: CANNOT BE READ: {reason}")


def described(prediction: Prediction) -> Iterator[str]:
    """What a start would do, each as the end of a sentence."""
    if prediction.refusal is not None:
        yield f"refuses this log: {prediction.refusal}"
        return
    if prediction.recovers_from is not None:
        yield f"recovers the log from the segment at offset {prediction.recovers_from} on"
    for cut in prediction.cuts:
        yield f"cuts {cut.file} at position {cut.position}, which loses {cut.lost_bytes} bytes"
    if prediction.dropped:
        yield f"drops {', '.join(prediction.dropped)}"
    if prediction.lost_bytes:
        yield (
            f"loses {prediction.lost_bytes} bytes, among them {prediction.lost_records} records in batches with a"
            f" readable header; the log then ends at offset {prediction.log_end_offset}"
        )
    if prediction.rebuilt_indexes:
        yield f"rebuilds {', '.join(prediction.rebuilt_indexes)}"
    if prediction.removed:
        yield f"removes {len(prediction.removed)} indexes and other small files"
    if prediction.written:
        yield f"writes {', '.join(prediction.written)}"


def _add(totals: VerifiedLog, log: VerifiedLog) -> None:
    totals.segments += log.segments
    totals.batches += log.batches
    totals.records += log.records
    totals.size_bytes += log.size_bytes


def _size(disk: FileSystem, path: str) -> int:
    return sum(disk.size(f"{path}/{name}") for name in disk.list_directory(path) if name.endswith(LOG_SUFFIX))


def _topic_pattern(text: str | None) -> Callable[[str], bool]:
    if text is None:
        return lambda topic: True
    pattern = expression(text, "--topic")
    return pattern.fullmatch
