"""Schedules of faults that hypothesis draws, and shrinks to the smallest that makes a test fail. Needs `hypothesis`.

    @given(schedule=fault_schedules(brokers=3, steps=20))
    @settings(deadline=None, max_examples=10)
    def test_no_record_is_lost(schedule):
        with schedule.on(cluster) as run:
            for number in range(20):
                run.step()
                producer.send(number)
        assert records() == list(range(20))

A schedule counts the steps of its test, not seconds, so it strikes at the same places in every run.

What must stay true:
- A drawn schedule leaves enough of the cluster: at most `max_down` brokers are down, paused or cut off at a time, and
  answers have only errors after which clients repeat their requests.
- When the `with` block ends, the cluster is whole, also after a failure.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Final, Literal, Protocol, get_args

from hypothesis import strategies as st

from klamm.faults.commands import Fault
from klamm.faults.commands.answers import DelayAnswers, DisconnectClients, FailAnswers
from klamm.faults.commands.network import CutLinks, DelayLinks
from klamm.testing.faults.faults import FaultHandle, Faults

Kind = Literal["servers", "answers", "network"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# Errors after which clients repeat the request by themselves.
RETRIABLE = {
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT"),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER",),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "OffsetCommit": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
    "OffsetFetch": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
    "InitProducerId": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
}
LONGEST_DELAY_MS = 300
MOST_TIMES = 3


class ClusterLike(Protocol):
    """The part of a Cluster that a schedule uses."""

    @property
    def faults(self) -> Faults: ...

    def kill(self, server: int) -> None: ...
    def stop(self, server: int) -> None: ...
    def start(self, server: int) -> None: ...
    def pause(self, server: int) -> None: ...
    def resume(self, server: int) -> None: ...
    def heal(self) -> None: ...


@dataclass(frozen=True)
class Kill:
    """kill -9; the broker starts again at the end."""

    broker: int


@dataclass(frozen=True)
class Stop:
    """A clean stop; the broker starts again at the end."""

    broker: int


@dataclass(frozen=True)
class Pause:
    """The process stops with SIGSTOP, and continues at the end."""

    broker: int


Trouble = Kill | Stop | Pause | Fault


@dataclass(frozen=True)
class Span:
    """A trouble that lasts from the step `begin` of the test until before the step `end`."""

    trouble: Trouble
    begin: int
    end: int

    def __repr__(self) -> str:
        # A fault has many fields; an example shows only those that differ from the default.
        changed = [
            f"{one.name}={value!r}"
            for one in fields(self.trouble)
            if (value := getattr(self.trouble, one.name)) != one.default
        ]
        trouble = f"{type(self.trouble).__name__}({', '.join(changed)})"
        return f"Span({trouble}, begin={self.begin}, end={self.end})"


@dataclass(frozen=True)
class Schedule:
    """Troubles and their steps. The first step is 0."""

    spans: tuple[Span, ...] = ()

    @contextmanager
    def on(self, cluster: ClusterLike) -> Iterator["Run"]:
        """Plays the schedule on a cluster, and heals the cluster when the block ends."""
        try:
            yield Run(self, cluster)
        finally:
            cluster.heal()


@dataclass
class Run:
    """One test's run of a schedule."""

    schedule: Schedule
    cluster: ClusterLike
    steps: int = 0
    """How many steps the test has begun."""
    _handles: dict[int, FaultHandle] = field(default_factory=dict)

    def step(self) -> None:
        """Ends the troubles that end at the test's next step, and begins those that begin there."""
        for number, span in enumerate(self.schedule.spans):
            if span.end == self.steps:
                self._end(number, span.trouble)
        for number, span in enumerate(self.schedule.spans):
            if span.begin == self.steps:
                self._begin(number, span.trouble)
        self.steps += 1

    def _begin(self, number: int, trouble: Trouble) -> None:
        match trouble:
            case Kill(broker):
                self.cluster.kill(broker)
            case Stop(broker):
                self.cluster.stop(broker)
            case Pause(broker):
                self.cluster.pause(broker)
            case _:
                self._handles[number] = self.cluster.faults.install(trouble)

    def _end(self, number: int, trouble: Trouble) -> None:
        match trouble:
            case Kill(broker) | Stop(broker):
                self.cluster.start(broker)
            case Pause(broker):
                self.cluster.resume(broker)
            case _:
                self._handles[number].remove()


