"""Files of brokers that commands read."""

from typing import Final

from klamm.base.environment import File
from klamm.base.system_environment import SystemFileSystem


class _ReadOnlyFileSystem(SystemFileSystem):
    """Opens files only for reading. Raises OSError for anything but a file: a pipe would wait for a writer."""

    def open(self, path: str, *, create: bool = False) -> File:
        return self.open_to_read(path)


READ_ONLY: Final = _ReadOnlyFileSystem()
