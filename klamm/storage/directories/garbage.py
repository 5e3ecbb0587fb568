"""Files that no log needs. They are removed after file.delete.delay.ms.

What must stay true: the next start removes garbage that is left when the broker stops.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from klamm.base.environment import Environment, FileSystem
from klamm.storage.directories.background import Background
from klamm.storage.segments.disk_errors import SHORTAGE_BACK_OFF_MS, SHORTAGES

_T = TypeVar("_T")

_LOGGER = logging.getLogger(__name__)


class Garbage:
    def __init__(self, environment: Environment, background: Background) -> None:
        self._environment = environment
        self._background = background
        self._removing = asyncio.Lock()

    def remove_files(self, delay_ms: int, paths: Callable[[], list[str]]) -> None:
        """Removes files after a delay. `paths` is called after the delay, because the directory may be renamed."""
        self._remove_later(delay_ms, _remove_files, paths)

    def remove_tree(self, delay_ms: int, path: str) -> None:
        """Removes a directory, with all that is in it, after a delay."""
        self._remove_later(delay_ms, lambda file_system, path: file_system.remove_tree(path), lambda: path)

    def _remove_later(self, delay_ms: int, remove: Callable[[FileSystem, _T], None], garbage: Callable[[], _T]) -> None:
        async def run() -> None:
            try:
                # One after another: long deletions must not take all threads of long work.
                async with self._removing:
                    await self._environment.run_long(remove, self._environment.file_system, garbage())
            except OSError as error:
                if error.errno in SHORTAGES:
                    self._background.after(SHORTAGE_BACK_OFF_MS, run)
                else:
                    _LOGGER.warning("Garbage stays until the next start: %s", error)

        self._background.after(delay_ms, run)


def _remove_files(file_system: FileSystem, paths: list[str]) -> None:
    for path in paths:
        try:
            file_system.remove(path)
        except FileNotFoundError:
            continue
