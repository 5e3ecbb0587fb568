"""What the walk-throughs of docs/walkthroughs.md share: the command line, and tables of leaders and ISRs."""

from collections.abc import Callable, Iterable

import pytest

from klamm.cli import main
from klamm.testing import Cluster

Run = Callable[..., str]


@pytest.fixture
def klamm(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `klamm ...` and returns its stdout; `code` is the exit code that it must have."""

    def run(*arguments: object, code: int = 0) -> str:
        found = main.run([str(argument) for argument in arguments])
        output, errors = capsys.readouterr()
        assert found == code, f"klamm {' '.join(map(str, arguments))}: {output}{errors}"
        return output

    return run


@pytest.fixture
def table() -> Callable[[Cluster, str, int], str]:
    """`partition: leader / ISR`, a line for each partition."""

    def lines(cluster: Cluster, topic: str, count: int) -> str:
        return "\n".join(
            f"{number}: {_id(cluster.leader(topic, number))} / {_ids(cluster.isr(topic, number))}"
            for number in range(count)
        )

    return lines


def _id(broker_id: int | None) -> str:
    return "-" if broker_id is None else str(broker_id)


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(broker_ids)))
