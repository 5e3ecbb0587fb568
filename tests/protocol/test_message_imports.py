"""Messages need no other package, and an API's are imported when they are first needed."""

import subprocess
import sys

import pytest


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "from klamm.protocol.messages import load_all; load_all()",
        "import klamm.broker.start.broker, klamm.broker.handlers",
        "import klamm.simulation.cluster.cluster",
    ],
)
def test_neither_messages_nor_a_broker_need_kafka_python(program: str) -> None:
    run(f"{program}; import sys; assert 'kafka' not in sys.modules")


def test_the_messages_of_other_apis_are_not_imported() -> None:
    run(
        "from klamm.protocol.messages import ApiKey, request_class; request_class(ApiKey.METADATA)\n"
        "import sys\n"
        "found = sorted(name for name in sys.modules if name.startswith('klamm.protocol.apis.'))\n"
        "assert found == ['klamm.protocol.apis.metadata'], found"
    )
