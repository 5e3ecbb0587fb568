"""Transcripts: sentences in, and what the controller did about each of them out, in order.

A transcript is a text file that a person can review. Its lines are
- prose, which nobody interprets;
- `> sentence`: something that happens to the cluster. `SENTENCES` are all that are understood. `>> sentence`: the same,
  but what the controller did is left out, since another transcript shows it;
- indented lines: what the controller did then. They are written by `--rewrite-transcripts`, and compared otherwise.

What the controller did is listed in its order: a write to ZooKeeper begins with `znode`, a request with the brokers
that get it. Equal requests to several brokers, one right after another, are one entry. `life 2` is a broker after its
second registration. A write that is not guarded by the version of /controller_epoch says so.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller
from klamm.znodes.requests import (
    LOG_DIR_EVENT_PREFIX,
    PREFERRED_REPLICA_ELECTION_PATH,
    REASSIGN_PARTITIONS_PATH,
    encode_log_dir_event,
    encode_partitions,
    encode_reassignment,
)
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper.messages import Check, Create, Delete, MultiOperation, SetData
from support.controller.scene import FakeBroker, FakeChannels, Scene

INDENT = "    "
ZNODE = "znode"
STATE = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
TOPIC = re.compile(r"/brokers/topics/([^/]+)")


async def perform(scene: Scene, text: str) -> str:
    """The transcript with what really happened."""
    recorder = Recorder(scene)
    lines = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line.startswith(">"):
            mark, _, sentence = line.partition(" ")
            answer = await recorder.do(sentence)
            done = [*recorder.take(), *answer]
            lines += [INDENT + each for each in done] if mark == ">" else []
    return "\n".join(lines) + "\n"


def ids(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids)) or "-"


def leadership(state: Any) -> str:
    return f"leader {state.leader} epoch {state.leader_epoch} isr {ids(state.isr)}"


class Recorder:
    """Does what the sentences say, and notes what the controller does then."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._notes: list[tuple[str, str, list[str]]] = []  # Who, what, and its lines; of a write, its path.
        self._lives: dict[int, list[int]] = {}
        self._hidden: set[str] = set()
        self._topics = 0

    def take(self) -> list[str]:
        """What was done since the last call, as lines."""
        taken, self._notes = self._notes, []
        merged: list[tuple[list[str], str, list[str]]] = []
        for who, what, details in taken:
            if who == ZNODE:
                [path] = details
                if path not in self._hidden:
                    merged.append(([who], what, []))
            elif merged and merged[-1][1:] == (what, details) and who not in merged[-1][0]:
                merged[-1][0].append(who)
            else:
                merged.append(([who], what, details))
        return [
            line
            for who, what, details in merged
            for line in (f"{_receivers(who)}: {what}", *(INDENT + detail for detail in details))
        ]

    async def do(self, sentence: str) -> list[str]:
        """Returns what the controller has answered, if it was asked."""
        for pattern, method in SENTENCES:
            match = re.fullmatch(pattern, sentence)
            if match:
                answer = await method(self, *match.groups())
                await self._settle()
                return [f"answer: {line}" for line in answer or ()]
        raise ValueError(f"nobody understands {sentence!r}; see SENTENCES in transcript.py")

    async def _settle(self) -> None:
        """Returns when the controller has dealt with everything: twice, since its own writes are events again."""
        scene = self._scene
        for _ in range(2):
            if not any(broker.controller.is_active for broker in scene.brokers.values()):
                return
            before = scene.processed.count("LogDirEventNotification")
            event = encode_log_dir_event(99)  # Of a broker that does not exist.
            marker, _stat = await scene.store.client.create(LOG_DIR_EVENT_PREFIX, event, sequential=True)
            self._hidden.add(marker)
            await scene.until(partial(self._is_idle_after, before))

    def _is_idle_after(self, before: int) -> bool:
        scene = self._scene
        return scene.processed.count("LogDirEventNotification") > before and scene.is_idle(scene.controller)

    # -- noting -----------------------------------------------------------------------------------------------------

    def note_write(self, operations: Sequence[MultiOperation]) -> None:
        guarded = isinstance(operations[0], Check) and operations[0].path == CONTROLLER_EPOCH_PATH
        for operation in operations[1:] if guarded else operations:
            what = _write(operation) + ("" if guarded else " (not guarded)")
            self._notes.append((ZNODE, what, [operation.path]))

    def note_request(self, broker_id: int, api_key: ApiKey, body: Any) -> None:
        life = self._lives[broker_id].index(body.broker_epoch) + 1
        who = str(broker_id) + (f" (life {life})" if life > 1 else "")
        head = f"{api_key.message_name} of controller {body.controller_id}, epoch {body.controller_epoch}"
        if api_key is ApiKey.UPDATE_METADATA:
            head += f"; live are {ids([broker.id for broker in body.live_brokers])}"
        self._notes.append((who, head, _partitions(api_key, body)))

    def _new_broker(self, broker_id: int) -> FakeBroker:
        scene = self._scene
        broker = scene.brokers[broker_id] = FakeBroker(scene, broker_id, {}, scene.address)
        broker.controller._open_channels = lambda: NotedChannels(scene, broker_id, self)
        return broker

    def _note_writes_of(self, broker: FakeBroker) -> None:
        client = broker.client
        multi, create, set_data = client.multi, client.create, client.set

        async def noted_multi(operations: Sequence[MultiOperation]) -> Any:
            result = await multi(operations)
            self.note_write(operations)
            return result

        async def noted_create(path: str, data: bytes | None = None, *args: Any, **options: Any) -> Any:
            result = await create(path, data, *args, **options)
            self.note_write([Create(path, data)])
            return result

        async def noted_set(path: str, data: bytes | None, version: int = -1) -> Any:
            result = await set_data(path, data, version)
            self.note_write([SetData(path, data, version)])
            return result

        for name, noted in (("multi", noted_multi), ("create", noted_create), ("set", noted_set)):
            setattr(client, name, noted)

    # -- brokers ----------------------------------------------------------------------------------------------------

    async def start_candidate(self, broker_id: str) -> None:
        await self._start(int(broker_id), takes_part=True)

    async def start_others(self, broker_ids: str) -> None:
        for broker_id in _numbers(broker_ids):
            await self._start(broker_id, takes_part=False)

    async def _start(self, broker_id: int, *, takes_part: bool) -> None:
        broker = self._new_broker(broker_id)
        await broker.connect()
        await broker.store.create_persistent_paths()
        await broker.register()
        self._lives.setdefault(broker_id, []).append(broker.epoch)
        if takes_part:
            self._note_writes_of(broker)
            await broker.controller.startup(broker.store)
        await self._scene.until(lambda: self._scene.knows(broker))

    async def kill(self, broker_id: str) -> None:
        await self._scene.kill(int(broker_id))

    async def bounce(self, broker_id: str) -> None:
        former = self._scene.brokers.pop(int(broker_id))
        await former.controller.shutdown()
        broker = self._new_broker(int(broker_id))
        await broker.connect()
        broker.epoch = await broker.store.register_broker(broker.registration, [former.client.session_id])
        self._lives[broker.broker_id].append(broker.epoch)
        await former.client.close()
        await self._scene.until(lambda: self._scene.knows(broker))

    async def hold(self, broker_id: str) -> None:
        self._scene.silent.add(int(broker_id))

    async def release(self) -> None:
        self._scene.release()

    async def fail_disk(self, broker_id: str, partition: str) -> None:
        self._scene.offline.add((_partition(partition), int(broker_id)))
        await self._scene.store.report_log_dir_failure(int(broker_id))

    # -- topics -----------------------------------------------------------------------------------------------------

    async def create(self, topic: str, replicas: str) -> None:
        self._topics += 1
        partitions = dict(enumerate(_numbers(part) for part in replicas.split(" and ")))
        await self._scene.store.create_topic(topic, partitions, UUID(int=self._topics), {})

    async def add_partition(self, topic: str, partition: str, replicas: str) -> None:
        await self._scene.store.add_partitions(topic, {int(partition): _numbers(replicas)})

    async def mark_for_deletion(self, topic: str) -> None:
        await self._scene.store.mark_topic_for_deletion(topic)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def alter_isr(self, partition: str, isr: str) -> list[str]:
        topic, number = _partition(partition)
        assert number == 0
        error, items = await self._scene.alter_isr(topic, _numbers(isr))
        return [ErrorCode(error).name] if error else [_isr_answer(topic, item) for item in items]

    async def controlled_shutdown(self, broker_id: str) -> list[str]:
        epoch = self._scene.brokers[int(broker_id)].epoch
        left = await self._scene.controller.controlled_shutdown(int(broker_id), epoch)
        return [f"still led by {broker_id}: {', '.join(map(_name, left)) or 'nothing'}"]

    async def elect(self, election_type: str, partitions: str) -> list[str]:
        wanted = [_partition(partition) for partition in partitions.split(", ")]
        results = await self._scene.controller.elect_leaders(wanted, ElectionType[election_type.upper()])
        return [f"{_name(key)} {_outcome(result)}" for key, result in results.items()]

    async def elect_by_znode(self, partitions: str) -> None:
        wanted = [_partition(partition) for partition in partitions.split(", ")]
        await self._scene.store.client.create(PREFERRED_REPLICA_ELECTION_PATH, encode_partitions(wanted))

    async def reassign(self, partition: str, replicas: str) -> list[str]:
        return await self._alter_reassignment(partition, _numbers(replicas))

    async def cancel(self, partition: str) -> list[str]:
        return await self._alter_reassignment(partition, None)

    async def _alter_reassignment(self, partition: str, target: Sequence[int] | None) -> list[str]:
        targets = {_partition(partition): None if target is None else tuple(target)}
        results = await self._scene.controller.alter_partition_reassignments(targets)
        return [f"{_name(key)} {'begun' if error is None else _outcome(error)}" for key, error in results.items()]

    async def reassign_by_znode(self, partition: str, replicas: str) -> None:
        data = encode_reassignment({_partition(partition): _numbers(replicas)})
        await self._scene.store.client.create(REASSIGN_PARTITIONS_PATH, data)


