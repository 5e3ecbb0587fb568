"""What a long-lived cluster uses, looked at again and again, and the bounds that its figures keep.

A figure is compared between two spans: the median (of latencies, the p99) of the first looks after the warm-up, and
that of the last looks. Only looks without a fault count for latencies.
"""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MB = 1 << 20
SPAN = 0.2
"""The share of the looks that are the first, and the last."""


@dataclass
class Look:
    """The figures at one time. `is_calm`: no fault since the look before."""

    at_s: float
    is_calm: bool
    figures: dict[str, float] = field(default_factory=dict)
    latencies_ms: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """How far a figure may grow from the first looks to the last: to `factor` times its first value plus `slack`, or to
    `most`, whichever is more. Its name is that of the figure, or ends with the figure's name."""

    figure: str
    factor: float = 1.0
    slack: float = 0.0
    most: float = 0.0
    why: str = ""

    def limit(self, first: float) -> float:
        return max(self.factor * first + self.slack, self.most)


@dataclass(frozen=True)
class Growth:
    """One line of the table."""

    figure: str
    first: float
    last: float
    limit: float | None

    @property
    def is_too_much(self) -> bool:
        return self.limit is not None and self.last > self.limit


def growths(looks: Sequence[Look], bounds: Sequence[Bound], warm_up_s: float) -> list[Growth]:
    """The first and last value of every figure. A figure without a bound is shown and never too large."""
    counted = [look for look in looks if look.at_s >= warm_up_s] or list(looks)
    size = max(1, math.ceil(len(counted) * SPAN))
    first, last = counted[:size], counted[-size:]
    names = dict.fromkeys(name for look in counted for name in look.figures)
    lines = [_growth(name, _median(first, name), _median(last, name), bounds) for name in names]
    for name in dict.fromkeys(name for look in counted for name in look.latencies_ms):
        calm = [look for look in counted if look.is_calm and look.latencies_ms.get(name)]
        size = max(1, math.ceil(len(calm) * SPAN))
        for share in (50, 99):
            lines.append(
                _growth(
                    f"{name} p{share} ms",
                    _percentile(calm[:size], name, share),
                    _percentile(calm[-size:], name, share),
                    bounds,
                )
            )
    return lines


def _growth(name: str, first: float, last: float, bounds: Sequence[Bound]) -> Growth:
    bound = next((bound for bound in bounds if name == bound.figure or name.endswith(f" {bound.figure}")), None)
    return Growth(name, first, last, None if bound is None else bound.limit(first))


def _median(looks: Sequence[Look], name: str) -> float:
    values = [look.figures[name] for look in looks if name in look.figures]
    return statistics.median(values) if values else 0.0


def _percentile(looks: Sequence[Look], name: str, share: int) -> float:
    values = sorted(value for look in looks for value in look.latencies_ms.get(name, ()))
    return values[min(len(values) - 1, len(values) * share // 100)] if values else 0.0


# -- looking ----------------------------------------------------------------------------------------------------------


def process_figures(name: str, pid: int) -> dict[str, float]:
    """Memory and descriptors of a process; nothing when it is gone."""
    process = Path(f"/proc/{pid}")
    try:
        # A child belongs to the thread that has forked it.
        children = [child for each in process.glob("task/*/children") for child in each.read_text().split()]
        pages = _resident_pages(pid)
        targets = [_target(descriptor) for descriptor in (process / "fd").iterdir()]
    except OSError:
        return {}
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return {
        f"{name} RSS MB": pages * page_bytes / MB,
        f"{name} worker MB": sum(map(_resident_pages, map(int, children))) * page_bytes / MB,
        f"{name} descriptors": len(targets),
        f"{name} deleted files open": sum(target.endswith("(deleted)") for target in targets),
    }


def _resident_pages(pid: int) -> int:
    """0 when the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""


def directory_figures(name: str, directory: Path, group: Callable[[str], str | None] | None = None) -> dict[str, float]:
    """Files and bytes below a directory; with `group`, apart for each group of its subdirectories."""
    found: dict[str, float] = {}
    for path, _, files in os.walk(directory):
        top = Path(path).relative_to(directory).parts[:1]
        kind = name if group is None else f"{name} {group(top[0] if top else '')}"
        for file in files:
            try:
                size_bytes = os.stat(os.path.join(path, file)).st_size
            except OSError:
                continue  # Removed since.
            found[f"{kind} files"] = found.get(f"{kind} files", 0) + 1
            found[f"{kind} MB"] = found.get(f"{kind} MB", 0) + size_bytes / MB
    return found
