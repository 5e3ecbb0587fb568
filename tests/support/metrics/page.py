"""Writes the table of metrics into docs/metrics.md: `python -m support.metrics.page FILE`.

Kafka's part comes from the record of a scrape, klamm's part from what a broker registers.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from support.metrics import Shape, recorded, registered
from support.one_broker import OneBroker

BEGIN, END = "<!-- begin: metrics -->\n", "<!-- end: metrics -->\n"

# Why klamm lacks some of Kafka's metrics, by a pattern of their names. The first that matches holds.
REASONS = {
    "kafka_server_(fetcherstats_.*|replica.*_minfetchrate .*)": (
        "Counted for each fetch of a follower; `fetcherlagmetrics_consumerlag` shows followers that are behind. With"
        " the exporter's rules the name of the fetcher becomes a part of a label's name."
    ),
    "kafka_network_(acceptor|processor)_.*|.*networkprocessoravgidlepercent .*"
    "|kafka_server_kafkarequesthandlerpool_.*": (
        "How idle Kafka's other threads are. klamm has one loop: `networkprocessoravgidlepercent` is the share of the"
        " last 30 seconds in which it has used no processor, also while it waited for a disk."
    ),
    "kafka_network_socketserver_controlplaneexpiredconnectionskilledcount .*": (
        "`expiredconnectionskilledcount` counts the connections of all listeners."
    ),
    "kafka_server_socket_server_metrics_.*(authentication|reauthentication).*": (
        "Clients of klamm do not authenticate themselves."
    ),
    "kafka_server_socket_server_metrics_.*(io_ratio|io_time|io_wait|iotime|select).*": (
        "How Kafka's network threads divide their time. klamm has one loop: `klamm_eventloop_lagms` shows how late it"
        " runs."
    ),
    "kafka_server_socket_server_metrics_.*_rate .*": "Prometheus computes it from the `_total` of the same name.",
    "kafka_server_socket_server_metrics_request_size_.*": (
        "`kafka_network_requestmetrics_requestbytes` shows sizes by API."
    ),
    "kafka_server_socket_server_metrics_.*throttle_time .*": (
        "klamm does not measure how long new connections wait for a quota."
    ),
    "kafka_server_quota_.*": (
        "klamm has them, with the user in a label. The exporter's rule for client ids matches first and leaves the user"
        " in `resource`."
    ),
    "kafka_server_kafkaserver_linux_disk_.*": "Read from the operating system, whose own exporter shows them.",
    "kafka_server_kafkaserver_yammer_metrics_count .*": "The number of Kafka's metrics.",
    "kafka_server_sessionexpirelistener_.*": "klamm's ZooKeeper client has no such state.",
    "kafka_server_zookeeperclientmetrics_.*": (
        "Measured for each request to ZooKeeper, of which a controller sends thousands after a failover."
    ),
    "kafka_utils_throttler_.*": "The cleaner's throttle is in a process of its own.",
}
# Why klamm shows metrics with Kafka's words that Kafka 2.8.2 does not have.
OWN = {
    "kafka_server_brokertopicmetrics_.*": "Kafka shows these of a topic once there is something to count.",
    "kafka_log_logmanager_remaininglogstorecover .*": "A metric of Kafka 3.3 (KIP-831).",
    "kafka_server_replicamanager_partitionswithlatetransactionscount .*": "A metric of Kafka 3.0 (KIP-664).",
    ".*replication_byte_rate .*|.*_exempt_request_time .*|.*_broker_connection_accept_rate .*": (
        "Kafka has the MBean, but the exporter's rules leave it out."
    ),
    ".*replication_throttled_rate .*": "The bound of a replication throttle.",
    "kafka_server_quota_.*": "With the user in a label.",
    "kafka_server_socket_server_metrics_connection_accept_rate .*": ("Of an address with a quota, as in Kafka."),
    "kafka_server_replicaalterlogdirsmanager_partitionscount .*": "How many replicas move to another log directory.",
}


async def klamm_shapes(directory: Path) -> set[Shape]:
    """The metrics that a broker registers; it runs in `directory`."""
    async with OneBroker(directory, klamm_metrics_port=0) as cluster:
        endpoint = cluster.broker.parts.metrics_endpoint
        assert endpoint is not None
        return registered(endpoint.metrics)


def table(klamm: set[Shape]) -> str:
    """The generated part of the page."""
    kafka = recorded()
    both, missing, own = kafka & klamm, kafka - klamm, klamm - kafka
    return (
        f"Kafka 2.8.2 shows {len(kafka)} metrics, counted by name and labels. klamm has {len(both)} of them.\n\n"
        f"## Metrics of Kafka that klamm has\n\n| name | type | labels |\n|---|---|---|\n{_rows(both)}\n"
        f"## Metrics of Kafka that klamm lacks\n\n| why | names |\n|---|---|\n{_reasons(missing, REASONS)}\n"
        f"## Metrics that Kafka 2.8.2 lacks\n\n| what | names |\n|---|---|\n{_reasons(own, OWN)}"
    )


def _rows(shapes: Iterable[Shape]) -> str:
    return "".join(f"| `{shape.name}` | {shape.type} | {', '.join(shape.labels)} |\n" for shape in sorted(shapes))


def _reasons(shapes: Iterable[Shape], reasons: dict[str, str]) -> str:
    names: dict[str, list[str]] = {reason: [] for reason in reasons.values()}
    for shape in sorted(shapes):
        name = f"{shape.name}{{{', '.join(shape.labels)}}}" if shape.labels else shape.name
        names[_reason(shape, reasons)].append(f"`{name}`")
    if unused := [reason for reason, found in names.items() if not found]:
        raise ValueError(f"no metric has this reason: {unused}")
    return "".join(f"| {reason} | {', '.join(found)} |\n" for reason, found in names.items())


def _reason(shape: Shape, reasons: dict[str, str]) -> str:
    for pattern, reason in reasons.items():
        if re.fullmatch(pattern, str(shape)):
            return reason
    raise ValueError(f"no reason for {shape}")


def written(page: str, klamm: set[Shape]) -> str:
    """The page with its generated part brought up to date."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(klamm)}{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        shapes = asyncio.run(klamm_shapes(Path(temporary)))
    path.write_text(written(path.read_text(encoding="utf-8"), shapes), encoding="utf-8")
