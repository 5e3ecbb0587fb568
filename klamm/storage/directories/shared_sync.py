"""One sync of a whole file system for many logs, instead of a sync for each file.

What must stay true: only writes before the sync began count as synced.
"""

from collections.abc import Sequence
from contextlib import suppress

from klamm.base.environment import Environment
from klamm.base.slices import each
from klamm.protocol.error_codes import KafkaError
from klamm.storage.log.log import Log
from klamm.storage.segments.disk_errors import SHORTAGES
from klamm.storage.segments.log_directory import LogDirectory

# From this many logs on, one sync of the whole file system is faster, although it also syncs other programs' files.
LOGS_PER_SHARED_SYNC = 8
LOGS_PER_SLICE = 50


async def sync_together(environment: Environment, directory: LogDirectory, logs: Sequence[Log]) -> None:
    """Syncs many logs of a directory with one sync of the file system, if the system can do so. Otherwise, and after a
    shortage, the next flush of each log syncs its files one by one, each with a wait for the device."""
    if len(logs) < LOGS_PER_SHARED_SYNC or not directory.is_online:
        return
    begun = []
    async for log in each(logs, LOGS_PER_SLICE):
        with suppress(KafkaError):  # The log is closed by now, or its flush raises the error.
            begun.append((log.directory, log.durability.begin_shared_sync()))
    try:
        directories = [directory.path, *(path for path, _ in begun)]
        if not await environment.run_long(environment.file_system.sync_file_system, directories):
            return
    except FileNotFoundError:
        return  # A log was deleted or has moved.
    except OSError as error:
        if error.errno not in SHORTAGES:
            # As for a file, a failed sync is never tried again.
            directory.fail(error, f"syncing {directory.path}")
        return
    async for _, synced in each(begun, LOGS_PER_SLICE):
        synced()
