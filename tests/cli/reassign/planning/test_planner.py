"""Plans for small clusters, written out: what moves for each goal, what cannot move and why."""

import random
from collections.abc import Mapping, Sequence

import pytest

from klamm.cli.reassign.planning.goals import Balance, Goal, PartitionLoad, Racks
from klamm.cli.reassign.planning.minimum import minimum_bytes
from klamm.cli.reassign.planning.model import Broker, ClusterModel, Partition, Plan
from klamm.cli.reassign.planning.planner import plan
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

REPLICAS, LEADERS, BYTES, LOAD = Balance.REPLICAS, Balance.LEADERS, Balance.BYTES, Balance.LOAD


def cluster(
    replicas: Sequence[Sequence[int]],
    *,
    brokers: Sequence[int] = (1, 2, 3, 4),
    racks: Mapping[int, str] | None = None,
    sizes: Sequence[int] = (),
) -> ClusterModel:
    """Topic t with these replicas; a partition has 10 bytes if `sizes` does not say."""
    return ClusterModel(
        {broker: Broker((racks or {}).get(broker)) for broker in brokers},
        {
            TopicPartition("t", number): Partition(tuple(each), sizes[number] if sizes else 10)
            for number, each in enumerate(replicas)
        },
    )


def moved(made: Plan) -> dict[int, tuple[int, ...]]:
    return {move.partition: move.after.replicas for move in made.moves}


def reasons(made: Plan) -> list[tuple[int, int | None, str]]:
    return [(each.partition, each.broker, each.reason) for each in made.unmovable]


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_the_replicas_of_a_removed_broker_move_and_no_others() -> None:
    made = plan(cluster([[1, 2], [2, 3], [3, 1]]), Goal(remove_brokers=(1,)))
    assert moved(made) == {0: (4, 2), 2: (3, 4)}
    assert made.unmovable == ()
    assert made.bytes_in == {4: 20}


def test_the_new_replicas_of_a_removed_broker_go_where_bytes_are_fewest() -> None:
    made = plan(
        cluster([[1], [1], [1], [2], [3]], brokers=[1, 2, 3], sizes=[5, 4, 3, 10, 2]), Goal(remove_brokers=(1,))
    )
    assert moved(made) == {0: (3,), 1: (3,), 2: (2,)}


def test_the_partitions_of_a_topic_spread_over_brokers_that_are_equally_low() -> None:
    found = cluster([[1]] * 4, brokers=[1, 2, 3])
    other = {TopicPartition("u", number): Partition((1,), 10) for number in range(4)}
    made = plan(ClusterModel(found.brokers, {**found.partitions, **other}), Goal(remove_brokers=(1,)))
    placed = sorted((move.topic, move.after.replicas[0]) for move in made.moves)
    assert placed == [(topic, broker) for topic in "tu" for broker in (2, 2, 3, 3)]


def test_too_few_brokers_are_the_reason_that_a_replica_stays() -> None:
    made = plan(cluster([[1, 2, 3], [3, 1]], brokers=[1, 2, 3]), Goal(remove_brokers=(3,)))
    assert moved(made) == {1: (2, 1)}
    assert reasons(made) == [(0, 3, "too few brokers: 3 replicas need as many, and replicas may be on 2: 1,2")]


def test_a_rack_that_would_be_doubled_is_the_reason_that_a_replica_stays() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    found = cluster([[1, 3]], brokers=[1, 2, 3], racks=racks)
    made = plan(found, Goal(remove_brokers=(3,)))
    assert reasons(made) == [
        (
            0,
            3,
            "racks: each broker without a replica (2) is in a rack that has one (--disable-rack-aware allows a second)",
        )
    ]
    assert moved(plan(found, Goal(remove_brokers=(3,), racks=Racks.IGNORE))) == {0: (1, 2)}


def test_a_partition_that_cannot_be_copied_now_says_why() -> None:
    found = ClusterModel(
        {1: Broker(), 2: Broker()},
        {
            TopicPartition("t", 0): Partition((1,), leader=NO_LEADER),
            TopicPartition("t", 1): Partition((1,), is_reassigning=True),
            TopicPartition("t", 2): Partition((1,), leader=1),
        },
    )
    made = plan(found, Goal(remove_brokers=(1,)))
    assert moved(made) == {2: (2,)}
    assert reasons(made) == [
        (0, 1, "the partition has no leader to copy from"),
        (1, 1, "a reassignment of the partition is in progress"),
    ]


