"""Plans of `klamm reassign generate` for large clusters: what they move, beside Kafka's generator and the minimum.

The clusters are synthetic: 100 brokers in racks, 50,000 partitions with three replicas, placed by Kafka's algorithm;
sizes are log-normal, for topics and for the partitions of a topic. Nothing runs but the planners. Kafka's generator is
the same algorithm as `kafka-reassign-partitions --generate`; a test compares it with the real one.

| scenario     | cluster                                                   | goal                              |
|--------------|-----------------------------------------------------------|-----------------------------------|
| add          | ten brokers more, empty                                   | replicas, leaders, bytes balanced |
| remove       | as it is                                                  | five brokers empty                |
| skew         | a fifth of the brokers has twice the replicas             | replicas, leaders, bytes balanced |
| factor       | two replicas                                              | three replicas                    |
| swap         | one broker more in each rack, empty                       | one takes the place of another    |
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from klamm.base.slices import in_one_go
from klamm.broker.topics.replica_assignment import assign_replicas
from klamm.cli.reassign.planning.goals import Balance, Goal, Racks
from klamm.cli.reassign.planning.kafka_placement import kafka_plan
from klamm.cli.reassign.planning.minimum import minimum_bytes
from klamm.cli.reassign.planning.model import Broker, ClusterModel, Partition, Plan
from klamm.cli.reassign.planning.planner import plan
from klamm.protocol.vocabulary import TopicPartition

BALANCED = frozenset({Balance.REPLICAS, Balance.LEADERS, Balance.BYTES})
PARTITIONS_OF_A_TOPIC = (1, 3, 6, 12, 24, 48, 96, 200)


@dataclass(frozen=True)
class Size:
    brokers: int
    partitions: int
    racks: int


@dataclass(frozen=True)
class Scenario:
    cluster: ClusterModel
    goal: Goal
    kafka: Goal
    """What Kafka's generator is asked for instead. It has no way to change the replication factor."""


def racks_of(brokers: range, racks: int) -> dict[int, str]:
    return {broker: f"r{broker % racks}" for broker in brokers}


def synthetic(chance: random.Random, size: Size, factor: int, *, heavy: range = range(0)) -> ClusterModel:
    """A cluster as it has grown: each topic placed when it was created; `heavy` brokers are drawn twice as often."""
    racks = racks_of(range(size.brokers), size.racks)
    partitions: dict[TopicPartition, Partition] = {}
    topic = 0
    while len(partitions) < size.partitions:
        count = min(chance.choice(PARTITIONS_OF_A_TOPIC), size.partitions - len(partitions))
        start, shift = chance.randrange(size.brokers), chance.randrange(size.brokers)
        placed = in_one_go(
            assign_replicas(range(size.brokers), count, factor, start_index=start, shift=shift, racks=racks)
        )
        scale = chance.lognormvariate(18, 1.5)
        for number, replicas in placed.items():
            shifted = [skewed(chance, broker, replicas, racks, heavy) for broker in replicas] if heavy else replicas
            partitions[TopicPartition(f"topic-{topic}", number)] = Partition(
                tuple(dict.fromkeys(shifted)) if len(set(shifted)) == factor else tuple(replicas),
                round(scale * chance.lognormvariate(0, 1)),
            )
        topic += 1
    return ClusterModel({broker: Broker(rack) for broker, rack in racks.items()}, partitions)


def skewed(chance: random.Random, broker: int, replicas: list[int], racks: dict[int, str], heavy: range) -> int:
    """A heavy broker of the same rack, for a part of the replicas."""
    candidates = [each for each in heavy if racks[each] == racks[broker] and each not in replicas]
    return chance.choice(candidates) if candidates and broker not in heavy and chance.random() < 0.25 else broker


def with_brokers(cluster: ClusterModel, size: Size, more: int) -> ClusterModel:
    added = racks_of(range(size.brokers, size.brokers + more), size.racks)
    return replace(cluster, brokers={**cluster.brokers, **{broker: Broker(rack) for broker, rack in added.items()}})


