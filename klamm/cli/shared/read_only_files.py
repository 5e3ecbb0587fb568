"""Files of brokers that commands read."""

from typing import Final

from klamm.base.environment import File
from klamm.base.system_environment import SystemFileSystem


class _ReadOnlyFileSystem(SystemFileSystem):
    """Opens files only to read them. OSError for what is no file: a pipe in place of one would wait for a writer."""

    def open(self, path: str, *, create: bool = False) -> File:
        return self.open_to_read(path)


READ_ONLY: Final = _ReadOnlyFileSystem()
