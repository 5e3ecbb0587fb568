"""What the controller does, step by step, compared with transcripts that were reviewed (`transcripts/*.txt`).

`pytest tests/controller/test_transcripts.py --rewrite-transcripts` writes down what happens now; review the difference.
"""

from pathlib import Path

import pytest

from support.controller.scene import playing
from support.controller.transcript import perform

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
async def test_transcript(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    found = []
    async with playing(tmp_path) as scene:
        found.append(await perform(scene, expected))
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(found[0])
    else:
        assert found[0].splitlines() == expected.splitlines()


def test_there_is_one_for_every_flow() -> None:
    assert [path.stem for path in TRANSCRIPTS] == [
        "alter_isr",
        "bounce",
        "broker_loss",
        "controlled_shutdown",
        "deletion",
        "deletion_with_a_dead_broker",
        "failover",
        "log_dir_failure",
        "partition_addition",
        "preferred_election",
        "reassignment",
        "reassignment_cancelled",
        "topic_creation",
        "unclean_election",
    ]
