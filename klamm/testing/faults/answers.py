"""Faults of answers, as tests write them: `c.fail`, `c.delay`, `c.drop`, `c.disconnect`.

    c.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER", broker=1).once()
    c.drop(api="Produce", topic="orders", after=True, times=1)  # an append whose answer is lost

A fault holds when the expression that describes it has been evaluated: `times=1` is `.once()`, and `topic="orders"` is
`.when(topic="orders")`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack

from klamm.faults.commands.answers import AnswerFault, DelayAnswers, DisconnectClients, DropAnswers, FailAnswers
from klamm.testing.faults.faults import Faults
from klamm.testing.faults.narrowing import Narrowable, NarrowableHandle

F = TypeVar("F", bound=AnswerFault)
H = TypeVar("H")


class Conditions(TypedDict, total=False):
    """Which requests of an API count as calls: those that name all of these."""

    topic: str | None
    partition: int | None
    client_id: str | None
    group: str | None
    transactional_id: str | None


class Narrowing(Conditions, total=False):
    """Which requests a fault strikes. `klamm.faults.commands.answers` documents each key."""

    broker: int | None
    after: bool
    times: int | None
    on_call: int | Sequence[int]
    probability: float | None
    seed: int


class NarrowableAnswer(Narrowable):
    """The methods that AnswerHandle and AsyncAnswer share."""

    def probability(self, probability: float, *, seed: int) -> Self:
        """Each call is struck with this probability, from 0 to 1. The same seed strikes the same calls."""
        return self._narrow(probability=probability, seed=seed)

    def when(self, **conditions: Unpack[Conditions]) -> Self:
        """Only requests that name all of these count as calls."""
        return self._narrow(**conditions)


class AnswerHandle(NarrowableAnswer, NarrowableHandle):
    """A fault of answers."""

    methods = (*NarrowableHandle.methods, "probability", "when")


class FaultsOfAnswers(ABC, Generic[H]):
    """The methods for faults of answers that Cluster and AsyncCluster share."""

    @abstractmethod
    def _handle(self, fault: AnswerFault) -> H:
        """The handle that installs this fault: at once, or when it is awaited."""

    def fail(self, *, api: str, error: str, **narrowing: Unpack[Narrowing]) -> H:
        """Requests of an API are answered with an error, where Kafka puts it: in partitions, topics or the response.

        With a `topic` or `partition`, the other items of a request are served. With `after=True` the request takes
        effect before the error is sent. An unknown API or error raises ValueError, which lists the allowed ones.
        """
        return self._handle(_made(FailAnswers, narrowing, api=api, error=error))

    def delay(self, *, api: str, delay_ms: int, **narrowing: Unpack[Narrowing]) -> H:
        """Requests of an API wait before they are served, or with `after=True` their answers wait. The removal of the
        fault ends the wait."""
        return self._handle(_made(DelayAnswers, narrowing, api=api, delay_ms=delay_ms))

    def drop(self, *, api: str, **narrowing: Unpack[Narrowing]) -> H:
        """Requests of an API get no answer, as from a broker that hangs: their connections stay open and silent, and
        close when the fault is removed."""
        return self._handle(_made(DropAnswers, narrowing, api=api))

    def disconnect(self, *, api: str, **narrowing: Unpack[Narrowing]) -> H:
        """The broker closes the connection instead of answering."""
        return self._handle(_made(DisconnectClients, narrowing, api=api))


class AnswerFaults(FaultsOfAnswers[AnswerHandle]):
    """The methods of a Cluster."""

    @property
    @abstractmethod
    def faults(self) -> Faults: ...

    def _handle(self, fault: AnswerFault) -> AnswerHandle:
        return AnswerHandle(self.faults, fault)


def _made(kind: Callable[..., F], narrowing: Narrowing, **fields: Any) -> F:
    """The fault. `on_call` may be one number or a list."""
    calls = narrowing.get("on_call", ())
    on_call = (calls,) if isinstance(calls, int) else tuple(calls)
    return kind(**{**narrowing, **fields, "on_call": on_call})
