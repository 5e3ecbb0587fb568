"""What a plan does to each broker, and how much it copies: values for --json, and lines for a person. Pure.

The table has a row for each broker: what it has before and after, and what it receives and sends. The lines below the
table show the largest value as a multiple of the average: 1.00 is perfect balance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from klamm.base.words import counted, duration_text, size_text, table_lines
from klamm.cli.reassign.planning.goals import Goal, target_brokers
from klamm.cli.reassign.planning.minimum import minimum_bytes
from klamm.cli.reassign.planning.model import ClusterModel, Partition, Plan
from klamm.protocol.vocabulary import TopicPartition

_TITLES: Final = ("BROKER", "RACK", "REPLICAS", "LEADERS", "SIZE", "RECEIVES", "SENDS")
_SHOWN_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class Holding:
    """What a broker has. `leaders` are the partitions that it is the preferred leader of."""

    replicas: int = 0
    leaders: int = 0
    size_bytes: int = 0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerRow:
    broker: int
    rack: str | None
    is_live: bool
    before: Holding
    after: Holding
    receives_bytes: int
    sends_bytes: int
    usable_bytes: int | None = None

    @property
    def is_too_small(self) -> bool:
        """Whether the disks have too little room for what the broker receives, before it loses anything."""
        return self.usable_bytes is not None and self.receives_bytes > self.usable_bytes


@dataclass(frozen=True)
class Report:
    """`minimum_bytes` is the least that any plan for the goal copies; `duration_s` is None without a throttle.

    `balance` has, by kind, the largest value of a target broker as a multiple of the average, before and after.
    """

    plan: Plan
    rows: tuple[BrokerRow, ...]
    balance: Mapping[str, tuple[float, float]]
    minimum_bytes: int
    throttle_bytes_per_s: int | None = None

    @property
    def duration_s(self) -> float | None:
        return None if self.throttle_bytes_per_s is None else self.plan.duration_s(self.throttle_bytes_per_s)

    @property
    def has_load(self) -> bool:
        return any(row.before.bytes_in_per_s or row.before.bytes_out_per_s for row in self.rows)


def report(cluster: ClusterModel, goal: Goal, plan: Plan, throttle_bytes_per_s: int | None = None) -> Report:
    """The report of a plan for this cluster and goal."""
    after = {
        name: replace(cluster.partitions[name], replicas=placement.replicas) for name, placement in plan.after.items()
    }
    held = [_holdings(goal, partitions) for partitions in (cluster.partitions, {**cluster.partitions, **after})]
    nothing = Holding()
    rows = tuple(
        BrokerRow(
            broker,
            cluster.brokers[broker].rack if broker in cluster.brokers else None,
            broker in cluster.brokers,
            held[0].get(broker, nothing),
            held[1].get(broker, nothing),
            plan.bytes_in.get(broker, 0),
            plan.bytes_out.get(broker, 0),
            cluster.brokers[broker].usable_bytes if broker in cluster.brokers else None,
        )
        for broker in sorted({*cluster.brokers, *held[0], *held[1]})
    )
    targets = set(target_brokers(cluster, goal))
    return Report(
        plan,
        rows,
        _balance([row for row in rows if row.broker in targets]),
        minimum_bytes(cluster, goal, plan.unmovable),
        throttle_bytes_per_s,
    )


def _holdings(goal: Goal, partitions: Mapping[TopicPartition, Partition]) -> dict[int, Holding]:
    sums: dict[int, list[float]] = {}
    for name, partition in partitions.items():
        load = goal.load.get(name)
        bytes_in, bytes_out = (0.0, 0.0) if load is None else (load.bytes_in_per_s, load.bytes_out_per_s)
        for position, broker in enumerate(partition.replicas):
            held = sums.setdefault(broker, [0, 0, 0, 0.0, 0.0])
            held[0] += 1
            held[1] += position == 0
            held[2] += partition.size_bytes
            held[3] += bytes_in
            held[4] += bytes_out if position == 0 else 0.0
    return {broker: Holding(int(held[0]), int(held[1]), int(held[2]), *held[3:]) for broker, held in sums.items()}


def _balance(rows: Sequence[BrokerRow]) -> dict[str, tuple[float, float]]:
    def most(loads: Sequence[float]) -> float:
        total = sum(loads)
        return max(loads) * len(loads) / total if total else 1.0

    return {
        kind: (
            most([getattr(row.before, kind) for row in rows]),
            most([getattr(row.after, kind) for row in rows]),
        )
        for kind in Holding.__dataclass_fields__
    }


# -- values -----------------------------------------------------------------------------------------------------------


def report_value(found: Report) -> dict[str, Any]:
    """The report as one JSON document."""
    plan = found.plan
    return {
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "before": list(move.before.replicas),
                "after": list(move.after.replicas),
                "log_dirs": list(move.after.log_dirs),
                "bytes": move.bytes_between_brokers,
                "bytes_between_log_dirs": move.bytes_between_log_dirs,
            }
            for move in plan.moves
        ],
        "unmovable": [asdict(each) for each in plan.unmovable],
        "bytes_between_brokers": plan.bytes_between_brokers,
        "bytes_between_log_dirs": plan.bytes_between_log_dirs,
        "minimum_bytes": found.minimum_bytes,
        "throttle": found.throttle_bytes_per_s,
        "seconds": found.duration_s,
        "balance": {kind: {"before": before, "after": after} for kind, (before, after) in found.balance.items()},
        "brokers": [asdict(row) for row in found.rows],
    }


# -- lines ------------------------------------------------------------------------------------------------------------


def report_lines(found: Report) -> Iterator[str]:
    """The table, the sums, and what stays where it is."""
    yield from _table(found)
    yield ""
    yield from _sums(found)
    for row in found.rows:
        if row.is_too_small and row.usable_bytes is not None:
            free = size_text(row.usable_bytes)
            yield f"Broker {row.broker} receives {size_text(row.receives_bytes)}, and its disks have {free} free."
    unmovable = found.plan.unmovable
    if unmovable:
        yield ""
        yield f"{counted(len(unmovable), 'replica')} cannot move:"
        for each in unmovable[:_SHOWN_REASONS]:
            where = "" if each.broker is None else f" on broker {each.broker}"
            yield f"  {each.topic}-{each.partition}{where}: {each.reason}"
        if len(unmovable) > _SHOWN_REASONS:
            yield f"  and {len(unmovable) - _SHOWN_REASONS} more (--json names all)"


def _table(found: Report) -> Iterator[str]:
    titles = (*_TITLES, "WRITTEN/S", "READ/S") if found.has_load else _TITLES
    rows: list[Sequence[str]] = [titles]
    for row in found.rows:
        cells = [
            f"{row.broker}{'' if row.is_live else ' (dead)'}",
            row.rack or "-",
            _change(str(row.before.replicas), str(row.after.replicas)),
            _change(str(row.before.leaders), str(row.after.leaders)),
            _change(size_text(row.before.size_bytes), size_text(row.after.size_bytes)),
            size_text(row.receives_bytes) if row.receives_bytes else "-",
            size_text(row.sends_bytes) if row.sends_bytes else "-",
        ]
        if found.has_load:
            cells += [
                _change(size_text(round(row.before.bytes_in_per_s)), size_text(round(row.after.bytes_in_per_s))),
                _change(size_text(round(row.before.bytes_out_per_s)), size_text(round(row.after.bytes_out_per_s))),
            ]
        rows.append(cells)
    ratios = {kind: _change(f"{before:.2f}", f"{after:.2f}") for kind, (before, after) in found.balance.items()}
    last = ["max/avg", "", ratios["replicas"], ratios["leaders"], ratios["size_bytes"], "", ""]
    rows.append([*last, ratios["bytes_in_per_s"], ratios["bytes_out_per_s"]] if found.has_load else last)
    yield from table_lines(rows)


def _sums(found: Report) -> Iterator[str]:
    plan = found.plan
    if not plan.moves:
        yield "Nothing has to move."
        return
    copied = sum(1 for move in plan.moves if move.adding_replicas)
    reordered = sum(1 for move in plan.moves if move.before.replicas != move.after.replicas) - copied
    yield (
        f"{counted(copied, 'partition')} with copies to other brokers, "
        f"{reordered} with another order or fewer replicas."
    )
    yield (
        f"{size_text(plan.bytes_between_brokers)} between brokers; "
        f"no plan for this goal copies less than {size_text(found.minimum_bytes)}."
    )
    if plan.bytes_between_log_dirs:
        yield f"{size_text(plan.bytes_between_log_dirs)} between log directories."
    if found.throttle_bytes_per_s is not None and found.duration_s is not None:
        rate = size_text(found.throttle_bytes_per_s)
        yield f"At {rate}/s for each broker at least {duration_text(found.duration_s)}."


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"
