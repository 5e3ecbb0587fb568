"""`klamm status`: one screen that says whether the cluster is healthy and, if not, why and what to do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from klamm.base.words import counted, size_text
from klamm.cli.cluster import broker_report
from klamm.cli.cluster.live import watch as watch_live
from klamm.cli.shared.clients import ClientInThread
from klamm.cli.shared.options import TimedOptions
from klamm.diagnosis.cluster_facts import KLAMM, ClusterFacts, read_facts
from klamm.diagnosis.findings import Finding, Severity, gravest
from klamm.diagnosis.health import diagnose, is_healthy
from klamm.processes.tool_errors import ToolError

# The controller's status only adds to the screen, and ZooKeeper may be unreachable from here: it gets little time.
CONTROLLER_TIMEOUT_S: Final = 2.0
# With more brokers than this, the screen shows only those with a fault.
MOST_BROKERS: Final = 12


def status(
    cluster: TimedOptions,
    watch: Annotated[bool, typer.Option(help="Refresh the screen until Ctrl-C.")] = False,
) -> None:
    """Show whether the cluster is healthy and, if not, why and what to do. Exits with 1 when it is not healthy, and
    with 3 when this is not known."""
    with cluster.client() as client:
        if watch:
            _watch(client, as_json=cluster.as_json)
        facts, controller = _facts(client)
    findings = diagnose(facts, controller)
    cluster.show(status_value(facts, findings, controller), status_lines(facts, findings, controller))
    if exit_code := gravest(findings).value:
        raise typer.Exit(exit_code)


def _watch(client: ClientInThread, *, as_json: bool) -> None:
    """Shows the screen until Ctrl-C."""
    screen: list[str] = []

    def look() -> dict[str, Any]:
        nonlocal screen
        facts, controller = _facts(client)
        findings = diagnose(facts, controller)
        screen = list(status_lines(facts, findings, controller))
        return status_value(facts, findings, controller)

    watch_live(look, lambda value: screen, as_json=as_json)


def _facts(client: ClientInThread) -> tuple[ClusterFacts, Mapping[str, Any] | None]:
    facts = client.call(read_facts)
    return facts, _controller(client, facts)


def _controller(client: ClientInThread, facts: ClusterFacts) -> Mapping[str, Any] | None:
    """The status of a klamm controller; None when it cannot be read."""
    broker = facts.brokers.get(facts.view.controller_id)
    if broker is None or broker.software != KLAMM or broker.error is not None:
        return None
    from klamm.access.controller import find_controller, read_status, zookeeper_of_brokers

    try:
        address = find_controller(client.call(zookeeper_of_brokers), CONTROLLER_TIMEOUT_S)
        return None if address is None or address.port is None else read_status(address, CONTROLLER_TIMEOUT_S)
    except ToolError:
        return None


# -- output -------------------------------------------------------------------------------------------------------


def status_lines(
    facts: ClusterFacts, findings: Sequence[Finding], controller: Mapping[str, Any] | None
) -> Iterator[str]:
    """The screen."""
    problems, unknown, notices = _by_severity(findings)
    verdict = "healthy"
    if problems:
        verdict = f"NOT HEALTHY: {counted(len(problems), 'problem')}"
    elif unknown:
        verdict = "NOT KNOWN TO BE HEALTHY: no problem was found, and not all could be read"
    yield f"Cluster {facts.cluster_id or 'without an id'}: {verdict}"
    partitions = facts.view.partitions.values()
    size = size_text(sum(broker.size_bytes for broker in facts.brokers.values()))
    yield (
        f"{len(facts.view.of_topics())} topics, {len(partitions)} partitions,"
        f" {sum(len(each.replicas) for each in partitions)} replicas, {size}"
    )
    if controller is not None and controller.get("active"):
        doing = f"{controller['event']} for {controller['event_for_ms']} ms" if controller["event"] else "nothing"
        queue = f"{controller['event_queue_size']} events in its queue"
        yield f"Controller {facts.controller_id}: {controller['state']}, doing {doing}, {queue}"
    yield ""
    yield from broker_report.table_lines(facts, MOST_BROKERS)
    for title, listed in (("Problems", problems), ("Not known", unknown), ("Notices", notices)):
        if listed:
            yield ""
            yield f"{title}:"
        for finding in listed:
            yield from finding.lines()


def _by_severity(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Lists of problems, of unknowns and of notices."""
    return [[each for each in findings if each.severity is severity] for severity in Severity]


def status_value(
    facts: ClusterFacts, findings: Sequence[Finding], controller: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The screen's content for --json; `healthy` is null when it is not known."""
    problems, unknown, notices = _by_severity(findings)
    return {
        "cluster_id": facts.cluster_id,
        "healthy": is_healthy(findings),
        "controller_id": facts.controller_id,
        "controller": None if controller is None else dict(controller),
        "topics": len(facts.view.of_topics()),
        "partitions": len(facts.view.partitions),
        "problems": [finding.value() for finding in problems],
        "unknown": [finding.value() for finding in unknown],
        "notices": [finding.value() for finding in notices],
        "brokers": broker_report.values(facts),
    }
