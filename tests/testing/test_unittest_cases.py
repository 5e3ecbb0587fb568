"""The test case for unittest, as a user's test run sees it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from klamm.recording.reader import Recording

CASES = """
import unittest
from klamm.testing import Cluster
from klamm.faults.commands.answers import FailAnswers
from klamm.testing.unittest import ClusterTestCase, with_faults


class TwoFaults(ClusterTestCase):
    cluster_options = {"brokers": 1, "keep_on_failure": True}

    @with_faults("answers.fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
    @with_faults(FailAnswers(api="Fetch", error="NOT_LEADER_OR_FOLLOWER"))
    def test_first(self):
        assert [handle.fault.api for handle in self.cluster.faults.active] == ["Produce", "Fetch"]
        self.cluster.kill(0)

    def test_second(self):
        assert self.cluster.faults.active == []
        assert self.cluster.broker(0).running

    def test_that_fails_in_a_part(self):
        with self.subTest(part=1):
            self.fail("in a part")


class Coroutines(ClusterTestCase, unittest.IsolatedAsyncioTestCase):
    cluster_options = {"brokers": 1}

    async def test_topics(self):
        await self.async_cluster.create_topic("t")
        assert await self.async_cluster.topics() == ["t"]

    async def test_that_fails(self):
        self.fail("on purpose")

    async def test_that_is_skipped(self):
        self.skipTest("on purpose")


class Plain(unittest.TestCase):
    def test_with_a_block(self):
        with Cluster(1) as cluster:
            cluster.create_topic("block")
            self.fail("in a block")

    def test_that_skips(self):
        with Cluster(1):
            self.skipTest("on purpose")


unittest.main()
"""


def test_cases_share_a_cluster_which_is_whole_when_each_test_begins(tmp_path: Path) -> None:
    file = tmp_path / "cases.py"
    file.write_text(CASES, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path.cwd(),
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert "Ran 8 tests" in done.stderr
    assert "FAILED (failures=3, skipped=2)" in done.stderr
    # The state of the cluster stands in the failure's notes.
    assert "on purpose\nklamm cluster 127.0.0.1:" in done.stderr
    assert "broker-0 runs" in done.stderr
    assert "in a part\nklamm cluster 127.0.0.1:" in done.stderr
    [kept] = re.findall(r"^data and logs: (.*)$", done.stderr, re.MULTILINE)
    assert (Path(kept) / "broker-0").is_dir()
    shutil.rmtree(kept)
    # Each failure has left a recording, and says how to open it.
    paths = [Path(each) for each in re.findall(r"^klamm cockpit (.*)$", done.stderr, re.MULTILINE)]
    assert sorted(paths) == sorted(tmp_path.glob("klamm-recordings-*/*"))
    assert sorted(each.name for each in paths) == [
        "__main__.Coroutines.test_that_fails.klamm",
        "__main__.TwoFaults.test_that_fails_in_a_part.klamm",
        "cluster.klamm",
    ]
    [block] = [each for each in paths if each.name == "cluster.klamm"]
    with Recording(block) as recording:
        last = recording.moment(recording.count - 1)
        assert last.partitions["block", 0].leader == 0
