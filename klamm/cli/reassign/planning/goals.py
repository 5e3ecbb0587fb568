"""The goal of a reassignment, from the options of `klamm reassign generate`. Pure.

A goal first says where replicas may be and how many there are; these moves are forced. Then it says what shall be
balanced, and within which tolerance; these moves are made only until every broker is within the tolerance.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import typer

from klamm.cli.reassign.planning.model import ClusterModel
from klamm.cli.shared.patterns import named_topics
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition

DEFAULT_TOLERANCE: Final = 0.05
MAX_BROKER_ID: Final = 2**31 - 1


class Balance(Enum):
    """What is spread evenly over brokers."""

    REPLICAS = "replicas"
    LEADERS = "leaders"  # preferred leaders: first replicas
    BYTES = "bytes"
    LOAD = "load"  # bytes per second written to replicas, and read from leaders


class Racks(Enum):
    """How replicas of a partition are spread over racks."""

    KEEP = "keep"  # no move puts more replicas of a partition into one rack
    IMPROVE = "improve"  # and replicas that share a rack move to one without
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """What clients write to a partition and read from its leader."""

    bytes_in_per_s: float
    bytes_out_per_s: float


@dataclass(frozen=True)
class Goal:
    """None as `topics` or `broker_list` means all; `replace` maps old brokers to new ones.

    A dead broker keeps its replicas unless the goal names it, or names a `broker_list` without it.
    """

    topics: Collection[str] | None = None
    broker_list: tuple[int, ...] | None = None
    remove_brokers: tuple[int, ...] = ()
    replace: Mapping[int, int] = field(default_factory=dict)
    replication_factor: int | None = None
    balance: frozenset[Balance] = frozenset()
    tolerance: float = DEFAULT_TOLERANCE
    racks: Racks = Racks.KEEP
    balance_log_dirs: bool = False
    load: Mapping[TopicPartition, PartitionLoad] = field(default_factory=dict)

    @property
    def leaving(self) -> frozenset[int]:
        """The brokers that shall have no replica left."""
        return frozenset(self.remove_brokers) | frozenset(self.replace)

    def selects(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics


def default_balance(goal: Goal) -> frozenset[Balance]:
    """The default of --balance: replicas, leaders, bytes, and load if it is known; nothing if the goal forces moves."""
    if goal.leaving or goal.replication_factor is not None or goal.racks is Racks.IMPROVE or goal.balance_log_dirs:
        return frozenset()
    known = frozenset({Balance.REPLICAS, Balance.LEADERS, Balance.BYTES})
    return known | {Balance.LOAD} if goal.load else known


def target_brokers(cluster: ClusterModel, goal: Goal) -> tuple[int, ...]:
    """The live brokers that may receive replicas, ascending. Raises ToolError for a goal that contradicts itself."""
    live = cluster.brokers
    known = cluster.known_brokers
    wanted = live if goal.broker_list is None else goal.broker_list
    _check_known(wanted, live, "--broker-list", "is not alive")
    _check_known(goal.remove_brokers, known, "--remove-brokers", "is not in the cluster")
    _check_known(goal.replace, known, "--replace", "is not in the cluster")
    _check_known(goal.replace.values(), live, "--replace", "is not alive")
    for old, new in goal.replace.items():
        if new in goal.leaving:
            raise ToolError(f"--replace: broker {new} shall take the replicas of {old} and lose its own")
        if new not in wanted:
            raise ToolError(f"--replace: broker {new} is not in --broker-list {_numbers(tuple(wanted))}")
    targets = tuple(sorted(set(wanted) - goal.leaving))
    if not targets:
        raise ToolError("no broker is left that replicas could move to")
    if goal.replication_factor is not None and goal.replication_factor > len(targets):
        raise ToolError(
            f"--replication-factor: {goal.replication_factor} replicas need as many brokers, "
            f"and replicas may be on {len(targets)}: {_numbers(targets)}"
        )
    without_rack = [broker for broker in targets if live[broker].rack is None]
    if goal.racks is not Racks.IGNORE and 0 < len(without_rack) < len(targets):
        raise ToolError(
            f"brokers {_numbers(without_rack)} have no rack, the others have one; "
            "set broker.rack, or ignore racks with --disable-rack-aware"
        )
    return targets


def _check_known(brokers: Iterable[int], known: Collection[int], option: str, problem: str) -> None:
    for broker in brokers:
        if broker not in known:
            raise ToolError(f"{option}: broker {broker} {problem}; allowed are {_numbers(sorted(known))}")


def _numbers(brokers: Collection[int]) -> str:
    return ",".join(map(str, brokers))


# -- options ----------------------------------------------------------------------------------------------------------


def parse_brokers(text: str, option: str) -> tuple[int, ...]:
    """Broker ids from "1,2,3". Raises typer.BadParameter."""
    brokers = tuple(_broker(part, text, option, "a list of broker ids, as 1,2,3") for part in text.split(","))
    if len(set(brokers)) < len(brokers):
        repeated = next(broker for broker in brokers if brokers.count(broker) > 1)
        raise typer.BadParameter(f"broker {repeated} is named twice", param_hint=option)
    return brokers


def parse_replace(texts: Iterable[str], option: str = "--replace") -> dict[int, int]:
    """The new broker for each old one, from "3:7" or "3:7,4:8". Raises typer.BadParameter."""
    replace: dict[int, int] = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        old_text, _, new_text = pair.partition(":")
        old, new = (_broker(part, pair, option, "old:new, as 3:7") for part in (old_text, new_text))
        if old in replace:
            raise typer.BadParameter(f"broker {old} is replaced twice", param_hint=option)
        if new in replace.values():
            raise typer.BadParameter(f"broker {new} takes the place of two brokers", param_hint=option)
        replace[old] = new
    return replace


def parse_balance(text: str, option: str = "--balance") -> frozenset[Balance]:
    """What to balance from "replicas,leaders"; "none" stands for nothing. Raises typer.BadParameter."""
    if text == "none":
        return frozenset()
    known = {each.value: each for each in Balance}
    for part in text.split(","):
        if part not in known:
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(known)}, none", param_hint=option)
    return frozenset(known[part] for part in text.split(","))


def matching_topics(pattern: str, topics: Iterable[str], option: str = "--topic") -> list[str]:
    """The topics that have this name, or whose whole name matches.

    Raises typer.BadParameter; ToolError when no topic matches.
    """
    found = named_topics(pattern, topics, option).all
    if not found:
        raise ToolError(f"{option}: no topic matches {pattern!r}")
    return found


def _broker(part: str, text: str, option: str, form: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", part.strip(), re.ASCII) or int(part) > MAX_BROKER_ID:
        raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return int(part)
