"""`klamm status` and `klamm brokers` on Apache Kafka: 2.8.2 with ZooKeeper, 4.3 in KRaft mode."""

import contextlib
import io
import json
import re
from typing import Any

import pytest

from klamm.cli import main
from support.oracles import RealKafka, RealKraft


def run(bootstrap: str, *arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main.run([*arguments, "--bootstrap-server", bootstrap])
    return code, out.getvalue()


def look(bootstrap: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(bootstrap, "status", "--json")[1])
    return found


def test_a_broker_of_kafka_2_8_2(real_kafka: RealKafka) -> None:
    status = look(real_kafka.bootstrap)
    [broker] = status["brokers"]
    assert (broker["software"], broker["controller"], broker["error"]) == ("Apache Kafka", True, None)
    assert broker["inter_broker_protocol_version"] == "2.8-IV1"
    assert [each["path"] for each in broker["log_dirs"]] == [str(real_kafka.data_directory)]
    # Other tests share this broker: their topics may have faults, the broker has none.
    assert not {each["kind"] for each in status["problems"]} & {"no_controller", "silent_brokers", "offline_log_dirs"}
    assert re.search(r"^0\* +127\.0\.0\.1:\d+ .* Apache Kafka$", run(real_kafka.bootstrap, "brokers", "list")[1], re.M)


@pytest.mark.long
def test_brokers_of_kafka_4_in_kraft_mode_with_the_size_of_their_disks(real_kraft: RealKraft) -> None:
    status = look(real_kraft.bootstrap)
    assert [each["software"] for each in status["brokers"]] == ["Apache Kafka"] * 3
    # Brokers name any of them as the controller.
    assert status["controller_id"] is None and not any(each["controller"] for each in status["brokers"])
    assert all(each["log_dirs"][0]["total_bytes"] > each["log_dirs"][0]["usable_bytes"] for each in status["brokers"])
    assert not {each["kind"] for each in status["problems"]} & {"no_controller", "silent_brokers", "offline_log_dirs"}
    assert "Disk: " in run(real_kraft.bootstrap, "brokers", "describe", "--broker", "2")[1]