class NotedChannels(FakeChannels):
    def __init__(self, scene: Scene, sender: int, recorder: Recorder) -> None:
        super().__init__(scene, sender)
        self._recorder = recorder

    def send_request(self, broker_id: int, api_key: ApiKey, body: Any, on_response: Any) -> None:
        super().send_request(broker_id, api_key, body, on_response)
        self._recorder.note_request(broker_id, api_key, body)


SENTENCES: list[tuple[str, Callable[..., Awaitable[list[str] | None]]]] = [
    (r"Broker (\d+) starts, and takes part in elections of the controller\.", Recorder.start_candidate),
    (r"Brokers? ([\d, ]+) starts?\.", Recorder.start_others),
    (r"Broker (\d+) dies\.", Recorder.kill),
    (r"Broker (\d+) bounces\.", Recorder.bounce),
    (r"Broker (\d+) hears, and does not answer\.", Recorder.hold),
    (r"All answers arrive\.", Recorder.release),
    (r"The disk with replica (\d+) of (\S+) fails\.", Recorder.fail_disk),
    (r"Topic (\S+) is created on brokers ([\d, and]+)\.", Recorder.create),
    (r"Topic (\S+) gets partition (\d+) on brokers ([\d, ]+)\.", Recorder.add_partition),
    (r"Topic (\S+) is marked for deletion\.", Recorder.mark_for_deletion),
    (r"The leader of (\S+) proposes the ISR ([\d, ]+)\.", Recorder.alter_isr),
    (r"Broker (\d+) asks for a controlled shutdown\.", Recorder.controlled_shutdown),
    (r"ElectLeaders asks for (preferred|unclean) leaders of ([\w, -]+)\.", Recorder.elect),
    (r"/admin/preferred_replica_election asks for ([\w, -]+)\.", Recorder.elect_by_znode),
    (r"AlterPartitionReassignments moves (\S+) to brokers ([\d, ]+)\.", Recorder.reassign),
    (r"AlterPartitionReassignments cancels the move of (\S+)\.", Recorder.cancel),
    (r"/admin/reassign_partitions moves (\S+) to brokers ([\d, ]+)\.", Recorder.reassign_by_znode),
]