def test_a_replaced_broker_gives_its_places_to_the_new_one() -> None:
    made = plan(cluster([[1, 2], [2, 1], [2, 3]]), Goal(replace={1: 4}))
    assert moved(made) == {0: (4, 2), 1: (2, 4)}


def test_a_replaced_broker_keeps_what_the_new_one_cannot_take() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "c"}
    made = plan(cluster([[1, 3], [1, 4], [1, 2]], racks=racks), Goal(replace={1: 3}))
    assert moved(made) == {1: (3, 4)}
    assert reasons(made) == [
        (0, 1, "broker 3 already has a replica"),
        (2, 1, "rack b of broker 3 already has a replica (--disable-rack-aware allows a second)"),
    ]


def test_two_brokers_are_replaced_in_one_plan() -> None:
    made = plan(cluster([[1, 2]]), Goal(replace={1: 3, 2: 4}))
    assert moved(made) == {0: (3, 4)}


def test_a_broker_list_takes_all_replicas_to_its_brokers() -> None:
    made = plan(cluster([[1, 2], [3, 4], [2, 4]]), Goal(broker_list=(1, 2)))
    assert {number: sorted(replicas) for number, replicas in moved(made).items()} == {1: [1, 2], 2: [1, 2]}


def test_a_dead_broker_keeps_its_replicas_until_a_goal_names_it() -> None:
    found = cluster([[9, 1], [2, 3]])
    assert moved(plan(found, Goal(balance=frozenset({LEADERS})))) == {}
    assert moved(plan(found, Goal(remove_brokers=(9,)))) == {0: (4, 1)}


def test_only_the_selected_topics_move() -> None:
    found = cluster([[1], [1]])
    other = {TopicPartition("u", 0): Partition((1,), 10)}
    made = plan(ClusterModel(found.brokers, {**found.partitions, **other}), Goal(topics={"u"}, remove_brokers=(1,)))
    assert [move.topic_partition for move in made.moves] == [TopicPartition("u", 0)]


# -- replication factor -----------------------------------------------------------------------------------------------


def test_a_larger_replication_factor_adds_replicas_in_racks_that_have_none() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    made = plan(cluster([[1], [3], [4, 1]], racks=racks), Goal(replication_factor=2))
    assert moved(made) == {0: (1, 3), 1: (3, 2)}


def test_a_smaller_replication_factor_moves_no_bytes_and_keeps_leaders_and_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    made = plan(cluster([[1, 2, 3], [3, 4, 1], [2, 1, 4]], racks=racks), Goal(replication_factor=2))
    assert moved(made) == {0: (1, 3), 1: (3, 1), 2: (2, 4)}
    assert made.bytes_between_brokers == 0


def test_a_smaller_replication_factor_leaves_the_brokers_that_are_removed_first() -> None:
    made = plan(cluster([[1, 2, 3], [3, 1, 2]]), Goal(replication_factor=2, remove_brokers=(1,)))
    assert moved(made) == {0: (2, 3), 1: (3, 2)}


# -- racks ------------------------------------------------------------------------------------------------------------


def test_replicas_that_share_a_rack_move_only_when_that_is_asked_for() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    found = cluster([[1, 2], [1, 3], [2, 1, 3]], racks=racks)
    assert moved(plan(found, Goal())) == {}
    made = plan(found, Goal(racks=Racks.IMPROVE))
    assert moved(made) == {0: (1, 4), 2: (2, 4, 3)}


def test_a_replica_that_leaves_a_shared_rack_makes_room_for_a_broker_that_is_replaced() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    made = plan(cluster([[1, 2]], racks=racks), Goal(replace={1: 2}, racks=Racks.IMPROVE))
    assert moved(made) == {0: (2, 4)}
    assert made.unmovable == ()


def test_a_balance_leaves_every_partition_in_as_many_racks_as_before() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    found = cluster([[1, 2]] * 6, racks=racks)
    made = plan(found, Goal(balance=frozenset({REPLICAS})))
    after = [moved(made).get(number, (1, 2)) for number in range(6)]
    assert [{racks[broker] for broker in replicas} for replicas in after] == [{"a", "b"}] * 6
    assert [sum(broker in replicas for replicas in after) for broker in racks] == [3, 3, 3, 3]


