"""Faults of answers: an error, a delay, silence or a closed connection in place of a broker's answer to some requests.

Each fault names an API, by the name in Kafka's documentation, and may be narrowed in two ways:

- To requests: by `topic` and `partition`, `client_id`, `group`, `transactional_id`. Only such requests are calls.
- To calls: `on_call` lists their numbers, from 1; `probability` draws by `seed` and the number of the call, so that the
  same calls are struck each time; `times` ends the fault after this many strikes. Calls and strikes are counted in the
  whole cluster, unless the fault is for one `broker`.

With `after` the fault strikes after the request has had its effect: for example, the answer of an append is lost.
"""

from dataclasses import dataclass, field

from klamm.faults.commands.codec import Fault, command, nearest
from klamm.faults.request_subjects import API_KEYS, GROUPS, PARTITIONED, TOPICS, TRANSACTIONAL_IDS
from klamm.processes.local_cluster import Server
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey

ERRORS = tuple(code.name for code in ErrorCode if code is not ErrorCode.NONE)
MAX_DELAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class AnswerFault(Fault):
    """The base of all faults of answers."""

    api: str = field(metadata={"values": tuple(API_KEYS)})
    broker: int | None = None
    after: bool = False
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    times: int | None = None
    on_call: tuple[int, ...] = ()
    probability: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api not in API_KEYS:
            raise ValueError(f"{self.kind}: api={self.api!r} is not served; {nearest(self.api, list(API_KEYS))}")
        self._check("times", self.times is None or self.times >= 1, "at least 1")
        self._check("on_call", all(call >= 1 for call in self.on_call), "numbers of calls, from 1")
        self._check("probability", self.probability is None or 0 <= self.probability <= 1, "from 0 to 1")
        self._check("partition", self.partition is None or self.partition >= 0, "at least 0")
        self._check("broker", self.broker is None or self.broker >= 0, "the id of a broker")
        self._check_condition("topic", TOPICS)
        self._check_condition("partition", self._partitioned())
        self._check_condition("group", GROUPS)
        self._check_condition("transactional_id", TRANSACTIONAL_IDS)

    def concerns(self, server: Server) -> bool:
        """Whether this server must know the fault."""
        return server != "zookeeper" and self.broker in (None, server)

    @property
    def api_key(self) -> ApiKey:
        return API_KEYS[self.api]

    def _partitioned(self) -> frozenset[ApiKey]:
        return PARTITIONED

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"{self.kind}: {name}={getattr(self, name)!r} is not allowed; allowed: {allowed}")

    def _check_condition(self, name: str, apis: frozenset[ApiKey]) -> None:
        if getattr(self, name) is not None and self.api_key not in apis:
            names = ", ".join(key.message_name for key in sorted(apis))
            what = name.replace("_", " ")
            raise ValueError(f"{self.kind}: {self.api} names no {what}; these APIs do: {names}")


@command("answers.fail")
@dataclass(frozen=True, kw_only=True)
class FailAnswers(AnswerFault):
    """The answer has this error, where Kafka puts it in the API's response. With a `topic` or `partition`, other items
    of the request are served."""

    method = "fail"

    error: str = field(metadata={"values": ERRORS})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error not in ERRORS:
            raise ValueError(f"{self.kind}: there is no error {self.error!r}; {nearest(self.error, list(ERRORS))}")

    @property
    def error_code(self) -> ErrorCode:
        return ErrorCode[self.error]

    def _partitioned(self) -> frozenset[ApiKey]:
        # A Metadata request names no partitions, but its response has an error for each partition.
        return PARTITIONED | {ApiKey.METADATA}


@command("answers.delay")
@dataclass(frozen=True, kw_only=True)
class DelayAnswers(AnswerFault):
    """The request, or its answer, waits for so long, or until the fault is removed."""

    method = "delay"

    delay_ms: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("delay_ms", 0 <= self.delay_ms <= MAX_DELAY_MS, f"0 to {MAX_DELAY_MS:,}")


@command("answers.drop")
@dataclass(frozen=True, kw_only=True)
class DropAnswers(AnswerFault):
    """The request is never answered. Its connection stays open and silent, until the fault ends: answers leave in the
    order of requests, so later requests of the connection have no answer either."""

    method = "drop"


@command("answers.disconnect")
@dataclass(frozen=True, kw_only=True)
class DisconnectClients(AnswerFault):
    """The broker closes the connection of the request."""

    method = "disconnect"
