"""A cluster of brokers that answer as a test's script says: for error codes that no real cluster gives on demand."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.retries import RetryPolicy
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.find_coordinator import FindCoordinatorResponse
from klamm.protocol.apis.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.error_codes import ErrorCode
from support.scripted_broker import Asked, ScriptedBroker

HANG_UP = object()
"""An answer: the broker closes the connection instead."""


class ScriptedCluster:
    """`async with ScriptedCluster() as cluster:`. Brokers 0, 1, ... know `topics` (the leaders of their partitions).

    `answers` are given in their order, each to the next request of its API, by whichever broker it was asked; an answer
    may be a function of the request. `asked` holds the API and the broker of each, without those for metadata.
    """

    def __init__(
        self,
        *answers: tuple[ApiKey, Any],
        topics: Mapping[str, Sequence[int]] | None = None,
        coordinators: Sequence[int] = (0,),
        brokers: int = 2,
        cluster_id: str | None = None,
    ) -> None:
        self.answers = list(answers)
        self.topics = dict(topics or {})
        self.topic_errors: dict[str, int] = {}
        self.cluster_id = cluster_id
        self.coordinators = list(coordinators)
        self.coordinator_error = ErrorCode.NONE
        self.controllers = [0]
        # Brokers that always name this coordinator.
        self.cut_off: dict[int, int] = {}
        # The brokers that a broker does not know of.
        self.behind: dict[int, set[int]] = {}
        self.asked: list[tuple[ApiKey, int]] = []
        self.requests: list[Any] = []
        self.metadata_requests = 0
        self._brokers = [ScriptedBroker(self._answer(broker_id)) for broker_id in range(brokers)]
        self._stack = AsyncExitStack()
        self._dead: set[int] = set()

    async def __aenter__(self) -> "ScriptedCluster":
        for broker in self._brokers:
            await self._stack.enter_async_context(broker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def client(self, deadline_ms: int = 60_000, **options: Any) -> ClusterClient:
        client = ClusterClient(
            [("127.0.0.1", self._brokers[0].port)],
            retry=RetryPolicy(deadline_ms=deadline_ms, backoff_ms=1, max_backoff_ms=1),
            **options,
        )
        self._stack.push_async_callback(client.close)
        return client

    def forget(self, broker_id: int) -> None:
        """The others no longer name this broker."""
        self._dead.add(broker_id)

    def address(self, broker_id: int) -> tuple[str, int]:
        return "127.0.0.1", self._brokers[broker_id].port

    def _answer(self, broker_id: int) -> Callable[[Asked], Any]:
        def answer(asked: Asked) -> Any:
            header, body = asked.header, asked.body
            if header.api_key is ApiKey.METADATA:
                self.metadata_requests += 1
                return self._metadata(body, self._dead | self.behind.get(broker_id, set()))
            if header.api_key is ApiKey.FIND_COORDINATOR and broker_id in self.cut_off:
                return FindCoordinatorResponse(node_id=self.cut_off[broker_id], host="127.0.0.1", port=1)
            if header.api_key is ApiKey.FIND_COORDINATOR:
                node = self.coordinators.pop(0) if len(self.coordinators) > 1 else self.coordinators[0]
                return FindCoordinatorResponse(
                    error_code=self.coordinator_error, node_id=node, host="127.0.0.1", port=1
                )
            self.asked.append((header.api_key, broker_id))
            self.requests.append(body)
            place = next((at for at, (api_key, _) in enumerate(self.answers) if api_key is header.api_key), None)
            assert place is not None, f"no answer is left for {header.api_key.message_name}"
            response = self.answers.pop(place)[1]
            if callable(response):
                response = response(body)
            if response is HANG_UP:
                asked.hang_up()
                return None
            return response

        return answer

    def _metadata(self, request: MetadataRequest, unknown: set[int]) -> MetadataResponse:
        names = sorted(self.topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        controller = self.controllers.pop(0) if len(self.controllers) > 1 else self.controllers[0]
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=broker_id, host="127.0.0.1", port=broker.port)
                for broker_id, broker in enumerate(self._brokers)
                if broker_id not in unknown
            ],
            cluster_id=self.cluster_id,
            controller_id=controller,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponse.MetadataResponseTopic:
        struct = MetadataResponse.MetadataResponseTopic
        unknown = ErrorCode.NONE if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return struct(
            error_code=self.topic_errors.get(name, unknown),
            name=name,
            is_internal=name.startswith("__"),
            partitions=[
                struct.MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE,
                    partition_index=number,
                    leader_id=leader,
                    leader_epoch=3,
                    replica_nodes=[0, 1],
                    isr_nodes=[0],
                )
                for number, leader in enumerate(self.topics.get(name, ()))
            ],
        )
