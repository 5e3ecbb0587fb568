"""Memory of a command that receives gigabytes."""

import ctypes
from contextlib import suppress
from typing import Final

# Parameters of glibc's mallopt, with values that exceed what a command receives at once.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30
_LARGEST_BLOCK_BYTES: Final = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Lets this process use freed memory again, instead of returning it to the system at once.

    By default glibc returns the memory of each large response, and the system clears new pages for the next one, which
    took two thirds of the receiving time when measured. Without glibc this function does nothing.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
