"""Kafka's log files state-change.log and controller.log, as its own log4j.properties lays them out.

    [2021-11-20 10:15:30,123] INFO [Controller id=1 epoch=4] Changed partition ... (state.change.logger)

The loggers have Kafka's names, so Python's `logging` can configure them. Without the files their lines go to the common
log. controller.log also holds the lines of klamm's own controller modules.
"""

import logging
import os
import time
from logging.handlers import TimedRotatingFileHandler

from klamm.base.log_lines import STATE_CHANGE_LOGGER, TRACE, LogLines
from klamm.base.visible import visible
from klamm.controller.state_change_log import CONTROLLER_LOGGER

HOUR_S = 3600
# Log4j's names for levels that Python names differently or lacks.
_LEVELS = {TRACE: "TRACE", logging.WARNING: "WARN", logging.CRITICAL: "FATAL"}


class KafkaFormatter(logging.Formatter):
    """Formats each line of a `LogLines` as a line with its own time, and any other log record as one line, even if a
    client id contains line breaks. The lines of a traceback are indented, so that they do not look like entries."""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._text = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        level, name = _LEVELS.get(record.levelno, record.levelname), record.name
        if isinstance(record.msg, LogLines):
            return "\n".join(
                f"[{self._time(line.time_ms)}] {level} {visible(line.text)} ({name})" for line in record.msg.lines
            )
        text = f"[{self._time(int(record.created * 1000))}] {level} {visible(record.getMessage())} ({name})"
        if not record.exc_info:
            return text
        return "\n\t".join([text, *map(visible, self.formatException(record.exc_info).split("\n"))])

    def _time(self, time_ms: int) -> str:
        second, millisecond = divmod(time_ms, 1000)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._text},{millisecond:03}"


class HourlyFile(TimedRotatingFileHandler):
    """Begins a new file at every full hour; the old one is renamed NAME.yyyy-MM-dd-HH, and kept."""

    def __init__(self, path: str) -> None:
        super().__init__(path, when="H", encoding="utf-8")
        self.suffix = "%Y-%m-%d-%H"
        self.setFormatter(KafkaFormatter())

    def computeRollover(self, currentTime: int) -> int:
        return int(currentTime // HOUR_S + 1) * HOUR_S


def open_kafka_logs(directory: str) -> None:
    """Opens the two files in `directory` (made if absent) and sends the lines of their loggers to them. Raises OSError.

    A logger without a level of its own writes lines of level INFO and above.
    """
    os.makedirs(directory, exist_ok=True)
    state_changes, controller = (
        HourlyFile(os.path.join(directory, name)) for name in ("state-change.log", "controller.log")
    )
    for logger, file in ((STATE_CHANGE_LOGGER, state_changes), (CONTROLLER_LOGGER, controller)):
        logger.addHandler(file)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.propagate = False
    logging.getLogger("klamm.controller").addHandler(controller)
