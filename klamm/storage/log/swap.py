"""The renames that put a cleaned segment into the place of the old ones.

The way of each file, all of which are on the disk before it begins:
1. `.cleaned` becomes `.swap`, the log file first.
2. The old segments' files get the suffix `.deleted`.
3. `.swap` goes away, the log file first.

What must stay true: a death between any two renames leaves one of these, and the next start knows which.
- A file ends with `.cleaned`, and a log file of the same or a later base offset with `.swap`: step 1 is not over, the
  old segments are whole. The new files are removed.
- A log file ends with `.swap`: steps 2 and 3 are done (again), whatever is left of the old segments.
- Only indexes end with `.swap`: step 3 has renamed the log file, and continues.
So no file ends with `.cleaned` whose base offset is below that of a swap that begins.

Kafka takes the same way, so that each program finishes what the other one has begun.
Source: kafka.log.Log (replaceSegments, loadSegments), LogSegment.changeFileSuffixes.
"""

from klamm.base.environment import FileSystem
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)

_KINDS = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


def begin_swap(file_system: FileSystem, directory: str, base_offset: int) -> None:
    """Step 1. Raises OSError."""
    _rename(file_system, directory, base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)


def end_swap(file_system: FileSystem, directory: str, base_offset: int) -> None:
    """Step 3. Raises OSError."""
    _rename(file_system, directory, base_offset, SWAP_SUFFIX, "")


def _rename(file_system: FileSystem, directory: str, base_offset: int, old_suffix: str, new_suffix: str) -> None:
    for kind in _KINDS:
        path = f"{directory}/{file_name(base_offset, kind)}"
        if file_system.exists(path + old_suffix):
            file_system.rename(path + old_suffix, path + new_suffix)
