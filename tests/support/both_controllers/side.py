"""One of the two clusters: it does the steps of a scenario, comes to rest, and says what is there.

Rest. The controller's queue and its channel to each broker keep their order, and so do ZooKeeper's notifications. A
barrier is a change of the state of the topic `barrier`, which a recorder of its own holds, and a notification of it:
the controller tells all brokers the new state. A broker that has heard of it has had all earlier requests and has
answered them, and what the answers cause stands in the controller's queue before the next barrier. So two barriers in a
row between which no broker was told anything else and no znode changed mean that nothing is under way. A broker that a
scenario keeps from answering gets one request and no more. A rest that does not come within `PATIENCE_S` is `NoRest`.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from klamm.base.environment import Environment
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.alter_isr import AlterIsrRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import request_class
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.brokers import BROKER_IDS_PATH
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
from klamm.znodes.configs import config_path, encode_config, topic_entity
from klamm.znodes.requests import (
    DELETE_TOPICS_PATH,
    ISR_CHANGE_PREFIX,
    LOG_DIR_EVENT_PREFIX,
    PREFERRED_REPLICA_ELECTION_PATH,
    REASSIGN_PARTITIONS_PATH,
    delete_topic_path,
    encode_log_dir_event,
    encode_partitions,
    encode_reassignment,
)
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import TOPICS_PATH, LeaderAndIsr, TopicAssignment, partition_state_path, topic_path
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import BadVersion, NodeExists, NoNode
from klamm.zookeeper.server import ZooKeeperServer
from support.both_controllers.controllers import BROKER_IDS, Controllers
from support.both_controllers.known import is_looked_at
from support.both_controllers.observations import Names, Observation, observe
from support.both_controllers.recorder import BARRIER, SESSION_TIMEOUT_MS, Recorder
from support.one_broker import Client

ANCHOR = 50
"""The recorder that holds the barrier's topic: it never dies, and is not looked at."""
PATIENCE_S = 600
AGAIN_S = 20
QUIET_ROUNDS = 2

T = TypeVar("T")


class NoRest(AssertionError):
    """A cluster has not come to rest in time."""


