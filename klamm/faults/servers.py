"""The servers of a cluster under faults, for `klamm.processes.supervisor`.

`BROKER` replaces `klamm.processes.supervisor.BROKER` as target; `under_faults` adds to the arguments.

What must stay true: the broker is the production broker. Faults are only added around it: in its environment, its loop,
its partitions and its dispatcher's table.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from klamm.base.environment import Environment
from klamm.base.system_environment import SystemEnvironment
from klamm.broker.start.broker import Broker
from klamm.broker.start.parts import BrokerParts, log_directories
from klamm.config.broker import BrokerConfig
from klamm.faults.agent import Agent
from klamm.faults.answers import Answers
from klamm.faults.broker_actions import BrokerActions
from klamm.faults.environment import EnvironmentUnderFaults
from klamm.faults.network.network import FaultyLoop, Network
from klamm.faults.wire import FaultError
from klamm.faults.witness import WitnessedPartition
from klamm.processes.helper import PRELOAD as SERVERS
from klamm.processes.servers import BrokerServer
from klamm.processes.tool_errors import ToolError

BROKER = "klamm.faults.servers:BrokerUnderFaults"
# The modules that a helper process imports before it forks servers under faults.
PRELOAD = (*SERVERS, "klamm.faults.servers")


def under_faults(arguments: Mapping[str, Any], directory: Path, broker_id: int) -> dict[str, Any]:
    """The arguments of a server under faults, from the server's arguments. `directory` is that of the Control."""
    return {**arguments, "faults": {"server": broker_id, "directory": str(directory)}}


class FaultyBroker(Broker):
    """A broker that performs actions. Its partitions report to the agent, and its dispatcher's answers can fail."""

    def __init__(
        self, config: BrokerConfig, environment: Environment, agent: Agent, answers: Answers, actions: BrokerActions
    ) -> None:
        super().__init__(config, environment)
        self._agent = agent
        self._answers = answers
        self._actions = actions

    def assemble(self) -> BrokerParts:
        parts = super().assemble()
        parts.replica_manager.new_partition = partial(WitnessedPartition, tell=self._agent.tell)
        self._answers.serve(parts.dispatcher)
        self._actions.assembled(self, parts)
        return parts


class BrokerUnderFaults(BrokerServer):
    """A broker whose disk, clock, network and answers obey the cluster's owner. `faults`: see `under_faults`."""

    def __init__(
        self, properties: Mapping[str, str], logs_dir: str | None = None, *, faults: Mapping[str, Any]
    ) -> None:
        self._faults_directory = faults["directory"]
        self._agent = Agent(faults["server"], faults["directory"])
        super().__init__(properties, logs_dir)
        network = Network(faults["server"], lambda: self._agent.addresses)
        self.new_event_loop = lambda: FaultyLoop(network)
        # Each kind of fault registers with the agent here.
        network.register(self._agent)
        self._answers.register(self._agent)
        self._actions.register(self._agent)
        self._machine.register(self._agent)

    def _make_environment(self) -> SystemEnvironment:
        self._machine = EnvironmentUnderFaults(self._faults_directory, log_directories(self._config))
        return self._machine

    def _make_broker(self) -> Broker:
        self._answers = Answers()
        self._actions = BrokerActions(self._config, self._environment)
        return FaultyBroker(self._config, self._environment, self._agent, self._answers, self._actions)

    async def start(self) -> dict[str, Any]:
        try:
            await self._agent.connect()
        except FaultError as error:
            raise ToolError(str(error)) from error
        return await super().start()

    async def stop(self) -> None:
        self._answers.close()
        await super().stop()
        await self._agent.close()
