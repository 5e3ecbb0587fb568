"""Draws scenarios: what operators do, what happens to brokers, and sometimes what nobody should do.

A small model of the cluster keeps most steps sensible: topics that exist, replicas that are alive. It may be wrong
about what the controllers make of them; every step can be done in every state.
"""

import random
from collections.abc import Callable

from support.both_controllers.steps import Scenario, Step

LETTERS = "abc"
NONSENSE = ("", "{", "[]", "5", '{"version":1}', '{"version":1,"partitions":[{"topic":5}]}')


def draw(seed: int) -> Scenario:
    return _Drawing(random.Random(seed)).scenario()


class _Drawing:
    def __init__(self, chance: random.Random) -> None:
        self._random = chance
        self._brokers = chance.randint(3, 5)
        self._alive = set(range(self._brokers))
        self._held: set[int] = set()
        # The replicas of each partition, as far as requests decide about them.
        self._topics: dict[str, list[list[int]]] = {}
        self._lives: dict[str, int] = {}
        self._steps: list[Step] = []

    def scenario(self) -> Scenario:
        self._create()
        kinds: dict[Callable[[], None], int] = {
            self._create: 4,
            self._grow: 2,
            self._delete: 3,
            self._edit_replicas: 1,
            self._kill: 5,
            self._start: 9,
            self._bounce: 2,
            self._shut_down: 2,
            self._move: 1,
            self._hold: 2,
            self._release: 7,
            self._refuse: 2,
            self._fail_disk: 2,
            self._mend_disk: 1,
            self._alter_isr: 9,
            self._write_isr: 3,
            self._reassign: 6,
            self._cancel: 2,
            self._elect: 4,
            self._configure: 2,
            self._feature: 1,
            self._edit: 1,
            self._move_controller: 2,
        }
        for step in self._random.choices([*kinds], [*kinds.values()], k=self._random.randint(4, 14)):
            step()
        return Scenario(self._brokers, tuple(self._steps))

    def _do(self, kind: str, *arguments: object) -> None:
        self._steps.append(Step(kind, arguments))

    def _by_chance(self, probability: float) -> bool:
        return self._random.random() < probability

    # -- what there is

    def _replicas(self) -> list[int]:
        count = self._random.choices((1, 2, 3), (1, 3, 4))[0]
        # Topics are created where brokers are alive, reassignments may hope.
        return self._random.sample(range(self._brokers), min(count, self._brokers))

    def _topic(self) -> str | None:
        return self._random.choice([*self._topics]) if self._topics else None

    def _partitions(self, most: int = 3) -> list[str]:
        names = [f"{letter}-{number}" for letter, replicas in self._topics.items() for number in range(len(replicas))]
        return self._random.sample(names, self._random.randint(1, min(most, len(names)))) if names else []

    def _replicas_of(self, name: str) -> list[int]:
        letter, _, number = name.partition("-")
        return self._topics[letter][int(number)]

    def _broker(self, among: set[int]) -> int | None:
        return self._random.choice(sorted(among)) if among else None

    # -- topics

    def _create(self) -> None:
        free = [letter for letter in LETTERS if letter not in self._topics]
        if not free:
            return
        letter = self._random.choice(free)
        replicas = [self._replicas() for _ in range(self._random.randint(1, 3))]
        self._topics[letter] = replicas
        self._lives[letter] = life = self._lives.get(letter, -1) + 1
        kind = self._random.choices(("create", "create_by_request", "create_without_id"), (6, 3, 1))[0]
        self._do(kind, letter, replicas, *((life,) if kind == "create" else ()))

    def _grow(self) -> None:
        if letter := self._topic():
            more = [self._replicas() for _ in range(self._random.randint(1, 2))]
            # The lists are a scenario's own: they do not grow with the model.
            self._topics[letter] = [*self._topics[letter], *more]
            self._do(self._random.choice(("grow", "grow_by_request")), letter, more)

    def _delete(self) -> None:
        if letter := self._topic():
            del self._topics[letter]
            self._do(self._random.choice(("delete", "delete", "delete_by_request")), letter)

    def _edit_replicas(self) -> None:
        if names := self._partitions(1):
            letter, _, number = names[0].partition("-")
            self._do("edit_replicas", letter, int(number), self._replicas())

    # -- brokers

    def _kill(self) -> None:
        if (broker_id := self._broker(self._alive)) is not None:
            self._alive.discard(broker_id)
            self._do("kill", broker_id)

    def _start(self) -> None:
        if (broker_id := self._broker(set(range(self._brokers)) - self._alive)) is not None:
            self._alive.add(broker_id)
            self._do("start", broker_id)

    def _bounce(self) -> None:
        if (broker_id := self._broker(self._alive)) is not None:
            self._do("bounce", broker_id)

    def _shut_down(self) -> None:
        if (broker_id := self._broker(self._alive)) is not None:
            self._do("shut_down", broker_id)
            if self._by_chance(0.7):
                self._alive.discard(broker_id)
                self._do("kill", broker_id)

    def _move(self) -> None:
        if (broker_id := self._broker(self._alive)) is not None:
            self._do("move", broker_id)

    def _hold(self) -> None:
        if (broker_id := self._broker(self._alive - self._held)) is not None:
            self._held.add(broker_id)
            self._do("hold", broker_id)

    def _release(self) -> None:
        if (broker_id := self._broker(self._held)) is not None:
            self._held.discard(broker_id)
            self._do("release", broker_id)

    def _refuse(self) -> None:
        api, code = self._random.choice(
            [
                ("LEADER_AND_ISR", "UNKNOWN_SERVER_ERROR"),
                ("LEADER_AND_ISR", "STALE_BROKER_EPOCH"),
                ("LEADER_AND_ISR", "KAFKA_STORAGE_ERROR"),
                ("UPDATE_METADATA", "STALE_BROKER_EPOCH"),
                ("STOP_REPLICA", "KAFKA_STORAGE_ERROR"),
                ("STOP_REPLICA", "UNKNOWN_SERVER_ERROR"),
                ("STOP_REPLICA", "FENCED_LEADER_EPOCH"),
            ]
        )
        if (broker_id := self._broker(self._alive)) is not None:
            self._do("refuse", broker_id, api, code)

    def _fail_disk(self) -> None:
        if names := self._partitions():
            broker_id = self._broker(set(self._replicas_of(names[0])) & self._alive)
            if broker_id is not None:
                self._do("fail_disk", broker_id, names)

    def _mend_disk(self) -> None:
        if (broker_id := self._broker(self._alive)) is not None:
            self._do("mend_disk", broker_id)

    # -- ISRs, reassignments, elections

    def _isr(self, name: str) -> list[int]:
        replicas = self._replicas_of(name)
        alive = [broker_id for broker_id in replicas if broker_id in self._alive]
        if self._by_chance(0.65):
            return alive  # All have caught up.
        return self._random.sample(replicas, self._random.randint(0, len(replicas)))

    def _alter_isr(self) -> None:
        for name in self._partitions():
            fault = self._random.choice(("epoch", "version", "broker epoch", "anybody")) if self._by_chance(0.1) else ""
            self._do("alter_isr", name, self._isr(name), *([fault] if fault else []))

    def _write_isr(self) -> None:
        for name in self._partitions(1):
            self._do("write_isr", name, self._isr(name))

    def _reassign(self) -> None:
        names = self._partitions(2)
        if not names:
            return
        targets: dict[str, list[int]] = {name: self._replicas() for name in names}
        self._do(self._random.choice(("reassign", "reassign", "reassign_by_znode")), targets)
        for name, target in targets.items():
            letter, _, number = name.partition("-")
            replicas = [*self._topics[letter]]
            replicas[int(number)] = [*dict.fromkeys((*target, *replicas[int(number)]))][:5]
            self._topics[letter] = replicas
        if self._by_chance(0.7):
            for name, target in targets.items():
                # The new replicas catch up.
                self._do("alter_isr", name, sorted({*self._replicas_of(name)} & self._alive))
                letter, _, number = name.partition("-")
                replicas = [*self._topics[letter]]
                replicas[int(number)] = target
                self._topics[letter] = replicas

    def _cancel(self) -> None:
        if names := self._partitions(2):
            self._do("reassign", {name: None for name in names})

    def _elect(self) -> None:
        if names := self._partitions():
            if self._by_chance(0.3):
                self._do("elect_by_znode", names)
            else:
                self._do("elect", int(self._by_chance(0.3)), names)

    # -- the rest

    def _configure(self) -> None:
        value = self._random.choice(("true", "true", "false"))
        if self._by_chance(0.3):
            self._do("allow_unclean_everywhere", value)
        elif letter := self._topic():
            self._do("allow_unclean", letter, value)

    def _feature(self) -> None:
        self._do("update_feature", "f", self._random.randint(0, 2), self._by_chance(0.5))

    def _edit(self) -> None:
        choice = self._random.randrange(5)
        nonsense = self._random.choice(NONSENSE)
        if choice == 0:
            self._do("put", "/admin/delete_topics/TOPIC-z", "")
        elif choice == 1:
            self._do("put", "/admin/reassign_partitions", nonsense)
        elif choice == 2:
            self._do("put", "/admin/preferred_replica_election", nonsense)
        elif choice == 3:
            self._do("elect", 0, ["z-0"])
        else:
            self._do("reassign", {"z-0": [0]})

    def _move_controller(self) -> None:
        kind = self._random.choices(("move_controller", "expire_controller", "kill_controller"), (10, 10, 1))[0]
        self._do(kind)
        if kind == "kill_controller" and self._by_chance(0.5):
            self._do("start_controllers")
