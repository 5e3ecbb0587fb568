"""Memory of a command that receives gigabytes."""

import ctypes
from contextlib import suppress
from typing import Final

# Parameters of glibc's mallopt, and values above all that a command receives at once.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30
_LARGEST_BLOCK_BYTES: Final = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Lets this process use freed memory again, instead of returning it to the system at once.

    By default glibc returns each large answer's memory, and the system clears new pages for the next one: measured, two
    thirds of the time of receiving. Without glibc nothing happens.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
