"""The texts of controller records."""

from collections.abc import Mapping
from typing import Any

from klamm.diagnosis.cluster_view import joined


def record_text(record: Mapping[str, Any]) -> str:
    """The text of a record, without time, controller and event."""
    match record["kind"]:
        case "event":
            times = f"{record['processing_time_ms']} ms, after {record['queue_time_ms']} ms in the queue"
            return f"{record['outcome']} in {times}"
        case "controller":
            return str(record["text"])
        case "request":
            led = f", to lead {record['led']}" if "led" in record else ""
            deletes = " to delete them" if record.get("delete") else ""
            return f"{record['api']} to broker {joined(record['brokers'])}, {record['size']} partitions{led}{deletes}"
    whose = f"{record['topic']}-{record['partition']}"
    if record["kind"] == "replica":
        whose = f"replica {record['replica']} of {whose}"
    failed = "FAILED " if record["failed"] else ""
    text = f"{failed}{whose} {record['from']} -> {record['to']}"
    if record["leader"] is not None:
        text += f", leader {record['leader']} epoch {record['leader_epoch']} isr {joined(record['isr'])}"
    return f"{text}: {record['why']}" if record["why"] else text
