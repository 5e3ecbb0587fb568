"""One-time actions on a cluster: ending sessions, moving leaders, rebalancing groups, aborting transactions, damaging a
batch.

An action does not name the server that carries it out: the controller, a coordinator or the broker that it is about.
"""

from dataclasses import dataclass

from klamm.faults.commands.codec import Action, command
from klamm.processes.local_cluster import Server


@dataclass(frozen=True, kw_only=True)
class BrokerAction(Action):
    """An action that a broker carries out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("broker", "to", "partition", "offset"):
            value = getattr(self, name, None)
            if value is not None and value < 0:
                raise ValueError(f"{self.kind}: {name}={value} is not allowed; allowed: at least 0")

    def concerns(self, server: Server) -> bool:
        return server != "zookeeper"


@command("sessions.expire")
@dataclass(frozen=True, kw_only=True)
class ExpireSession(BrokerAction):
    """Ends the ZooKeeper session of a broker, in ZooKeeper. The broker registers again in a new session.

    The result: `{"session_id": "0x..."}`.
    """

    broker: int

    def concerns(self, server: Server) -> bool:
        return server == self.broker

    def python(self, server: Server | None) -> str:
        return f"c.expire_session({self.broker})"


@command("elections.elect")
@dataclass(frozen=True, kw_only=True)
class Elect(BrokerAction):
    """The controller makes a replica the leader of a partition: `to`, or without it the preferred leader.

    The replica must be in sync. With `unclean` it may lack records, which are then lost, and it alone is the ISR; the
    other replicas truncate their logs. The result: `{"leader": 2, "leader_epoch": 3, "isr": [2]}`.
    """

    topic: str
    partition: int = 0
    to: int | None = None
    unclean: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unclean and self.to is None:
            raise ValueError(f"{self.kind}: an unclean election needs the field to: the id of a broker")

    def python(self, server: Server | None) -> str:
        method = "unclean_election" if self.unclean else "elect"
        to = "" if self.to is None else f", to={self.to}"
        return f"c.{method}({self.topic!r}, {self.partition}{to})"


@command("controller.move")
@dataclass(frozen=True, kw_only=True)
class MoveController(BrokerAction):
    """The controller resigns, and another broker is elected if another one lives. The result: `{"controller": 2}`."""

    def python(self, server: Server | None) -> str:
        return "c.move_controller()"


@command("groups.rebalance")
@dataclass(frozen=True, kw_only=True)
class ForceRebalance(BrokerAction):
    """The coordinator of a group begins a rebalance: all members must join again. The result: `{"generation": 3}`, the
    generation that ends."""

    group: str

    def python(self, server: Server | None) -> str:
        return f"c.force_rebalance({self.group!r})"


@command("transactions.expire")
@dataclass(frozen=True, kw_only=True)
class ExpireTransaction(BrokerAction):
    """The coordinator of an open transaction does what it does after the transaction's timeout: it aborts the
    transaction and fences its producer. The result: `{"producer_id": 1000, "producer_epoch": 1}`, the new epoch."""

    transactional_id: str

    def python(self, server: Server | None) -> str:
        return f"c.expire_transaction({self.transactional_id!r})"


@command("logs.corrupt")
@dataclass(frozen=True, kw_only=True)
class CorruptBatch(BrokerAction):
    """Flips the bits of one byte, the last one, of the batch with an offset, in the log of one replica (`broker`, or
    without it the leader). The batch's CRC is then wrong; a batch that is damaged already stays as it is.

    The result: `{"broker": 0, "path": ..., "position": ..., "base_offset": ..., "last_offset": ...}`.
    """

    topic: str
    partition: int = 0
    offset: int
    broker: int | None = None

    def concerns(self, server: Server) -> bool:
        return server != "zookeeper" and self.broker in (None, server)

    def python(self, server: Server | None) -> str:
        broker = "" if self.broker is None else f", broker={self.broker}"
        return f"c.corrupt({self.topic!r}, {self.partition}, offset={self.offset}{broker})"
