"""A broker whose actions are judged: it runs the production code, with witnesses in the seams.

What must stay true: a witness only observes, and changes nothing. The first violation ends the run.
"""

from klamm.base.tasks import OnFailure
from klamm.broker.start.broker import Broker
from klamm.broker.start.parts import BrokerParts
from klamm.config.broker import BrokerConfig
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import Node
from klamm.simulation.witnesses.deletion_witness import watch_deletions
from klamm.simulation.witnesses.event_witness import EventWitness
from klamm.simulation.witnesses.group_rules import watch_group_commits
from klamm.simulation.witnesses.rules import Rules


class WitnessedBroker(Broker):
    """See the module. `on_violation` gets the violations that witnesses report."""

    def __init__(self, config: BrokerConfig, node: Node, rules: Rules, on_violation: OnFailure) -> None:
        super().__init__(config, node.environment)
        self._node = node
        self._rules = rules
        self._on_violation = on_violation
        self.events: EventWitness

    def assemble(self) -> BrokerParts:
        parts = super().assemble()
        services = parts.services
        watch_deletions(services, self._on_violation)
        watch_group_commits(services.group_coordinator, parts.groups, self._on_violation)
        self._rules.watch(parts.replica_manager, services.broker_id, self._node.disk)
        self.events = EventWitness(parts.controller.event_manager, services.broker_id, self._on_violation)
        # A production broker survives an illegal transition. A simulation must report it.
        parts.controller.on_illegal_transition = lambda message: self._on_violation(SimulationFailure(message))
        parts.dispatcher.on_unencodable = lambda _connection, error: self._on_violation(error)
        return parts