def fault_schedules(
    *, brokers: int = 3, steps: int = 10, max_faults: int = 5, max_down: int = 1, kinds: Collection[Kind] = KINDS
) -> st.SearchStrategy[Schedule]:
    """Schedules for a cluster with `brokers` brokers and a test with `steps` steps.

    `kinds`: "servers" kills, stops and pauses brokers; "network" cuts single brokers off from the others or ZooKeeper,
    and delays clients; "answers" delays answers, loses them, or replaces them by errors. Raises ValueError.
    """
    _check("brokers", brokers, brokers >= 1, "at least 1")
    _check("steps", steps, steps >= 1, "at least 1")
    _check("max_faults", max_faults, max_faults >= 0, "at least 0")
    _check("max_down", max_down, 0 <= max_down <= brokers, f"from 0 to brokers={brokers}")
    unknown = [kind for kind in kinds if kind not in KINDS]
    _check("kinds", list(kinds), bool(kinds) and not unknown, ", ".join(KINDS))
    broker = st.integers(0, brokers - 1)
    troubles: dict[Kind, st.SearchStrategy[Trouble]] = {
        "servers": st.one_of(st.builds(Kill, broker), st.builds(Stop, broker), st.builds(Pause, broker)),
        "answers": _answers(),
        "network": _network(broker, brokers),
    }
    trouble = st.one_of([troubles[kind] for kind in KINDS if kind in kinds])
    spans = st.builds(_span, trouble, st.integers(0, steps - 1), st.integers(1, steps))
    return st.lists(spans, max_size=max_faults).map(lambda drawn: Schedule(_possible(drawn, max_down)))


def _span(trouble: Trouble, begin: int, length: int) -> Span:
    return Span(trouble, begin, begin + length)


def _answers() -> st.SearchStrategy[Trouble]:
    times = st.integers(1, MOST_TIMES)
    pairs = [(api, error) for api, errors in RETRIABLE.items() for error in errors]
    api = st.sampled_from(list(RETRIABLE))
    return st.one_of(
        st.builds(lambda pair, n: FailAnswers(api=pair[0], error=pair[1], times=n), st.sampled_from(pairs), times),
        st.builds(lambda api, after, n: DisconnectClients(api=api, after=after, times=n), api, st.booleans(), times),
        st.builds(
            lambda api, ms, n: DelayAnswers(api=api, delay_ms=ms, times=n), api, st.integers(1, LONGEST_DELAY_MS), times
        ),
    )


def _network(broker: st.SearchStrategy[int], brokers: int) -> st.SearchStrategy[Trouble]:
    places: list[Literal["zookeeper", "brokers"]] = ["zookeeper", "brokers"] if brokers > 1 else ["zookeeper"]
    return st.one_of(
        st.builds(
            lambda broker, place, one_way: CutLinks(one=(broker,), other=(place,), one_way=one_way),
            broker,
            st.sampled_from(places),
            st.booleans(),
        ),
        st.builds(lambda ms: DelayLinks(one=("clients",), other=("brokers",), ms=ms), st.integers(1, LONGEST_DELAY_MS)),
    )


def _possible(spans: Sequence[Span], max_down: int) -> tuple[Span, ...]:
    """The spans, without those that together with earlier spans would take down too much of the cluster."""
    kept: list[Span] = []
    for span in spans:
        broker = _down(span.trouble)
        if broker is not None:
            others = [other for other in kept if _down(other.trouble) is not None and _overlap(span, other)]
            if any(_down(other.trouble) == broker for other in others) or not _leaves_enough(span, others, max_down):
                continue
            if any(_starts_during(span, other) or _starts_during(other, span) for other in others):
                continue
        kept.append(span)
    return tuple(kept)


def _leaves_enough(span: Span, others: Sequence[Span], max_down: int) -> bool:
    """Whether no step has more than `max_down` of these spans."""
    return all(
        1 + sum(other.begin <= step < other.end for other in others) <= max_down for step in range(span.begin, span.end)
    )


def _starts_during(one: Span, cut: Span) -> bool:
    """Whether a broker is to start while another one is cut off: its start would wait until both know each other."""
    starts = isinstance(one.trouble, Kill | Stop)
    return starts and isinstance(cut.trouble, CutLinks) and cut.begin < one.end <= cut.end


def _overlap(one: Span, other: Span) -> bool:
    return one.begin < other.end and other.begin < one.end


def _down(trouble: Trouble) -> int | None:
    """The broker that other brokers or clients cannot reach because of this trouble, if any."""
    match trouble:
        case Kill(broker) | Stop(broker) | Pause(broker):
            return broker
        case CutLinks():
            return next(place for place in trouble.one if isinstance(place, int))
    return None


def _check(name: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise ValueError(f"{name}={value!r} is not allowed; allowed: {allowed}")
