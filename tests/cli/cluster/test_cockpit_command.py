"""klamm cockpit: the command, against a real cluster."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from klamm.cli.cluster.cockpit import kept_token
from klamm.processes.helper import Helper
from klamm.processes.tool_errors import ToolError
from klamm.testing import Cluster

KLAMM = [sys.executable, "-m", "klamm.cli.main"]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=2, helper=klamm_helper) as running:
        running.create_topic("t", partitions=2, replication_factor=2)
        yield running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_printed_address_shows_the_cluster_until_a_signal(cluster: Cluster, number: signal.Signals) -> None:
    command = [*KLAMM, "cockpit", "--bootstrap-server", cluster.bootstrap, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        base, _, _ = url.partition("/?")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert b"klamm cockpit" in browser.open(url, timeout=120).read()
        now = json.load(browser.open(f"{base}/api/now", timeout=120))
        assert [broker["id"] for broker in now["brokers"]] == [0, 1]
        with browser.open(f"{base}/events", timeout=120) as stream:
            while not stream.readline().startswith(b"data: "):
                pass
            process.send_signal(number)
            assert stream.read().endswith(b"event: ended\ndata: {}\n\n")
        assert process.wait(120) == 0


def test_a_port_in_use_is_said_clearly(cluster: Cluster) -> None:
    port = cluster.bootstrap.split(",", maxsplit=1)[0].rpartition(":")[2]
    command = [*KLAMM, "cockpit", "--bootstrap-server", cluster.bootstrap, "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"klamm: --port {port}: 127.0.0.1:{port}: address already in use; another program uses it\n"


def test_a_token_file_is_made_once_for_its_owner_only_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = kept_token(file)
    assert kept_token(file) == token
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("a-token-of-the-user's own")
    with pytest.raises(ToolError, match="has no token: 16 to 200 letters, digits, '_' and '-' on one line"):
        kept_token(file)
    with pytest.raises(ToolError, match=r"--token-file: .*no such file or directory"):
        kept_token(tmp_path / "none" / "token")


def test_other_commands_do_not_import_the_web_server() -> None:
    code = "import sys, klamm.cli.main; assert not {'h11', 'asyncio', 'msgspec'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_klamm_up_serves_the_page_with_its_cluster_and_stops_it(tmp_path: Path) -> None:
    command = [*KLAMM, "up", "--brokers", "1", "--port", "0", "--dir", str(tmp_path / "data")]
    command += ["--cockpit", "--control-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        url = next(event for event in events if event["event"] == "cockpit_ready")["url"]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert b"klamm cockpit" in browser.open(url, timeout=120).read()
        process.send_signal(signal.SIGINT)
        assert [event["event"] for event in events if event["event"] in ("died", "stopped")] == ["stopped"]
        assert process.wait(120) == 0
