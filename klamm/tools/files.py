"""Files of brokers that commands read, and files of results that commands write."""

from pathlib import Path
from typing import Final

import typer

from klamm.environment import File, SystemFileSystem


class _ReadOnlyFileSystem(SystemFileSystem):
    """Opens files only to read them. OSError for what is no file: a pipe in place of one would wait for a writer."""

    def open(self, path: str, *, create: bool = False) -> File:
        return self.open_to_read(path)


READ_ONLY: Final = _ReadOnlyFileSystem()


def check_result_file(option: str, path: Path | None) -> None:
    """For a file that is written when all work is done: raises typer.BadParameter if it cannot be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise typer.BadParameter(f"{path} is not a file in a directory that exists", param_hint=option)
