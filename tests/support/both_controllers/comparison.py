"""Compares what both clusters show after each step of a scenario.

Leader epochs, the versions of states and the controller epochs of decisions are compared, too, though klamm begins
leader epochs that Kafka does not begin: klamm's epoch of a partition is Kafka's and the number of these so far, which
never falls and rises only in a step for which `known.EPOCH_RULES` have a reason.
"""

from typing import Any, NamedTuple

from support.both_controllers import known
from support.both_controllers.observations import Heard, Observation, State
from support.both_controllers.steps import FAILOVERS, Step

EPOCHS = ("leader_epoch", "zk_version", "controller_epoch")


class Difference(NamedTuple):
    """`where` names what differs, with what each side shows there."""

    where: str
    kafka: Any
    klamm: Any

    @property
    def signature(self) -> str:
        """What differences have in common that have one cause: the kind of thing that differs."""
        return self.where.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.where}\n      Kafka: {self.kafka}\n      klamm: {self.klamm}"


class Comparison:
    """Of one scenario; `compare` is called for each step in order."""

    def __init__(self) -> None:
        # How many epochs klamm has begun that Kafka has not, for each partition.
        self._begun: dict[str, int] = {}
        self._before: Observation | None = None
        self._last: dict[Heard, tuple[State | None, State | None]] = {}
        self._klamm_states: dict[str, State | None] = {}
        self._returned: dict[str, frozenset[int]] = {}
        # How often each known reason applied, and the one after which both clusters are in different states.
        self.reasons: dict[str, int] = {}
        self.ended_by = ""

    def compare(self, step: Step, kafka: Observation, klamm: Observation) -> list[Difference]:
        found: list[Difference] = []
        self._step, self._found = step, found
        before = kafka if self._before is None else self._before
        case = known.Case(step, before, kafka, self._returned)
        self._allowed = known.epochs_begun(case)
        self._now: dict[str, int] = {}
        self._equal("answers", kafka.answers, klamm.answers)
        for path in sorted(kafka.znodes.keys() | klamm.znodes.keys()):
            self._znode(path, kafka.znodes.get(path), klamm.znodes.get(path))
        for broker_id in sorted(kafka.live.keys() | klamm.live.keys()):
            self._equal(f"live brokers: told to {broker_id}", kafka.live.get(broker_id), klamm.live.get(broker_id))
        # klamm stops replicas that a reassignment takes back before it changes the assignment, Kafka afterwards.
        ends_only = known.superseded(case)
        if step.kind not in FAILOVERS:
            for heard in sorted(kafka.told.keys() | klamm.told.keys()):
                broker_id, kind, partition = heard
                if partition in ends_only:
                    continue
                where = f"{kind}: states of {partition} told to {broker_id}"
                self._states(where, kind, partition, kafka.told.get(heard, []), klamm.told.get(heard, []))
        for heard in sorted(kafka.last.keys() | klamm.last.keys()):
            broker_id, kind, partition = heard
            if self._last.get(heard) == (kafka.last.get(heard), klamm.last.get(heard)):
                continue  # Compared when it was told.
            where = f"last {kind}: of {partition} told to {broker_id}"
            ends = [[side.last[heard]] if heard in side.last else [] for side in (kafka, klamm)]
            self._states(where, kind, partition, *ends)
        for partition in {heard[2] for heard in kafka.last} | set(self._now):
            if f"/brokers/topics/{partition.rpartition('-')[0]}" not in kafka.znodes:
                self._now.pop(partition, None)
                self._begun.pop(partition, None)
        self._begun.update(self._now)
        self._before = kafka
        self._last = {heard: (kafka.last.get(heard), klamm.last.get(heard)) for heard in kafka.last | klamm.last}
        self._note_returned(step, klamm)
        return self._unknown(case, found)

    def _unknown(self, case: known.Case, found: list[Difference]) -> list[Difference]:
        unknown = []
        for difference in found:
            rule = next((rule for rule in known.DIFFERENCES if rule.applies(case, *difference)), None)
            if rule is None:
                unknown.append(difference)
                continue
            self._count(rule.reason)
            if rule.ends:
                self.ended_by = rule.reason
        return [] if self.ended_by else unknown

    def _count(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def _note_returned(self, step: Step, klamm: Observation) -> None:
        states = {partition: klamm.state(partition) for partition in klamm.replicas()}
        back = frozenset(step.arguments[:1] if step.kind in ("start", "bounce") else ())
        self._returned = {
            partition: self._returned.get(partition, frozenset()) | back
            for partition, state in states.items()
            if state == self._klamm_states.get(partition)
        }
        self._klamm_states = states

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
            if "zk_version" in old:
                is_explained &= new["zk_version"] - old["zk_version"] == begun  # A write for each epoch.
            if begun or before:
                is_explained &= new.get("controller_epoch", 0) >= old.get("controller_epoch", 0)
            else:
                is_explained &= new.get("controller_epoch") == old.get("controller_epoch")
            if not is_explained:
                self._found.append(Difference(f"epochs in {where}", old, new))
                return
            if begun > before:
                for reason in self._allowed[partition]:
                    self._count(reason)


def _without_epochs(state: State) -> State:
    return {name: value for name, value in state.items() if name not in EPOCHS}