# -- words and numbers ------------------------------------------------------------------------------------------------


def _receivers(who: Sequence[str]) -> str:
    if who == [ZNODE]:
        return ZNODE
    return f"broker{'s' if len(who) > 1 else ''} {', '.join(who)}"


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _partition(text: str) -> PartitionKey:
    topic, _, number = text.rpartition("-")
    return topic, int(number)


def _name(partition: PartitionKey) -> str:
    return f"{partition[0]}-{partition[1]}"


def _outcome(result: "int | KafkaError") -> str:
    return result.code.name if isinstance(result, KafkaError) else f"led by {result}"


def _isr_answer(topic: str, item: Any) -> str:
    if item.error_code:
        return f"{topic}-{item.partition_index} {ErrorCode(item.error_code).name}"
    state = f"leader {item.leader_id} epoch {item.leader_epoch} isr {ids(item.isr)}"
    return f"{topic}-{item.partition_index} {state} version {item.current_isr_version}"


def _write(operation: MultiOperation) -> str:
    if isinstance(operation, Create):
        return f"create {operation.path}{_content(operation.path, operation.data)}"
    at = "" if operation.version < 0 else f" at version {operation.version}"
    if isinstance(operation, SetData):
        return f"set {operation.path}{at}{_content(operation.path, operation.data)}"
    return f"{'delete' if isinstance(operation, Delete) else 'check'} {operation.path}{at}"


