"""The options of `load.py`: plain values that need neither PySpark nor pyarrow, so that a command can check its options
if these are not installed."""

from dataclasses import dataclass
from typing import Final

from klamm.spark.pipelines.load_windows import WIDTHS_MS

DEFAULT_OFFSETS_PER_TASK: Final = 1_000_000
# The most windows if the width is not given, and if it is given.
MAX_CHOSEN_WINDOWS, MAX_GIVEN_WINDOWS = 96, 1440


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which records to count. Times are in milliseconds since 1970. The end is exclusive; None means no limit. Windows
    become wider than `window_ms` if more than `max_windows` have a batch. `hot_keys` is how many keys to find; 0
    decodes no record."""

    start_ms: int | None = None
    end_ms: int | None = None
    window_ms: int = WIDTHS_MS[0]
    max_windows: int = MAX_CHOSEN_WINDOWS
    hot_keys: int = 0
    offsets_per_task: int = DEFAULT_OFFSETS_PER_TASK
