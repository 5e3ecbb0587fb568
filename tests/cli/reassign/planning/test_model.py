"""What a move and a plan say about themselves."""

from klamm.cli.reassign.planning.model import Move, Placement, Plan, anywhere


def test_a_move_says_which_replicas_it_adds_and_removes() -> None:
    move = Move("t", 0, anywhere([1, 2, 3]), anywhere([4, 1, 5]), size_bytes=10)
    assert move.adding_replicas == (4, 5)
    assert move.removing_replicas == (2, 3)
    assert move.bytes_between_brokers == 20


def test_a_new_order_of_replicas_moves_no_bytes() -> None:
    move = Move("t", 0, anywhere([1, 2]), anywhere([2, 1]), size_bytes=10)
    assert (move.adding_replicas, move.removing_replicas, move.bytes_between_brokers) == ((), (), 0)


def test_only_a_replica_that_stays_on_its_broker_moves_between_directories() -> None:
    before = Placement((1, 2, 3), ("/a", "/a", "/a"))
    move = Move("t", 0, before, Placement((1, 2, 3, 4), ("/b", "any", "/a", "/b")), size_bytes=10)
    assert move.log_dir_moves == {1: "/b"}
    assert (move.bytes_between_log_dirs, move.bytes_between_brokers) == (10, 10)


def test_a_plan_counts_what_each_broker_receives_and_sends() -> None:
    plan = Plan(
        (
            Move("t", 0, anywhere([1, 2]), anywhere([1, 3]), size_bytes=10),
            Move("t", 1, anywhere([1, 2]), anywhere([3, 4]), size_bytes=5, leader=2),
            Move("t", 2, anywhere([1, 2]), anywhere([2, 1]), size_bytes=7),
        )
    )
    assert plan.bytes_in == {3: 15, 4: 5}
    assert plan.bytes_out == {1: 10, 2: 10}
    assert plan.bytes_between_brokers == 20


def test_the_broker_with_most_to_receive_or_send_decides_how_long_a_plan_takes() -> None:
    plan = Plan((Move("t", 0, anywhere([1]), anywhere([2, 3]), size_bytes=10),))
    assert plan.duration_s(throttle_bytes_per_s=4) == 5.0
    assert Plan(()).duration_s(4) == 0.0
