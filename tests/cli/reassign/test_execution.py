"""A reassignment on a cluster in memory: limits, dead brokers, changes by others, and a death at any step."""

import asyncio
import contextlib
import os
import selectors
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from klamm.cli.reassign.execution import CONFIGS_CHECKED_EVERY_S, Execution, Options, Outcome
from klamm.cli.reassign.json_form import format_reassignment
from klamm.cli.reassign.operations import restore_order
from klamm.cli.reassign.options import ExecuteOptions, Reached
from klamm.cli.reassign.planning.model import Move, Placement, anywhere
from klamm.cli.reassign.running import run_plan, state_of
from klamm.cli.reassign.setting_throttles import LOOKS_EVERY_S, restore_throttles
from klamm.cli.reassign.state_file import Record, StateFile
from klamm.cli.reassign.steps import Limits
from klamm.cli.reassign.throttles import ConfigKey
from klamm.config.throttles import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from support.reassigned_cluster import SIZE_BYTES, Killed, ReassignedCluster, SteppedStateFile, Steps

pytestmark = pytest.mark.loop("virtual")

SOMEBODYS = {
    ConfigKey("brokers/1", LEADER_RATE): "5555",
    ConfigKey("topics/t", LEADER_REPLICAS): "9:1",
}


def partition(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def move(number: int, before: tuple[int, ...], after: tuple[int, ...], log_dirs: tuple[str, ...] = ()) -> Move:
    target = Placement(after, log_dirs) if log_dirs else anywhere(after)
    return Move("t", number, anywhere(before), target, SIZE_BYTES, before[0])


MOVES = (move(0, (1, 2), (2, 3)), move(1, (2, 3), (3, 1)), move(2, (3, 1), (1, 2)))


def cluster_for(moves: tuple[Move, ...], brokers: tuple[int, ...] = (1, 2, 3)) -> ReassignedCluster:
    return ReassignedCluster(brokers, {each.topic_partition: each.before.replicas for each in moves})


class Run:
    """An execution on a cluster; `events` are all that it has reported."""

    def __init__(
        self, directory: Path, cluster: ReassignedCluster, moves: tuple[Move, ...], name: str = "plan", **record: Any
    ) -> None:
        self.cluster, self.events = cluster, list[dict[str, Any]]()
        self.file = StateFile(directory / f"{name}.state.json")
        ids = {"t": str(cluster.topic_ids["t"])}
        self.file.save(Record("rollback", "fake", moves, ids, **record))

    async def go(self, limits: Limits = Limits(), timeout_ms: int = 20_000) -> Outcome:  # noqa: B008
        file = SteppedStateFile(self.file.path, self.cluster.steps)
        return await Execution(self.cluster, file, Options(limits, timeout_ms), self.events.append).run()

    def named(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]


async def test_partitions_move_and_the_throttle_goes(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    cluster.configs = dict(SOMEBODYS)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)
    outcome = await run.go()
    assert outcome.is_complete
    assert cluster.replicas == {partition(0): (2, 3), partition(1): (3, 1), partition(2): (1, 2)}
    assert cluster.configs == SOMEBODYS
    assert not run.file.exists()
    start = next(index for index, each in enumerate(cluster.history) if each.startswith("start"))
    assert cluster.history[:start] == [
        f"topics/t {FOLLOWER_REPLICAS}=0:3,1:1,2:2",
        f"topics/t {LEADER_REPLICAS}=0:1,0:2,1:2,1:3,2:1,2:3,9:1",
        f"brokers/1 {LEADER_RATE}=1000",
        f"brokers/1 {FOLLOWER_RATE}=1000",
        f"brokers/2 {LEADER_RATE}=1000",
        f"brokers/2 {FOLLOWER_RATE}=1000",
        f"brokers/3 {LEADER_RATE}=1000",
        f"brokers/3 {FOLLOWER_RATE}=1000",
    ]
    assert [each["event"] for each in run.events if each["event"] != "progress"] == [
        "throttle_set",
        "started",
        "completed",
        "completed",
        "completed",
        "config_restored",
        "config_restored",
        "throttle_removed",
    ]
    assert run.named("progress")[-1]["moved_bytes"] > 0
    assert run.named("progress")[-1]["total_bytes"] == 3 * SIZE_BYTES


async def test_no_more_than_the_batch_moves_at_a_broker(tmp_path: Path) -> None:
    moves = tuple(move(number, (1,), (2,)) for number in range(6))
    cluster = cluster_for(moves)
    outcome = await Run(tmp_path, cluster, moves).go(Limits(partitions=2))
    assert outcome.is_complete
    assert cluster.most_moving[2] == 2
    cluster = cluster_for(moves)
    assert (await Run(tmp_path, cluster, moves).go(Limits(size_bytes=3 * SIZE_BYTES))).is_complete
    assert cluster.most_moving[2] == 3


async def test_a_dead_target_is_reported_and_the_others_move(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    cluster.live = {1, 2}
    cluster.replicas[partition(2)] = (2, 1)
    moves = (MOVES[0], move(2, (2, 1), (1, 2)))
    run = Run(tmp_path, cluster, moves, throttle=1000)
    outcome = await run.go()
    assert outcome.done == (partition(2),)
    assert outcome.unfinished == {"t-0": "broker 3 is not alive"}
    assert run.named("waiting")[0]["partition"] == "t-0"
    assert not outcome.throttles_left
    assert cluster.configs == {}, "nothing of the plan is moving"
    cluster.live.add(3)
    assert (await run.go()).is_complete
    assert cluster.replicas[partition(0)] == (2, 3)
    assert cluster.configs == {}


async def test_a_broker_that_dies_keeps_its_partition_waiting_under_the_throttle(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)

    def die() -> None:
        if partition(0) in cluster.targets:
            cluster.live.discard(3)

    cluster.on_look = die
    outcome = await run.go(Limits(partitions=1))
    assert "t-0" in outcome.unfinished
    assert outcome.throttles_left
    assert run.file.exists()
    cluster.on_look = lambda: None
    cluster.live.add(3)
    assert (await run.go()).is_complete
    assert cluster.configs == {}


CHANGES: dict[str, tuple[Callable[[ReassignedCluster], object], str]] = {
    "deleted": (lambda c: c.replicas.pop(partition(1)), "the partition no longer exists"),
    "moved": (lambda c: c.replicas.update({partition(1): (1, 3)}), "another client has changed its replicas to 1,3"),
    "moving": (lambda c: c.targets.update({partition(1): (1, 9)}), "another client moves it to 1,9"),
    "created again": (
        lambda c: c.topic_ids.update({"t": type(c.topic_ids["t"])(int=7)}),
        "the topic was deleted and created again",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_somebody_else_changes_before_its_turn_is_not_overwritten(tmp_path: Path, change: str) -> None:
    moves = (move(0, (1,), (2,)), move(1, (1,), (2,)))
    cluster = cluster_for(moves)
    run = Run(tmp_path, cluster, moves, throttle=1000)
    act, reason = CHANGES[change]

    def once() -> None:
        if cluster.targets.keys() == {partition(0)}:
            cluster.on_look = lambda: None
            act(cluster)

    cluster.on_look = once
    outcome = await run.go(Limits(partitions=1))
    assert outcome.failed["t-1"] == reason
    assert run.named("changed")[0]["partition"] in ("t-0", "t-1")
    assert not any("t-1" in each for each in cluster.history if each.startswith("start"))
    assert cluster.configs == {}
    assert not run.file.exists()


async def test_a_reassignment_that_somebody_else_cancels_is_not_begun_again(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    run = Run(tmp_path, cluster, MOVES)

    def cancel() -> None:
        if len(cluster.targets) == 3:
            cluster.on_look = lambda: None
            cluster.targets.pop(partition(1))

    cluster.on_look = cancel
    outcome = await run.go()
    assert outcome.failed == {"t-1": "another client has cancelled its reassignment"}
    assert outcome.done == (partition(0), partition(2))


async def test_when_somebody_cancels_all_reassignments_nothing_more_begins(tmp_path: Path) -> None:
    """`klamm reassign cancel --all`, and Kafka's tool, know no more than what is moving."""
    moves = tuple(move(number, (1,), (2,)) for number in range(6))
    cluster = cluster_for(moves)
    run = Run(tmp_path, cluster, moves, throttle=1000)

    def cancel_all() -> None:
        if cluster.copied and cluster.targets:
            cluster.on_look = lambda: None
            cluster.targets.clear()
            cluster.copied.clear()

    cluster.on_look = cancel_all
    outcome = await run.go(Limits(partitions=2))
    assert cluster.targets == {}
    assert sum(each.startswith("start") for each in cluster.history) == 1
    assert outcome.failed.keys() == {"t-0", "t-1"}
    assert set(outcome.unfinished.values()) == {
        "another client has cancelled a partition of this plan, so nothing more begins"
    }
    assert min(each["bytes_per_s"] for each in run.named("progress")) == 0
    assert cluster.configs == {}
    assert (await run.go(Limits(partitions=2))).is_complete, "an operator resumes it"


async def test_a_throttle_that_somebody_else_sets_meanwhile_stays(tmp_path: Path) -> None:
    moves = tuple(move(number, (1,), (2,)) for number in range(9))
    cluster = cluster_for(moves)
    run = Run(tmp_path, cluster, moves, throttle=1000)

    def set_other() -> None:
        if cluster.targets:
            cluster.on_look = lambda: None
            cluster.configs[ConfigKey("brokers/2", LEADER_RATE)] = "77"

    cluster.on_look = set_other
    assert (await run.go(Limits(partitions=2))).is_complete
    assert cluster.configs == {ConfigKey("brokers/2", LEADER_RATE): "77"}
    assert [(each["entity"], each["value"]) for each in run.named("config_changed")] == [("brokers/2", "77")]


async def test_a_broker_that_is_behind_the_controller_is_not_taken_for_another_client(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    cluster.views_are_old_for_s = 15
    run = Run(tmp_path, cluster, MOVES)
    outcome = await run.go()
    assert outcome.failed == {}
    assert outcome.is_complete
    assert run.named("waiting") == []


async def test_a_throttle_that_somebody_else_deletes_meanwhile_is_set_again_and_is_gone_at_the_end(
    tmp_path: Path,
) -> None:
    moves = tuple(move(number, (1,), (2,)) for number in range(9))
    cluster = cluster_for(moves)
    key = ConfigKey("brokers/1", LEADER_RATE)
    cluster.configs = {key: "5555"}
    run = Run(tmp_path, cluster, moves, throttle=1000)

    def delete() -> None:
        if cluster.targets:
            cluster.on_look = lambda: None
            del cluster.configs[key]
            del cluster.configs[ConfigKey("brokers/2", FOLLOWER_RATE)]

    cluster.on_look = delete
    assert (await run.go(Limits(partitions=2))).is_complete
    assert cluster.configs == {}
    assert [each["entities"] for each in run.named("throttle_set_again")] == [["brokers/1", "brokers/2"]]
    assert run.named("config_changed") == []


async def test_two_executions_with_the_same_throttle_leave_none_behind(tmp_path: Path) -> None:
    """The second one records the first one's throttle as the former value."""
    moves = tuple(move(number, (1,), (2,)) for number in range(6))
    cluster = cluster_for(moves)
    runs = []
    for name, some in (("first", moves[:1]), ("second", moves[1:])):
        (tmp_path / name).mkdir()
        runs.append(Run(tmp_path / name, cluster, some, throttle=1000))
    first = asyncio.create_task(runs[0].go())
    await asyncio.sleep(0.5)
    assert cluster.configs
    assert (await runs[1].go(Limits(partitions=1))).is_complete
    assert (await first).is_complete
    assert cluster.configs == {}
    assert runs[1].named("throttle_set_again"), "the first one took the throttle away under the second"


@pytest.mark.parametrize("is_first_shorter", [True, False])
async def test_two_executions_with_different_throttles_leave_none_behind(
    tmp_path: Path, is_first_shorter: bool
) -> None:
    """Whichever ends first: the second one has found the first one's rate on the brokers."""
    moves = tuple(move(number, (1,), (2,)) for number in range(6))
    cluster = cluster_for(moves)
    cluster.configs = dict(SOMEBODYS)
    parts = (moves[:1], moves[1:]) if is_first_shorter else (moves[:5], moves[5:])
    runs = [
        Run(tmp_path, cluster, some, name, throttle=rate)
        for name, some, rate in zip(("first", "second"), parts, (1000, 2000), strict=True)
    ]
    (tmp_path / "another.state.json").write_text("{}")
    first = asyncio.create_task(runs[0].go(Limits(partitions=1)))
    await asyncio.sleep(0.5)
    assert cluster.configs[ConfigKey("brokers/1", LEADER_RATE)] == "1000"
    assert (await runs[1].go(Limits(partitions=1))).is_complete
    assert (await first).is_complete
    assert cluster.configs == SOMEBODYS


async def test_a_throttle_from_before_is_named_when_it_is_restored(tmp_path: Path) -> None:
    """It may be one that another execution has left behind."""
    cluster = cluster_for(MOVES)
    cluster.configs = dict(SOMEBODYS)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)
    assert (await run.go()).is_complete
    assert {ConfigKey(each["entity"], each["config"]): each["value"] for each in run.named("config_restored")} == (
        SOMEBODYS
    )


@pytest.mark.parametrize("is_reachable", [True, False])
async def test_a_throttle_of_a_dead_broker_is_restored_where_its_configs_can_be_written(
    tmp_path: Path, is_reachable: bool
) -> None:
    cluster = cluster_for(MOVES)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)

    def die() -> None:
        if cluster.targets.keys() == {partition(2)}:
            cluster.live.discard(3)

    cluster.on_look = die
    outcome = await run.go(Limits(partitions=1))
    assert len(outcome.done) == 3 - len(outcome.unfinished)
    cluster.targets.clear()
    if is_reachable:
        cluster.dead_but_configurable.add(3)
    left = await restore_throttles(cluster, run.file, run.events.append)
    assert left == ({} if is_reachable else {"brokers/3": "the broker is not alive"})
    assert bool(cluster.configs) is not is_reachable


async def test_another_command_changes_the_throttle_of_a_running_execution(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    cluster.configs = dict(SOMEBODYS)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)
    rates: list[str] = []

    def look() -> None:
        rate = cluster.configs[ConfigKey("brokers/1", LEADER_RATE)]
        if cluster.targets and rate == "1000" and rates[-1] != "1000":
            run.file.change(lambda record: replace(record, throttle=2000))
        rates.append(rate)

    cluster.on_look = look
    assert (await run.go()).is_complete
    assert list(dict.fromkeys(rates)) == ["5555", "1000", "2000"]
    assert cluster.configs == SOMEBODYS


async def test_brokers_show_the_former_values_before_an_execution_ends(tmp_path: Path) -> None:
    """The next execution would take a throttle that a broker still shows for another client's, and restore it."""
    cluster = cluster_for(MOVES)
    cluster.configs_shown_after_s = 2.0
    assert (await Run(tmp_path, cluster, MOVES, throttle=1000).go()).is_complete
    back = tuple(move(each.partition, each.after.replicas, each.before.replicas) for each in MOVES)
    assert (await Run(tmp_path, cluster, back, throttle=2000).go()).is_complete
    assert cluster.configs == {}


@pytest.mark.parametrize(("silent_s", "is_waited_for"), [(20, True), (60, False)])
async def test_a_cluster_without_a_controller_is_waited_for(
    tmp_path: Path, silent_s: float, is_waited_for: bool
) -> None:
    cluster = cluster_for(MOVES)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)
    clock = asyncio.get_running_loop().time
    began_s = clock()

    def look() -> None:
        if any(each.startswith("start") for each in cluster.history) and clock() < began_s + silent_s:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller")

    cluster.on_look = look
    if is_waited_for:
        assert (await run.go(timeout_ms=1_000)).is_complete
    else:
        with pytest.raises(ToolError, match="the cluster does not answer: NOT_CONTROLLER"):
            await run.go(timeout_ms=1_000)
        assert run.file.exists()


async def test_another_command_ends_a_running_execution(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    run = Run(tmp_path, cluster, MOVES, throttle=1000)

    def cancel() -> None:
        if cluster.targets:
            run.file.change(lambda record: replace(record, is_cancelled=True))

    cluster.on_look = cancel
    with pytest.raises(ToolError, match="the reassignment was cancelled by another command"):
        await run.go(Limits(partitions=1))
    assert sum(each.startswith("start") for each in cluster.history) == 1


async def test_a_cancelled_execution_gives_partitions_their_former_order(tmp_path: Path) -> None:
    """Also when the first cancel was killed after the brokers had done their part."""
    moves = (*MOVES, move(3, (1, 2), (2, 1)), move(4, (1, 2), (2, 3)))
    cluster = cluster_for(moves)
    run = Run(tmp_path, cluster, moves)
    as_brokers_leave_it = {0: (2, 1), 1: (3, 2), 2: (1, 2), 3: (2, 1), 4: (9, 8)}
    cluster.replicas = {partition(number): replicas for number, replicas in as_brokers_leave_it.items()}
    assert await restore_order(cluster, run.file.load()) == {}
    # Partition 2 has moved, 3 was only to be reordered, and 4 is another client's.
    assert cluster.targets == {partition(0): (1, 2), partition(1): (2, 3)}
    # No order is restored in a topic that is to be deleted; every other refusal is a problem.
    cluster.targets = {}
    cluster.refusals = {
        partition(0): KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        partition(1): KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    }
    assert list(await restore_order(cluster, run.file.load())) == [str(partition(1))]


async def test_a_partition_that_is_added_is_noticed(tmp_path: Path) -> None:
    cluster = cluster_for(MOVES)
    run = Run(tmp_path, cluster, MOVES)
    cluster.on_look = lambda: cluster.replicas.update({partition(7): (1, 2)} if cluster.targets else {})
    assert (await run.go()).is_complete
    assert run.named("partitions_added") == [{"event": "partitions_added", "topic": "t", "partitions": [7]}]


@pytest.mark.parametrize(
    ("code", "result"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "failed"), (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "unfinished")],
)
async def test_a_partition_that_the_controller_refuses(tmp_path: Path, code: ErrorCode, result: str) -> None:
    cluster = cluster_for(MOVES)
    cluster.refusals[partition(1)] = KafkaError(code, "no")
    outcome = await Run(tmp_path, cluster, MOVES, throttle=5).go()
    assert outcome.done == (partition(0), partition(2))
    assert getattr(outcome, result) == {"t-1": f"{code.name} ({code.value}): no"}
    assert cluster.configs == {}


async def test_log_directories_are_asked_for_before_and_after_the_move(tmp_path: Path) -> None:
    moves = (move(0, (1, 2), (2, 3), ("/fast", "/fast")),)
    cluster = cluster_for(moves)
    run = Run(tmp_path, cluster, moves, log_dir_throttle=70)
    assert (await run.go()).is_complete
    moves_ = [each for each in cluster.history if each.startswith(("move", "start"))]
    assert moves_ == [
        "move t-0-2 to /fast",
        "move t-0-3 to /fast",
        "start t-0",
        "move t-0-2 to /fast",
        "move t-0-3 to /fast",
    ]
    assert cluster.configs == {}
    assert {each["replica"] for each in run.named("log_dir_completed")} == {"t-0-2", "t-0-3"}


async def test_bytes_between_log_directories_are_progress(tmp_path: Path) -> None:
    moves = (
        replace(move(0, (1, 2), (1, 2), ("/fast", "any")), before=Placement((1, 2), ("/data", "any"))),
        move(1, (1,), (2,)),
    )
    cluster = cluster_for(moves)
    cluster.log_dirs_take_s = 2.0
    run = Run(tmp_path, cluster, moves)
    assert (await run.go()).is_complete
    progress = [(each["moved_bytes"], each["total_bytes"]) for each in run.named("progress")]
    assert {total for _, total in progress} == {2 * SIZE_BYTES}
    assert progress == sorted(progress)
    assert progress[-1][0] > SIZE_BYTES


# -- a death, and another operator, at any step -----------------------------------------------------------------------

ALL_MOVES = (*MOVES, move(3, (1, 2), (1, 2), ("/fast", "any")))
OPTIONS = ExecuteOptions(
    throttle=1000,
    log_dir_throttle=50,
    batch_size=1,
    batch_bytes=None,
    timeout_ms=20_000,
    no_wait=False,
    yes=True,
)
NO_OPTIONS = replace(OPTIONS, throttle=None, log_dir_throttle=None, batch_size=None)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Waiting takes no time, as on the simulator's loop; but a command runs one coroutine after the other."""
    clock = SkippingSelector()
    with contextlib.closing(asyncio.SelectorEventLoop(clock)) as made:
        made.time = lambda: clock.now_s
        yield made


class SkippingSelector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now_s += timeout or 0
        return super().select(0)


class Operator:
    """`klamm reassign execute` on a cluster in memory, from the plan's file on. It stands for `Reached`."""

    zookeeper, as_json = None, True

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.plan = cluster_for(ALL_MOVES), directory / "plan.json"
        self.cluster.configs = dict(SOMEBODYS)
        self.cluster.bytes_per_s = 20
        self.plan.write_text(format_reassignment({each.topic_partition: each.after for each in ALL_MOVES}))
        self.state = state_of(self.plan)
        self._loop = loop
        monkeypatch.setattr("klamm.cli.reassign.running.state_of", self._stepped)
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def _stepped(self, plan: Path) -> StateFile:
        return SteppedStateFile(state_of(plan).path, self.cluster.steps)

    def with_access(self, work: Callable[[ReassignedCluster], Any], *, looks_again: bool = False) -> Any:
        return self._loop.run_until_complete(work(self.cluster))

    def execute(self, options: ExecuteOptions, *, resume: bool = False) -> None:
        run_plan(cast(Reached, self), self.plan, options, additional=False, resume=resume)

    def end(self) -> None:
        """A process was killed, if it is not done: another one goes on, told nothing but that it shall."""
        if self.state.exists():
            self.execute(NO_OPTIONS, resume=True)
        elif not self.cluster.history:
            self.execute(OPTIONS)
        self.with_access(lambda cluster: cluster.look(None))

    def problems(self, who: str | None = None, at: int | None = None) -> list[str]:
        """What is wrong in the end, after `who` has acted before step `at`."""
        cluster = self.cluster
        noticed_s = 3 * LOOKS_EVERY_S if who in (None, "verifies") else 2 * LOOKS_EVERY_S + CONFIGS_CHECKED_EVERY_S
        # What is read is what counts until the batch begins: it is recorded, set, announced, and begun.
        unnoticed = range(0 if at is None else at, 0 if at is None else at + STEPS_OF_A_BATCH)
        found = {
            "a batch began without its throttle": set(cluster.started_unthrottled) - set(unnoticed),
            "a copy ran without a throttle": cluster.longest_unthrottled_s > noticed_s,
            "more moved than the batch size allows": max(cluster.most_moving.values()) > 1,
            "it did not finish": {each.topic_partition: each.after.replicas for each in ALL_MOVES} != cluster.replicas,
            "something moves": cluster.targets,
            "the record is left": self.state.exists(),
            "a throttle is left": not cluster.configs.items() <= SOMEBODYS.items() | OTHERS.items(),
            "another client's throttle is lost": who is None and cluster.configs != SOMEBODYS,
        }
        return [problem for problem, is_so in found.items() if is_so]


STEPS_OF_A_BATCH = 4

# What another operator does, who knows nothing of this execution.
OTHERS = {
    **{ConfigKey(f"brokers/{broker}", name): "777" for broker in (1, 2, 3) for name in (LEADER_RATE, FOLLOWER_RATE)},
    ConfigKey("topics/t", LEADER_REPLICAS): "8:1",
    ConfigKey("topics/t", FOLLOWER_REPLICAS): "8:3",
}


def verify_as_kafka(cluster: ReassignedCluster) -> None:
    """`kafka-reassign-partitions --verify` deletes every throttle while nothing moves."""
    if not cluster.targets:
        cluster.configs.clear()


MEDDLERS: dict[str, Callable[[ReassignedCluster], object]] = {
    "verifies": verify_as_kafka,
    "deletes": lambda cluster: cluster.configs.clear(),
    "executes": lambda cluster: cluster.configs.update(OTHERS),
}


def meddle(cluster: ReassignedCluster, who: str, at: int) -> Callable[[int], None]:
    def on_step(number: int) -> None:
        if number == at:
            MEDDLERS[who](cluster)

    return on_step


def steps_of_a_whole_run() -> int:
    """More steps than a run takes: those beyond its end are no death."""
    return 16


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kill_at", range(steps_of_a_whole_run()))
def test_after_a_death_at_any_step_a_resumed_execution_finishes(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, kill_at: int, is_done: bool
) -> None:
    operator = Operator(tmp_path, loop, monkeypatch)
    operator.cluster.steps = Steps(kill_at, is_done=is_done)
    with contextlib.suppress(Killed):
        operator.execute(OPTIONS)
    operator.cluster.steps = Steps()
    operator.end()
    assert operator.problems() == []


@pytest.mark.parametrize("who", MEDDLERS)
@pytest.mark.parametrize("at", range(steps_of_a_whole_run()))
def test_whatever_another_operator_does_at_any_step_no_copy_stays_without_a_throttle(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, who: str, at: int
) -> None:
    operator = Operator(tmp_path, loop, monkeypatch)
    operator.cluster.steps = Steps(on_step=meddle(operator.cluster, who, at))
    operator.execute(OPTIONS)
    operator.with_access(lambda cluster: cluster.look(None))
    assert operator.problems(who, at) == []


@pytest.mark.long
@pytest.mark.parametrize("who", MEDDLERS)
@pytest.mark.parametrize("kill_at", range(steps_of_a_whole_run()))
def test_whatever_another_operator_does_between_a_death_and_any_step_of_the_next_process(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, who: str, kill_at: int
) -> None:
    for at in range(steps_of_a_whole_run()):
        directory = tmp_path / str(at)
        directory.mkdir()
        operator = Operator(directory, loop, monkeypatch)
        operator.cluster.steps = Steps(kill_at)
        with contextlib.suppress(Killed):
            operator.execute(OPTIONS)
        operator.cluster.steps = Steps(on_step=meddle(operator.cluster, who, at))
        operator.end()
        assert operator.problems(who, at) == [], at


def test_the_deaths_cover_every_step_of_a_run(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(tmp_path, loop, monkeypatch)
    operator.execute(OPTIONS)
    assert steps_of_a_whole_run() - 4 <= operator.cluster.steps.count <= steps_of_a_whole_run()
