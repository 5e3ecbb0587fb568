"""Kafka's log files: their layout, who writes to them, and that a new hour begins a new file."""

import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.base.log_lines import STATE_CHANGE_LOGGER, TRACE, Line, LogLines
from klamm.controller.state_change_log import CONTROLLER_LOGGER
from klamm.processes.kafka_logs import HourlyFile, KafkaFormatter, open_kafka_logs

OWN = logging.getLogger("klamm.controller")
MOMENT_MS = 1_609_459_200_007


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    loggers = (STATE_CHANGE_LOGGER, CONTROLLER_LOGGER, OWN)
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    open_kafka_logs(str(tmp_path / "logs"))
    yield tmp_path / "logs"
    for logger, level, propagate, handlers in before:
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
        logger.propagate = propagate


def record(message: object, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("a.logger", level, "file", 1, message, None, None)
    made.created = MOMENT_MS / 1000 + 0.0001
    return made


def test_the_layout() -> None:
    formatter = KafkaFormatter()
    lines = [Line(STATE_CHANGE_LOGGER, logging.INFO, MOMENT_MS + n * 60_000, f"text {n}") for n in range(2)]
    assert formatter.format(record(LogLines(lines))) == (
        "[2021-01-01 00:00:00,007] INFO text 0 (a.logger)\n[2021-01-01 00:01:00,007] INFO text 1 (a.logger)"
    )
    assert formatter.format(record("text")) == "[2021-01-01 00:00:00,007] INFO text (a.logger)"


@pytest.mark.parametrize(
    ("level", "name"), [(TRACE, "TRACE"), (10, "DEBUG"), (20, "INFO"), (30, "WARN"), (40, "ERROR"), (50, "FATAL")]
)
def test_levels_are_log4js(level: int, name: str) -> None:
    assert KafkaFormatter().format(record("text", level)) == f"[2021-01-01 00:00:00,007] {name} text (a.logger)"


def test_what_a_client_calls_itself_makes_no_line_of_its_own() -> None:
    line = KafkaFormatter().format(record("member a\n[2021-01-01] FATAL \x1b[31m\u202e\ud800é joins"))
    shown = r"member a\u000a[2021-01-01] FATAL \u001b[31m\u202e\ud800é joins"
    assert line == f"[2021-01-01 00:00:00,007] INFO {shown} (a.logger)"


def test_what_stands_in_a_batch_of_lines_makes_no_line_of_its_own() -> None:
    lines = LogLines([Line(STATE_CHANGE_LOGGER, logging.INFO, MOMENT_MS, "topic a\n[2021-01-01] FATAL \x1b[31m")])
    shown = r"topic a\u000a[2021-01-01] FATAL \u001b[31m"
    assert KafkaFormatter().format(record(lines)) == f"[2021-01-01 00:00:00,007] INFO {shown} (a.logger)"


def test_an_exception_has_its_traceback() -> None:
    try:
        raise ValueError("broken\n[2021-01-01 00:00:00,007] FATAL all is lost\x1b[31m")
    except ValueError as error:
        found = record("text")
        found.exc_info = (ValueError, error, error.__traceback__)
    first, *rest = KafkaFormatter().format(found).split("\n")
    assert first == "[2021-01-01 00:00:00,007] INFO text (a.logger)"
    assert all(line.startswith("\t") for line in rest), "no other line begins as an entry does"
    assert rest[-2:] == [
        "\tValueError: broken",
        r"\t[2021-01-01 00:00:00,007] FATAL all is lost\u001b[31m".replace(r"\t", "\t"),
    ]


def test_who_writes_to_which_file(directory: Path) -> None:
    STATE_CHANGE_LOGGER.info(LogLines([Line(STATE_CHANGE_LOGGER, 20, MOMENT_MS, "a change")]))
    STATE_CHANGE_LOGGER.debug("not written")
    CONTROLLER_LOGGER.info(LogLines([Line(CONTROLLER_LOGGER, 20, MOMENT_MS, "an announcement")]))
    logging.getLogger("klamm.controller.controller").warning("%s failed", "this")
    logging.getLogger("klamm.broker.start.broker").warning("no part of it")
    stamp = "[2021-01-01 00:00:00,007]"
    assert (directory / "state-change.log").read_text() == f"{stamp} INFO a change (state.change.logger)\n"
    first, second = (directory / "controller.log").read_text().splitlines()
    assert first == f"{stamp} INFO an announcement (kafka.controller.KafkaController)"
    assert re.fullmatch(r"\[[-0-9]{10} [0-9:,]{12}\] WARN this failed \(klamm\.controller\.controller\)", second)


def test_a_level_that_was_chosen_stays(tmp_path: Path) -> None:
    STATE_CHANGE_LOGGER.setLevel(TRACE)
    before = [(logger, logger.propagate, list(logger.handlers)) for logger in (STATE_CHANGE_LOGGER, CONTROLLER_LOGGER)]
    own = list(OWN.handlers)
    try:
        open_kafka_logs(str(tmp_path))
        assert (STATE_CHANGE_LOGGER.level, CONTROLLER_LOGGER.level) == (TRACE, logging.INFO)
    finally:
        OWN.handlers[:] = own
        for logger, propagate, handlers in before:
            logger.handlers[:] = handlers
            logger.propagate = propagate
            logger.setLevel(logging.NOTSET)


def test_a_new_hour_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    path.write_text("old\n")
    os.utime(path, (MOMENT_MS / 1000, MOMENT_MS / 1000))
    handler = HourlyFile(str(path))
    assert handler.rolloverAt == MOMENT_MS // 1000 + 3600
    handler.emit(record("new"))
    handler.close()
    assert sorted(os.listdir(tmp_path)) == ["f.log", "f.log.2021-01-01-00"]
    assert (tmp_path / "f.log.2021-01-01-00").read_text() == "old\n"
    assert path.read_text().endswith("INFO new (a.logger)\n")
