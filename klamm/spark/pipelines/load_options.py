"""What `load.py` counts: plain values, which need neither PySpark nor pyarrow, so that a command can check its options
where these are not installed."""

from dataclasses import dataclass
from typing import Final

from klamm.spark.pipelines.load_windows import WIDTHS_MS

DEFAULT_OFFSETS_PER_TASK: Final = 1_000_000
# The number of windows where the width is not given, and where it is.
MAX_CHOSEN_WINDOWS, MAX_GIVEN_WINDOWS = 96, 1440


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What to count. Times are in milliseconds since 1970; the end is exclusive, and None stands for no limit. Windows
    become wider than `window_ms` where there are more than `max_windows` with a batch. `hot_keys` is how many keys to
    find; 0 decodes no record."""

    start_ms: int | None = None
    end_ms: int | None = None
    window_ms: int = WIDTHS_MS[0]
    max_windows: int = MAX_CHOSEN_WINDOWS
    hot_keys: int = 0
    offsets_per_task: int = DEFAULT_OFFSETS_PER_TASK
