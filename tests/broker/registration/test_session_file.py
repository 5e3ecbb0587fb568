"""The file that names a broker's last ZooKeeper sessions."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.system_environment import SystemEnvironment, SystemFileSystem
from klamm.broker.registration.session_file import FILE_NAME, NotedSessions, read_sessions, write_sessions
from klamm.broker.start.broker import Broker, BrokerStartError
from klamm.znodes import store
from klamm.zookeeper.server.access_control import Caller
from support.one_broker import OneBroker

BOOT = "6e5f1c1e-50a3-4fb4-a9a5-6b2ae2d6a2b5"


def test_ids_come_back(tmp_path: Path) -> None:
    file_system = SystemFileSystem()
    assert read_sessions(file_system, str(tmp_path), BOOT) == NotedSessions([], False)
    for ids in ([], [1], [2**63 - 1, -5]):
        write_sessions(file_system, str(tmp_path), BOOT, ids)
        assert read_sessions(file_system, str(tmp_path), BOOT) == NotedSessions(ids, True)


def test_what_the_file_looks_like(tmp_path: Path) -> None:
    write_sessions(SystemFileSystem(), str(tmp_path), BOOT, [1, -1])
    assert (tmp_path / FILE_NAME).read_text() == (
        f"version: 1\nboot_id: {BOOT}\nsession_ids: 0x0000000000000001 0xffffffffffffffff\n"
    )


@pytest.mark.parametrize("boot_id", ["6e5f1c1e-50a3-4fb4-a9a5-6b2ae2d6a2b6", "6e5f1c1e", "", None])
def test_sessions_from_before_the_machines_last_start_are_told_apart(tmp_path: Path, boot_id: str | None) -> None:
    write_sessions(SystemFileSystem(), str(tmp_path), BOOT, [1])
    assert read_sessions(SystemFileSystem(), str(tmp_path), boot_id) == NotedSessions([1], False)


def test_without_a_boot_id_no_session_is_of_this_boot(tmp_path: Path) -> None:
    write_sessions(SystemFileSystem(), str(tmp_path), None, [1])
    for boot_id in (None, BOOT, "unknown "):
        assert read_sessions(SystemFileSystem(), str(tmp_path), boot_id) == NotedSessions([1], False)


def test_a_file_that_does_not_say_since_when_the_machine_runs_is_of_another_boot(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("version: 0\nsession_ids: 0x0000000000000001\n")
    assert read_sessions(SystemFileSystem(), str(tmp_path), BOOT) == NotedSessions([1], False)


@given(st.binary(max_size=100))
def test_garbage_is_passed_over(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("log")
    (directory / FILE_NAME).write_bytes(content)
    assert read_sessions(SystemFileSystem(), str(directory), BOOT) == NotedSessions([], False)


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    write_sessions(SystemFileSystem(), str(tmp_path / "absent"), BOOT, [1])


def test_a_machine_has_one_boot_id_until_it_starts_again() -> None:
    environment = SystemEnvironment()
    assert environment.boot_id() == SystemEnvironment().boot_id()
    assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", environment.boot_id() or "")
    environment.close()


class OtherBoot(SystemEnvironment):
    """That of a machine which has been started again."""

    def boot_id(self) -> str | None:
        return BOOT


async def test_after_a_power_failure_a_start_waits_for_the_end_of_the_former_session(tmp_path: Path) -> None:
    """The server runs on, so that it is only the broker's machine that has lost power."""
    async with OneBroker(tmp_path, zookeeper_session_timeout_ms=4_000) as cluster:
        former = owners(cluster)
        await cluster.kill_broker()
        successor = Broker(cluster.config(), OtherBoot())
        await successor.start()
        await successor.wait_until_known()  # by the controller, which it is itself
        assert not set(owners(cluster)) & set(former)
        assert successor.parts.controller.is_active
        await successor.stop()


async def test_a_start_that_has_waited_in_vain_is_refused_and_the_next_one_waits_again(
    tmp_path: Path, monkeypatch
) -> None:
    """The former session may have been a longer one."""
    async with OneBroker(tmp_path, zookeeper_session_timeout_ms=40_000) as cluster:
        former = owners(cluster)
        await cluster.kill_broker()
        monkeypatch.setattr(store, "EXPIRIES_WAITED_FOR", 0.002)
        for _ in range(2):
            successor = Broker(cluster.config(), OtherBoot())
            with pytest.raises(BrokerStartError, match="broker id 0 is taken"):
                await successor.start()
            await successor.stop()
            directory = cluster.config().log_dirs[0]
            assert read_sessions(SystemFileSystem(), directory, BOOT) == NotedSessions([former[0]], False)
        assert owners(cluster) == former


def owners(cluster: OneBroker) -> list[int]:
    """The sessions that own the broker's registration and /controller."""
    nobody = Caller(0, ())
    paths = ("/brokers/ids/0", "/controller")
    return [cluster.zookeeper.tree.get_data(path, nobody)[1].ephemeral_owner for path in paths]


async def test_a_killed_brokers_successor_starts_at_once_and_a_strangers_does_not(tmp_path: Path) -> None:
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
        assert (cluster.broker.parts.controller.is_active, cluster.controller_epoch) == (True, epoch + 1)
        client = await cluster.connect()
        assert (await client.create_topic("t")).error_code == 0