class Side:
    """`play` begins a scenario; each step is a method."""

    def __init__(
        self, environment: Environment, controllers: Controllers, connect: str, server: ZooKeeperServer | None
    ) -> None:
        self._environment, self.controllers, self._connect = environment, controllers, connect
        self._server = server
        self._serial = 0
        self.recorders: dict[int, Recorder] = {}
        self._anchor = Recorder(ANCHOR, environment, connect)
        self._connections: dict[int, Client] = {}
        self._answers: list[str] = []
        self._configs_changed = 0

    @property
    def name(self) -> str:
        return self.controllers.name

    # -- life

    async def begin(self) -> None:
        self.client = ZooKeeperClient(self._environment, self._connect, session_timeout_ms=SESSION_TIMEOUT_MS)
        await self.client.start()
        self.store = KafkaZooKeeper(self.client)
        await self.store.create_persistent_paths()
        await self.controllers.start_all()
        await self._anchor.start()
        await self.store.create_topic(BARRIER, {0: [ANCHOR]}, UUID(int=1), {})
        await self._until(partial(self.client.exists, partition_state_path(BARRIER, 0)))

    async def end(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        await self.controllers.stop()
        for recorder in (*self.recorders.values(), self._anchor):
            if recorder.is_alive:
                await recorder.kill()
        await self.client.close()

    async def play(self, brokers: int) -> None:
        """Forgets the former scenario, and begins one with so many brokers.

        Nothing of the former one is left: its brokers are gone, its znodes too, and the next controller knows only what
        is there. Topics have other names than before, in case that some program keeps something about them.
        """
        for recorder in self.recorders.values():
            if recorder.is_alive:
                await recorder.kill()
        await self.start_controllers()
        for topic in await self.client.children(TOPICS_PATH):
            if topic != BARRIER:
                await self.client.delete_recursive(topic_path(topic))
                await self._delete(config_path(topic_entity(topic)))
        for topic in await self.client.children(DELETE_TOPICS_PATH):
            await self._delete(delete_topic_path(topic))
        for path in (REASSIGN_PARTITIONS_PATH, PREFERRED_REPLICA_ELECTION_PATH, "/config/brokers/<default>"):
            await self._delete(path)
        if self._configs_changed:
            await self._notify_config("brokers/<default>")
            await self._configs_are_known()
        await self.move_controller()
        self._serial += 1
        self.recorders = {id_: Recorder(id_, self._environment, self._connect) for id_ in range(brokers)}
        for recorder in self.recorders.values():
            await recorder.start()
        await self._rest()
        self._names = Names(self._topic(""), await self._controller_epoch())
        for recorder in self.recorders.values():
            recorder.told.clear()
        self._answers.clear()

    async def do(self, kind: str, arguments: Sequence[Any]) -> Observation:
        """Does a step; returns what there is to see of it at rest."""
        self._answers.clear()
        for recorder in self.recorders.values():
            recorder.told.clear()
        await getattr(self, kind)(*arguments)
        await self._rest()
        return await self.observation()

    async def observation(self) -> Observation:
        return observe(await self._znodes(), self.recorders, self._answers, self._names)

    # -- rest

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                quiet = 0
                before = await self._digest()
                while quiet < QUIET_ROUNDS:
                    asked = self._told_count()
                    await self._barrier()
                    after = await self._digest()
                    quiet = quiet + 1 if (asked, before) == (self._told_count(), after) else 0
                    before = after
        except TimeoutError:
            raise NoRest(f"{self.name}: no rest within {PATIENCE_S} s; {await self._why()}") from None

    async def _why(self) -> str:
        behind = [id_ for id_, recorder in self.recorders.items() if not self._has_heard(recorder)]
        return f"brokers {behind} have not heard of barrier {self._nonce}"

    def _told_count(self) -> int:
        return sum(recorder.requests for recorder in self.recorders.values())

    async def _digest(self) -> list[tuple[str, int]]:
        return [(path, mzxid) for path, (_, mzxid) in (await self._znodes()).items()]

    def _has_heard(self, recorder: Recorder) -> bool:
        if not recorder.is_alive:
            return True
        return bool(recorder.held) if recorder.held is not None else recorder.barrier >= self._nonce

    async def _barrier(self) -> None:
        while True:
            path = partition_state_path(BARRIER, 0)
            data, stat = await self.client.get(path)
            state = LeaderAndIsr.decode(BARRIER, 0, data, stat.version)
            self._nonce = state.leader_epoch + 1
            new = LeaderAndIsr(ANCHOR, self._nonce, (ANCHOR,), state.controller_epoch)
            with contextlib.suppress(BadVersion):
                await self.client.set(path, new.encode(), stat.version)
            await self.client.create(ISR_CHANGE_PREFIX, encode_partitions([(BARRIER, 0)]), sequential=True)
            try:
                async with asyncio.timeout(AGAIN_S):
                    for recorder in self.recorders.values():
                        while not self._has_heard(recorder):
                            recorder.heard.clear()
                            await recorder.heard.wait()
                    return
            except TimeoutError:
                continue  # A controller that takes over reads no notifications of before.

    async def _znodes(self) -> dict[str, tuple[bytes, int]]:
        """The data and mzxid of each znode that counts, by path."""
        found: dict[str, tuple[bytes, int]] = {}
        paths = ["/"]
        while paths:
            children = await asyncio.gather(*(self._children(path) for path in paths))
            paths = [
                f"{path.rstrip('/')}/{name}" for path, names in zip(paths, children, strict=True) for name in names
            ]
            paths = [path for path in paths if is_looked_at(path)]
            for path, content in zip(paths, await asyncio.gather(*map(self._get, paths)), strict=True):
                if content is not None:
                    found[path] = content
        return dict(sorted(found.items()))

    async def _children(self, path: str) -> list[str]:
        with contextlib.suppress(NoNode):
            return await self.client.children(path)
        return []

    async def _get(self, path: str) -> tuple[bytes, int] | None:
        with contextlib.suppress(NoNode):
            data, stat = await self.client.get(path)
            return data, stat.mzxid
        return None

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(NoNode):
            await self.client.delete(path)

    # -- names

    def _topic(self, letter: str) -> str:
        return f"s{self._serial}-{letter}"

    def _topic_id(self, letter: str, life: int) -> UUID:
        return UUID(int=(self._serial << 32) + (ord(letter[0]) << 8) + life + 2**100)

    def _key(self, name: str) -> PartitionKey:
        letter, _, number = name.partition("-")
        return self._topic(letter), int(number)

    def _keys(self, targets: Mapping[str, Any]) -> dict[PartitionKey, Any]:
        return {self._key(name): value for name, value in targets.items()}

    async def _controller_epoch(self) -> int:
        data, _ = await self.client.get(CONTROLLER_EPOCH_PATH)
        return int(data)

    async def _state(self, key: PartitionKey) -> LeaderAndIsr | None:
        state = (await self.store.partition_states([key])).get(key)
        return state if isinstance(state, LeaderAndIsr) else None

    # -- requests to the controller

    async def _ask(self, api_key: ApiKey, version: int | None = None, **fields: Any) -> Any:
        controller = await self._until(self.store.controller_id)
        return await (await self._connection(controller)).ask(api_key, version, **fields)

    async def _connection(self, broker_id: int) -> Client:
        connection = self._connections.get(broker_id)
        if connection is None or connection.writer.transport.is_closing():
            port = self.controllers.ports[broker_id]
            connection = self._connections[broker_id] = Client(*await asyncio.open_connection("127.0.0.1", port))
        return connection

    def _answer(self, what: str, code: int) -> None:
        self._answers.append(f"{what}: {ErrorCode(code).name}".replace(self._topic(""), ""))

    # -- steps: topics

    async def create(self, letter: str, replicas: Sequence[Sequence[int]], life: int = 0) -> None:
        """As an administrator's tool with --zookeeper, of 2.8."""
        if await self.store.topic_exists(self._topic(letter)):
            return
        await self.store.create_topic(self._topic(letter), dict(enumerate(replicas)), self._topic_id(letter, life), {})

    async def create_without_id(self, letter: str, replicas: Sequence[Sequence[int]]) -> None:
        """As an administrator's tool of before 2.8."""
        assignment = TopicAssignment({number: tuple(ids) for number, ids in enumerate(replicas)}, None)
        with contextlib.suppress(NodeExists):
            await self.client.create(topic_path(self._topic(letter)), assignment.encode())

    async def create_by_request(self, letter: str, replicas: Sequence[Sequence[int]]) -> None:
        topic = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
        wanted = topic(
            name=self._topic(letter),
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                topic.CreatableReplicaAssignment(partition_index=number, broker_ids=list(ids))
                for number, ids in enumerate(replicas)
            ],
            configs=[],
        )
        response = await self._ask(ApiKey.CREATE_TOPICS, topics=[wanted], timeout_ms=0)
        self._answer(f"CreateTopics {letter}", response.topics[0].error_code)

    async def grow(self, letter: str, replicas: Sequence[Sequence[int]]) -> None:
        """Adds partitions."""
        assignment = await self.store.topic_assignment(self._topic(letter))
        if assignment is not None:
            first = max(assignment.partitions, default=-1) + 1
            await self.store.add_partitions(self._topic(letter), dict(enumerate(replicas, first)))

    async def grow_by_request(self, letter: str, replicas: Sequence[Sequence[int]]) -> None:
        assignment = await self.store.topic_assignment(self._topic(letter))
        count = (max(assignment.partitions, default=-1) + 1 if assignment is not None else 0) + len(replicas)
        topic = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
        wanted = topic(
            name=self._topic(letter),
            count=count,
            assignments=[topic.CreatePartitionsAssignment(broker_ids=list(ids)) for ids in replicas],
        )
        response = await self._ask(ApiKey.CREATE_PARTITIONS, topics=[wanted], timeout_ms=0, validate_only=False)
        self._answer(f"CreatePartitions {letter}", response.results[0].error_code)

    async def delete(self, letter: str) -> None:
        if await self.store.topic_exists(self._topic(letter)):
            with contextlib.suppress(NodeExists):
                await self.client.create(delete_topic_path(self._topic(letter)), None)

    async def delete_by_request(self, letter: str) -> None:
        response = await self._ask(ApiKey.DELETE_TOPICS, 5, topic_names=[self._topic(letter)], timeout_ms=0)
        self._answer(f"DeleteTopics {letter}", response.responses[0].error_code)

    async def edit_replicas(self, letter: str, number: int, replicas: Sequence[int]) -> None:
        """Somebody writes another assignment of a partition into the topic's znode."""
        assignment = await self.store.topic_assignment(self._topic(letter))
        if assignment is None or number not in assignment.partitions:
            return
        partitions = {**assignment.partitions, number: tuple(replicas)}
        edited = TopicAssignment(
            partitions, assignment.topic_id, assignment.adding_replicas, assignment.removing_replicas
        )
        await self.client.set(topic_path(self._topic(letter)), edited.encode())

    # -- steps: brokers

    async def kill(self, broker_id: int) -> None:
        if self.recorders[broker_id].is_alive:
            await self.recorders[broker_id].kill()

    async def start(self, broker_id: int) -> None:
        if not self.recorders[broker_id].is_alive:
            await self.recorders[broker_id].start()

    async def bounce(self, broker_id: int) -> None:
        if self.recorders[broker_id].is_alive:
            await self.recorders[broker_id].bounce()

    async def shut_down(self, broker_id: int) -> None:
        """A controlled shutdown, up to the moment when the broker may go."""
        recorder = self.recorders[broker_id]
        if recorder.is_alive:
            epoch = recorder.broker_epoch
            response = await self._ask(ApiKey.CONTROLLED_SHUTDOWN, broker_id=broker_id, broker_epoch=epoch)
            self._answer(f"ControlledShutdown {broker_id}", response.error_code)
            left = sorted((each.topic_name, each.partition_index) for each in response.remaining_partitions)
            self._answers.append(f"still led: {left}".replace(self._topic(""), ""))

    async def move(self, broker_id: int) -> None:
        if self.recorders[broker_id].is_alive:
            await self.recorders[broker_id].move()

    async def hold(self, broker_id: int) -> None:
        """The broker does what it is told from now on, and answers later."""
        if self.recorders[broker_id].held is None:
            self.recorders[broker_id].held = []

    async def release(self, broker_id: int) -> None:
        self.recorders[broker_id].release()

    async def refuse(self, broker_id: int, api: str, code: str) -> None:
        """The next request of this API gets an error."""
        self.recorders[broker_id].refusals[ApiKey[api], ErrorCode[code]] += 1

    async def fail_disk(self, broker_id: int, names: Sequence[str]) -> None:
        recorder = self.recorders[broker_id]
        if recorder.is_alive:
            recorder.failed.update(map(self._key, names))
            await self.client.create(LOG_DIR_EVENT_PREFIX, encode_log_dir_event(broker_id), sequential=True)

    async def mend_disk(self, broker_id: int) -> None:
        """Takes effect when the broker is asked the next time."""
        self.recorders[broker_id].failed.clear()

    # -- steps: ISRs

    def _can_follow(self, key: PartitionKey, members: Iterable[int]) -> list[int]:
        recorders = self.recorders
        return [id_ for id_ in members if recorders[id_].is_alive and key not in recorders[id_].failed]

    async def alter_isr(self, name: str, isr: Sequence[int], fault: str = "") -> None:
        """The leader asks for an ISR of itself and those of these that can follow it, by request."""
        key = self._key(name)
        state = await self._state(key)
        if state is None or state.leader not in self.recorders or not self.recorders[state.leader].is_alive:
            return
        leader = self.recorders[state.leader]
        partition = AlterIsrRequest.TopicData.PartitionData(
            partition_index=key[1],
            leader_epoch=state.leader_epoch - (fault == "epoch"),
            new_isr=_isr(state, isr if fault == "anybody" else self._can_follow(key, isr)),
            current_isr_version=state.zk_version - (fault == "version"),
        )
        response = await self._ask(
            ApiKey.ALTER_ISR,
            broker_id=state.leader,
            broker_epoch=leader.broker_epoch - (fault == "broker epoch"),
            topics=[AlterIsrRequest.TopicData(name=key[0], partitions=[partition])],
        )
        self._answer("AlterIsr", response.error_code)
        for topic in response.topics:
            for item in topic.partitions:
                self._answer(f"AlterIsr {name}", item.error_code)
                if not item.error_code:
                    self._answers.append(f"AlterIsr {name}: leader {item.leader_id}, ISR {item.isr}")

    async def write_isr(self, name: str, isr: Sequence[int]) -> None:
        """The leader writes an ISR of itself and those of these that can follow it, as before 2.7, and notifies the
        controller."""
        key = self._key(name)
        state = await self._state(key)
        if state is None or state.leader not in self.recorders or not self.recorders[state.leader].is_alive:
            return
        wanted = LeaderAndIsr(
            state.leader, state.leader_epoch, tuple(_isr(state, self._can_follow(key, isr))), state.controller_epoch
        )
        await self.client.set(partition_state_path(*key), wanted.encode(), state.zk_version)
        await self.store.propagate_isr_changes([key])

    # -- steps: reassignments and elections

    async def reassign(self, targets: Mapping[str, Sequence[int] | None]) -> None:
        """By request. None cancels."""
        topic = request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS).ReassignableTopic
        wanted = [
            topic(
                name=key[0],
                partitions=[
                    topic.ReassignablePartition(
                        partition_index=key[1], replicas=None if replicas is None else list(replicas)
                    )
                ],
            )
            for key, replicas in self._keys(targets).items()
        ]
        response = await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=wanted)
        self._answer("AlterPartitionReassignments", response.error_code)
        items = [
            (topic.name, item.partition_index, item.error_code)
            for topic in response.responses
            for item in topic.partitions
        ]
        for topic_name, number, code in sorted(items):
            self._answer(f"AlterPartitionReassignments {topic_name}-{number}", code)

    async def reassign_by_znode(self, targets: Mapping[str, Sequence[int]]) -> None:
        with contextlib.suppress(NodeExists):
            await self.client.create(REASSIGN_PARTITIONS_PATH, encode_reassignment(self._keys(targets)))

    async def elect(self, election_type: int, names: Sequence[str]) -> None:
        """By request. 0 elects preferred leaders, 1 is unclean. Partitions that never had a leader are left out, here
        and below: Kafka never answers."""
        names = await self._once_led(names)
        partitions = request_class(ApiKey.ELECT_LEADERS).TopicPartitions
        wanted = [partitions(topic=key[0], partitions=[key[1]]) for key in map(self._key, names)]
        response = await self._ask(
            ApiKey.ELECT_LEADERS, election_type=election_type, topic_partitions=wanted, timeout_ms=300_000
        )
        self._answer("ElectLeaders", response.error_code)
        results = response.replica_election_results
        items = [(each.topic, item.partition_id, item.error_code) for each in results for item in each.partition_result]
        for topic, number, code in sorted(items):
            self._answer(f"ElectLeaders {topic}-{number}", code)

    async def _once_led(self, names: Sequence[str]) -> list[str]:
        existing = {name: await self.store.topic_assignment(self._key(name)[0]) for name in names}
        return [name for name in names if existing[name] is None or await self._state(self._key(name)) is not None]

    async def elect_by_znode(self, names: Sequence[str]) -> None:
        names = await self._once_led(names)
        with contextlib.suppress(NodeExists):
            await self.client.create(PREFERRED_REPLICA_ELECTION_PATH, encode_partitions(map(self._key, names)))

    # -- steps: configurations and features

    async def allow_unclean(self, letter: str, value: str) -> None:
        """`unclean.leader.election.enable` of a topic."""
        topic = self._topic(letter)
        if await self.store.topic_exists(topic):
            config = {"unclean.leader.election.enable": value}
            await self._set_config(config_path(topic_entity(topic)), config)
            await self._notify_config(f"topics/{topic}")
            await self._configs_are_known()

    async def allow_unclean_everywhere(self, value: str) -> None:
        await self._set_config("/config/brokers/<default>", {"unclean.leader.election.enable": value})
        await self._notify_config("brokers/<default>")
        await self._configs_are_known()

    async def _set_config(self, path: str, config: Mapping[str, str]) -> None:
        data = encode_config(config)
        try:
            await self.client.set(path, data)
        except NoNode:
            await self.client.create(path, data)

    async def _notify_config(self, entity: str) -> None:
        data = json.dumps({"version": 2, "entity_path": entity}).encode()
        await self.client.create("/config/changes/config_change_", data, sequential=True)

    async def _configs_are_known(self) -> None:
        """Returns when the controllers have applied all changes of configurations: another one, of which they can be
        asked, comes behind them."""
        self._configs_changed += 1
        number = 1_000_000 + self._configs_changed
        for broker_id in self.controllers.ports:
            await self._set_config(f"/config/brokers/{broker_id}", {"message.max.bytes": str(number)})
            await self._notify_config(f"brokers/{broker_id}")
        resource = request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
        for broker_id in self.controllers.ports:
            wanted = resource(resource_type=4, resource_name=str(broker_id), configuration_keys=["message.max.bytes"])
            connection = await self._connection(broker_id)

            async def has_it(connection: Client = connection, wanted: Any = wanted) -> bool:
                response = await connection.ask(ApiKey.DESCRIBE_CONFIGS, resources=[wanted])
                return [each.value for each in response.results[0].configs] == [str(number)]

            await self._until(has_it)

    async def update_feature(self, feature: str, level: int, downgrade: bool) -> None:
        update = request_class(ApiKey.UPDATE_FEATURES).FeatureUpdateKey
        wanted = [update(feature=feature, max_version_level=level, allow_downgrade=downgrade)]
        response = await self._ask(ApiKey.UPDATE_FEATURES, feature_updates=wanted)
        self._answer("UpdateFeatures", response.error_code)
        for item in response.results:
            self._answer(f"UpdateFeatures {item.feature}", item.error_code)

    # -- steps: znodes edited by hand

    async def put(self, path: str, text: str) -> None:
        """Somebody creates a znode that says nothing sensible."""
        with contextlib.suppress(NodeExists, NoNode):
            await self.client.create(path.replace("TOPIC-", self._topic("")), text.encode())

    async def remove(self, path: str) -> None:
        await self._delete(path.replace("TOPIC-", self._topic("")))

    # -- steps: the controller

    async def move_controller(self) -> None:
        """Somebody deletes /controller: either broker may be elected."""
        before = await self._controller_epoch()
        await self._delete(CONTROLLER_PATH)
        await self._elected_after(before)

    async def expire_controller(self) -> None:
        """The controller's session expires: it registers anew, and either broker may be elected. Only klamm's ZooKeeper
        can be made to do that; on another one the controller moves."""
        if self._server is None:
            await self.move_controller()
            return
        before = await self._controller_epoch()
        stat = await self.client.exists(CONTROLLER_PATH)
        if stat is None or (session := self._server._sessions.get(stat.ephemeral_owner)) is None:
            raise NoRest(f"{self.name} has no controller")
        former = await self.store.controller_id()
        epochs = await self.store.live_brokers()
        self._server._expire(session)
        await self._elected_after(before)

        async def is_back() -> bool:
            now = await self.store.live_brokers()
            return former in now and now[former].epoch != epochs[former].epoch

        await self._until(is_back)

    async def kill_controller(self) -> None:
        """kill -9, and the end of its session. The last one lives on."""
        if len(self.controllers.ports) == 1:
            return
        before = await self._controller_epoch()
        former = await self._until(self.store.controller_id)
        stat = await self.client.exists(f"{BROKER_IDS_PATH}/{former}")
        await self.controllers.kill(former)
        self._connections.pop(former, None)
        if self._server is None:
            for path in (CONTROLLER_PATH, f"{BROKER_IDS_PATH}/{former}"):
                await self._delete(path)
        elif stat is not None and (session := self._server._sessions.get(stat.ephemeral_owner)) is not None:
            self._server._expire(session)
        await self._elected_after(before)

    async def start_controllers(self) -> None:
        """Those that were killed."""
        for broker_id in BROKER_IDS:
            await self.start_controller(broker_id)

    async def start_controller(self, broker_id: int) -> None:
        if broker_id not in self.controllers.ports:
            await self.controllers.start(broker_id)

    async def _elected_after(self, epoch: int) -> None:
        async def is_elected() -> bool:
            return await self._controller_epoch() != epoch and await self.store.controller_id() is not None

        await self._until(is_elected)

    async def _until(self, ask: Callable[[], Awaitable[T | None]]) -> T:
        """What `ask` answers as soon as it answers something. For what no recorder hears of."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if answer := await ask():
                    return answer
                await asyncio.sleep(0.01)


def _isr(state: LeaderAndIsr, members: Iterable[int]) -> list[int]:
    """As Kafka's leaders write it: who is in it stays in order, who joins comes behind."""
    wanted = {state.leader, *members}
    return [*(id_ for id_ in state.isr if id_ in wanted), *sorted(wanted - set(state.isr))]