def add(chance: random.Random, size: Size) -> Scenario:
    cluster = with_brokers(synthetic(chance, size, 3), size, max(1, size.brokers // 10))
    return Scenario(cluster, Goal(balance=BALANCED), Goal())


def remove(chance: random.Random, size: Size) -> Scenario:
    goal = Goal(remove_brokers=tuple(range(max(1, size.brokers // 20))))
    return Scenario(synthetic(chance, size, 3), goal, goal)


def skew(chance: random.Random, size: Size) -> Scenario:
    cluster = synthetic(chance, size, 3, heavy=range(size.brokers // 5))
    return Scenario(cluster, Goal(balance=BALANCED), Goal())


def factor(chance: random.Random, size: Size) -> Scenario:
    return Scenario(synthetic(chance, size, 2), Goal(replication_factor=3), Goal())


def swap(chance: random.Random, size: Size) -> Scenario:
    cluster = with_brokers(synthetic(chance, size, 3), size, size.racks)
    added = range(size.brokers, size.brokers + size.racks)
    goal = Goal(replace={3: next(each for each in added if cluster.brokers[each].rack == cluster.brokers[3].rack)})
    return Scenario(cluster, goal, goal)


SCENARIOS: dict[str, Callable[[random.Random, Size], Scenario]] = {
    "add": add,
    "remove": remove,
    "skew": skew,
    "factor": factor,
    "swap": swap,
}


def after(cluster: ClusterModel, made: Plan) -> ClusterModel:
    changed = {
        name: replace(cluster.partitions[name], replicas=placement.replicas) for name, placement in made.after.items()
    }
    return replace(cluster, partitions={**cluster.partitions, **changed})


def balance(cluster: ClusterModel, brokers: list[int]) -> dict[str, float]:
    """The most that one of these brokers has, as a multiple of the average."""
    found = {kind: dict.fromkeys(brokers, 0) for kind in ("bytes", "replicas", "leaders")}
    for each in cluster.partitions.values():
        for position, broker in enumerate(each.replicas):
            if broker in found["bytes"]:
                found["bytes"][broker] += each.size_bytes
                found["replicas"][broker] += 1
                found["leaders"][broker] += position == 0
    return {kind: max(loads.values()) / statistics.mean(loads.values()) for kind, loads in found.items()}


def crowding(cluster: ClusterModel, brokers: list[int]) -> float:
    """The most replicas of a topic that a broker has, as a multiple of the average: the median of large topics."""
    topics: dict[str, dict[int, int]] = {}
    for name, each in cluster.partitions.items():
        on = topics.setdefault(name.topic, {})
        for broker in each.replicas:
            on[broker] = on.get(broker, 0) + 1
    large = [on for on in topics.values() if sum(on.values()) >= 2 * len(brokers)]
    return statistics.median(max(on.values()) * len(brokers) / sum(on.values()) for on in large) if large else 1.0


def shared_racks(cluster: ClusterModel) -> int:
    """The pairs of replicas of a partition that are in the same rack."""
    pairs = 0
    for each in cluster.partitions.values():
        racks = [cluster.brokers[broker].rack for broker in each.replicas]
        pairs += len(racks) - len(set(racks))
    return pairs


def measure(name: str, scenario: Scenario) -> dict[str, Any]:
    started = time.process_time()
    made = plan(scenario.cluster, scenario.goal)
    seconds = time.process_time() - started
    least = minimum_bytes(scenario.cluster, scenario.goal, made.unmovable)
    kafka = kafka_plan(scenario.cluster, scenario.kafka)
    leaving = scenario.goal.leaving
    brokers = [broker for broker in scenario.cluster.brokers if broker not in leaving]
    reached = after(scenario.cluster, made)
    if scenario.goal.replication_factor is None and scenario.goal.racks is not Racks.IGNORE:
        assert shared_racks(reached) <= shared_racks(scenario.cluster), "racks have become worse"
    assert not any(leaving & set(each.replicas) for each in reached.partitions.values()), "a broker is not empty"
    return {
        "scenario": name,
        "minimum_bytes": least,
        "klamm_bytes": made.bytes_between_brokers,
        "kafka_bytes": kafka.bytes_between_brokers,
        "klamm_over_minimum": made.bytes_between_brokers / least if least else 1.0,
        "kafka_over_minimum": kafka.bytes_between_brokers / least if least else 1.0,
        "partitions_moved": sum(1 for each in made.moves if each.adding_replicas),
        "replicas_moved": sum(len(each.adding_replicas) for each in made.moves),
        "orders_changed": sum(1 for each in made.moves if not each.adding_replicas),
        "unmovable": len(made.unmovable),
        "before": balance(scenario.cluster, brokers),
        "klamm": balance(reached, brokers),
        "kafka": balance(after(scenario.cluster, kafka), brokers),
        "topics": {
            side: crowding(found, brokers)
            for side, found in {
                "before": scenario.cluster,
                "klamm": reached,
                "kafka": after(scenario.cluster, kafka),
            }.items()
        },
        "seconds": seconds,
    }


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table(
        "scenario", "minimum", "klamm", "Kafka", "replicas", "max/avg bytes, replicas, leaders, of a topic", "CPU s"
    )
    for each in results:
        shown.add_row(
            each["scenario"],
            f"{each['minimum_bytes'] / 1e12:.3f} TB",
            f"{each['klamm_over_minimum']:.3f}",
            f"{each['kafka_over_minimum']:.1f}",
            str(each["replicas_moved"]),
            "\n".join(
                f"{side:6} {each[side]['bytes']:.2f} {each[side]['replicas']:.2f} {each[side]['leaders']:.2f} "
                f"{each['topics'][side]:.2f}"
                for side in ("before", "klamm", "kafka")
            ),
            f"{each['seconds']:.1f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=50_000)
    parser.add_argument("--racks", type=int, default=5)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="by default all")
    parser.add_argument("--ignore-racks", action="store_true", help="plan as with --disable-rack-aware")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one line for each scenario")
    options = parser.parse_args()
    size = Size(options.brokers, options.partitions, options.racks)
    results = []
    for name in options.scenario or SCENARIOS:
        scenario = SCENARIOS[name](random.Random(options.seed), size)
        if options.ignore_racks:
            scenario = replace(scenario, goal=replace(scenario.goal, racks=Racks.IGNORE))
        results.append(measure(name, scenario))
        if options.json:
            print(json.dumps(results[-1]), flush=True)
    if not options.json:
        Console(width=120).print(table(results))


if __name__ == "__main__":
    main()
