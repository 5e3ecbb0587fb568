"""A log that nobody uses takes little memory: a broker has ten thousand of them."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties
from support.logs import append

pytestmark = pytest.mark.loop("asyncio")

LOGS = 200
# Measured: 2,430 bytes, and 2,620 after a recovery.
MOST_BYTES_PER_LOG = 3_000


def manager_of(environment: SystemEnvironment, path: Path) -> LogManager:
    return LogManager(
        environment,
        [str(path)],
        meta_properties=MetaProperties("cluster", 1),
        default_config=LogConfig(),
        on_directory_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
        on_failure=lambda error: pytest.fail(str(error)),
    )


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_loaded_log_takes_little_memory(tmp_path: Path, is_clean: bool) -> None:
    """Before, it took 4,100 bytes, and after a recovery its indexes as well."""
    environment = SystemEnvironment()
    manager = manager_of(environment, tmp_path)
    await manager.load({})
    for number in range(LOGS):
        log = manager.get_or_create("t", number, None, LogConfig())
        for _ in range(3):
            append(log, bytes(5_000))
    await manager.stop()
    if not is_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    manager = manager_of(environment, tmp_path)
    gc.collect()
    tracemalloc.start()
    try:
        await manager.load({})
        # A killed process's writes wait for their sync, and with them their paths.
        await manager._flush_recovered()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / LOGS < MOST_BYTES_PER_LOG
    finally:
        tracemalloc.stop()
    await manager.stop()
    environment.close()
