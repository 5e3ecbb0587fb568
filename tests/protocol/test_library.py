"""Messages without kafka-python's clients, which a program that wants them finds all the same."""

import subprocess
import sys

import pytest

MESSAGES = "from klamm.protocol.messages import load_all; load_all()"
CLIENTS = "from kafka import KafkaConsumer, KafkaAdminClient; import kafka; assert kafka.__version__"


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_messages_bring_no_client() -> None:
    run(f"{MESSAGES}; import sys; assert not {{'kafka.consumer', 'kafka.admin', 'kafka.producer'}} & set(sys.modules)")


@pytest.mark.parametrize("program", [f"{MESSAGES}; {CLIENTS}", f"{CLIENTS}; {MESSAGES}"])
def test_who_uses_kafka_python_finds_it(program: str) -> None:
    run(
        f"{program}; import kafka.protocol.metadata, kafka.consumer, klamm.protocol.messages as m;"
        " assert kafka.protocol.metadata.MetadataRequest is m.request_class(m.ApiKey.METADATA);"
        " assert kafka.consumer.KafkaConsumer is KafkaConsumer"
    )


def test_what_the_package_does_not_have() -> None:
    run(
        f"{MESSAGES}; import kafka\n"
        "assert kafka.__version__ and not hasattr(kafka, 'nothing')\n"
        "try: from kafka import Nothing\n"
        "except ImportError: pass\n"
        "else: raise SystemExit(1)\n"
        "assert kafka.KafkaProducer and kafka.TopicPartition"
    )
