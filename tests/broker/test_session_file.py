"""The file that names a broker's last ZooKeeper sessions."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_broker import OneBroker

from klamm.broker.broker import Broker, BrokerStartError
from klamm.broker.session_file import FILE_NAME, read_session_ids, write_session_ids
from klamm.environment import SystemEnvironment, SystemFileSystem


def test_ids_come_back(tmp_path: Path) -> None:
    file_system = SystemFileSystem()
    assert read_session_ids(file_system, str(tmp_path)) == []
    for ids in ([], [1], [2**63 - 1, -5]):
        write_session_ids(file_system, str(tmp_path), ids)
        assert read_session_ids(file_system, str(tmp_path)) == ids


@given(st.binary(max_size=100))
def test_garbage_is_passed_over(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("log")
    (directory / FILE_NAME).write_bytes(content)
    assert read_session_ids(SystemFileSystem(), str(directory)) == []


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    write_session_ids(SystemFileSystem(), str(tmp_path / "absent"), [1])


def test_a_killed_brokers_successor_starts_at_once_and_a_strangers_does_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        # A session that would live for a minute.
        async with OneBroker(tmp_path, zookeeper_session_timeout_ms=40_000) as cluster:
            stranger = Broker(cluster.config(log_dirs=tmp_path / "other"), SystemEnvironment())
            with pytest.raises(BrokerStartError, match="broker id 0 is taken"):
                await stranger.start()
            await stranger.stop()
            epoch = cluster.controller_epoch
            # What a kill leaves behind: the session lives and owns the broker's znode and /controller.
            await cluster.kill_broker()
            await cluster.start_broker()
            assert (cluster.broker.is_controller, cluster.controller_epoch) == (True, epoch + 1)
            client = await cluster.connect()
            assert (await client.create_topic("t")).error_code == 0

    asyncio.run(scenario())
