"""Files of results that commands write."""

from pathlib import Path

import typer


def check_result_file(option: str, path: Path | None) -> None:
    """Raises typer.BadParameter, before the work begins, if the result file cannot be written afterwards."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise typer.BadParameter(f"{path} is not a file in a directory that exists", param_hint=option)