def _content(path: str, data: bytes | None) -> str:
    if not data:
        return ""
    if path == CONTROLLER_PATH:
        return f" = broker {Controller.decode(data).broker_id}"
    if match := STATE.fullmatch(path):
        state = LeaderAndIsr.decode(match[1], int(match[2]), data)
        return f" = {leadership(state)}, by controller epoch {state.controller_epoch}"
    if match := TOPIC.fullmatch(path):
        return f" = {_assignment(TopicAssignment.decode(match[1], data))}"
    return f" = {data.decode()}"


def _assignment(assignment: TopicAssignment) -> str:
    texts = []
    for number, replicas in assignment.partitions.items():
        text = f"partition {number} on {ids(replicas)}"
        if adding := assignment.adding_replicas.get(number):
            text += f" adding {ids(adding)}"
        if removing := assignment.removing_replicas.get(number):
            text += f" removing {ids(removing)}"
        texts.append(text)
    return "; ".join(texts)


def _partitions(api_key: ApiKey, body: Any) -> list[str]:
    if api_key is ApiKey.STOP_REPLICA:
        return [
            f"{topic.topic_name}-{state.partition_index} epoch {state.leader_epoch}"
            + (", delete" if state.delete_partition else "")
            for topic in body.topic_states
            for state in topic.partition_states
        ]
    told = []
    for topic in body.topic_states:
        for state in topic.partition_states:
            text = f"{topic.topic_name}-{state.partition_index} {leadership(state)}, replicas {ids(state.replicas)}"
            if api_key is ApiKey.UPDATE_METADATA:
                text += f", offline {ids(state.offline_replicas)}" if state.offline_replicas else ""
            else:
                text += f", adding {ids(state.adding_replicas)}" if state.adding_replicas else ""
                text += f", removing {ids(state.removing_replicas)}" if state.removing_replicas else ""
                text += ", new" if state.is_new else ""
            told.append(text)
    return told
