"""What klamm and Apache Kafka needed: medians of each program's samples, their ratio, and a table to look at."""

import os
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.table import Table
from sides import Kafka, Klamm, number

Row = tuple[str, str, str, float | None]
"""Key, title, unit, and the most that klamm / Kafka may be, or klamm alone where Kafka has no such thing (None: for
information)."""

Samples = Mapping[str, Sequence[Mapping[str, float]]]
"""Of each program, by name, a value for each key in each round."""


def results(rows: Collection[Row], samples: Samples) -> list[dict[str, Any]]:
    """One entry per row: the median of each program and, with both, the ratio klamm / Kafka."""
    entries = []
    for key, title, unit, target in rows:
        medians = {name: statistics.median(run[key] for run in runs) for name, runs in samples.items()}
        entry: dict[str, Any] = {"key": key, "title": title, "unit": unit, "medians": medians, "target": target}
        if {Klamm.name, Kafka.name} <= medians.keys():
            entry["ratio"] = medians[Klamm.name] / medians[Kafka.name]
        entries.append(entry)
    return entries


def table(entries: Collection[Mapping[str, Any]], measured: str, samples: Samples) -> Table:
    """The entries of `results`. `measured` says of what, as "10,000 partitions, RF 3"."""
    rounds = max(map(len, samples.values()))
    rounds_text = f", median of {rounds} rounds" if rounds > 1 else ""
    made = Table(title=f"{measured}, this machine ({os.cpu_count()} cores){rounds_text}")
    made.add_column("what", no_wrap=True)
    for name in samples:
        made.add_column(name, justify="right")
    made.add_column("unit")
    made.add_column("klamm / Kafka", justify="right")
    made.add_column("target", justify="right")
    for entry in entries:
        ratio, target = entry.get("ratio"), entry["target"]
        colour = "default" if ratio is None or target is None else "green" if ratio <= target else "red"
        made.add_row(
            entry["title"],
            *(number(entry["medians"].get(name)) for name in samples),
            entry["unit"],
            f"[{colour}]{number(ratio)}[/]" if ratio is not None else "",
            f"≤ {target:g}" if target is not None else "",
        )
    return made
