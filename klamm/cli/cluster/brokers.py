"""`klamm brokers`: the brokers of a cluster, live ones and those that assignments still name."""

from collections.abc import Iterable
from typing import Annotated

import typer

from klamm.cli.cluster import broker_report
from klamm.cli.reassign.decommissioning import decommission
from klamm.cli.shared.clients import exit_incomplete
from klamm.cli.shared.options import Commands, TimedOptions
from klamm.cli.shared.output import TABS
from klamm.diagnosis.cluster_facts import ClusterFacts, read_facts
from klamm.processes.tool_errors import ToolError

app = Commands("List, describe and empty brokers.")


@app.command("list", epilog="Example: klamm brokers list --bootstrap-server 127.0.0.1:9092")
def list_brokers(cluster: TimedOptions) -> None:
    """List brokers with their leaders, replicas, replicas that are behind, and sizes; a star marks the controller."""
    with cluster.client() as client:
        facts = client.call(read_facts)
    cluster.show(broker_report.values(facts), broker_report.table_lines(facts))
    exit_incomplete(_silent(facts, facts.brokers))


@app.command(epilog="Example: klamm brokers describe --broker 1 --broker 2")
def describe(
    broker: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="The broker's id; may be repeated. Default: all.")
    ] = None,
    *,
    cluster: TimedOptions,
) -> None:
    """Describe brokers: software, log directories and disks, throttles, and each replica that is behind or moving."""
    with cluster.client() as client:
        facts = client.call(read_facts, chosen=broker or ())
    chosen = _known(facts, broker or [])
    lines = (line for broker_id in chosen for line in broker_report.description_lines(facts, broker_id))
    cluster.show(broker_report.values(facts, chosen), lines, keep=TABS)
    exit_incomplete(_silent(facts, chosen))


app.command(epilog="Example: klamm brokers decommission --broker 3 --throttle 50000000")(decommission)


def _silent(facts: ClusterFacts, chosen: Iterable[int]) -> dict[int, str]:
    """Which of the chosen brokers and the controller have not answered, and why."""
    found = {broker_id: facts.brokers[broker_id].error for broker_id in chosen if broker_id in facts.brokers}
    if facts.controller_error is not None:
        found.setdefault(facts.view.controller_id, f"it has listed no reassignments: {facts.controller_error}")
    return {broker_id: error for broker_id, error in found.items() if error is not None}


def _known(facts: ClusterFacts, wanted: list[int]) -> list[int]:
    known = sorted([*facts.brokers, *facts.missing])
    if unknown := [broker_id for broker_id in wanted if broker_id not in known]:
        raise ToolError(
            f"broker {', '.join(map(str, unknown))} is not in the cluster, and no assignment names it;"
            f" known are {', '.join(map(str, known))}"
        )
    return sorted(set(wanted)) or known
