"""Compares what both clusters show after each step of a scenario.

Leader epochs and the controller epochs of decisions are compared, too, though klamm begins leader epochs that Kafka does
not begin (`known.may_begin_epoch`): klamm's epoch of a partition is Kafka's and the number of these so far, which never
falls and rises only in a step for which `known.py` names a reason.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from support.both_controllers import known
from support.both_controllers.observations import STOP_REPLICA, Observation, State
from support.both_controllers.steps import FAILOVERS, Step

K = TypeVar("K", bound=Hashable)

EPOCHS = ("leader_epoch", "zk_version", "controller_epoch")


class Difference(NamedTuple):
    """`where` names what differs, with what each side shows there. `reason` if it is known."""

    where: str
    kafka: Any
    klamm: Any
    reason: str = ""

    @property
    def signature(self) -> str:
        """What differences have in common that have one cause: the kind of thing that differs."""
        return self.where.partition(":")[0]

    def __str__(self) -> str:
        reason = f"\n      known: {self.reason}" if self.reason else ""
        return f"{self.where}\n      Kafka: {self.kafka}\n      klamm: {self.klamm}{reason}"


class Comparison:
    """Of one scenario; `compare` is called for each step in order."""

    def __init__(self) -> None:
        # How many epochs klamm has begun that Kafka has not, for each partition.
        self._begun: dict[str, int] = {}
        self._before: Observation | None = None
        self.reasons: dict[str, int] = {}

    def compare(self, step: Step, kafka: Observation, klamm: Observation) -> list[Difference]:
        found: list[Difference] = []
        self._step, self._found = step, found
        self._allowed = known.epochs_begun(step, self._before) if self._before is not None else {}
        self._now: dict[str, int] = {}
        self._equal("answers", kafka.answers, klamm.answers)
        for path in sorted(kafka.znodes.keys() | klamm.znodes.keys()):
            self._znode(path, kafka.znodes.get(path), klamm.znodes.get(path))
        for broker_id in sorted(kafka.live.keys() | klamm.live.keys()):
            self._equal(f"live brokers: told to {broker_id}", kafka.live.get(broker_id), klamm.live.get(broker_id))
        if step.kind not in FAILOVERS:
            for heard in sorted(kafka.told.keys() | klamm.told.keys()):
                broker_id, kind, partition = heard
                where = f"{kind}: states of {partition} told to {broker_id}"
                self._states(where, kind, partition, kafka.told.get(heard, []), klamm.told.get(heard, []))
        for heard in sorted(kafka.last.keys() | klamm.last.keys()):
            broker_id, kind, partition = heard
            where = f"last {kind}: of {partition} told to {broker_id}"
            ends = [[side.last[heard]] if heard in side.last else [] for side in (kafka, klamm)]
            self._states(where, kind, partition, *ends)
        for partition in {heard[2] for heard in kafka.last} | set(self._now):
            if f"/brokers/topics/{partition.rpartition('-')[0]}" not in kafka.znodes:
                self._now.pop(partition, None)
                self._begun.pop(partition, None)
        self._begun.update(self._now)
        self._before = kafka
        return found

    def _equal(self, where: str, kafka: Any, klamm: Any) -> None:
        if kafka != klamm:
            self._found.append(Difference(where, kafka, klamm))

    def _znode(self, path: str, kafka: Any, klamm: Any) -> None:
        parts = path.split("/")
        if parts[-1] == "state" and isinstance(kafka, dict) and isinstance(klamm, dict):
            partition = f"{parts[3]}-{parts[5]}"
            self._states(f"znode state: {path}", "state", partition, [kafka], [klamm])
            self._now[partition] = klamm["leader_epoch"] - kafka["leader_epoch"]
        else:
            self._equal(f"znode {known.kind_of_path(path)}: {path}", kafka, klamm)

    def _states(self, where: str, kind: str, partition: str, kafka: list[State], klamm: list[State]) -> None:
        if [_without_epochs(state) for state in kafka] != [_without_epochs(state) for state in klamm]:
            self._found.append(Difference(where, kafka, klamm))
            return
        before = self._begun.get(partition, 0)
        most = before + len(self._allowed.get(partition, ()))
        for old, new in zip(kafka, klamm, strict=True):
            begun = new["leader_epoch"] - old["leader_epoch"] if old["leader_epoch"] >= 0 else 0
            is_explained = before <= begun <= most if old["leader_epoch"] >= 0 else old == new
            if begun or before:
                # A write for each epoch.
                is_explained &= new.get("controller_epoch", 0) >= old.get("controller_epoch", 0)
            else:
                is_explained &= new.get("controller_epoch") == old.get("controller_epoch")
            if not is_explained:
                self._found.append(Difference(f"epochs in {where}", old, new))
                return
            if begun > before:
                for reason in self._allowed[partition]:
                    self.reasons[reason] = self.reasons.get(reason, 0) + 1


def _without_epochs(state: State) -> State:
    return {name: value for name, value in state.items() if name not in EPOCHS}