def test_a_small_rack_is_not_filled_beyond_one_replica_of_each_partition() -> None:
    """Three racks and three replicas: the only broker of rack c has one of each, and that is its share."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    found = cluster([[1, 3, 5]] * 4, brokers=[1, 2, 3, 4, 5], racks=racks)
    made = plan(found, Goal(balance=frozenset({REPLICAS, BYTES})))
    after = [moved(made).get(number, (1, 3, 5)) for number in range(4)]
    assert [sum(broker in replicas for replicas in after) for broker in racks] == [2, 2, 2, 2, 4]


# -- balance ----------------------------------------------------------------------------------------------------------


def test_a_balanced_cluster_stays_as_it_is() -> None:
    found = cluster([[1, 2], [2, 3], [3, 4], [4, 1]])
    assert plan(found, Goal(balance=frozenset({REPLICAS, LEADERS, BYTES}))).moves == ()


def test_an_empty_broker_gets_its_share_and_the_others_exchange_nothing() -> None:
    found = cluster([[1, 2, 3]] * 8)
    made = plan(found, Goal(balance=frozenset({REPLICAS, BYTES})))
    assert made.bytes_in == {4: 60}
    assert all(move.adding_replicas == (4,) for move in made.moves)


def test_bytes_are_balanced_by_exchange_when_the_number_of_replicas_may_not_change() -> None:
    found = cluster([[1], [1], [2], [2]], brokers=[1, 2], sizes=[100, 60, 1, 2])
    made = plan(found, Goal(balance=frozenset({REPLICAS, BYTES}), tolerance=0.3))
    assert moved(made) == {1: (2,), 2: (1,)}


def test_leaders_are_balanced_by_the_order_of_replicas_alone() -> None:
    made = plan(cluster([[1, 2], [1, 3], [1, 4], [1, 2]]), Goal(balance=frozenset({LEADERS})))
    assert made.bytes_between_brokers == 0
    assert len(made.moves) == 3
    assert sorted(moved(made).get(number, (1,))[0] for number in range(4)) == [1, 2, 3, 4]


def test_leadership_moves_along_a_chain_when_no_partition_joins_the_two_brokers() -> None:
    made = plan(cluster([[1, 2], [1, 2], [2, 3]], brokers=[1, 2, 3]), Goal(balance=frozenset({LEADERS})))
    assert sorted(moved(made)[number][0] if number in moved(made) else 1 for number in range(3)) == [1, 2, 3]
    assert len(made.moves) == 2


def test_load_is_balanced_by_the_replicas_that_carry_most_of_it_for_each_byte() -> None:
    found = cluster([[1], [1], [1], [2]], brokers=[1, 2], sizes=[1000, 10, 10, 10])
    rates = {0: 50.0, 1: 50.0, 2: 0.0, 3: 0.0}
    load = {TopicPartition("t", number): PartitionLoad(rate, 0.0) for number, rate in rates.items()}
    made = plan(found, Goal(balance=frozenset({LOAD}), load=load))
    assert moved(made) == {1: (2,)}


def test_a_balance_of_load_copies_little_more_than_it_must() -> None:
    """Sizes and rates are log-normal, as in clusters that are used."""
    chance = random.Random(4)
    brokers = range(50)
    weights = [2 if broker % 5 == 0 else 1 for broker in brokers]
    partitions, load = {}, {}
    for number in range(6000):
        replicas: list[int] = []
        while len(replicas) < 3:
            replicas = list(dict.fromkeys([*replicas, *chance.choices(brokers, weights)]))
        key = TopicPartition(f"t{number % 100}", number // 100)
        partitions[key] = Partition(tuple(replicas), int(chance.lognormvariate(20, 1.2)), replicas[0])
        load[key] = PartitionLoad(chance.lognormvariate(10, 1.5), 0.0)
    used = ClusterModel({broker: Broker() for broker in brokers}, partitions)
    goal = Goal(balance=frozenset({Balance.LOAD}), load=load)
    assert plan(used, goal).bytes_between_brokers / minimum_bytes(used, goal) < 1.1


def test_a_new_broker_takes_its_place_when_another_replica_has_left_its_rack() -> None:
    racks = {0: "c", 1: "b", 2: "a", 3: "c"}
    partitions = {TopicPartition("t", 0): Partition((2, 3), 1), TopicPartition("t", 1): Partition((0,), 100)}
    used = ClusterModel({number: Broker(rack) for number, rack in racks.items()}, partitions)
    made = plan(used, Goal(remove_brokers=(3,), replace={2: 0}))
    assert moved(made) == {0: (0, 1)} and not made.unmovable


def test_what_leaders_send_is_balanced_by_the_order_of_replicas() -> None:
    found = cluster([[1, 2], [1, 2], [2, 1]], brokers=[1, 2])
    load = {TopicPartition("t", number): PartitionLoad(0.0, rate) for number, rate in enumerate([60.0, 40.0, 5.0])}
    made = plan(found, Goal(balance=frozenset({LOAD}), load=load))
    assert moved(made) == {1: (2, 1)}
    assert made.bytes_between_brokers == 0


# -- log directories --------------------------------------------------------------------------------------------------


def with_dirs(paths: Mapping[int, tuple[str, ...]], partitions: Sequence[tuple[int, int, str | None]]) -> ClusterModel:
    """Partitions with one replica each: broker, size and directory."""
    return ClusterModel(
        {broker: Broker(log_dirs=dirs) for broker, dirs in paths.items()},
        {
            TopicPartition("t", number): Partition((broker,), size, log_dirs={} if path is None else {broker: path})
            for number, (broker, size, path) in enumerate(partitions)
        },
    )


def test_a_broker_chooses_the_directory_of_a_new_replica_unless_directories_are_balanced() -> None:
    found = with_dirs({1: ("/a",), 2: ("/a", "/b")}, [(1, 10, "/a"), (2, 30, "/a"), (2, 25, "/b")])
    made = plan(found, Goal(remove_brokers=(1,)))
    assert [(move.before.log_dirs, move.after.log_dirs) for move in made.moves] == [(("/a",), ("any",))]
    made = plan(found, Goal(remove_brokers=(1,), balance_log_dirs=True, tolerance=0.2))
    assert [(move.before.log_dirs, move.after.log_dirs) for move in made.moves] == [(("/a",), ("/b",))]


def test_replicas_move_between_directories_only_until_they_are_within_the_tolerance() -> None:
    found = with_dirs({1: ("/a", "/b")}, [(1, 50, "/a"), (1, 30, "/a"), (1, 15, "/a"), (1, 5, "/b")])
    made = plan(found, Goal(balance_log_dirs=True, tolerance=0.1))
    assert [(move.partition, move.log_dir_moves) for move in made.moves] == [(1, {1: "/b"}), (2, {1: "/b"})]
    assert (made.bytes_between_log_dirs, made.bytes_between_brokers) == (45, 0)


def test_a_replica_whose_directory_is_not_known_stays_in_it() -> None:
    found = with_dirs({1: ("/a", "/b")}, [(1, 50, None), (1, 30, None)])
    assert plan(found, Goal(balance_log_dirs=True)).moves == ()


# -- goals that cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "error"),
    [
        (Goal(broker_list=(1, 8)), "--broker-list: broker 8 is not alive; allowed are 1,2,3,4"),
        (Goal(remove_brokers=(8,)), "--remove-brokers: broker 8 is not in the cluster; allowed are 1,2,3,4,9"),
        (Goal(remove_brokers=(1, 2, 3, 4)), "no broker is left that replicas could move to"),
        (Goal(replace={1: 8}), "--replace: broker 8 is not alive; allowed are 1,2,3,4"),
        (Goal(replace={1: 2, 2: 3}), "--replace: broker 2 shall take the replicas of 1 and lose its own"),
        (Goal(replace={1: 2}, broker_list=(3, 4)), "--replace: broker 2 is not in --broker-list 3,4"),
        (
            Goal(replication_factor=3, remove_brokers=(3, 4)),
            "--replication-factor: 3 replicas need as many brokers, and replicas may be on 2: 1,2",
        ),
    ],
)
def test_a_goal_that_contradicts_the_cluster_or_itself_is_an_error(goal: Goal, error: str) -> None:
    with pytest.raises(ToolError) as raised:
        plan(cluster([[1], [9]]), goal)
    assert str(raised.value) == error


def test_brokers_without_a_rack_among_others_with_one_are_an_error() -> None:
    found = cluster([[1]], racks={1: "a", 2: "b"})
    with pytest.raises(ToolError, match=r"brokers 3,4 have no rack, the others have one; .*--disable-rack-aware"):
        plan(found, Goal(remove_brokers=(1,)))
    assert moved(plan(found, Goal(remove_brokers=(1,), racks=Racks.IGNORE)))
