"""The renames that replace old segments by a cleaned segment.

All new files are on the disk before the first step:
1. `.cleaned` becomes `.swap`, the log file first.
2. The old segments' files get the suffix `.deleted`.
3. The suffix `.swap` is removed, the log file first.

What must stay true: if the broker dies between any two renames, the next start finds one of these states.
- A file ends with `.cleaned`, and a log file of the same or a later base offset with `.swap`: step 1 is not over, the
  old segments are whole. The start removes the new files.
- A log file ends with `.swap`: the start does steps 2 and 3 (again), whatever is left of the old segments.
- Only indexes end with `.swap`: step 3 has renamed the log file, and the start continues it.
So when a swap begins, no `.cleaned` file has a lower base offset.

Kafka does the same, so that each program can finish a swap that the other has begun.
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
